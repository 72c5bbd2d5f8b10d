"""Variables, variable scopes, initializers, partitioners and regularizers."""

from thalweg.variables import (
    collections,
    initializers,
    partitioned,
    partitions,
    regularizers,
    scope,
    selection,
    store,
    template,
    variable,
)

__all__ = [
    "collections",
    "initializers",
    "partitioned",
    "partitions",
    "regularizers",
    "scope",
    "selection",
    "store",
    "template",
    "variable",
]
