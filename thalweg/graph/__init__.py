"""The graph: element types, shapes, operations and the tensors between them."""

from thalweg.graph import build, collections, importer, scopes, serial, util, versions

__all__ = ["build", "collections", "importer", "scopes", "serial", "util", "versions"]
