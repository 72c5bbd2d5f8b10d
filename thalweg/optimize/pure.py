"""Which nodes a pass may replace, merge or compute early: those that only give values.

A pure node reads and writes nothing but the values it takes and gives. A node that takes the value
of a variable reads it, at a time that the order of the step says: it is not pure. Lists and handles
name state though their ops may look like functions.
"""

from __future__ import annotations

from thalweg.graph.analysis.effects import NO_FOOTPRINT
from thalweg.graph.dtypes import resource, variant
from thalweg.graph.node import Node
from thalweg.graph.op import Op
from thalweg.platform.caches import memoized

_OBJECTS = frozenset({resource, variant})


@memoized(2_048)
def is_function(kind: type[Op]) -> bool:
    """Whether an op's outputs follow from its inputs alone, and nothing else happens."""
    return not kind.stateful and kind.footprint is NO_FOOTPRINT and kind.blocking is False


def is_pure(node: Node) -> bool:
    """Whether a node only gives values, whenever it runs."""
    return is_function(type(node.op)) and not _has_objects(node)


def _has_objects(node: Node) -> bool:
    for tensor in (*node.inputs, *node.outputs):
        dtype = tensor.dtype
        if dtype.is_ref_dtype or dtype in _OBJECTS:
            return True
    return False


def is_free(node: Node) -> bool:
    """Whether a node is pure and waits for nothing but its inputs."""
    return not node.controls and is_pure(node)
