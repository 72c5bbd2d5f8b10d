"""What is computed alike: the steps of an unrolled loop, the layers of a network.

Comes in: a region on concrete shapes. Goes out: for the tensors to draft, what they are computed of
down to memory, so that a nest made for the first of several serves the others on their memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import dropwhile
from math import lcm, prod

from thalweg.graph.node import Node, Tensor
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.nests.loop_nest import Home, LoopNest, NestTemplate
from thalweg.lower.node_class import NodeClasses
from thalweg.lower.specialise import Specialised

#: For each tensor that lies within another one: in which, and from which element on.
Views = Mapping[Tensor, tuple[Tensor, int]]


@dataclass(frozen=True)
class Subgraph:
    """What a tensor is computed of, down to what is in memory.

    Tensors of equal keys are computed alike, from the homes of the one as from those of the other.
    """

    key: Hashable
    homes: tuple[Home, ...]


class Cones:
    """The cones of a region's tensors, as far as their classes are known.

    A piece of a tensor (a step of a sequence) is followed to where the whole comes from: pieces
    are alike wherever they begin.
    """

    def __init__(
        self,
        spec: Specialised,
        classes: NodeClasses,
        buffers: Mapping[Tensor, Buffer],
        views: Views,
    ) -> None:
        self._spec = spec
        self._classes = classes
        self._buffers = buffers
        self._views = views
        self._grains: dict[Tensor, int] = {}
        self._sorts: dict[Buffer, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def of(self, tensor: Tensor) -> Subgraph | None:
        """The cone of a tensor that is not in memory yet."""
        key: list[Hashable] = [self._spec.shapes[tensor]]
        seen: dict[tuple[Tensor, int], int] = {}
        homes: dict[Buffer, tuple[int, int]] = {}
        pending = [(tensor, 0)]
        while pending:
            one = self._followed(*pending.pop())
            if one in seen:
                key.append(-1 - seen[one])
                continue
            seen[one] = len(seen)
            part, start = one
            buffer = self._buffers.get(part)
            if buffer is not None:
                # Whose memory it is, from where on compared with the first there, what it is like.
                number, first = homes.setdefault(buffer, (len(homes), start))
                key.append((number, start - first, self._sort(buffer)))
                continue
            kind = self._classes.of(part.op)
            if kind is None:
                return None
            key += (kind, part.value_index)
            pending += self._inputs(part, start)
        found = [(buffer, start) for buffer, (_, start) in homes.items()]
        return Subgraph(tuple(key), tuple(found))

    def _sort(self, buffer: Buffer) -> int:
        """A number for what a buffer is like."""
        found = self._sorts.get(buffer)
        if found is None:
            key = buffer.kind, buffer.dtype, buffer.size
            found = self._sorts[buffer] = self._numbers.setdefault(key, len(self._numbers))
        return found

    def _followed(self, tensor: Tensor, start: int) -> tuple[Tensor, int]:
        """The tensor that one is a piece of, and from which element on."""
        while tensor not in self._buffers and tensor in self._views:
            whole, more = self._views[tensor]
            grain = self._grain(whole)
            if not grain or (start + more) % grain:
                break
            tensor, start = whole, start + more
        return tensor, start

    def _inputs(self, tensor: Tensor, start: int) -> list[tuple[Tensor, int]]:
        """What a tensor is made of, from an element on: what is stretched begins anew."""
        inputs, shapes = tensor.op.inputs, self._spec.shapes
        if not start:
            return [(given, 0) for given in inputs]
        shape = shapes[tensor]
        return [(given, start if shapes[given] == shape else 0) for given in inputs]

    def _grain(self, tensor: Tensor) -> int:
        """Pieces of a tensor that begin at multiples of this are alike; 0 if none are. Elements of
        known values may be in the code, each as a number of its own."""
        found = self._grains.get(tensor)
        if found is None:
            found = self._grains[tensor] = self._find_grain(tensor)
        return found

    def _find_grain(self, tensor: Tensor) -> int:
        if tensor in self._spec.values:
            return 0
        if tensor in self._buffers:
            return 1
        if tensor in self._views:
            whole, start = self._views[tensor]
            grain = self._grain(whole)
            return grain if grain and start % grain == 0 else 0
        op = tensor.op.op
        if op.has("loop") or not op.has("element"):
            return 0
        shape = self._spec.shapes[tensor]
        return lcm(*[self._grain_of_input(given, shape) for given in tensor.op.inputs])

    def _grain_of_input(self, tensor: Tensor, shape: tuple[int, ...]) -> int:
        """The same for what an elementwise op of a shape makes of its input."""
        own = self._spec.shapes[tensor]
        if own == shape:
            return self._grain(tensor)
        kept = tuple(dropwhile(lambda size: size == 1, own))
        return prod(kept) if shape[len(shape) - len(kept) :] == kept else 0


@dataclass(frozen=True)
class _Model:
    """A nest, and where in a cone its buffers come from: -1 is what it writes."""

    nest: NestTemplate
    numbers: tuple[int, ...]
    starts: tuple[int, ...]


class Templates:
    """Nests by the cones they were made of."""

    def __init__(self) -> None:
        self._models: dict[Hashable, _Model] = {}

    def again(self, cone: Subgraph, target: Buffer, node: Node) -> LoopNest | None:
        """The draft of a tensor whose like was drafted before."""
        model = self._models.get(cone.key)
        if model is None:
            return None
        moved: list[Home] = []
        for number, start in zip(model.numbers, model.starts, strict=True):
            buffer, now = (target, 0) if number < 0 else cone.homes[number]
            moved.append((buffer, now - start))
        return LoopNest(model.nest, (node,), moved=tuple(moved))

    def note(self, cone: Subgraph, target: Buffer, draft: LoopNest) -> None:
        """Keep a draft for others like it, if it reads nothing but what its cone ends in."""
        numbers = {buffer: number for number, (buffer, _) in enumerate(cone.homes)} | {target: -1}
        nest = draft.nest
        if draft.needed or not nest.can_move or not numbers.keys() >= set(nest.buffers):
            return
        places = tuple([numbers[buffer] for buffer in nest.buffers])
        starts = tuple([0 if place < 0 else cone.homes[place][1] for place in places])
        self._models[cone.key] = _Model(nest, places, starts)
