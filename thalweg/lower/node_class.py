"""Classes of nodes: numbers that are equal where shapes and loop forms are, up to which tensors are
read.

An unrolled loop has many nodes of few classes: what follows from the class is computed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from thalweg.graph.node import Node, Tensor
from thalweg.lower.canonical_text import canonical_text

Shape = tuple[int, ...]

_MAX_COMPARED = 16  # elements of a value that is part of a class; others go by their tensor


class NodeClasses:
    """Numbers for what lowering sees of nodes: op, attributes, shapes and values of inputs."""

    def __init__(self, shapes: Mapping[Tensor, Shape], values: Mapping[Tensor, Any]) -> None:
        self._shapes = shapes
        self._values = values
        self._numbers: dict[Hashable, int] = {}
        self._nodes: dict[Node, int | None] = {}
        self._tensors: dict[Tensor, int] = {}

    def of(self, node: Node) -> int | None:
        """The number of a node's class; None for one that is like no other."""
        try:
            return self._nodes[node]
        except KeyError:
            found = self._nodes[node] = self._of(node)
            return found

    def _of(self, node: Node) -> int | None:
        text = None if node.op.has("stream") else canonical_text(node.op)
        if text is None:
            return None
        inputs = node.inputs
        counts = node.input_counts() if node.op.parsed.has_lists else None
        places: dict[Tensor, int] = {}
        same = [places.setdefault(tensor, place) for place, tensor in enumerate(inputs)]
        return self._number((text, counts, tuple(same), *map(self._tensor, inputs)))

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _tensor(self, tensor: Tensor) -> int:
        found = self._tensors.get(tensor)
        if found is None:
            dtype, value = tensor.dtype.base_dtype, self._values.get(tensor)
            key = (dtype, self._shapes[tensor], _value_key(tensor, value))
            found = self._tensors[tensor] = self._number(key)
        return found


def _value_key(tensor: Tensor, value: Any) -> Hashable:
    """What stands for a known value, and whether it is a constant of the graph."""
    if value is None:
        return None
    if value.size > _MAX_COMPARED or value.dtype.hasobject:
        return tensor
    return value.dtype.str, value.tobytes(), tensor.op.type
