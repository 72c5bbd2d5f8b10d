"""Segment reductions of gathered rows: `data[indices[k]]` is added to the row `segment_ids[k]`.

Sums, means and sums over √n are one reduction, times a power of n. Without `num_segments` the
number of segments is the last id, plus one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import Size, TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck, Scatter
from thalweg.ops.arrays import indexing, segment
from thalweg.ops.core import shaping
from thalweg.ops.math import transcendental
from thalweg.platform.arrays import Array
from thalweg.platform.docstrings import NAME, composed
from thalweg.public import public

_SUM = "data: T, indices: I, segment_ids: S{} -> output: T; T: real, I: index, S: index"
_MEAN = "data: T, indices: I, segment_ids: S{} -> output: T; T: floating, I: index, S: index"
_GRADIENT = (
    "grad: T, indices: I, segment_ids: S, output_dim0: int32 -> output: T; "
    "T: floating, I: index, S: index"
)


class SparseSegmentReduction(Op, abstract=True):
    """y[i] = nᵖ Σ data[indices[k]] over the n sorted segment_ids[k] = i"""

    power: ClassVar[float]  # p: 0 for sums, -1 for means, -1/2 for sums over √n

    def shape(
        self, data: Tensor, indices: Tensor, segment_ids: Tensor, *num_segments: Tensor
    ) -> TensorShape:
        indices.shape.with_rank(1).assert_is_compatible_with(segment_ids.shape.with_rank(1))
        count = segment.known_count(segment_ids)
        if num_segments:
            known = constant_value(num_segments[0])
            count = None if known is None else int(known)
        return TensorShape.of((count,)).concatenate(data.shape.with_rank_at_least(1)[1:])

    def numpy(self, data: Array, indices: Array, segment_ids: Array, *num_segments: Array) -> Array:
        _check_sizes(indices, segment_ids)
        _check_indices(indices, len(data))
        last = int(segment_ids[-1]) + 1 if segment_ids.size else 0
        count = int(num_segments[0]) if num_segments else last
        segment.check_sorted(segment_ids, count)
        sums = segment.combine(np.add, data[indices], segment_ids, count, 0)
        return _scaled(sums, _sizes(segment_ids, count), self.power)

    def loop(
        self,
        at: IndexTuple,
        data: Operand,
        indices: Operand,
        segment_ids: Operand,
        *num_segments: Operand,
    ) -> Scatter:
        return _moved(data, indices, segment_ids, segment_ids, self.power)

    def requires(
        self, data: Operand, indices: Operand, segment_ids: Operand, *num_segments: Operand
    ) -> list[RuntimeCheck]:
        return segment.are_sorted(segment_ids)


def _scaled(rows: Array, sizes: Array, power: float) -> Array:
    """Each row times a power of its segment's size; sums, also of integers, are unchanged."""
    if not power:
        return rows
    factors = (sizes.astype(np.float64) ** power).reshape(-1, *[1] * (rows.ndim - 1))
    return (rows * factors).astype(rows.dtype)


def _moved(
    rows: Operand, sources: Operand, targets: Operand, ids: Operand, power: float
) -> Scatter:
    """Row sources[k] added to row targets[k], times a power of the size of segment ids[k]."""

    def element(k: Expr, *rest: Expr) -> tuple[tuple[Expr, ...], Expr]:
        place, value = (targets[k], *rest), rows[(sources[k], *rest)]
        if not power:
            return place, value
        factor = segment.rows_of(ids, ids[k]).cast(np.float64).pow(power)
        return place, (value * factor).cast(rows.dtype)

    return loop.scatter("sum", [*ids.shape, *rows.shape[1:]], element, 0)


def _sizes(ids: Array, count: int) -> Array:
    return np.maximum(np.bincount(ids, minlength=count), 1)


def _check_sizes(indices: Array, ids: Array) -> None:
    if indices.shape != ids.shape:
        raise ValueError(
            f"segment_ids and indices should have same size, got {ids.size} and {indices.size}"
        )


def _check_indices(indices: Array, count: int) -> None:
    bad = np.flatnonzero((indices < 0) | (indices >= count))
    if bad.size:
        raise ValueError(f"indices[{bad[0]}] == {indices[bad[0]]} out of range [0, {count})")


def _spread(node: Node, rows: Tensor) -> list[Tensor | None]:
    """The gradient of `data`: a row per index, added for repeated indices."""
    data, indices = node.inputs[:2]
    total = segment.unsorted_segment_sum(rows, indices, shaping.shape(data)[0])
    return [total, *[None] * (len(node.inputs) - 1)]


class SparseSegmentSum(SparseSegmentReduction):
    """y[i] = Σ data[indices[k]] over sorted segment_ids[k] = i

    Example:
        >>> sess.run(tf.sparse_segment_sum([[1], [2], [4]], [0, 2], [0, 0]))
        array([[5]], dtype=int32)
    """

    signature = _SUM.format("")
    power = 0

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return _spread(node, indexing.gather(dy, node.inputs[2]))


class SparseSegmentSumWithNumSegments(SparseSegmentSum):
    """y[i] = Σ data[indices[k]] over sorted segment_ids[k] = i, for i < num_segments"""

    signature = _SUM.format(", num_segments: int32")


class SparseSegmentMean(SparseSegmentReduction):
    """y[i] = mean of data[indices[k]] over sorted segment_ids[k] = i"""

    signature = _MEAN.format("")
    power = -1

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        data, indices, ids = node.inputs
        return [SparseSegmentMeanGrad()(dy, indices, ids, shaping.shape(data)[0]), None, None]


class SparseSegmentMeanWithNumSegments(SparseSegmentReduction):
    """y[i] = mean of data[indices[k]] over sorted segment_ids[k] = i, for i < num_segments"""

    signature = _MEAN.format(", num_segments: int32")
    power = -1

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        ids = node.inputs[2]
        rows = indexing.gather(dy, ids)
        return _spread(node, rows / segment.SegmentSizes()(ids, rows))


class SparseSegmentSqrtN(SparseSegmentReduction):
    """y[i] = Σ data[indices[k]] / √n over the n sorted segment_ids[k] = i"""

    signature = _MEAN.format("")
    power = -0.5

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        data, indices, ids = node.inputs
        return [SparseSegmentSqrtNGrad()(dy, indices, ids, shaping.shape(data)[0]), None, None]


class SparseSegmentSqrtNWithNumSegments(SparseSegmentReduction):
    """y[i] = Σ data[indices[k]] / √n over the n sorted segment_ids[k] = i, for i < num_segments"""

    signature = _MEAN.format(", num_segments: int32")
    power = -0.5

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        ids = node.inputs[2]
        rows = indexing.gather(dy, ids)
        return _spread(node, rows / transcendental.sqrt(segment.SegmentSizes()(ids, rows)))


class SparseSegmentGradient(Op, abstract=True):
    """dx[j] = Σ nᵖ dy[segment_ids[k]] over indices[k] = j, n the size of the segment"""

    signature = _GRADIENT
    forward: ClassVar[type[SparseSegmentReduction]]

    def shape(
        self, grad: Tensor, indices: Tensor, segment_ids: Tensor, output_dim0: Tensor
    ) -> TensorShape:
        output_dim0.shape.assert_has_rank(0)
        indices.shape.with_rank(1).assert_is_compatible_with(segment_ids.shape.with_rank(1))
        rows = constant_value(output_dim0)
        known: Size = None if rows is None else int(rows)
        return TensorShape.of((known,)).concatenate(grad.shape.with_rank_at_least(1)[1:])

    def numpy(self, grad: Array, indices: Array, segment_ids: Array, output_dim0: Array) -> Array:
        _check_sizes(indices, segment_ids)
        _check_gradient(indices, segment_ids, len(grad), int(output_dim0))
        rows = _scaled(grad, _sizes(segment_ids, len(grad)), self.forward.power)
        order = np.argsort(indices, kind="stable")
        gathered = rows[segment_ids[order]]
        return segment.combine(np.add, gathered, indices[order], int(output_dim0), 0)

    def loop(
        self,
        at: IndexTuple,
        grad: Operand,
        indices: Operand,
        segment_ids: Operand,
        output_dim0: Operand,
    ) -> Scatter:
        return _moved(grad, segment_ids, indices, segment_ids, self.forward.power)

    def requires(
        self, grad: Operand, indices: Operand, segment_ids: Operand, output_dim0: Operand
    ) -> list[RuntimeCheck]:
        if not segment_ids.size:
            return []
        return [RuntimeCheck((), segment_ids[segment_ids.size - 1].eq(grad.shape[0] - 1))]

    def gradient(self, node: Node, dz: Tensor) -> list[Tensor | None]:
        _, indices, ids, _ = node.inputs
        return [self.forward()(dz, indices, ids), None, None, None]


def _check_gradient(indices: Array, ids: Array, segments: int, rows: int) -> None:
    bad = np.flatnonzero((indices < 0) | (indices >= rows))
    if bad.size:
        raise ValueError(f"Index {indices[bad[0]]} out of range [0, {rows}).")
    bad = np.flatnonzero((ids < 0) | (ids >= segments))
    if bad.size:
        raise ValueError(f"Segment id {ids[bad[0]]} out of range [0, {segments}).")
    if ids.size and ids[-1] + 1 != segments:
        raise ValueError(
            f"Invalid number of segments: the ids end at {ids[-1]}, but there are {segments} rows"
        )


class SparseSegmentMeanGrad(SparseSegmentGradient):
    """dx[j] = Σ dy[segment_ids[k]] / n over indices[k] = j, n the size of the segment"""

    forward = SparseSegmentMean


class SparseSegmentSqrtNGrad(SparseSegmentGradient):
    """dx[j] = Σ dy[segment_ids[k]] / √n over indices[k] = j, n the size of the segment"""

    forward = SparseSegmentSqrtN


def _gradient_function(kind: type[SparseSegmentGradient], name: str) -> Callable[..., Tensor]:
    def function(
        grad: Any, indices: Any, segment_ids: Any, output_dim0: Any, name: str | None = None
    ) -> Tensor:
        return kind()(grad, indices, segment_ids, output_dim0, name=name)

    function.__doc__ = kind.__doc__
    function.__name__ = function.__qualname__ = name
    return public(name)(function)


sparse_segment_mean_grad = _gradient_function(SparseSegmentMeanGrad, "sparse_segment_mean_grad")
sparse_segment_sqrt_n_grad = _gradient_function(
    SparseSegmentSqrtNGrad, "sparse_segment_sqrt_n_grad"
)


def _function(kind: type[Op], counted: type[Op], *names: str) -> Callable[..., Tensor]:
    """The public function of a reduction, with and without the number of segments."""

    def function(
        data: Any,
        indices: Any,
        segment_ids: Any,
        name: str | None = None,
        num_segments: Any = None,
    ) -> Tensor:
        if num_segments is None:
            return kind()(data, indices, segment_ids, name=name)
        return counted()(data, indices, segment_ids, num_segments, name=name)

    taken = {
        "data": "a tensor of rows.",
        "indices": "which rows take part, in which order.",
        "segment_ids": "the segment of each of those, ascending.",
        "name": NAME,
        "num_segments": "how many segments there are; None: up to the last id.",
    }
    function.__doc__ = composed(kind.__doc__, taken, "A tensor with a row for each segment.")
    function.__name__ = function.__qualname__ = names[0]
    function.__module__ = kind.__module__
    return public(*names)(function)


sparse_segment_sum = _function(
    SparseSegmentSum,
    SparseSegmentSumWithNumSegments,
    "sparse_segment_sum",
    "sparse.segment_sum",
)
sparse_segment_mean = _function(
    SparseSegmentMean,
    SparseSegmentMeanWithNumSegments,
    "sparse_segment_mean",
    "sparse.segment_mean",
)
sparse_segment_sqrt_n = _function(
    SparseSegmentSqrtN,
    SparseSegmentSqrtNWithNumSegments,
    "sparse_segment_sqrt_n",
    "sparse.segment_sqrt_n",
)
