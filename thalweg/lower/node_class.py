"""Kinds of nodes: numbers that are equal where shapes and loop forms are, up to which tensors are
read.

The steps of an unrolled loop are many nodes of few kinds: what follows from the kind is found once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from thalweg.graph.node import Node, Tensor
from thalweg.lower.canonical_text import told

Shape = tuple[int, ...]

_FEW = 16  # elements of a value that is told as it is; others are told by whose they are


class Kinds:
    """Numbers for what lowering sees of nodes: op, attributes, shapes and values of inputs."""

    def __init__(self, shapes: Mapping[Tensor, Shape], values: Mapping[Tensor, Any]) -> None:
        self._shapes = shapes
        self._values = values
        self._numbers: dict[Hashable, int] = {}
        self._nodes: dict[Node, int | None] = {}
        self._tensors: dict[Tensor, int] = {}

    def of(self, node: Node) -> int | None:
        """The number of a node's kind; None for one that is like no other."""
        try:
            return self._nodes[node]
        except KeyError:
            found = self._nodes[node] = self._of(node)
            return found

    def _of(self, node: Node) -> int | None:
        text = None if node.op.has("stream") else told(node.op)
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
            kind, value = tensor.dtype.base_dtype, self._values.get(tensor)
            key = (kind, self._shapes[tensor], _value_key(tensor, value))
            found = self._tensors[tensor] = self._number(key)
        return found


def _value_key(tensor: Tensor, value: Any) -> Hashable:
    """What a known value is told by, and whether it is a constant of the graph."""
    if value is None:
        return None
    if value.size > _FEW or value.dtype.hasobject:
        return tensor
    return value.dtype.str, value.tobytes(), tensor.op.type
