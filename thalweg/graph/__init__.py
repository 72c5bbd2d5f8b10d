"""The graph: element types, shapes, operations and the tensors between them."""

from thalweg.graph import build, scopes, versions

__all__ = ["build", "scopes", "versions"]
