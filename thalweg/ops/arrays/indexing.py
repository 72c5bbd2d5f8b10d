"""Elements by index: gathered, scattered, and marked in one-hot vectors and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_value, constant_value_as_shape
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck, Scatter
from thalweg.ops.arrays import joining, subscripts
from thalweg.ops.core import broadcast, choosing, filling, shaping
from thalweg.ops.math import reduce
from thalweg.public import public

Array = NDArray[Any]


def check_within(indices: Array, limit: int, what: str = "indices") -> None:
    """Raise unless every index lies in [0, limit)."""
    bad = (indices < 0) | (indices >= limit)
    if np.any(bad):
        where: list[int] = np.argwhere(bad)[0].tolist() if np.ndim(bad) else []
        place = f"[{','.join(map(str, where))}]" if where else ""
        value = np.asarray(indices)[tuple(where)]
        raise errors.InvalidArgumentError(
            None, None, f"{what}{place} = {value} is not in [0, {limit})"
        )


def are_within(indices: Operand, limit: Any) -> RuntimeCheck:
    """That every index lies in [0, limit)."""
    return loop.runtime_check(indices.shape, lambda *k: (indices[k] >= 0) & (indices[k] < limit))


def are_coordinates(indices: Operand, sizes: Sequence[Any]) -> list[RuntimeCheck]:
    """That every row along the last axis of `indices` lies in a tensor of these sizes."""

    def inside(axis: int, size: Any) -> RuntimeCheck:
        def within(*row: Expr) -> Expr:
            return (indices[(*row, axis)] >= 0) & (indices[(*row, axis)] < size)

        return loop.runtime_check(indices.shape[:-1], within)

    return [inside(axis, size) for axis, size in enumerate(sizes[: indices.shape[-1]])]


# Along an axis


class Along(Op, abstract=True):
    """What a gather and its transpose share: batch dimensions, then an axis that is indexed."""

    batch_dims: int = 0

    def axes(self, axis: Any, rank: int, indices_rank: int) -> tuple[int, int]:
        """The axis and the number of batch dimensions, counted from 0 and checked."""
        place = shaping.axis_within(int(np.asarray(axis).item()), rank)
        batch = self._batch(indices_rank)
        if not 0 <= batch <= min(place, indices_rank):
            raise ValueError(
                f"batch_dims ({self.batch_dims}) must be at most axis ({place}) and the rank of "
                f"indices ({indices_rank})"
            )
        return place, batch

    def _batch(self, indices_rank: int) -> int:
        return self.batch_dims + indices_rank if self.batch_dims < 0 else self.batch_dims

    def index(self, params_shape: Any, indices: Array, axis: Array) -> tuple[Any, ...]:
        """The NumPy index of the gathered elements, in the layout of the gathered tensor."""
        rank = len(params_shape)
        place, batch = self.axes(axis, rank, np.ndim(indices))
        check_within(indices, params_shape[place])
        inner, outer = np.ndim(indices) - batch, rank - place - 1
        total = place + inner + outer
        before = [_aranged(params_shape[i], i, total) for i in range(place)]
        middle = (1,) * (place - batch)
        shape = (*np.shape(indices)[:batch], *middle, *np.shape(indices)[batch:], *(1,) * outer)
        after = [
            _aranged(params_shape[i], place + inner + i - place - 1, total)
            for i in range(place + 1, rank)
        ]
        return (*before, np.reshape(indices, shape), *after)

    def source(self, at: Sequence[Expr], indices: Operand, axis: Operand) -> tuple[Expr, ...]:
        """Where in params the element at a place of the gathered tensor lies."""
        inner = indices.rank
        place, batch = self.axes(axis.constant(), len(at) - inner + 1 + self._batch(inner), inner)
        end = place + inner - batch
        return (*at[:place], indices[(*at[:batch], *at[place:end])], *at[end:])


def _aranged(size: int, axis: int, rank: int) -> Array:
    """0, 1, …, size - 1 along one axis of a tensor of some rank."""
    return np.arange(size).reshape(shaping.one_axis(rank, axis, size))


class GatherV2(Along):
    """y[b…, o…, i…, r…] = params[b…, o…, indices[b…, i…], r…]"""

    signature = (
        "params: Tparams, indices: Tindices, axis: Taxis -> output: Tparams; "
        "Tindices: index, Taxis: index"
    )

    def shape(self, params: Tensor, indices: Tensor, axis: Tensor) -> TensorShape:
        axis.shape.assert_has_rank(0)
        sizes = params.shape.with_rank_at_least(1).sizes
        found, where = indices.shape.sizes, constant_value(axis)
        if sizes is None or found is None:
            return unknown_shape()
        if where is None:
            return unknown_shape(len(sizes) - 1 + len(found) - self.batch_dims)
        place, batch = self.axes(where, len(sizes), len(found))
        same = TensorShape.of(sizes[:batch]).merge_with(TensorShape.of(found[:batch])).sizes or ()
        return TensorShape.of((*same, *sizes[batch:place], *found[batch:], *sizes[place + 1 :]))

    def numpy(self, params: Array, indices: Array, axis: Array) -> Array:
        place, batch = self.axes(axis, np.ndim(params), np.ndim(indices))
        if batch:
            return params[self.index(params.shape, indices, axis)]
        check_within(indices, params.shape[place])
        return np.asarray(np.take(params, indices, place), params.dtype)

    def loop(self, at: IndexTuple, params: Operand, indices: Operand, axis: Operand) -> Expr:
        return params.or_else(self.source(at, indices, axis), filling.zero_of(params.dtype))

    def requires(self, params: Operand, indices: Operand, axis: Operand) -> list[RuntimeCheck]:
        place, _ = self.axes(axis.constant(), params.rank, indices.rank)
        return [are_within(indices, params.shape[place])]

    def gradient(self, node: Node, dy: Tensor) -> list[Any]:
        params, indices, axis = node.inputs
        if self.batch_dims == 0 and _is_zero(axis):
            return [_rows(params, indices, dy), None, None]
        shape = shaping.shape(params)
        return [GatherAdjoint(batch_dims=self.batch_dims)(dy, indices, axis, shape), None, None]


class GatherAdjoint(Along):
    """y = 0, then y[b…, o…, indices[b…, i…], r…] += x[b…, o…, i…, r…]"""

    signature = "x: T, indices: I, axis: J, shape: K -> y: T; I: index, J: index, K: index"

    def shape(self, x: Tensor, indices: Tensor, axis: Tensor, shape: Tensor) -> TensorShape:
        return constant_value_as_shape(shape)

    def numpy(self, x: Array, indices: Array, axis: Array, shape: Array) -> Array:
        total = np.zeros(shape.tolist(), x.dtype)
        np.add.at(total, self.index(total.shape, indices, axis), x)
        return total

    def loop(
        self, at: IndexTuple, x: Operand, indices: Operand, axis: Operand, shape: Operand
    ) -> Scatter:
        def update(*place: Expr) -> tuple[Sequence[Any], Expr]:
            return self.source(place, indices, axis), x[place]

        return loop.scatter("sum", x.shape, update, filling.zero_of(x.dtype))

    def gradient(self, node: Node, dy: Tensor) -> list[Any]:
        _, indices, axis, _ = node.inputs
        return [GatherV2(batch_dims=self.batch_dims)(dy, indices, axis), None, None, None]


def _is_zero(axis: Tensor) -> bool:
    value = constant_value(axis)
    return value is not None and int(value) == 0


def _rows(params: Tensor, indices: Tensor, dy: Tensor) -> IndexedSlices:
    """The gradient of a gather of rows: only those rows."""
    values = shaping.reshape(dy, _rows_shape(params, indices))
    return IndexedSlices(values, shaping.reshape(indices, [-1]), shaping.shape(params))


def _rows_shape(params: Tensor, indices: Tensor) -> Any:
    """[number of indices, *the shape of a row]"""
    row = params.shape.with_rank_at_least(1)[1:].sizes
    count = indices.shape.num_elements()
    if row is not None and None not in row and (count is not None or 0 not in row):
        return [-1 if count is None else count, *row]
    rest = subscripts.getitem(shaping.shape(params), slice(1, None))
    return joining.concat([[shaping.size(indices)], rest], 0)


@public("gather")
def gather(
    params: Any,
    indices: Any,
    validate_indices: bool | None = None,
    name: str | None = None,
    axis: Any = None,
    batch_dims: int = 0,
) -> Tensor:
    """Slices of `params` along an axis, by index.

    Args:
        params: the tensor, or variable, to take slices of.
        indices: indices, int32 or int64, of any shape.
        validate_indices: taken for old programs; indices are always checked.
        name: the name of the node.
        axis: the axis to index; `batch_dims` if None.
        batch_dims: how many leading axes both have in common.

    Returns:
        `params` with the shape of `indices` (without batch axes) in place of `axis`.

    Raises:
        InvalidArgumentError: where an index lies outside.

    Example:
        >>> x = tf.constant([[1, 2], [3, 4], [5, 6]])
        >>> sess.run(tf.gather(x, [2, 0]))
        array([[5, 6],
               [1, 2]], dtype=int32)
        >>> sess.run(tf.gather(x, 1, axis=1))
        array([2, 4, 6], dtype=int32)
    """
    place = batch_dims if axis is None else axis
    return GatherV2(batch_dims=batch_dims)(params, indices, place, name=name)


@public("batch_gather")
def batch_gather(params: Any, indices: Any, name: str | None = None) -> Tensor:
    """y[b…, i] = params[b…, indices[b…, i]], over all but the last dimension of `indices`."""
    with name_scope(name, "BatchGather", [params, indices]):
        where = convert_to_tensor(indices, name="indices")
        if where.shape.rank is None:
            raise ValueError("batch_gather does not allow indices with unknown shape.")
        batch = where.shape.rank - 1
        return gather(params, where, axis=batch, batch_dims=batch)


# By coordinates


def coordinates(indices: Array, shape: tuple[int, ...], message: str) -> tuple[Array, ...]:
    """The NumPy index that the coordinates along the last axis of `indices` mean, checked.

    `message` is formatted with the place `at` and the `value` of the first coordinate outside.
    """
    depth = np.shape(indices)[-1]
    limits = np.array(shape[:depth], indices.dtype)
    bad = ((indices < 0) | (indices >= limits)).any(-1)
    if np.any(bad):
        at = int(np.flatnonzero(bad)[0])
        value = ",".join(map(str, indices.reshape(-1, depth)[at].tolist()))
        sizes = ",".join(map(str, shape))
        raise errors.InvalidArgumentError(
            None, None, message.format(at=at, value=value, shape=sizes)
        )
    return tuple(np.moveaxis(indices, -1, 0))


def coordinate_source(at: Sequence[Expr], indices: Operand) -> tuple[Expr, ...]:
    """Where the element at a place of slices, chosen by coordinates, lies in the whole."""
    outer = indices.rank - 1
    chosen = (indices[(*at[:outer], column)] for column in range(indices.shape[-1]))
    return (*chosen, *at[outer:])


class GatherNd(Op):
    """y[i…, r…] = params[indices[i…, 0], …, indices[i…, k - 1], r…]"""

    signature = "params: Tparams, indices: Tindices -> output: Tparams; Tindices: index"

    def shape(self, params: Tensor, indices: Tensor) -> TensorShape:
        sizes = params.shape.with_rank_at_least(1).sizes
        where = indices.shape.with_rank_at_least(1)
        depth = None if where.sizes is None else where.sizes[-1]
        if sizes is None or depth is None:
            return unknown_shape()
        if depth > len(sizes):
            raise ValueError(f"indices.shape[-1] must be <= params.rank: {depth} vs. {len(sizes)}")
        return where[:-1].concatenate(TensorShape.of(sizes[depth:]))

    def numpy(self, params: Array, indices: Array) -> Array:
        depth = np.shape(indices)[-1]
        if depth > params.ndim:
            raise ValueError(f"index innermost dimension length must be <= params rank: {depth}")
        if params.size == 0 and indices.size > 0 and 0 in params.shape[:depth]:
            raise ValueError("Requested more than 0 entries, but params is empty.")
        message = "flat indices[{at}, :] = [{value}] does not index into param (shape: [{shape}])"
        index = coordinates(indices, params.shape, message)
        if depth == 0:
            return np.broadcast_to(params, (*indices.shape[:-1], *params.shape))
        return np.asarray(params[(*index, Ellipsis)])

    def loop(self, at: IndexTuple, params: Operand, indices: Operand) -> Expr:
        return params.or_else(coordinate_source(at, indices), filling.zero_of(params.dtype))

    def requires(self, params: Operand, indices: Operand) -> list[RuntimeCheck]:
        return are_coordinates(indices, params.shape)

    def gradient(self, node: Node, dy: Tensor) -> list[Any]:
        params, indices = node.inputs
        shape = shaping.shape(params, out_type=indices.dtype.base_dtype)
        if indices.shape.rank == 2 and indices.shape.as_list()[-1] == 1:
            return [IndexedSlices(dy, shaping.squeeze(indices, [-1]), shape), None]
        return [scatter_nd(indices, dy, shape), None]


@public("gather_nd", "manip.gather_nd")
def gather_nd(params: Any, indices: Any, name: str | None = None, batch_dims: int = 0) -> Tensor:
    """Slices of `params` by coordinates.

    Args:
        params: a tensor.
        indices: [..., k]: each vector of k numbers is an index into the first k axes.
        name: the name of the node.
        batch_dims: how many leading axes both have in common.

    Returns:
        A tensor of the shape of `indices` without its last axis, then that of a slice.

    Raises:
        InvalidArgumentError: where an index lies outside.

    Example:
        >>> x = tf.constant([[1, 2], [3, 4]])
        >>> sess.run(tf.gather_nd(x, [[0, 0], [1, 1]]))
        array([1, 4], dtype=int32)
    """
    if batch_dims == 0:
        return GatherNd()(params, indices, name=name)
    with name_scope(name, "BatchGatherND", [params, indices]):
        where = convert_to_tensor(indices)
        return GatherNd()(params, _with_batch(where, batch_dims))


def _with_batch(indices: Tensor, batch_dims: int) -> Tensor:
    """Coordinates with those of their batch put in front."""
    rank = indices.shape.rank
    if rank is None or rank <= batch_dims:
        raise ValueError(f"indices of shape {indices.shape} have no {batch_dims} batch dimensions")
    sizes = shaping.shape(indices, out_type=indices.dtype)
    zero, one = (convert_to_tensor(n, indices.dtype) for n in (0, 1))
    columns = [filling.range(zero, sizes[axis], one) for axis in range(batch_dims)]
    full = joining.concat([sizes[:-1], [1]], 0)
    placed = [
        broadcast.broadcast_to(shaping.reshape(c, shaping.one_axis(rank, axis, -1)), full)
        for axis, c in enumerate(columns)
    ]
    return joining.concat([*placed, indices], -1)


class ScatterNd(Op):
    """y = 0, then y[indices[i…, 0], …, indices[i…, k - 1], r…] += updates[i…, r…]"""

    signature = "indices: Tindices, updates: T, shape: Tindices -> output: T; Tindices: index"

    def shape(self, indices: Tensor, updates: Tensor, shape: Tensor) -> TensorShape:
        full = constant_value_as_shape(shape)
        check_updates(indices.shape, updates.shape, full, "output")
        return full

    def numpy(self, indices: Array, updates: Array, shape: Array) -> Array:
        values, sizes = np.asarray(updates), tuple(shape.tolist())
        found = TensorShape.of(indices.shape), TensorShape.of(values.shape)
        check_updates(*found, TensorShape.of(sizes), "output")
        total: Any = np.full(sizes, filling.zero_of(values.dtype), values.dtype)
        if indices.shape[-1] == 0:  # every update is of the whole
            values = values.sum(tuple(range(indices.ndim - 1)), dtype=values.dtype)
        index: Any = (*coordinates(indices, sizes, INVALID_COORDINATE), Ellipsis)
        np.add.at(total, index, values)
        return total

    def loop(self, at: IndexTuple, indices: Operand, updates: Operand, shape: Operand) -> Scatter:
        def update(*place: Expr) -> tuple[Sequence[Any], Expr]:
            return coordinate_source(place, indices), updates[place]

        return loop.scatter("sum", updates.shape, update, filling.zero_of(updates.dtype))

    def gradient(self, node: Node, dy: Tensor) -> list[Any]:
        return [None, gather_nd(dy, node.inputs[0]), None]


INVALID_COORDINATE = "Invalid indices: [{at},0] = [{value}] does not index into [{shape}]"


def check_updates(indices: TensorShape, updates: TensorShape, full: TensorShape, what: str) -> None:
    """Raise unless updates are what `indices` select from a tensor of shape `full`."""
    if full.num_elements() == 0 and (indices.num_elements() or 0) * (updates.num_elements() or 0):
        raise ValueError(f"Indices and updates specified for empty {what} shape")
    where = indices.with_rank_at_least(1).sizes
    if where is None or updates.sizes is None:
        return
    outer, depth = len(where) - 1, where[-1]
    if len(updates.sizes) < outer or not _fit(where[:-1], updates.sizes[:outer]):
        raise ValueError(
            f"The outer {outer} dimensions of indices.shape={indices} must match the outer {outer} "
            f"dimensions of updates.shape={updates}"
        )
    if full.sizes is None or depth is None:
        return
    inner = full.sizes[depth:]
    if not _fit(inner, updates.sizes[outer:]):
        raise ValueError(
            f"The inner {len(inner)} dimensions of {what}.shape={full} must match the inner "
            f"{len(updates.sizes) - outer} dimensions of updates.shape={updates}"
        )


def _fit(one: tuple[int | None, ...], two: tuple[int | None, ...]) -> bool:
    return TensorShape.of(one).is_compatible_with(TensorShape.of(two))


@public("scatter_nd", "manip.scatter_nd")
def scatter_nd(indices: Any, updates: Any, shape: Any, name: str | None = None) -> Tensor:
    """A tensor of zeros with `updates` added at the coordinates `indices`."""
    return ScatterNd()(indices, updates, shape, name=name)


class UnravelIndex(Op):
    """The coordinates of flat indices into an array of the given dims, one column per index."""

    signature = "indices: T, dims: T -> output: T; T: index"
    not_differentiable = True

    def shape(self, indices: Tensor, dims: Tensor) -> TensorShape:
        if indices.shape.rank is None:
            return unknown_shape()
        rank = dims.shape.with_rank(1)[0].value
        count = indices.shape.num_elements()
        return TensorShape.of((rank,) if indices.shape.rank == 0 else (rank, count))

    def numpy(self, indices: Array, dims: Array) -> Array:
        flat = np.reshape(indices, -1) if np.ndim(indices) else indices
        found = np.unravel_index(flat, tuple(dims.tolist()))
        return np.stack([np.asarray(f) for f in found]).astype(dims.dtype)

    def loop(self, at: IndexTuple, indices: Operand, dims: Operand) -> Expr:
        axis, *rest = at

        def inner(other: Expr) -> Expr:
            return select(other > axis, dims[other], 1)

        step = loop.reduce("prod", dims.shape, inner)
        return indices.flat(rest[0] if rest else 0) // step % dims[axis]

    def requires(self, indices: Operand, dims: Operand) -> list[RuntimeCheck]:
        size = loop.reduce("prod", dims.shape, lambda *k: dims[k].cast(np.int64))
        return [
            loop.runtime_check(dims.shape, lambda *k: dims[k] >= 0),
            are_within(indices, size),
        ]


@public("unravel_index")
def unravel_index(indices: Any, dims: Any, name: str | None = None) -> Tensor:
    """Flat indices as coordinates: column i of the result belongs to indices[i]."""
    return UnravelIndex()(indices, dims, name=name)


# Marks


class OneHot(Op):
    """y[…, j, …] = on_value if indices[…] = j else off_value"""

    signature = (
        "indices: TI, depth: int32, on_value: T, off_value: T -> output: T; TI: uint8|int32|int64"
    )
    axis: int = -1

    def shape(
        self, indices: Tensor, depth: Tensor, on_value: Tensor, off_value: Tensor
    ) -> TensorShape:
        for scalar in (depth, on_value, off_value):
            scalar.shape.assert_has_rank(0)
        sizes = indices.shape.sizes
        if sizes is None:
            return unknown_shape()
        count, place = constant_value(depth), self._place(len(sizes))
        if count is not None and count < 0:
            raise ValueError(f"depth must be non-negative, got: {count}")
        return TensorShape.of(
            (*sizes[:place], None if count is None else int(count), *sizes[place:])
        )

    def _place(self, rank: int) -> int:
        if not -1 <= self.axis <= rank:
            raise ValueError(
                f"Expected axis to be -1 or between [0, {rank}]. But received: {self.axis}"
            )
        return rank if self.axis == -1 else self.axis

    def numpy(self, indices: Array, depth: Array, on_value: Array, off_value: Array) -> Array:
        if depth < 0:
            raise ValueError(f"depth must be non-negative, got: {depth}")
        place = self._place(np.ndim(indices))
        rank = np.ndim(indices) + 1
        marked = np.expand_dims(indices, place) == _aranged(int(depth), place, rank)
        return np.where(marked, on_value, off_value).astype(np.asarray(on_value).dtype)

    def loop(
        self,
        at: IndexTuple,
        indices: Operand,
        depth: Operand,
        on_value: Operand,
        off_value: Operand,
    ) -> Expr:
        place = self._place(indices.rank)
        marked = indices[(*at[:place], *at[place + 1 :])].eq(at[place])
        return select(marked, on_value[()], off_value[()])

    def gradient(self, node: Node, dy: Tensor) -> list[Any]:
        _, depth, on_value, off_value = node.inputs
        ones = OneHot(axis=self.axis)(
            node.inputs[0], depth, filling.ones_like(on_value), filling.zeros_like(off_value)
        )
        return [None, None, reduce.reduce_sum(dy * ones), reduce.reduce_sum(dy * (1 - ones))]


@public("one_hot")
def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = None,
    off_value: Any = None,
    axis: int | None = None,
    dtype: Any = None,
    name: str | None = None,
) -> Tensor:
    """Vectors of `depth` elements that are one at an index and zero elsewhere.

    Args:
        indices: integers of any shape; those outside [0, depth) give vectors without a one.
        depth: the number of elements.
        on_value: what stands at the index; 1 if None.
        off_value: what stands elsewhere; 0 if None.
        axis: where the new axis is in the result; the last if None.
        dtype: the dtype; by default that of the values given, else float32.
        name: the name of the node.

    Returns:
        A tensor with one axis more than `indices`, of size `depth`.

    Example:
        >>> sess.run(tf.one_hot([0, 2], depth=3))
        array([[1., 0., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    with name_scope(name, "one_hot", [indices, depth, on_value, off_value]) as scope:
        kind = None if dtype is None else as_dtype(dtype)
        on, off = _marks(on_value, off_value, kind)
        return OneHot(axis=-1 if axis is None else axis)(indices, depth, on, off, name=scope)


def _marks(on_value: Any, off_value: Any, kind: DType | None) -> tuple[Tensor, Tensor]:
    """The two values as tensors of one dtype: the given one, theirs, or float32."""
    on, off = _mark(on_value, kind), _mark(off_value, kind)
    for name, tensor in (("on_value", on), ("off_value", off)):
        if tensor is None:
            continue
        kind = tensor.dtype.base_dtype if kind is None else kind
        if tensor.dtype.base_dtype is not kind:
            raise TypeError(f"dtype {tensor.dtype.name} of {name} does not match {kind.name}")
    kind = kind or dtypes.float32
    if kind is dtypes.string and (on is None or off is None):
        raise TypeError("on_value and off_value must both be given for dtype string")
    return (
        filling.ones([], kind, name="on_value") if on is None else on,
        filling.zeros([], kind, name="off_value") if off is None else off,
    )


def _mark(value: Any, kind: DType | None) -> Tensor | None:
    if value is None:
        return None
    has_dtype = hasattr(value, "dtype")  # then it must be the right one
    return convert_to_tensor(value, preferred_dtype=None if has_dtype else kind)


@public("boolean_mask")
def boolean_mask(tensor: Any, mask: Any, name: str = "boolean_mask", axis: Any = None) -> Tensor:
    """The slices of a tensor at which a mask is True.

    Args:
        tensor: any tensor.
        mask: a bool tensor of a static rank, of the shape of some axes of `tensor`.
        name: the name of the nodes.
        axis: the first of those axes; 0 if None.

    Returns:
        `tensor` with one axis, of unknown size, in place of those of the mask.

    Example:
        >>> sess.run(tf.boolean_mask([1, 2, 3], [True, False, True]))
        array([1, 3], dtype=int32)
    """
    with name_scope(name, "boolean_mask", [tensor, mask]):
        values = convert_to_tensor(tensor, name="tensor")
        marks = convert_to_tensor(mask, dtypes.bool, name="mask")
        start = 0 if axis is None else _static_axis(axis, values)
        rank = marks.shape.rank
        if rank == 0:
            raise ValueError("mask cannot be scalar.")
        if rank is None:
            raise ValueError(
                "Number of mask dimensions must be specified, even if some dimensions are None. "
                "E.g. shape=[None] is ok, but shape=None is not."
            )
        values.shape[start : start + rank].assert_is_compatible_with(marks.shape)
        flat = shaping.reshape(values, _merged_shape(values, start, rank))
        known = values.shape.sizes
        if known is not None:
            part = TensorShape.of(known[start : start + rank]).num_elements()
            flat.set_shape((*known[:start], part, *known[start + rank :]))
        where = choosing.where(shaping.reshape(marks, [-1]))
        return gather(flat, shaping.squeeze(where, axis=[1]), axis=start)


def _static_axis(axis: Any, values: Tensor) -> int:
    place = constant_value(convert_to_tensor(axis))
    if place is None:
        raise ValueError("boolean_mask needs an axis that is known when the graph is built")
    if place >= 0:
        return int(place)
    if values.shape.rank is None:
        raise ValueError(f"axis {place} of a tensor of unknown rank cannot be counted from its end")
    return shaping.axis_within(int(place), values.shape.rank)


def _merged_shape(values: Tensor, start: int, rank: int) -> Tensor:
    """The shape of a tensor with `rank` axes from `start` on made one."""
    sizes = shaping.shape(values)
    merged = reduce.reduce_prod(sizes[start : start + rank], [0])
    return joining.concat([sizes[:start], [merged], sizes[start + rank :]], 0)
