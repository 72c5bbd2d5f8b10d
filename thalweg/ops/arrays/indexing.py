"""Gathers along axes or by coordinates, and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value, constant_value_as_shape
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck, Scatter
from thalweg.ops.arrays import joining, subscripts
from thalweg.ops.core import broadcast, filling, shaping
from thalweg.platform.arrays import Array
from thalweg.public import public


def check_within(indices: Array, limit: int, what: str = "indices") -> None:
    """Raise unless every index lies in [0, limit)."""
    bad = (indices < 0) | (indices >= limit)
    if np.any(bad):
        where: list[int] = np.argwhere(bad)[0].tolist() if np.ndim(bad) else []
        place = f"[{','.join(map(str, where))}]" if where else ""
        value = np.asarray(indices)[tuple(where)]
        raise errors.invalid(f"{what}{place} = {value} is not in [0, {limit})")


def are_within(indices: Operand, limit: Any) -> RuntimeCheck:
    """The check that every index is in [0, limit)."""
    return loop.runtime_check(indices.shape, lambda *k: (indices[k] >= 0) & (indices[k] < limit))


def are_coordinates(indices: Operand, sizes: Sequence[Any]) -> list[RuntimeCheck]:
    """The checks that every row along the last axis of `indices` is in bounds of `sizes`."""

    def inside(axis: int, size: Any) -> RuntimeCheck:
        def within(*row: Expr) -> Expr:
            return (indices[(*row, axis)] >= 0) & (indices[(*row, axis)] < size)

        return loop.runtime_check(indices.shape[:-1], within)

    return [inside(axis, size) for axis, size in enumerate(sizes[: indices.shape[-1]])]


# Along an axis


class Along(Op, abstract=True):
    """The base of gather and its transpose: batch dimensions, then an indexed axis."""

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
        before = [aranged(params_shape[i], i, total) for i in range(place)]
        middle = (1,) * (place - batch)
        shape = (*np.shape(indices)[:batch], *middle, *np.shape(indices)[batch:], *(1,) * outer)
        after = [
            aranged(params_shape[i], place + inner + i - place - 1, total)
            for i in range(place + 1, rank)
        ]
        return (*before, np.reshape(indices, shape), *after)

    def source(self, at: Sequence[Expr], indices: Operand, axis: Operand) -> tuple[Expr, ...]:
        """The index in params of the element at an index of the gathered tensor."""
        inner = indices.rank
        place, batch = self.axes(axis.constant(), len(at) - inner + 1 + self._batch(inner), inner)
        end = place + inner - batch
        return (*at[:place], indices[(*at[:batch], *at[place:end])], *at[end:])


def aranged(size: int, axis: int, rank: int) -> Array:
    """0, 1, …, size - 1 along one axis of a tensor of the given rank."""
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

    private = True
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
    """The gradient of a gather of rows, as slices."""
    # A constant if possible: then the gradient's device does not need the parameters.
    sizes = params.shape.as_list() if params.shape.is_fully_defined() else None
    shape = shaping.shape(params) if sizes is None else convert_to_tensor(sizes, dtypes.int32)
    if indices.shape.rank == 1:  # unchanged: the device of the rows already has these indices
        return IndexedSlices(dy, indices, shape)
    values = shaping.reshape(dy, _rows_shape(params, indices))
    return IndexedSlices(values, shaping.reshape(indices, [-1]), shape)


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
        batch_dims: the number of leading axes that both share.

    Returns:
        `params` with the shape of `indices` (without batch axes) in place of `axis`.

    Raises:
        InvalidArgumentError: if an index is out of bounds.

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
    """The NumPy index of the coordinates along the last axis of `indices`, checked.

    `message` is formatted with the position `at` and the `value` of the first invalid coordinate.
    """
    depth = np.shape(indices)[-1]
    limits = np.array(shape[:depth], indices.dtype)
    bad = ((indices < 0) | (indices >= limits)).any(-1)
    if np.any(bad):
        at = int(np.flatnonzero(bad)[0])
        value = ",".join(map(str, indices.reshape(-1, depth)[at].tolist()))
        sizes = ",".join(map(str, shape))
        raise errors.invalid(message.format(at=at, value=value, shape=sizes))
    return tuple(np.moveaxis(indices, -1, 0))


def coordinate_source(at: Sequence[Expr], indices: Operand) -> tuple[Expr, ...]:
    """The index in the whole tensor of an element of slices selected by coordinates."""
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
        batch_dims: the number of leading axes that both share.

    Returns:
        A tensor of the shape of `indices` without its last axis, then that of a slice.

    Raises:
        InvalidArgumentError: if an index is out of bounds.

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
    """Coordinates preceded by those of their batch."""
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
        if indices.shape[-1] == 0:  # every update is of the whole tensor
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
    """Raise unless updates have the shape that `indices` select from a tensor of shape `full`."""
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
    """Flat indices as coordinates: column i of the result is for indices[i]."""
    return UnravelIndex()(indices, dims, name=name)
