"""The graph: element types, shapes, operations and the tensors between them."""

from thalweg.graph import advice, build, collections, scopes
from thalweg.graph.graphdef import importer, serial, util, versions

__all__ = ["advice", "build", "collections", "importer", "scopes", "serial", "util", "versions"]
