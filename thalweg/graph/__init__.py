"""The graph: element types, shapes, operations and the tensors between them."""

from thalweg.graph import build, importer, scopes, serial, util, versions

__all__ = ["build", "importer", "scopes", "serial", "util", "versions"]
