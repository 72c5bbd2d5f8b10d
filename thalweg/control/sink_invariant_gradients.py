"""Gradients of loop invariants, sunk below the backward loop.

Such a gradient is a sum over the iterations. If the summands are matrix products or a few rows, a
sum in the loop would cost the size of the whole gradient in each iteration. Instead the iterations
save their operands in lists, and one product, or one IndexedSlices, is computed after the loop.
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
from thalweg.control.traces import capture
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.dtypes import variant
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import scalar
from thalweg.graph.subgraph import SubGraph, is_body
from thalweg.ops.core import shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.linalg.matmul import MatMul


@dataclass(frozen=True)
class SavedTensor:
    """A tensor of a backward body whose values of all iterations are saved in a list."""

    tensor: Tensor
    argument: Tensor  # the list, in the body

    @classmethod
    def of(cls, tensor: Tensor, graph: SubGraph) -> SavedTensor:
        """Save a tensor of a body."""
        return cls(tensor, graph.argument(variant, scalar(), "kept"))

    def new_list(self, count: Tensor) -> Tensor:
        """The initial list."""
        dtype, shape = self.tensor.dtype, self.tensor.shape
        return TensorArrayNew(dtype=dtype, element_shape=shape, clear_after_read=False)(count)

    def write(self, iteration: Tensor) -> Tensor:
        """The list with the value of an iteration."""
        return TensorArrayWrite(dtype=self.tensor.dtype)(self.argument, iteration, self.tensor)


@dataclass(frozen=True)
class ProductSum:
    """A sum over the iterations of aᵀ b: one product of all a, from a trace of the forward loop,
    and all b, saved by the backward loop."""

    input_index: int  # the input of the loop whose gradient it is
    values: Tensor  # all a
    a: Tensor
    saved: tuple[SavedTensor]

    def total(self, lists: Sequence[Tensor], count: Tensor, like: Tensor) -> Tensor:
        """The sum, given the full list."""
        b = self.saved[0].tensor
        a = _concat_rows(capture(self.values), count, self.a)
        return matmul.matmul(a, _concat_rows(lists[0], count, b), transpose_a=True)


@dataclass(frozen=True)
class SliceSum:
    """A sum over the iterations of IndexedSlices: the values and indices of all iterations."""

    input_index: int  # the input of the loop whose gradient it is
    saved: tuple[SavedTensor, SavedTensor]  # values, indices

    def total(self, lists: Sequence[Tensor], count: Tensor, like: Tensor) -> IndexedSlices:
        """The slices, given the full lists."""
        is_varying = self.saved[1].tensor.shape.as_list()[0] is None
        values, indices = (
            _concat_varying_rows(array, saved.tensor)
            if is_varying
            else _concat_rows(array, count, saved.tensor)
            for array, saved in zip(lists, self.saved, strict=True)
        )
        return IndexedSlices(values, indices, shaping.shape(like))


SunkGradient = ProductSum | SliceSum


def sink_gradient(
    input_index: int, gradient: Tensor | IndexedSlices, iteration: Tensor, graph: SubGraph
) -> SunkGradient | None:
    """The gradient of an input as a sum after the loop, from the summand of an iteration; None if
    it must be summed in the loop. Inside another body it must: only lists of static length are
    compiled there."""
    if is_body(graph.outer):
        return None
    if isinstance(gradient, IndexedSlices):
        return _sink_slices(input_index, gradient, graph)
    return _sink_product(input_index, gradient, iteration, graph)


def _sink_product(
    input_index: int, gradient: Tensor, iteration: Tensor, graph: SubGraph
) -> ProductSum | None:
    """A sum of products aᵀ b, where a is read from a trace."""
    if gradient.op.op != MatMul(transpose_a=True):
        return None
    a, b = gradient.op.inputs
    if not isinstance(a.op.op, TensorArrayRead) or a.op.inputs[1] is not iteration:
        return None
    outside = {inner: outer for outer, inner in graph.captures.items()}
    values = outside.get(a.op.inputs[0])
    if values is None or not (_has_static_rows(a, 2) and _has_static_rows(b, 2)):
        return None
    return ProductSum(input_index, values, a, (SavedTensor.of(b, graph),))


def _sink_slices(input_index: int, gradient: IndexedSlices, graph: SubGraph) -> SliceSum | None:
    """A sum of IndexedSlices."""
    values, indices = graph.capture(gradient.values), graph.capture(gradient.indices)
    if not (_has_static_rows(values) and _has_static_rows(indices, 1)):
        return None
    return SliceSum(input_index, (SavedTensor.of(values, graph), SavedTensor.of(indices, graph)))


def _has_static_rows(tensor: Tensor, rank: int | None = None) -> bool:
    """Whether the shape of a tensor's rows is static."""
    sizes = tensor.shape.sizes
    return bool(sizes) and rank in (None, len(sizes)) and None not in sizes[1:]


def _concat_rows(values: Tensor, count: Tensor, like: Tensor) -> Tensor:
    """The rows of all tensors of a list as one tensor."""
    stack = TensorArrayStack(dtype=like.dtype, element_shape=like.shape, fills=True)
    return shaping.reshape(stack(values, count), [-1, *like.shape.as_list()[1:]])


def _concat_varying_rows(values: Tensor, like: Tensor) -> Tensor:
    """As `_concat_rows`, for tensors with different numbers of rows."""
    return TensorArrayConcat(dtype=like.dtype, element_shape=like.shape)(values).value
