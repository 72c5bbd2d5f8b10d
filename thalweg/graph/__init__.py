"""The graph: element types, shapes, operations and the tensors between them."""

from thalweg.graph import advice, build, collections, importer, scopes, serial, util, versions

__all__ = ["advice", "build", "collections", "importer", "scopes", "serial", "util", "versions"]
