"""Variables: what they are, how they are named and shared, and what they start as."""

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
