"""Gradients of loop invariants, sunk below the backward loop.

Such a gradient is a sum over the iterations. Where an iteration adds a matrix product or a few
rows, a sum in the loop would cost the size of the whole every time: the iterations keep their parts
in lists instead, and one product, or slices of all rows, is made of those when the loop is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thalweg.control.list_ops import (
    TensorArrayConcat,
    TensorArrayNew,
    TensorArrayRead,
    TensorArrayStack,
    TensorArrayWrite,
)
from thalweg.control.traces import here
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.dtypes import variant
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import scalar
from thalweg.graph.subgraph import SubGraph, is_body
from thalweg.ops.core import shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.linalg.matmul import MatMul


@dataclass(frozen=True)
class Kept:
    """A tensor of a backward body whose values of all iterations are kept in a list."""

    tensor: Tensor
    held: Tensor  # the list, as the body gets it

    @classmethod
    def of(cls, tensor: Tensor, graph: SubGraph) -> Kept:
        """Keep a tensor of a body."""
        return cls(tensor, graph.argument(variant, scalar(), "kept"))

    def start(self, count: Tensor) -> Tensor:
        """The list, empty."""
        like = self.tensor
        made = TensorArrayNew(dtype=like.dtype, element_shape=like.shape, clear_after_read=False)
        return made(count)

    def written(self, at: Tensor) -> Tensor:
        """The list with the value of this iteration."""
        return TensorArrayWrite(dtype=self.tensor.dtype)(self.held, at, self.tensor)


@dataclass(frozen=True)
class Product:
    """A sum over the iterations of aᵀ b: one product of all a, which the forward loop saved, and
    all b, which the backward loop keeps."""

    place: int  # the input of the loop whose gradient it is
    values: Tensor  # all a
    a: Tensor
    kept: tuple[Kept]

    def total(self, lists: Sequence[Tensor], count: Tensor, like: Tensor) -> Tensor:
        """The sum, given the full list."""
        b = self.kept[0].tensor
        a = _joined(here(self.values), count, self.a)
        return matmul.matmul(a, _joined(lists[0], count, b), transpose_a=True)


@dataclass(frozen=True)
class Slices:
    """A sum over the iterations of rows: the rows of all iterations, and where they belong."""

    place: int  # the input of the loop whose gradient it is
    kept: tuple[Kept, Kept]  # values, indices

    def total(self, lists: Sequence[Tensor], count: Tensor, like: Tensor) -> IndexedSlices:
        """The slices, given the full lists."""
        is_varying = self.kept[1].tensor.shape.as_list()[0] is None
        values, indices = (
            _varying(found, kept.tensor) if is_varying else _joined(found, count, kept.tensor)
            for found, kept in zip(lists, self.kept, strict=True)
        )
        return IndexedSlices(values, indices, shaping.shape(like))


SunkGradient = Product | Slices


def sink_gradient(
    place: int, gradient: Tensor | IndexedSlices, at: Tensor, graph: SubGraph
) -> SunkGradient | None:
    """What an iteration adds to the gradient of an input, where that can be left for after the
    loop. Inside another body it is added up: only lists of known length are compiled there."""
    if is_body(graph.outer):
        return None
    if isinstance(gradient, IndexedSlices):
        return _slices(place, gradient, graph)
    return _product(place, gradient, at, graph)


def _product(place: int, gradient: Tensor, at: Tensor, graph: SubGraph) -> Product | None:
    """A product with what was saved."""
    if gradient.op.op != MatMul(transpose_a=True):
        return None
    a, b = gradient.op.inputs
    if not isinstance(a.op.op, TensorArrayRead) or a.op.inputs[1] is not at:
        return None
    outside = {inner: outer for outer, inner in graph.captures.items()}
    values = outside.get(a.op.inputs[0])
    if values is None or not (_is_joinable(a, 2) and _is_joinable(b, 2)):
        return None
    return Product(place, values, a, (Kept.of(b, graph),))


def _slices(place: int, gradient: IndexedSlices, graph: SubGraph) -> Slices | None:
    """A number of rows."""
    values, indices = graph.capture(gradient.values), graph.capture(gradient.indices)
    if not (_is_joinable(values) and _is_joinable(indices, 1)):
        return None
    return Slices(place, (Kept.of(values, graph), Kept.of(indices, graph)))


def _is_joinable(tensor: Tensor, rank: int | None = None) -> bool:
    """Whether the shape of its rows is known."""
    sizes = tensor.shape.sizes
    return bool(sizes) and rank in (None, len(sizes)) and None not in sizes[1:]


def _joined(values: Tensor, count: Tensor, like: Tensor) -> Tensor:
    """A list of tensors as one, their rows one below the other."""
    stack = TensorArrayStack(dtype=like.dtype, element_shape=like.shape, fills=True)
    return shaping.reshape(stack(values, count), [-1, *like.shape.as_list()[1:]])


def _varying(values: Tensor, like: Tensor) -> Tensor:
    """The same for tensors that may differ in the number of their rows."""
    return TensorArrayConcat(dtype=like.dtype, element_shape=like.shape)(values).value
