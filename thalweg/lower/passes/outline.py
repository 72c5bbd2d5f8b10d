"""Outlines identical subgraphs: the iterations of an unrolled loop, the layers of a network.

Comes in: a region on concrete shapes. Goes out: for each tensor to store, the subgraph it is
computed by, down to buffers. Tensors of identical subgraphs are instances of the template of the
first one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import dropwhile
from math import lcm, prod

from thalweg.graph.node import Node, Tensor
from thalweg.lower.fingerprint import NodeClasses
from thalweg.lower.memory.buffers import Buffer, View
from thalweg.lower.nests.loop_nest import BoundTemplate, LoopNest
from thalweg.lower.specialise import Specialised

#: For each tensor that is a view of another one: which, and the element it begins at.
Views = Mapping[Tensor, tuple[Tensor, int]]


@dataclass(frozen=True)
class Subgraph:
    """What a tensor is computed by, down to the views of buffers that it reads.

    Subgraphs of equal keys are identical but for those views.
    """

    key: Hashable
    views: tuple[View, ...]


class Subgraphs:
    """The subgraphs of a region's tensors.

    A view of a tensor (an item of a sequence) is followed to the whole tensor: views that differ in
    where they begin have identical subgraphs.
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

    def of(self, tensor: Tensor) -> Subgraph | None:
        """The subgraph of a tensor without a buffer; None if one of its nodes has no class."""
        key: list[Hashable] = [self._spec.shapes[tensor]]
        seen: dict[tuple[Tensor, int], int] = {}
        views: dict[Buffer, tuple[int, int]] = {}
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
                # Which buffer it is, how far after the first view of it, and what it holds.
                number, first = views.setdefault(buffer, (len(views), start))
                key.append((number, start - first, buffer.kind, buffer.dtype, buffer.size))
                continue
            kind = self._classes.of(part.op)
            if kind is None:
                return None
            key += (kind, part.value_index)
            pending += self._inputs(part, start)
        found = [(buffer, start) for buffer, (_, start) in views.items()]
        return Subgraph(tuple(key), tuple(found))

    def _followed(self, tensor: Tensor, start: int) -> tuple[Tensor, int]:
        """The tensor that one is a view of, and the element it begins at."""
        while tensor not in self._buffers and tensor in self._views:
            whole, more = self._views[tensor]
            grain = self._grain(whole)
            if not grain or (start + more) % grain:
                break
            tensor, start = whole, start + more
        return tensor, start

    def _inputs(self, tensor: Tensor, start: int) -> list[tuple[Tensor, int]]:
        """The inputs of a tensor, and the element that each begins at: 0 for what is broadcast."""
        inputs, shapes = tensor.op.inputs, self._spec.shapes
        if not start:
            return [(given, 0) for given in inputs]
        shape = shapes[tensor]
        return [(given, start if shapes[given] == shape else 0) for given in inputs]

    def _grain(self, tensor: Tensor) -> int:
        """Views of a tensor that begin at multiples of this have identical subgraphs; 0 if none
        have: elements of known values may be constants in kernels."""
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
        """The grain of an input of an elementwise op whose output has a shape."""
        own = self._spec.shapes[tensor]
        if own == shape:
            return self._grain(tensor)
        kept = tuple(dropwhile(lambda size: size == 1, own))
        return prod(kept) if shape[len(shape) - len(kept) :] == kept else 0


class Templates(dict[Hashable, BoundTemplate]):
    """Templates by the keys of the subgraphs that they compute."""

    def instantiate(self, subgraph: Subgraph, target: Buffer, node: Node) -> LoopNest | None:
        """The nest that computes a subgraph into a buffer, if there is a template for it."""
        known = self.get(subgraph.key)
        return known and known.instantiate((*subgraph.views, (target, 0)), (node,))

    def note(self, subgraph: Subgraph, target: Buffer, nest: LoopNest) -> None:
        """Keep the template of a nest, if it reads nothing but the views of its subgraph."""
        template, views = nest.template, (*subgraph.views, (target, 0))
        is_complete = {buffer for buffer, _ in views}.issuperset(template.buffers)
        if not nest.checks and template.can_rebind and is_complete:
            self[subgraph.key] = BoundTemplate.of(template, views)
