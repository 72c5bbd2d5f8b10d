"""Purity: which nodes a pass may replace, merge or compute early.

A pure node reads and writes nothing but its inputs and outputs. A node that takes a reference reads
the variable at a time that the order of the step determines: it is not pure. Lists and handles
refer to state, even where their ops look like functions.
"""

from __future__ import annotations

from thalweg.graph.dtypes import resource, variant
from thalweg.graph.node import Node
from thalweg.graph.op import Op
from thalweg.platform.caches import memoized

_OBJECTS = frozenset({resource, variant})


@memoized(2_048)
def is_function(op: type[Op]) -> bool:
    """Whether an op has no effects, and its outputs depend on its inputs alone."""
    return not (op.stateful or op.footprint or op.blocking)


def is_pure(node: Node) -> bool:
    """Whether a node has no effects, and its outputs do not depend on when it runs."""
    return is_function(type(node.op)) and not _has_objects(node)


def _has_objects(node: Node) -> bool:
    for tensor in (*node.inputs, *node.outputs):
        dtype = tensor.dtype
        if dtype.is_ref_dtype or dtype in _OBJECTS:
            return True
    return False


def is_free(node: Node) -> bool:
    """Whether a node is pure and has no control inputs."""
    return not node.controls and is_pure(node)
