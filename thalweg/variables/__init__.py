"""Variables, variable scopes, initializers, partitioners and regularizers."""

from thalweg.variables import collections, partitions, regularizers, selection, template

__all__ = ["collections", "partitions", "regularizers", "selection", "template"]
