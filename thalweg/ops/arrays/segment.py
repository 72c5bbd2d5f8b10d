"""Reductions of rows by segment: the rows with equal ids are combined into the row of that id.

Sorted ids are a vector; unsorted ones have any order and shape and require the number of segments;
negative ids drop their rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Size, TensorShape, unknown_shape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck, Scatter
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.math import compare, complexes, reduce, transcendental
from thalweg.platform.arrays import Array
from thalweg.platform.docstrings import NAME, composed
from thalweg.public import public


def combine(ufunc: Any, rows: Array, ids: Array, count: int, empty: Any) -> Array:
    """Rows with equal (sorted) ids combined by a ufunc; segments without rows are `empty`."""
    combined = np.full((count, *rows.shape[1:]), empty, rows.dtype)
    if ids.size and rows.size:
        starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
        combined[ids[starts]] = ufunc.reduceat(rows, starts, axis=0, dtype=rows.dtype)
    return combined


def check_sorted(ids: Array, count: int) -> None:
    """Raise unless ids are a sorted sequence of numbers in [0, count)."""
    if not ids.size:
        return
    if ids[-1] < 0:
        raise ValueError(f"segment ids must be >= 0, but the last one is {ids[-1]}")
    if ids[0] < 0:
        raise ValueError(f"segment ids do not start at 0 or above, but at {ids[0]}")
    falls = np.concatenate([[False], ids[1:] < ids[:-1]])
    beyond = ids >= count
    if not (falls.any() or beyond.any()):
        return
    where = int(np.argmax(falls | beyond))
    if beyond[where]:
        raise ValueError(
            f"Segment id {ids[where]} out of range [0, {count}), probably because 'segment_ids' "
            "input is not sorted."
        )
    raise ValueError(
        f"segment ids are not increasing by 1 or more at each change: {ids[where - 1]} is followed "
        f"by {ids[where]}; unsorted_segment_* take them in any order"
    )


def are_sorted(ids: Operand) -> list[RuntimeCheck]:
    """The checks that ids are ascending."""

    def follows(k: Expr) -> Expr:
        return ids[k] <= ids[k + 1]

    return [loop.runtime_check([max(ids.size - 1, 0)], follows)]


def scattered(kind: str, data: Operand, ids: Operand, initial: Any) -> Scatter:
    """Each row combined into the row of its id; a negative id drops its row."""

    def element(*place: Expr) -> tuple[tuple[Expr, ...], Expr]:
        return (ids[place[: ids.rank]], *place[ids.rank :]), data[place]

    return loop.scatter(kind, data.shape, element, initial)


def rows_of(ids: Operand, wanted: Expr) -> Expr:
    """The number of ids equal to `wanted`."""
    return loop.reduce("sum", ids.shape, lambda *k: ids[k].eq(wanted).cast(np.int64))


def known_count(ids: Tensor) -> Size:
    """The number of segments, if the sorted ids are known."""
    known = constant_value(ids)
    if known is None:
        return None
    return max(int(known[-1]) + 1, 0) if known.size else 0


class SegmentReduction(Op, abstract=True):
    """y[i] = the combination of the rows x[k] with ids[k] = i, for sorted ids"""

    signature = "data: T, segment_ids: Tindices -> output: T; T: numeric, Tindices: index"
    ufunc: ClassVar[Any] = np.add
    combine: ClassVar[str] = "sum"  # the loop reduction
    empty: ClassVar[int] = 0

    def shape(self, data: Tensor, segment_ids: Tensor) -> TensorShape:
        segment_ids.shape.assert_has_rank(1)
        rest = data.shape.with_rank_at_least(1)[1:]
        return TensorShape.of((known_count(segment_ids),)).concatenate(rest)

    def numpy(self, data: Array, segment_ids: Array) -> Array:
        if len(segment_ids) != len(data):
            raise ValueError(
                "segment_ids should be the same size as dimension 0 of input: "
                f"{len(segment_ids)} ids for {len(data)} rows"
            )
        count = int(segment_ids[-1]) + 1 if segment_ids.size else 0
        check_sorted(segment_ids, count)
        return self._reduce(data, segment_ids, count)

    def _reduce(self, data: Array, ids: Array, count: int) -> Array:
        return combine(type(self).ufunc, data, ids, count, self.empty)

    def loop(self, at: IndexTuple, data: Operand, segment_ids: Operand) -> Expr | Scatter:
        if segment_ids.shape != data.shape[:1]:
            raise ValueError(f"{segment_ids.size} ids for {data.shape[0]} rows")
        return scattered(self.combine, data, segment_ids, self.empty)

    def requires(self, data: Operand, segment_ids: Operand) -> list[RuntimeCheck]:
        return are_sorted(segment_ids)


def _segment(kind: type[SegmentReduction], *names: str) -> Callable[..., Tensor]:
    """The public function of a reduction by sorted segments."""
    op = kind()

    def function(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
        return op(data, segment_ids, name=name)

    return _named(function, kind, names)


_MEANINGS = {
    "data": "a tensor of rows (of a numeric dtype).",
    "segment_ids": "the segment of each row, int32 or int64.",
    "num_segments": "how many segments there are, some perhaps empty.",
    "name": NAME,
}


def _named(
    function: Callable[..., Tensor], kind: type[Op], names: tuple[str, ...]
) -> Callable[..., Tensor]:
    taken = {name: _MEANINGS[name] for name in inspect.signature(function).parameters}
    function.__doc__ = composed(kind.__doc__, taken, "A tensor with a row for each segment.")
    function.__name__ = function.__qualname__ = names[0]
    function.__module__ = kind.__module__
    return public(*names)(function)


class SegmentSum(SegmentReduction):
    """y[i] = Σ x[k] over sorted ids[k] = i

    Example:
        >>> sess.run(tf.segment_sum([[1, 2], [3, 4], [5, 6]], [0, 0, 1]))
        array([[4, 6],
               [5, 6]], dtype=int32)
    """

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [GatherSegments()(dy, node.inputs[1]), None]


segment_sum = _segment(SegmentSum, "segment_sum", "math.segment_sum")


class SegmentMean(SegmentReduction):
    """y[i] = mean of x[k] over sorted ids[k] = i

    Example:
        >>> sess.run(tf.segment_mean([1.0, 3.0, 5.0], [0, 0, 1]))
        array([2., 5.], dtype=float32)
    """

    def _reduce(self, data: Array, ids: Array, count: int) -> Array:
        sums = combine(np.add, data, ids, count, 0)
        sizes = np.maximum(np.bincount(ids, minlength=count), 1)
        divisor = sizes.reshape(-1, *[1] * (data.ndim - 1))
        if np.issubdtype(data.dtype, np.integer):
            return np.trunc(sums / divisor).astype(data.dtype)
        return (sums / divisor.astype(data.dtype)).astype(data.dtype)

    def loop(self, at: IndexTuple, data: Operand, segment_ids: Operand) -> Expr | Scatter:
        """Rows are divided before they are summed; integers after, since they are truncated."""
        if data.dtype.kind in "iu":
            return self._whole_mean(at, data, segment_ids)

        def element(row: Expr, *rest: Expr) -> tuple[tuple[Expr, ...], Expr]:
            segment = segment_ids[row]
            size = rows_of(segment_ids, segment).cast(data.dtype)
            return (segment, *rest), data[(row, *rest)] / size

        return loop.scatter("sum", data.shape, element, 0)

    def _whole_mean(self, at: IndexTuple, data: Operand, ids: Operand) -> Expr:
        def element(row: Expr) -> Expr:
            return select(ids[row].eq(at[0]), data[(row, *at[1:])], 0)

        total = loop.reduce("sum", ids.shape, element)
        return (total / rows_of(ids, at[0]).max(1)).trunc().cast(data.dtype)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        data, ids = node.inputs
        return [GatherSegments()(dy, ids) / SegmentSizes()(ids, data), None]


segment_mean = _segment(SegmentMean, "segment_mean", "math.segment_mean")


class SegmentProd(SegmentReduction):
    """y[i] = Π x[k] over sorted ids[k] = i

    Example:
        >>> sess.run(tf.segment_prod([2, 3, 5], [0, 0, 1]))
        array([6, 5], dtype=int32)
    """

    ufunc = np.multiply
    combine = "prod"
    empty = 1

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [_product_gradient(node, dy, segment_prod, segment_sum), None]


segment_prod = _segment(SegmentProd, "segment_prod", "math.segment_prod")


class SegmentExtreme(SegmentReduction, abstract=True):
    """The gradient of a maximum or minimum is shared by the rows that attain it."""

    signature = "data: T, segment_ids: Tindices -> output: T; T: real, Tindices: index"

    def loop(self, at: IndexTuple, data: Operand, segment_ids: Operand) -> Expr | Scatter:
        least, greatest = reduce.bounds(data.dtype)
        start = least if self.combine == "max" else greatest
        occupied = rows_of(segment_ids, at[0]) > 0
        return scattered(
            self.combine, data, segment_ids, select(occupied, start, self.empty).cast(data.dtype)
        )

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [_extreme_gradient(node, dy, segment_sum), None]


class SegmentMax(SegmentExtreme):
    """y[i] = max x[k] over sorted ids[k] = i

    Example:
        >>> sess.run(tf.segment_max([2, 3, 5], [0, 0, 1]))
        array([3, 5], dtype=int32)
    """

    ufunc = np.maximum
    combine = "max"


segment_max = _segment(SegmentMax, "segment_max", "math.segment_max")


class SegmentMin(SegmentExtreme):
    """y[i] = min x[k] over sorted ids[k] = i

    Example:
        >>> sess.run(tf.segment_min([2, 3, 5], [0, 0, 1]))
        array([2, 5], dtype=int32)
    """

    ufunc = np.minimum
    combine = "min"


segment_min = _segment(SegmentMin, "segment_min", "math.segment_min")


def _extreme_gradient(node: Node, dy: Tensor, total: Callable[..., Tensor]) -> Tensor:
    data, ids, *count = node.inputs
    reached = compare.equal(data, GatherSegments()(node.output, ids))
    share = casting.cast(reached, dy.dtype)
    return share * GatherSegments()(dy / total(share, ids, *count), ids)


def _product_gradient(
    node: Node, dy: Tensor, product: Callable[..., Tensor], total: Callable[..., Tensor]
) -> Tensor:
    """dy times the product of the segment's other rows: by division, except at zeros."""
    data, ids, *count = node.inputs
    data, output = matmul.conjugate(data), matmul.conjugate(node.output)
    is_zero = compare.equal(data, filling.zeros_like(data))
    zeros = total(casting.cast(is_zero, dy.dtype), ids, *count)
    nonzero = choosing.where(is_zero, filling.ones_like(data), data)
    others = choosing.where(
        is_zero,
        GatherSegments()(product(nonzero, ids, *count), ids),
        GatherSegments()(output, ids) / nonzero,
    )
    # With two zeros in a segment, every product of the others is zero.
    single = compare.less_equal(complexes.real(zeros), 1) if dy.dtype.is_complex else zeros <= 1
    return others * GatherSegments()(dy * casting.cast(single, dy.dtype), ids)


class GatherSegments(Op):
    """y[k…] = values[ids[k…]], and zeros where the id is negative"""

    private = True
    signature = "values: T, segment_ids: I -> output: T; T: numeric, I: index"

    def shape(self, values: Tensor, segment_ids: Tensor) -> TensorShape:
        return segment_ids.shape.concatenate(values.shape.with_rank_at_least(1)[1:])

    def numpy(self, values: Array, segment_ids: Array) -> Array:
        if not len(values):
            return np.zeros((*np.shape(segment_ids), *values.shape[1:]), values.dtype)
        gathered = np.take(values, np.maximum(segment_ids, 0), axis=0)
        dropped = np.reshape(segment_ids, np.shape(segment_ids) + (1,) * (values.ndim - 1)) < 0
        return np.where(dropped, np.zeros((), values.dtype), gathered)

    def loop(self, at: IndexTuple, values: Operand, segment_ids: Operand) -> Expr:
        row, rest = at.split(segment_ids.rank)
        segment = segment_ids[row]
        inside = (segment >= 0) & (segment < values.shape[0])
        return select(inside, values[(segment, *rest)], 0)

    def requires(self, values: Operand, segment_ids: Operand) -> list[RuntimeCheck]:
        count = values.shape[0]
        if not count:
            return []
        return [loop.runtime_check(segment_ids.shape, lambda *k: segment_ids[k] < count)]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        values, ids = node.inputs
        return [unsorted_segment_sum(dy, ids, shaping.shape(values)[0]), None]


class SegmentSizes(Op):
    """For each row of `like`, the number of rows in its segment, shaped to divide the rows"""

    private = True
    signature = "segment_ids: I, like: T -> output: T; T: numeric, I: index"
    not_differentiable = True

    def shape(self, segment_ids: Tensor, like: Tensor) -> TensorShape:
        ids, rows = segment_ids.shape, like.shape
        if ids.sizes is None or rows.sizes is None:
            return unknown_shape(rows.rank)
        return TensorShape.of((*ids.sizes, *(1,) * (len(rows.sizes) - len(ids.sizes))))

    def numpy(self, segment_ids: Array, like: Array) -> Array:
        kept = np.maximum(segment_ids, -1) + 1  # negative ids share an unused count
        sizes = np.bincount(kept.ravel())[kept]
        return sizes.reshape(*sizes.shape, *[1] * (like.ndim - sizes.ndim)).astype(like.dtype)

    def loop(self, at: IndexTuple, segment_ids: Operand, like: Operand) -> Expr:
        mine = segment_ids[at[: segment_ids.rank]].max(-1)
        equal = loop.reduce(
            "sum", segment_ids.shape, lambda *k: segment_ids[k].max(-1).eq(mine).cast(np.int64)
        )
        return equal.cast(like.dtype)


class UnsortedSegmentReduction(Op, abstract=True):
    """y[i] = the combination of the rows x[k…] with ids[k…] = i, for i < num_segments"""

    signature = (
        "data: T, segment_ids: I, num_segments: N -> output: T; T: numeric, I: index, N: index"
    )
    ufunc: ClassVar[Any] = np.add
    combine: ClassVar[str] = "sum"  # the loop reduction
    empty: ClassVar[Any] = 0

    def shape(self, data: Tensor, segment_ids: Tensor, num_segments: Tensor) -> TensorShape:
        num_segments.shape.assert_has_rank(0)
        count = constant_value(num_segments)
        ids, sizes = segment_ids.shape.sizes, data.shape.sizes
        if ids is None or sizes is None:
            return unknown_shape()
        TensorShape.of(sizes[: len(ids)]).assert_is_compatible_with(segment_ids.shape)
        return TensorShape.of((_checked_count(count), *sizes[len(ids) :]))

    def numpy(self, data: Array, segment_ids: Array, num_segments: Array) -> Array:
        if data.shape[: np.ndim(segment_ids)] != np.shape(segment_ids):
            raise ValueError(
                f"data.shape = {list(data.shape)} does not start with segment_ids.shape = "
                f"{list(np.shape(segment_ids))}"
            )
        count, ids = int(num_segments), np.ravel(segment_ids)
        _check_below(np.asarray(segment_ids), count)
        rest = data.shape[np.ndim(segment_ids) :]
        order = np.argsort(ids, kind="stable")[np.count_nonzero(ids < 0) :]
        rows = data.reshape(ids.size, *rest)[order]
        return combine(type(self).ufunc, rows, ids[order], count, self._empty(data.dtype))

    def loop(
        self, at: IndexTuple, data: Operand, segment_ids: Operand, num_segments: Operand
    ) -> Scatter:
        return scattered(self.combine, data, segment_ids, self._empty(data.dtype))

    def _empty(self, dtype: Any) -> Any:
        return self.empty


def _checked_count(count: Array | None) -> Size:
    if count is None:
        return None
    if count < 0:
        raise ValueError(f"num_segments must be >= 0, got {int(count)}")
    return int(count)


def _check_below(ids: Array, count: int) -> None:
    beyond = np.argwhere(ids >= count)
    if len(beyond):
        where = ",".join(map(str, beyond[0].tolist()))
        raise ValueError(
            f"segment_ids[{where}] = {ids[tuple(beyond[0])]} is out of range [0, {count})"
        )


def _unsorted(kind: type[UnsortedSegmentReduction], *names: str) -> Callable[..., Tensor]:
    """The public function of a reduction by unsorted segments."""
    op = kind()

    def function(data: Any, segment_ids: Any, num_segments: Any, name: str | None = None) -> Tensor:
        return op(data, segment_ids, num_segments, name=name)

    return _named(function, kind, names)


class UnsortedSegmentSum(UnsortedSegmentReduction):
    """y[i] = Σ x[k…] over ids[k…] = i

    Example:
        >>> sess.run(tf.unsorted_segment_sum([1, 2, 3], [1, 0, 1], num_segments=3))
        array([2, 4, 0], dtype=int32)
    """

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [GatherSegments()(dy, node.inputs[1]), None, None]


unsorted_segment_sum = _unsorted(
    UnsortedSegmentSum, "unsorted_segment_sum", "math.unsorted_segment_sum"
)


class UnsortedSegmentProd(UnsortedSegmentReduction):
    """y[i] = Π x[k…] over ids[k…] = i"""

    ufunc = np.multiply
    combine = "prod"
    empty = 1

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [
            _product_gradient(node, dy, unsorted_segment_prod, unsorted_segment_sum),
            None,
            None,
        ]


unsorted_segment_prod = _unsorted(
    UnsortedSegmentProd, "unsorted_segment_prod", "math.unsorted_segment_prod"
)


class UnsortedSegmentExtreme(UnsortedSegmentReduction, abstract=True):
    """The gradient of a maximum or minimum is shared by the rows that attain it."""

    signature = (
        "data: T, segment_ids: Tindices, num_segments: Tnumsegments -> output: T; "
        "T: real, Tindices: index, Tnumsegments: index"
    )

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [_extreme_gradient(node, dy, unsorted_segment_sum), None, None]


class UnsortedSegmentMax(UnsortedSegmentExtreme):
    """y[i] = max x[k…] over ids[k…] = i; the lowest value of the dtype for empty segments"""

    ufunc = np.maximum
    combine = "max"

    def _empty(self, dtype: Any) -> Any:
        return dtypes.as_dtype(dtype).min


unsorted_segment_max = _unsorted(
    UnsortedSegmentMax, "unsorted_segment_max", "math.unsorted_segment_max"
)


class UnsortedSegmentMin(UnsortedSegmentExtreme):
    """y[i] = min x[k…] over ids[k…] = i; the highest value of the dtype for empty segments"""

    ufunc = np.minimum
    combine = "min"

    def _empty(self, dtype: Any) -> Any:
        return dtypes.as_dtype(dtype).max


unsorted_segment_min = _unsorted(
    UnsortedSegmentMin, "unsorted_segment_min", "math.unsorted_segment_min"
)


@public("unsorted_segment_mean", "math.unsorted_segment_mean")
def unsorted_segment_mean(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> Tensor:
    """The mean of the rows of each segment; zero for empty segments."""
    with name_scope(name, "UnsortedSegmentMean", [data, segment_ids]):
        rows, ids = convert_to_tensor(data), convert_to_tensor(segment_ids)
        sized = rows / SegmentSizes()(ids, rows)
        return unsorted_segment_sum(sized, ids, num_segments)


@public("unsorted_segment_sqrt_n", "math.unsorted_segment_sqrt_n")
def unsorted_segment_sqrt_n(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> Tensor:
    """The sum of the rows of each segment, divided by the square root of their number."""
    with name_scope(name, "UnsortedSegmentSqrtN", [data, segment_ids]):
        rows, ids = convert_to_tensor(data), convert_to_tensor(segment_ids)
        sized = rows / transcendental.sqrt(SegmentSizes()(ids, rows))
        return unsorted_segment_sum(sized, ids, num_segments)
