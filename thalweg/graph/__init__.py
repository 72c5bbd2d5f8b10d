"""The graph: element types, shapes, operations and the tensors between them."""

from thalweg.graph import build, scopes

__all__ = ["build", "scopes"]
