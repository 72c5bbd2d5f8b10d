"""Gradients of loop invariants, sunk below the backward loop.

Such a gradient is a sum over the iterations. If the summands are matrix products or a few rows, a
sum in the loop would cost the size of the whole gradient in each iteration. Instead the iterations
save their operands in lists, and one product, or one IndexedSlices, is computed after the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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


class SavedTensor(NamedTuple):
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


class SunkGradient(NamedTuple):
    """The gradient of an input of a loop as a sum after the loop."""

    saved: tuple[SavedTensor, ...]
    #: The sum, given the full lists of the saved tensors, the number of iterations, and the input.
    total: Callable[[Sequence[Tensor], Tensor, Tensor], Tensor | IndexedSlices]


def sink_gradient(
    gradient: Tensor | IndexedSlices, iteration: Tensor, graph: SubGraph
) -> SunkGradient | None:
    """The gradient of an input as a sum after the loop, from the summand of an iteration; None if
    it must be summed in the loop. Inside another body it must: only lists of static length are
    compiled there."""
    if is_body(graph.outer):
        return None
    if isinstance(gradient, IndexedSlices):
        return _sink_slices(gradient, graph)
    return _sink_product(gradient, iteration, graph)


def _sink_product(gradient: Tensor, iteration: Tensor, graph: SubGraph) -> SunkGradient | None:
    """A sum of products aᵀ b, where a is read from a trace of the forward loop: one product of all
    a and all b, which the backward loop saves."""
    if gradient.op.op != MatMul(transpose_a=True):
        return None
    a, b = gradient.op.inputs
    if not isinstance(a.op.op, TensorArrayRead) or a.op.inputs[1] is not iteration:
        return None
    values = graph.outside(a.op.inputs[0])
    if values is None or not (_has_static_rows(a, 2) and _has_static_rows(b, 2)):
        return None

    def total(lists: Sequence[Tensor], count: Tensor, _: Tensor) -> Tensor:
        all_a, all_b = _concat_rows(capture(values), count, a), _concat_rows(lists[0], count, b)
        return matmul.matmul(all_a, all_b, transpose_a=True)

    return SunkGradient((SavedTensor.of(b, graph),), total)


def _sink_slices(gradient: IndexedSlices, graph: SubGraph) -> SunkGradient | None:
    """A sum of IndexedSlices: the values and indices of all iterations."""
    values, indices = graph.capture(gradient.values), graph.capture(gradient.indices)
    if not (_has_static_rows(values) and _has_static_rows(indices, 1)):
        return None
    saved = SavedTensor.of(values, graph), SavedTensor.of(indices, graph)
    concat = _concat_varying_rows if indices.shape.as_list()[0] is None else _concat_rows

    def total(lists: Sequence[Tensor], count: Tensor, like: Tensor) -> IndexedSlices:
        pairs = zip(lists, saved, strict=True)
        all_values, all_indices = (concat(array, count, each.tensor) for array, each in pairs)
        return IndexedSlices(all_values, all_indices, shaping.shape(like))

    return SunkGradient(saved, total)


def _has_static_rows(tensor: Tensor, rank: int | None = None) -> bool:
    """Whether the shape of a tensor's rows is static."""
    sizes = tensor.shape.sizes
    return bool(sizes) and rank in (None, len(sizes)) and None not in sizes[1:]


def _concat_rows(values: Tensor, count: Tensor, like: Tensor) -> Tensor:
    """The rows of all tensors of a list as one tensor."""
    stack = TensorArrayStack(dtype=like.dtype, element_shape=like.shape, fills=True)
    return shaping.reshape(stack(values, count), [-1, *like.shape.as_list()[1:]])


def _concat_varying_rows(values: Tensor, _: Tensor, like: Tensor) -> Tensor:
    """As `_concat_rows`, for tensors with different numbers of rows."""
    return TensorArrayConcat(dtype=like.dtype, element_shape=like.shape)(values).value
