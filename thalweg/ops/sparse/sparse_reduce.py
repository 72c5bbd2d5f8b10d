"""Reductions of sparse tensors over axes, and the softmax of their rows."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.composite import SparseTensor
from thalweg.graph.known import constant_value
from thalweg.graph.likes import SparseLike, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, matrix, unknown_shape, vector
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand, Scatter
from thalweg.ops.core import casting, filling, shaping
from thalweg.ops.math import arithmetic, compare, reduce
from thalweg.ops.sparse.sparse import (
    as_sparse,
    component_shapes,
    flat_places,
    index_row,
    option,
    static_count,
    values_at,
)
from thalweg.ops.sparse.sparse_maths import BroadcastPlaces, combined
from thalweg.ops.sparse.sparse_pieces import carried
from thalweg.platform.arrays import Array
from thalweg.platform.docstrings import composed
from thalweg.public import public


class SparseReduction(Op, abstract=True):
    """The values of a sparse tensor combined over axes; the result is dense."""

    signature = (
        "input_indices: int64, input_values: T, input_shape: int64, reduction_axes: int32 "
        "-> output: T; T: numeric"
    )
    ufunc: ClassVar[Any]
    keep_dims: bool = False

    def shape(
        self, indices: Tensor, values: Tensor, input_shape: Tensor, axes: Tensor
    ) -> TensorShape:
        sizes, known = shaping.known_shape(input_shape).sizes, constant_value(axes)
        if sizes is None or known is None or not _valid(known, len(sizes)):
            return unknown_shape()  # invalid axes fail the step
        reduced = set(reduce.normal_axes(known, len(sizes)))
        if self.keep_dims:
            return TensorShape.of(tuple(1 if i in reduced else s for i, s in enumerate(sizes)))
        return TensorShape.of(tuple(s for i, s in enumerate(sizes) if i not in reduced))

    def numpy(self, indices: Array, values: Array, input_shape: Array, axes: Array) -> Array:
        rows, found, shape = self.reduced(indices, values, input_shape, axes)
        dense: Array = np.zeros(int(np.prod(shape)), values.dtype)
        dense[flat_places(rows, shape)] = found
        return dense.reshape(shape.tolist())

    def reduced(
        self, indices: Array, values: Array, shape: Array, axes: Array
    ) -> tuple[Array, Array, Array]:
        """The result as a sparse tensor."""
        gone = list(reduce.normal_axes(axes, len(shape)))
        ones = np.where(np.isin(np.arange(len(shape)), gone), 1, shape)
        sizes = ones if self.keep_dims else np.delete(shape, gone)
        rows = reduced_rows(indices, axes, self.keep_dims)
        rows, found = combined(type(self).ufunc, rows, values)
        return rows, found, sizes


def _valid(axes: Array, rank: int) -> bool:
    return bool(np.all((axes >= -rank) & (axes < rank)))


class SparseReduceSum(SparseReduction):
    """y = sum of x over axes"""

    ufunc = np.add

    def loop(
        self, at: IndexTuple, indices: Operand, values: Operand, input_shape: Operand, axes: Operand
    ) -> Expr | Scatter:
        if not at.rank:
            return loop.reduce("sum", values.shape, values.__getitem__)

        def write(k: Expr) -> tuple[tuple[Any, ...], Expr]:
            return tuple(_reduced_row(indices, k, axes, self.keep_dims)), values[k]

        return loop.scatter("sum", values.shape, write, 0)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        indices, _, shape, axes = node.inputs
        kept = reduce.KeptShape()(shape, axes)
        places = BroadcastPlaces()(indices, shape, kept)
        return [None, values_at(shaping.reshape(dy, kept), places), None, None]


class SparseReduceMax(SparseReduction):
    """y = the maximum of the present values of x over axes"""

    host_only = True  # an element without values is zero, not the smallest number
    ufunc = np.maximum

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        """Equal maxima share the gradient."""
        indices, values, shape, axes = node.inputs
        kept = reduce.KeptShape()(shape, axes)
        places = BroadcastPlaces()(indices, shape, kept)
        largest = values_at(shaping.reshape(node.output, kept), places)
        mask = casting.cast(compare.equal(values, largest), dy.dtype)
        counts = SparseReduceSum(keep_dims=True)(indices, mask, shape, axes)
        share = shaping.reshape(dy, kept) / arithmetic.maximum(counts, filling.ones_like(counts))
        return [None, mask * values_at(share, places), None, None]


class SparseResult(SparseReduction, abstract=True):
    """A reduction whose result is sparse."""

    signature = (
        "input_indices: int64, input_values: T, input_shape: int64, reduction_axes: int32 "
        "-> output_indices: int64, output_values: T, output_shape: int64; T: numeric"
    )
    host_only = True

    def shape(
        self, indices: Tensor, values: Tensor, input_shape: Tensor, axes: Tensor
    ) -> list[TensorShape]:
        return component_shapes(None, None)

    def numpy(
        self, indices: Array, values: Array, input_shape: Array, axes: Array
    ) -> tuple[Array, Array, Array]:
        return self.reduced(indices, values, input_shape, axes)

    def rows(self, node: Node) -> Tensor:
        """For each index of the input, the index of its result."""
        return ReducedRows(keep_dims=self.keep_dims)(node.inputs[0], node.inputs[3])


class ReducedRows(Op):
    """Indices with reduced dimensions removed (with `keep_dims`: set to 0)."""

    private = True
    signature = "indices: int64, axes: int32 -> rows: int64"
    not_differentiable = True
    keep_dims: bool = False

    def shape(self, indices: Tensor, axes: Tensor) -> TensorShape:
        return indices.shape.with_rank(2) if self.keep_dims else matrix(indices.shape[0], None)

    def numpy(self, indices: Array, axes: Array) -> Array:
        return reduced_rows(indices, axes, self.keep_dims)

    def loop(self, at: IndexTuple, indices: Operand, axes: Operand) -> Expr:
        row = _reduced_row(indices, at[0], axes, self.keep_dims)
        return option(at[1], row)


def reduced_rows(indices: Array, axes: Array, keep_dims: bool) -> Array:
    """Indices with reduced dimensions removed (with `keep_dims`: set to 0)."""
    gone = list(reduce.normal_axes(axes, indices.shape[1]))
    if not keep_dims:
        return np.delete(indices, gone, 1)
    rows = indices.copy()
    rows[:, gone] = 0
    return rows


def _reduced_row(indices: Operand, k: Expr, axes: Operand, keep_dims: bool) -> list[Any]:
    """Row k of `reduced_rows`."""
    gone = reduce.normal_axes(axes.constant(), indices.shape[1])
    row = enumerate(index_row(indices, k))
    if keep_dims:
        return [0 if axis in gone else index for axis, index in row]
    return [index for axis, index in row if axis not in gone]


class SparseReduceSumSparse(SparseResult):
    """y = sum of x over axes, sparse"""

    ufunc = np.add

    def gradient(self, node: Node, _: Any, dy: Tensor, __: Any) -> list[Tensor | None]:
        return [None, carried(dy, node.outputs[0], self.rows(node)), None, None]


class SparseReduceMaxSparse(SparseResult):
    """y = the maximum of the present values of x over axes, sparse"""

    ufunc = np.maximum

    def gradient(self, node: Node, _: Any, dy: Tensor, __: Any) -> list[Tensor | None]:
        """Equal maxima share the gradient."""
        indices, values, shape, axes = node.inputs
        rows, found = self.rows(node), node.outputs[0]
        mask = casting.cast(compare.equal(values, carried(node.outputs[1], found, rows)), dy.dtype)
        sums = SparseReduceSumSparse(keep_dims=self.keep_dims)
        counts = sums(indices, mask, shape, axes)[1]
        return [None, mask * carried(dy / counts, found, rows), None, None]


def _reduction(kind: type[Op], *names: str) -> Any:
    """The public function of a sparse reduction."""

    @public(*names)
    def function(
        sp_input: SparseLike,
        axis: TensorLike | None = None,
        keepdims: bool | None = None,
        reduction_axes: TensorLike | None = None,
        keep_dims: bool | None = None,
    ) -> Any:
        sparse = as_sparse(sp_input)
        given = reduction_axes if axis is None else axis
        axes = filling.range(shaping.size(sparse.dense_shape)) if given is None else given
        keep = bool(keep_dims if keepdims is None else keepdims)
        result = kind(keep_dims=keep)(*sparse.components(), axes)
        return result if isinstance(result, Tensor) else SparseTensor(*result)

    function.__name__ = function.__qualname__ = names[0]
    outputs = len(kind.parsed.outputs)
    function.__annotations__["return"] = "Tensor" if outputs == 1 else "SparseTensor"
    taken = {
        "sp_input": "a SparseTensor.",
        "axis": "an axis or a list of them; None: all.",
        "keepdims": "True keeps the reduced axes, with size 1.",
        "reduction_axes": "the old name of `axis`.",
        "keep_dims": "the old name of `keepdims`.",
    }
    function.__doc__ = composed(kind.__doc__, taken, "A tensor without the reduced axes.")
    return function


sparse_reduce_sum = _reduction(SparseReduceSum, "sparse_reduce_sum", "sparse.reduce_sum")
sparse_reduce_max = _reduction(SparseReduceMax, "sparse_reduce_max", "sparse.reduce_max")
sparse_reduce_sum_sparse = _reduction(
    SparseReduceSumSparse, "sparse_reduce_sum_sparse", "sparse.reduce_sum_sparse"
)
sparse_reduce_max_sparse = _reduction(
    SparseReduceMaxSparse, "sparse_reduce_max_sparse", "sparse.reduce_max_sparse"
)


# Softmax


class SparseSoftmax(Op):
    """The softmax of the values in each row along the last axis; missing values count as -∞"""

    signature = (
        "sp_indices: int64, sp_values: T, sp_shape: int64 -> output: T; T: float32|float64|float16"
    )
    host_only = True

    def shape(self, sp_indices: Tensor, sp_values: Tensor, sp_shape: Tensor) -> TensorShape:
        return vector(static_count(sp_indices, sp_values))

    def numpy(self, sp_indices: Array, sp_values: Array, sp_shape: Array) -> Array:
        if len(sp_shape) < 2:
            raise ValueError(f"Input should have rank >= 2, but has rank {len(sp_shape)}")
        if not len(sp_values):
            return sp_values
        rows = flat_places(sp_indices[:, :-1], sp_shape[:-1])
        _, group = np.unique(rows, return_inverse=True)
        peaks = np.full(group.max() + 1, -np.inf, sp_values.dtype)
        np.maximum.at(peaks, group, sp_values)
        raised = np.exp(sp_values - peaks[group])
        totals = np.zeros_like(peaks)
        np.add.at(totals, group, raised)
        return raised / totals[group]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        indices, _, shape = node.inputs
        weighted = dy * node.output
        sums = SparseReduceSum(keep_dims=True)(indices, weighted, shape, [-1])
        sum_shape = shaping.shape(sums, out_type=dtypes.int64)
        places = BroadcastPlaces()(indices, shape, sum_shape)
        return [None, weighted - node.output * values_at(sums, places), None]


@public("sparse_softmax", "sparse.softmax")
def sparse_softmax(sp_input: SparseLike, name: str | None = None) -> SparseTensor:
    """The softmax of the present values of each row, along the last axis."""
    sparse = as_sparse(sp_input)
    with name_scope(name, "SparseSoftmax", [sparse]) as scope:
        values = SparseSoftmax()(*sparse.components(), name=scope)
        return SparseTensor(sparse.indices, values, sparse.dense_shape)
