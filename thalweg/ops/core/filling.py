"""Tensors made from a shape or from bounds: fills, zeros, ones, ranges, grids and masks."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_elements, constant_value, constant_value_as_shape
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, vector
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.arrays import joining
from thalweg.ops.core import basic, broadcast, casting, shaping
from thalweg.ops.math import reduce
from thalweg.platform.arrays import Array
from thalweg.public import public

_MAX_CONSTANT = 1024  # elements; larger fills are computed in the step, not stored in the graph


class Fill(Op):
    """y[…] = value"""

    signature = "dims: index_type, value: T -> output: T; index_type: index"

    def shape(self, dims: Tensor, value: Tensor) -> TensorShape:
        dims.shape.assert_has_rank(1)
        value.shape.assert_has_rank(0)
        if any(size is not None and size < 0 for size in constant_elements(dims) or ()):
            raise ValueError("Fill dimensions must be >= 0")
        return constant_value_as_shape(dims)

    def numpy(self, dims: Array, value: Array) -> Array:
        if np.any(dims < 0):
            raise errors.invalid(f"dims must be a vector of sizes >= 0, got {dims.tolist()}")
        return np.full(tuple(dims.tolist()), value)

    def loop(self, at: IndexTuple, dims: Operand, value: Operand) -> Expr:
        return value[()]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [None, reduce.reduce_sum(dy)]


@public("fill")
def fill(dims: Any, value: Any, name: str | None = None) -> Tensor:
    """A tensor whose elements are all equal to `value`.

    Args:
        dims: the shape, as a list or an integer vector.
        value: a scalar.
        name: the name of the node.

    Returns:
        A tensor of shape `dims` and the dtype of `value`.

    Example:
        >>> sess.run(tf.fill([2, 3], 9))
        array([[9, 9, 9],
               [9, 9, 9]], dtype=int32)
    """
    return Fill()(shaping.shape_tensor(dims), value, name=name)


@public("zeros")
def zeros(shape: Any, dtype: Any = dtypes.float32, name: str | None = None) -> Tensor:
    """A tensor of zeros (of empty strings, of False).

    Args:
        shape: the shape, as a list or an integer vector.
        dtype: the dtype.
        name: the name of the node.

    Returns:
        A tensor of `shape` and `dtype`.

    Example:
        >>> sess.run(tf.zeros([2, 3]))
        array([[0., 0., 0.],
               [0., 0., 0.]], dtype=float32)
    """
    kind = as_dtype(dtype).base_dtype
    return _filled(shape, _zero(kind), kind, name or "zeros")


@public("ones")
def ones(shape: Any, dtype: Any = dtypes.float32, name: str | None = None) -> Tensor:
    """A tensor of ones.

    Args:
        shape: the shape, as a list or an integer vector.
        dtype: the dtype.
        name: the name of the node.

    Returns:
        A tensor of `shape` and `dtype`.

    Example:
        >>> sess.run(tf.ones([2, 2], tf.int32))
        array([[1, 1],
               [1, 1]], dtype=int32)
    """
    kind = as_dtype(dtype).base_dtype
    return _filled(shape, True if kind.is_bool else 1, kind, name or "ones")


def _zero(kind: DType) -> Any:
    if kind.is_bool:
        return False
    return "" if kind is dtypes.string else 0


def _filled(shape: Any, value: Any, kind: DType, name: str) -> Tensor:
    if not isinstance(shape, Tensor):
        try:
            static = TensorShape(shape)
        except (TypeError, ValueError):
            static = TensorShape(None)
        size = static.num_elements()
        if size is not None and size <= _MAX_CONSTANT:
            return basic.constant(value, kind, shape=static, name=name)
    return fill(shape, convert_to_tensor(value, kind), name=name)


class ZerosLike(Op):
    """y = 0, of the shape and dtype of x"""

    signature = "x: T -> y: T"
    not_differentiable = True

    def shape(self, x: Tensor) -> TensorShape:
        return x.shape

    def numpy(self, x: Array) -> Array:
        if np.asarray(x).dtype == object:
            return np.full(np.shape(x), b"", dtype=object)
        return np.zeros_like(x)

    def loop(self, at: IndexTuple, x: Operand) -> Expr:
        return call("cast", zero_of(x.dtype), x.dtype)


class OnesLike(Op):
    """y = 1, of the shape and dtype of x"""

    signature = "x: T -> y: T; T: numeric|bool"
    not_differentiable = True

    def shape(self, x: Tensor) -> TensorShape:
        return x.shape

    def numpy(self, x: Array) -> Array:
        return np.ones_like(x)

    def loop(self, at: IndexTuple, x: Operand) -> Expr:
        return call("cast", 1, x.dtype)


@public("zeros_like")
def zeros_like(
    tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Zeros of the shape of a tensor.

    Args:
        tensor: the tensor, whose values do not matter.
        dtype: the dtype; that of `tensor` if None.
        name: the name of the node.
        optimize: whether a static shape makes a constant.

    Returns:
        A tensor of the shape of `tensor`.

    Example:
        >>> sess.run(tf.zeros_like([5.0, 6.0], dtype=tf.int32))
        array([0, 0], dtype=int32)
    """
    return _like(tensor, dtype, name or "zeros_like", optimize, ZerosLike(), zeros)


@public("ones_like")
def ones_like(
    tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Ones of the shape of a tensor.

    Args:
        tensor: the tensor, whose values do not matter.
        dtype: the dtype; that of `tensor` if None.
        name: the name of the node.
        optimize: whether a static shape makes a constant.

    Returns:
        A tensor of the shape of `tensor`.

    Example:
        >>> sess.run(tf.ones_like([5.0, 6.0]))
        array([1., 1.], dtype=float32)
    """
    return _like(tensor, dtype, name or "ones_like", optimize, OnesLike(), ones)


def _like(tensor: Any, dtype: Any, name: str, optimize: bool, op: Op, make: Any) -> Tensor:
    source = convert_to_tensor(tensor, name="tensor")
    kind = source.dtype.base_dtype if dtype is None else as_dtype(dtype).base_dtype
    size = source.shape.num_elements()
    if optimize and size is not None and size <= _MAX_CONSTANT:
        return make(source.shape, kind, name=name)
    if kind is source.dtype.base_dtype:
        return op(source, name=name)
    if kind is dtypes.string or source.dtype.base_dtype is dtypes.string:
        return make(shaping.shape(source), kind, name=name)
    filled: Tensor = op(source, name=name)
    return casting.cast(filled, kind)


def zero_of(dtype: np.dtype[Any]) -> Any:
    """The zero of a NumPy dtype; of strings, the empty one."""
    return b"" if dtype.hasobject else np.zeros((), dtype)[()]


class Range(Op):
    """start, start + delta, start + 2 delta, … before limit"""

    signature = "start: Tidx, limit: Tidx, delta: Tidx -> output: Tidx; Tidx: real"
    not_differentiable = True

    def shape(self, start: Tensor, limit: Tensor, delta: Tensor) -> TensorShape:
        for bound in (start, limit, delta):
            bound.shape.assert_has_rank(0)
        values = [constant_value(bound) for bound in (start, limit, delta)]
        if any(value is None for value in values):
            return vector(None)
        return vector(_range_length(*values))

    def numpy(self, start: Array, limit: Array, delta: Array) -> Array:
        count = _range_length(start, limit, delta)
        kind = np.asarray(start).dtype
        wide = _wide(kind)
        steps = np.arange(count, dtype=wide)
        return (np.asarray(start, wide) + steps * np.asarray(delta, wide)).astype(kind)

    def loop(self, at: IndexTuple, start: Operand, limit: Operand, delta: Operand) -> Expr:
        first, number, step = (x.cast(_wide(start.dtype)) for x in (start[()], at[0], delta[()]))
        return (first + number * step).cast(start.dtype)


def _wide(kind: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which a range of a dtype is computed."""
    return kind if kind.kind in "iu" else np.dtype(np.float64)


def _range_length(start: Any, limit: Any, delta: Any) -> int:
    first, last, step = (np.asarray(bound).item() for bound in (start, limit, delta))
    if step == 0:
        raise ValueError("Requires delta != 0")
    if step > 0 and first > last:
        raise ValueError(f"Requires start <= limit when delta > 0: {first}/{last}")
    if step < 0 and first < last:
        raise ValueError(f"Requires start >= limit when delta < 0: {first}/{last}")
    if isinstance(first, int):
        return -((first - last) // step)
    return int(np.ceil(abs((last - first) / step)))


_RANGE_ORDER = (dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64)


@public("range")
def range(
    start: TensorLike,
    limit: TensorLike | None = None,
    delta: TensorLike = 1,
    dtype: Any = None,
    name: str = "range",
) -> Tensor:
    """Numbers from `start` (inclusive) to `limit` (exclusive).

    Args:
        start: the first number; the limit if no other is given.
        limit: the bound.
        delta: the distance between numbers.
        dtype: the dtype; by default the common one of the arguments.
        name: the name of the node.

    Returns:
        A vector.

    Example:
        >>> sess.run(tf.range(3))
        array([0, 1, 2], dtype=int32)
        >>> sess.run(tf.range(0.0, 1.0, 0.25))
        array([0.  , 0.25, 0.5 , 0.75], dtype=float32)
    """
    if limit is None:
        start, limit = 0, start
    with name_scope(name, "Range", [start, limit, delta]) as scope:
        kind = None if dtype is None else as_dtype(dtype)
        names = ("start", "limit", "delta")
        bounds = [
            convert_to_tensor(bound, kind, name=part)
            for bound, part in zip((start, limit, delta), names, strict=True)
        ]
        common = kind or _widest([bound.dtype.base_dtype for bound in bounds])
        return Range()(*(casting.cast(bound, common) for bound in bounds), name=scope)


def _widest(kinds: list[DType]) -> DType:
    if all(kind is kinds[0] for kind in kinds):
        return kinds[0]
    unknown = [kind for kind in kinds if kind not in _RANGE_ORDER]
    if unknown:
        raise TypeError(f"range takes bounds of one dtype; {unknown[0].name} does not mix")
    return max(kinds, key=_RANGE_ORDER.index)


class LinSpace(Op):
    """start, …, stop in num even steps"""

    signature = "start: T, stop: T, num: Tidx -> output: T; T: floating, Tidx: index"
    not_differentiable = True

    def shape(self, start: Tensor, stop: Tensor, num: Tensor) -> TensorShape:
        for scalar in (start, stop, num):
            scalar.shape.assert_has_rank(0)
        count = constant_value(num)
        return vector(None if count is None else _positive(int(count)))

    def numpy(self, start: Array, stop: Array, num: Array) -> Array:
        first, last = np.asarray(start, np.float64), np.asarray(stop, np.float64)
        return np.linspace(first, last, _positive(int(num))).astype(np.asarray(start).dtype)

    def loop(self, at: IndexTuple, start: Operand, stop: Operand, num: Operand) -> Expr:
        number, steps = at[0], at.shape[0] - 1
        if steps == 0:
            return start[()]
        first, last = (x[()].cast(np.float64) for x in (start, stop))
        inner = first + number.cast(np.float64) * ((last - first) / steps)
        return select(number < steps, inner, last).cast(start.dtype)


def _positive(count: int) -> int:
    if count <= 0:
        raise ValueError(f"Requires num > 0: {count}")
    return count


@public("lin_space", "linspace")
def lin_space(start: Any, stop: Any, num: Any, name: str | None = None) -> Tensor:
    """Evenly spaced numbers from `start` to `stop`, both included.

    Args:
        start, stop: floating scalars.
        num: the number of values.
        name: the name of the node.

    Returns:
        A vector.

    Example:
        >>> sess.run(tf.linspace(0.0, 1.0, 5))
        array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    return LinSpace()(start, stop, num, name=name)


@public("meshgrid")
def meshgrid(*args: TensorLike, **kwargs: Any) -> list[Tensor]:
    """Coordinates of a grid, from the vectors along its axes.

    Args:
        args: the vectors.
        kwargs: `indexing`, "xy" (the first two axes exchanged, the default) or "ij"; `name`.

    Returns:
        A list of tensors, one per vector.

    Example:
        >>> x, y = tf.meshgrid([1, 2, 3], [10, 20])
        >>> sess.run(x)
        array([[1, 2, 3],
               [1, 2, 3]], dtype=int32)
    """
    indexing, name = kwargs.pop("indexing", "xy"), kwargs.pop("name", "meshgrid")
    if kwargs:
        raise TypeError(f"'{next(iter(kwargs))}' is an invalid keyword argument for meshgrid")
    if indexing not in ("xy", "ij"):
        raise ValueError("indexing parameter must be either 'xy' or 'ij'")
    with name_scope(name, "meshgrid", args):
        return _grid([convert_to_tensor(arg) for arg in args], indexing)


def _grid(vectors: Sequence[Tensor], indexing: str) -> list[Tensor]:
    rank = len(vectors)
    places = list(builtins.range(rank))
    if indexing == "xy" and rank > 1:
        places[:2] = 1, 0
    along = [shaping.one_axis(rank, place, -1) for place in places]
    flat = [shaping.reshape(v, shape) for v, shape in zip(vectors, along, strict=True)]
    sizes: list[Any] = [None] * rank
    for tensor, place in zip(vectors, places, strict=True):
        sizes[place] = shaping.size(tensor)
    full = joining.stack(sizes) if sizes else shaping.shape_tensor([])
    return [broadcast.broadcast_to(tensor, full) for tensor in flat]


@public("sequence_mask")
def sequence_mask(
    lengths: Any, maxlen: Any = None, dtype: Any = dtypes.bool, name: str | None = None
) -> Tensor:
    """The mask of the elements of padded sequences: mask[..., j] = j < lengths[...].

    Args:
        lengths: the lengths of sequences, integers of any shape.
        maxlen: the size of the new last axis; the largest length if None.
        dtype: the dtype of the mask.
        name: the name of the node.

    Returns:
        A tensor of the shape of `lengths`, followed by `maxlen`.

    Example:
        >>> sess.run(tf.sequence_mask([1, 3], maxlen=3, dtype=tf.int32))
        array([[1, 0, 0],
               [1, 1, 1]], dtype=int32)
    """
    with name_scope(name, "SequenceMask", [lengths, maxlen]):
        sizes = convert_to_tensor(lengths)
        longest = reduce.reduce_max(sizes) if maxlen is None else convert_to_tensor(maxlen)
        if longest.shape.rank not in (None, 0):
            raise ValueError("maxlen must be scalar for sequence_mask")
        places = range(
            casting.cast(0, longest.dtype), _at_least_zero(longest), casting.cast(1, longest.dtype)
        )
        mask = places < casting.cast(shaping.expand_dims(sizes, -1), longest.dtype)
        return casting.cast(mask, dtype)


def _at_least_zero(longest: Tensor) -> Tensor:
    return reduce.reduce_max(joining.stack([longest, casting.cast(0, longest.dtype)]))
