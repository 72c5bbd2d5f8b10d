"""Outlines identical subgraphs: the iterations of an unrolled loop, the layers of a network.

Each tensor to store has a subgraph, down to the buffers that it reads. The first tensor of a kind
of subgraph is lowered; the others are instances of its template.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile
from math import lcm, prod

from thalweg.graph.node import Tensor
from thalweg.lower.fingerprint import NodeClasses
from thalweg.lower.memory.buffers import Buffer, View
from thalweg.lower.specialise import Specialised


@dataclass(frozen=True)
class Subgraph:
    """The nodes that compute a tensor, down to the views of buffers that they read.

    Subgraphs of equal keys are identical except for those views.
    """

    key: Hashable
    views: tuple[View, ...]


@dataclass(frozen=True, eq=False)
class Subgraphs:
    """The subgraphs of a region's tensors.

    A view of a tensor (an item of a sequence) is followed to the whole tensor, so that views which
    differ only in their start have identical subgraphs.
    """

    spec: Specialised
    classes: NodeClasses
    buffers: Mapping[Tensor, Buffer]
    views: Mapping[Tensor, tuple[Tensor, int]]  # of which tensor, from which element on
    _grains: dict[Tensor, int] = field(default_factory=dict[Tensor, int])

    def of(self, tensor: Tensor) -> Subgraph | None:
        """The subgraph of a tensor without a buffer; None if one of its nodes has no class."""
        key: list[Hashable] = [self.spec.shapes[tensor]]
        seen: dict[tuple[Tensor, int], int] = {}
        views: dict[Buffer, tuple[int, int]] = {}
        pending = [(tensor, 0)]
        while pending:
            reached = self._followed(*pending.pop())
            if reached in seen:
                key.append(-1 - seen[reached])
                continue
            seen[reached] = len(seen)
            source, start = reached
            buffer = self.buffers.get(source)
            if buffer is not None:
                # The number of the buffer, the distance from the first view of it, and its type.
                number, first = views.setdefault(buffer, (len(views), start))
                key.append((number, start - first, buffer.kind, buffer.dtype, buffer.size))
                continue
            node_class = self.classes.of(source.op)
            if node_class is None:
                return None
            key += (node_class, source.value_index)
            pending += self._inputs(source, start)
        bindings = [(buffer, start) for buffer, (_, start) in views.items()]
        return Subgraph(tuple(key), tuple(bindings))

    def _followed(self, tensor: Tensor, start: int) -> tuple[Tensor, int]:
        """The tensor that this one is a view of, and the start of the view."""
        while tensor not in self.buffers and tensor in self.views:
            whole, shift = self.views[tensor]
            grain = self._grain(whole)
            if not grain or (start + shift) % grain:
                break
            tensor, start = whole, start + shift
        return tensor, start

    def _inputs(self, tensor: Tensor, start: int) -> list[tuple[Tensor, int]]:
        """The inputs of a tensor, and the start of each: 0 for those that are broadcast."""
        shapes = self.spec.shapes
        shape = shapes[tensor]
        return [(t, start if shapes[t] == shape else 0) for t in tensor.op.inputs]

    def _grain(self, tensor: Tensor) -> int:
        """Views of a tensor that start at multiples of this have identical subgraphs. 0 for none:
        elements of known values may be constants in kernels."""
        if tensor not in self._grains:
            self._grains[tensor] = self._find_grain(tensor)
        return self._grains[tensor]

    def _find_grain(self, tensor: Tensor) -> int:
        if tensor in self.spec.values:
            return 0
        if tensor in self.buffers:
            return 1
        if tensor in self.views:
            whole, start = self.views[tensor]
            grain = self._grain(whole)
            return grain if grain and start % grain == 0 else 0
        op = tensor.op.op
        if op.has("loop") or not op.has("element"):
            return 0
        shape = self.spec.shapes[tensor]
        return lcm(*[self._grain_of_input(source, shape) for source in tensor.op.inputs])

    def _grain_of_input(self, tensor: Tensor, shape: tuple[int, ...]) -> int:
        """The grain of an input of an elementwise op whose output has a shape."""
        input_shape = self.spec.shapes[tensor]
        if input_shape == shape:
            return self._grain(tensor)
        trailing = tuple(dropwhile(lambda size: size == 1, input_shape))
        return prod(trailing) if shape[len(shape) - len(trailing) :] == trailing else 0
