"""Partitioning of rows, and stitching of rows by index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_all, convert_to_tensor
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, unknown_shape, vector
from thalweg.ir import loop
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.loop import (
    IndexTuple,
    NotLowered,
    Operand,
    RuntimeCheck,
    Scatter,
    ravel,
    unravel,
)
from thalweg.ops.arrays import indexing, joining
from thalweg.ops.core import filling, shaping
from thalweg.platform.arrays import Array
from thalweg.public import public


class DynamicPartition(Op):
    """y[p] = the rows of data whose partition is p, in order"""

    signature = "data: T, partitions: int32 -> outputs: num_partitions*T"
    host_only = True
    inexpensive = True
    num_partitions: int

    def shape(self, data: Tensor, partitions: Tensor) -> list[TensorShape]:
        rank = partitions.shape.rank
        if rank is None:
            return [unknown_shape()] * self.num_partitions
        _check_prefix(partitions.shape, data.shape, "partitions")
        rest = data.shape[rank:] if data.shape.rank is not None else unknown_shape()
        return [unknown_shape(1).concatenate(rest)] * self.num_partitions

    def numpy(self, data: Array, partitions: Array) -> list[Array]:
        chosen, rows = np.asarray(partitions), np.asarray(data)
        if rows.shape[: chosen.ndim] != chosen.shape:
            raise errors.invalid(
                f"data.shape must start with partitions.shape, got data.shape = {rows.shape}, "
                f"partitions.shape = {chosen.shape}"
            )
        parts, found = list[Array](), 0
        for number in range(self.num_partitions):
            part = rows[chosen == number]
            parts.append(part)
            found += len(part)
        if found != chosen.size:  # a row is in at most one part
            _refuse(chosen, self.num_partitions)
        return parts

    def gradient(self, node: Node, *dy: Tensor) -> list[Tensor | None]:
        data, partitions = node.inputs
        positions = dynamic_partition(Positions()(partitions), partitions, self.num_partitions)
        gathered = dynamic_stitch(positions, list(dy))
        return [shaping.reshape(gathered, shaping.shape(data)), None]


def _refuse(partitions: Array, count: int) -> NoReturn:
    bad = np.argwhere((partitions < 0) | (partitions >= count))[0]
    place = ",".join(map(str, bad))
    raise errors.invalid(
        f"partitions{f'[{place}]' if place else ''} = {partitions[tuple(bad)]} is not "
        f"in [0, {count})"
    )


# A compilable decomposition of a partition, which a pass makes after gradients: the position of
# each row in the concatenated parts, the rows in this order, and the parts.


class PartitionPlaces(Op, name="_PartitionPlaces"):
    """places[i] = the position of element i in the concatenated parts; counts[p] = the number of
    elements of part p"""

    signature = "partitions: int32 -> places: int32, counts: int32"
    inexpensive = True
    not_differentiable = True
    num_partitions: int

    def shape(self, partitions: Tensor) -> list[TensorShape]:
        return [partitions.shape, vector(self.num_partitions)]

    def numpy(self, partitions: Array) -> list[Array]:
        places = np.empty(partitions.shape, np.int32)
        counts = np.empty(self.num_partitions, np.int32)
        end = 0
        for number in range(self.num_partitions):
            members = np.flatnonzero(partitions == number)
            counts[number], start = members.size, end
            end += members.size
            places[members] = np.arange(start, end, dtype=np.int32)
        if end != partitions.size:
            _refuse(partitions, self.num_partitions)
        return [places, counts]

    def loop(self, at: IndexTuple, partitions: Operand) -> Expr:
        """Each part counts its elements in one pass, which suffices for few parts."""
        size = partitions.size
        if size * self.num_partitions > _MAX_COUNTED:
            raise NotLowered(f"{size} elements of {self.num_partitions} partitions")

        def belongs(part: Expr, element: Expr) -> Expr:
            return select(call("eq", partitions[element], call("cast", part, np.int32)), 1, 0)

        def count(part: Expr) -> Expr:
            return loop.reduce("sum", [size], partial(belongs, part))

        def earlier(part: Expr, element: Expr) -> Expr:
            return loop.prefix("sum", size, element, partial(belongs, part), exclusive=True)

        if at.output == 1:
            return count(at[0])
        parts = self.num_partitions
        counts = loop.intermediate([parts], np.int32, count)
        before = loop.intermediate([parts, size], np.int32, earlier)
        mine = partitions[at[0]]

        def share(part: Expr) -> Expr:
            number = call("cast", part, np.int32)
            inside = select(call("eq", number, mine), before[part, at[0]], 0)
            return select(number < mine, counts[part], inside)

        return loop.reduce("sum", [parts], share)

    def requires(self, partitions: Operand) -> list[RuntimeCheck]:
        def is_inside(element: Expr) -> Expr:
            return (partitions[element] >= 0) & (partitions[element] < self.num_partitions)

        return [loop.runtime_check(partitions.shape, is_inside)]


#: Elements times partitions: more are counted by NumPy.
_MAX_COUNTED = 1 << 20


class PutRows(Op, name="_PutRows"):
    """y[places[i]] = data[i]; places are 0, 1, 2… in any order"""

    signature = "data: T, places: int32 -> rows: T"
    inexpensive = True
    not_differentiable = True

    def shape(self, data: Tensor, places: Tensor) -> TensorShape:
        return places.shape.concatenate(data.shape[1:])

    def numpy(self, data: Array, places: Array) -> Array:
        if len(data) != len(places):
            raise errors.invalid(
                f"data.shape must start with partitions.shape, got data.shape = {data.shape}, "
                f"partitions.shape = {places.shape}"
            )
        rows = np.empty_like(data)
        rows[places] = data
        return rows

    def loop(self, at: IndexTuple, data: Operand, places: Operand) -> Scatter:
        if data.shape[:1] != places.shape:
            raise NotLowered(f"{data.shape} rows in {places.shape} places")

        def update(row: Expr, *rest: Expr) -> tuple[Sequence[Any], Expr]:
            return (places[row], *rest), data[(row, *rest)]

        return loop.scatter("set", data.shape, update, filling.zero_of(data.dtype))


class Parts(Op, name="_Parts"):
    """y[p] = the next counts[p] rows"""

    signature = "rows: T, counts: int32 -> outputs: num_partitions*T"
    host_only = True
    inexpensive = True
    not_differentiable = True
    num_partitions: int

    def shape(self, rows: Tensor, counts: Tensor) -> list[TensorShape]:
        return [unknown_shape(1).concatenate(rows.shape[1:])] * self.num_partitions

    def numpy(self, rows: Array, counts: Array) -> list[Array]:
        ends = [*accumulate(counts.tolist())]
        return [rows[start:end] for start, end in zip([0, *ends], ends, strict=False)]


class StitchParts(Op, name="_StitchParts"):
    """y[i] = row places[i] of the concatenated data; data[p] has counts[p] rows"""

    signature = "places: int32, counts: int32, data: N*T -> merged: T"
    inexpensive = True
    not_differentiable = True

    def shape(self, places: Tensor, counts: Tensor, data: list[Tensor]) -> TensorShape:
        rest = unknown_shape()
        for rows in data:
            if rows.shape.rank is not None:
                rest = rest.merge_with(rows.shape[1:])
        return places.shape.concatenate(rest)

    def numpy(self, places: Array, counts: Array, data: list[Array]) -> Array:
        given = [np.asarray(rows) for rows in data]
        if len({rows.shape[1:] for rows in given}) > 1:
            shapes = sorted({rows.shape[1:] for rows in given})
            raise errors.invalid(f"data must agree behind the indices, got {shapes}")
        for number, (rows, count) in enumerate(zip(given, counts.tolist(), strict=True)):
            if rows.shape[:1] != (count,):
                raise errors.invalid(
                    f"data[{number}].shape = {rows.shape} does not start with "
                    f"indices[{number}].shape = {(count,)}"
                )
        return np.concatenate(given)[places]

    def loop(self, at: IndexTuple, places: Operand, counts: Operand, data: list[Operand]) -> Expr:
        ends = [*accumulate(rows.shape[0] for rows in data)]
        starts, (place, *rest) = [0, *ends[:-1]], (places[at[0]], *at[1:])

        def row(k: int) -> Expr:
            return data[k].or_else((place - starts[k], *rest), filling.zero_of(data[k].dtype))

        return joining.piecewise(place, starts, row)

    def requires(self, places: Operand, counts: Operand, data: list[Operand]) -> list[RuntimeCheck]:
        return [
            RuntimeCheck((), call("eq", counts[number], rows.shape[0]))
            for number, rows in enumerate(data)
        ]


class Positions(Op):
    """y[i…] = the number of the element x[i…] in row-major order"""

    private = True
    signature = "x: T -> y: int32"
    not_differentiable = True

    def shape(self, x: Tensor) -> TensorShape:
        return x.shape

    def numpy(self, x: Array) -> Array:
        return np.arange(np.size(x), dtype=np.int32).reshape(np.shape(x))

    def loop(self, at: IndexTuple, x: Operand) -> Expr:
        return call("cast", ravel(at, at.shape), np.int32)


def _check_prefix(prefix: TensorShape, shape: TensorShape, what: str) -> None:
    """Raise unless `prefix` is compatible with the first axes of `shape`."""
    if prefix.rank is None or shape.rank is None:
        return
    if not shape.with_rank_at_least(prefix.rank)[: prefix.rank].is_compatible_with(prefix):
        raise ValueError(f"data of shape {shape} must start with the {what} shape {prefix}")


@public("dynamic_partition")
def dynamic_partition(
    data: Any, partitions: Any, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """The rows of a tensor, partitioned.

    Args:
        data: a tensor.
        partitions: int32 numbers in [0, num_partitions), of the first axes of `data`.
        num_partitions: the number of parts.
        name: the name of the node.

    Returns:
        A list of tensors.

    Example:
        >>> sess.run(tf.dynamic_partition([10, 20, 30], [0, 1, 0], 2))
        [array([10, 30], dtype=int32), array([20], dtype=int32)]
    """
    op = DynamicPartition(num_partitions=num_partitions)
    return op(data, convert_to_tensor(partitions, dtypes.int32), name=name)


def _row_count(indices: list[Tensor]) -> int | None:
    """One more than the largest index, if all are constants."""
    known = [constant_value(places) for places in indices]
    if any(places is None for places in known):
        return None
    return 1 + max(int(np.max(places, initial=-1)) for places in known if places is not None)


class DynamicStitch(Op):
    """y[indices[k][i…]] = data[k][i…]; of equal indices the last one wins"""

    signature = "indices: N*int32, data: N*T -> merged: T"
    inexpensive = True

    def shape(self, indices: list[Tensor], data: list[Tensor]) -> TensorShape:
        if not indices:
            raise ValueError("at least one tensor of indices is needed")
        rest = unknown_shape()
        for places, rows in zip(indices, data, strict=True):
            _check_prefix(places.shape, rows.shape, "indices")
            if places.shape.rank is not None and rows.shape.rank is not None:
                rest = rest.merge_with(rows.shape[places.shape.rank :])
        return vector(_row_count(indices)).concatenate(rest)

    def numpy(self, indices: list[Array], data: list[Array]) -> Array:
        ranks = [np.ndim(places) for places in indices]
        shapes = {np.shape(rows)[rank:] for rows, rank in zip(data, ranks, strict=True)}
        if len(shapes) > 1:
            raise errors.invalid(f"data must agree behind the indices, got {sorted(shapes)}")
        return self._stitched([np.asarray(places).ravel() for places in indices], data, *shapes)

    def _stitched(self, indices: list[Array], data: list[Array], rest: tuple[int, ...]) -> Array:
        every = np.concatenate(indices)
        count = int(np.maximum.reduce(every)) + 1 if every.size else 0
        if every.size and np.minimum.reduce(every) < 0:
            raise errors.invalid("indices must not be negative")
        kind = np.asarray(data[0]).dtype
        size = count, *rest
        merged = np.full(size, b"", kind) if kind.kind == "O" else np.zeros(size, kind)
        for places, rows in zip(indices, data, strict=True):
            merged[places] = np.asarray(rows).reshape(places.size, *rest)
        return merged

    def loop(self, at: IndexTuple, indices: list[Operand], data: list[Operand]) -> Scatter:
        """A scatter over the concatenated rows of all data, so that the last one wins."""
        for places in indices:
            places.constant()  # else the size of the output is unknown
        ends = [*accumulate(places.size for places in indices)]
        starts = [0, *ends[:-1]]

        def update(row: Expr, *rest: Expr) -> tuple[Sequence[Any], Expr]:
            def datum(k: int) -> Expr:
                return data[k][(*unravel(row - starts[k], indices[k].shape), *rest)]

            target = joining.piecewise(row, starts, lambda k: indices[k].flat(row - starts[k]))
            return (target, *rest), joining.piecewise(row, starts, datum)

        extents = [ends[-1], *at.shape[1:]]
        return loop.scatter("set", extents, update, filling.zero_of(data[0].dtype))

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        half = len(node.inputs) // 2
        gathered = [indexing.gather(dy, places) for places in node.inputs[:half]]
        return [*[None] * half, *gathered]


class ParallelDynamicStitch(DynamicStitch, name="ParallelDynamicStitch"):
    """As DynamicStitch; which of equal indices wins is not specified."""


@public("dynamic_stitch")
def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any], name: str | None = None) -> Tensor:
    """Interleave rows: row `indices[k][i...]` of the result is `data[k][i...]`.

    Args:
        indices: a list of int32 tensors; of repeated indices the last one wins.
        data: a list of tensors, each of the shape of its indices, then that of a row.
        name: the name of the node.

    Returns:
        A tensor with a row for each index up to the largest.

    Example:
        >>> sess.run(tf.dynamic_stitch([[0, 2], [1]], [[10, 30], [20]]))
        array([10, 20, 30], dtype=int32)
    """
    places = [convert_to_tensor(tensor, dtypes.int32) for tensor in indices]
    return DynamicStitch()(places, convert_all(data), name=name)


@public("parallel_dynamic_stitch")
def parallel_dynamic_stitch(
    indices: Sequence[Any], data: Sequence[Any], name: str | None = None
) -> Tensor:
    """As `dynamic_stitch`; which of equal indices wins is not specified."""
    places = [convert_to_tensor(tensor, dtypes.int32) for tensor in indices]
    return ParallelDynamicStitch()(places, convert_all(data), name=name)
