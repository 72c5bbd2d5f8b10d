"""Joining tensors: concat, stack, tile, repeat, and lists that contain tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.convert import (
    convert_all,
    convert_to_tensor,
    has_conversion,
    register_tensor_conversion_function,
)
from thalweg.graph.dtypes import DType
from thalweg.graph.known import constant_elements, constant_value, constant_value_as_shape
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.arrays import indexing, splitting
from thalweg.ops.core import basic, broadcast, casting, choosing, filling, shaping
from thalweg.ops.math import reduce
from thalweg.platform.arrays import Array
from thalweg.public import public


class Pack(Op):
    """Tensors of one shape stacked along a new axis."""

    signature = "values: N*T -> output: T"
    axis: int = 0

    def shape(self, values: list[Tensor]) -> TensorShape:
        merged = unknown_shape()
        for tensor in values:
            merged = merged.merge_with(tensor.shape)
        if merged.sizes is None:
            return unknown_shape()
        place = _insertion(self.axis, len(merged.sizes))
        return TensorShape.of((*merged.sizes[:place], len(values), *merged.sizes[place:]))

    def dimensions(self, values: list[Tensor]) -> TensorShape:
        return _joined_elements(values) if self.axis == 0 else unknown_shape()

    def numpy(self, values: list[Array]) -> Array:
        return np.stack(values, self.axis)

    def loop(self, at: IndexTuple, values: list[Operand]) -> Expr:
        axis = _insertion(self.axis, values[0].rank)
        rest = (*at[:axis], *at[axis + 1 :])
        return piecewise(at[axis], range(len(values)), lambda k: values[k][rest])

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor]:
        return splitting.unstack(dy, len(node.inputs), self.axis)


def piecewise(index: Expr, starts: Sequence[int], piece: Callable[[int], Expr]) -> Expr:
    """piece(k) for the last k with starts[k] <= index, by binary search."""

    def between(first: int, last: int) -> Expr:
        if last - first == 1:
            return piece(first)
        middle = (first + last) // 2
        return select(index < starts[middle], between(first, middle), between(middle, last))

    return between(0, len(starts))


def _joined_elements(values: list[Tensor]) -> TensorShape:
    """The known elements of concatenated integer vectors (or scalars)."""
    total: list[int | None] = []
    are_scalars = any(tensor.shape.rank == 0 for tensor in values)
    for tensor in values:
        elements = constant_elements(tensor)
        if elements is None and not are_scalars:
            return unknown_shape()
        total += (None,) if elements is None else elements
    return TensorShape.of(tuple(total))


def _insertion(axis: int, rank: int) -> int:
    if not -rank - 1 <= axis <= rank:
        raise ValueError(f"axis = {axis} not in [{-rank - 1}, {rank + 1})")
    return axis + rank + 1 if axis < 0 else axis


@public("stack", "pack")
def stack(values: Any, axis: int = 0, name: str = "stack") -> Tensor:
    """Tensors of one shape stacked along a new axis.

    Args:
        values: a list of tensors of one shape and dtype.
        axis: the position of the new axis in the result; negative ones count from its last.
        name: the name of the node.

    Returns:
        A tensor with one more axis, whose size is the number of `values`.

    Example:
        >>> sess.run(tf.stack([[1, 2], [3, 4]], axis=1))
        array([[1, 3],
               [2, 4]], dtype=int32)
    """
    if axis == 0:
        return convert_to_tensor(values, name=name)
    tensors = convert_all(cast("Sequence[Any]", values))
    return Pack(axis=axis)(tensors, name=name)


@public("parallel_stack")
def parallel_stack(values: Sequence[Any], name: str = "parallel_stack") -> Tensor:
    """As `stack` along axis 0, for tensors whose shapes are all known.

    Args:
        values: tensors of one shape.
        name: the name of the node.

    Returns:
        A tensor with one more axis, the first.

    Example:
        >>> sess.run(tf.parallel_stack([[1, 2], [3, 4]]))
        array([[1, 2],
               [3, 4]], dtype=int32)
    """
    tensors = convert_all(values)
    for tensor in tensors:
        tensor.shape.assert_is_fully_defined()
    return Pack()(tensors, name=name)


class ConcatV2(Op):
    """Tensors concatenated along an axis."""

    signature = "values: N*T, axis: Tidx -> output: T; Tidx: index"

    def shape(self, values: list[Tensor], axis: Tensor) -> TensorShape:
        axis.shape.assert_has_rank(0)
        ranks = [t.shape.rank for t in values if t.shape.rank is not None]
        rank = ranks[0] if ranks else None
        if rank == 0:
            raise ValueError("Can't concatenate scalars (use tf.stack instead)")
        shapes = [tensor.shape.with_rank(rank) for tensor in values]
        place = constant_value(axis)
        if rank is None or place is None:
            return unknown_shape(rank)
        return _concatenated(shapes, rank, int(place))

    def dimensions(self, values: list[Tensor], axis: Tensor) -> TensorShape:
        return _joined_elements(values)

    def numpy(self, values: list[Array], axis: Array) -> Array:
        return np.concatenate(values, int(axis))

    def loop(self, at: IndexTuple, values: list[Operand], axis: Operand) -> Expr:
        place = shaping.axis_within(int(axis.constant()), at.rank)
        starts = np.cumsum([0, *(value.shape[place] for value in values[:-1])]).tolist()
        return piecewise(at[place], starts, lambda k: values[k][moved(at, place, -starts[k])])

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        *values, axis = node.inputs
        sizes = [_size_along(value, axis) for value in values]
        parts = splitting.split(dy, sizes, casting.cast(axis, dtypes.int32), num=len(values))
        return [*parts, None]


def moved(at: IndexTuple, axis: int, offset: int) -> list[Expr]:
    """An index shifted along an axis."""
    return [index + offset if position == axis else index for position, index in enumerate(at)]


def _concatenated(shapes: list[TensorShape], rank: int, axis: int) -> TensorShape:
    if not -rank <= axis < rank:
        raise ValueError(f"Expected axis in the range [{-rank}, {rank}), but got {axis}")
    place = axis % rank
    along: int | None = 0
    merged = unknown_shape(rank)
    for shape in shapes:
        sizes = list(shape.sizes or ())
        size, sizes[place] = sizes[place], None
        along = None if along is None or size is None else along + size
        merged = merged.merge_with(TensorShape.of(tuple(sizes)))
    final = list(merged.sizes or ())
    final[place] = along
    return TensorShape.of(tuple(final))


def _size_along(value: Tensor, axis: Tensor) -> Any:
    """The size of a tensor along an axis, as a number if it is static."""
    sizes, place = value.shape.sizes, constant_value(axis)
    if place is None:
        return indexing.gather(
            shaping.shape(value), axis % casting.cast(shaping.rank(value), axis.dtype)
        )
    size = None if sizes is None else sizes[int(place)]
    return shaping.shape(value)[int(place)] if size is None else size


@public("concat", "concat_v2")
def concat(
    values: TensorLike, axis: Any = None, name: str = "concat", concat_dim: Any = None
) -> Tensor:
    """Tensors concatenated along an axis.

    Args:
        values: a list of tensors of one dtype, whose shapes agree except along `axis`. (Before
            TensorFlow 1.0 the axis came first; that order works too.)
        axis: the axis; negative ones count from the last.
        name: the name of the node.
        concat_dim: the old name of `axis`.

    Returns:
        A tensor whose size along `axis` is the sum of theirs.

    Example:
        >>> sess.run(tf.concat([[[1, 2]], [[3, 4], [5, 6]]], axis=0))
        array([[1, 2],
               [3, 4],
               [5, 6]], dtype=int32)
    """
    if concat_dim is not None:
        axis = concat_dim
    elif isinstance(axis, list | tuple) and not isinstance(values, list | tuple):
        values, axis = cast(Any, axis), values
    listed = cast("Sequence[Any]", values) if isinstance(values, list | tuple) else [values]
    if len(listed) == 1:
        return _concat_one(listed[0], axis, name)
    return ConcatV2()(convert_all(listed), _axis_tensor(axis), name=name)


def _concat_one(value: Any, axis: Any, name: str) -> Tensor:
    with name_scope(name, "concat", [value]) as scope:
        _axis_tensor(axis).shape.assert_has_rank(0)
        return basic.identity(value, name=scope)


def _axis_tensor(axis: Any) -> Tensor:
    if isinstance(axis, Tensor):
        return axis
    return convert_to_tensor(axis, dtypes.int32, name="concat_dim")


class ConcatOffset(Op):
    """The offsets of shapes in their concatenation, one per dimension."""

    signature = "concat_dim: int32, shape: N*int32 -> offset: N*int32"
    of_shapes = True
    not_differentiable = True

    def shape(self, concat_dim: Tensor, shapes: list[Tensor]) -> list[TensorShape]:
        return [tensor.shape for tensor in shapes]

    def numpy(self, concat_dim: Array, shapes: list[Array]) -> list[Array]:
        _check_joined(int(concat_dim), shapes)
        axis = int(concat_dim) % len(shapes[0])
        offsets = [np.zeros_like(sizes) for sizes in shapes]
        starts = np.cumsum([0, *(sizes[axis] for sizes in shapes[:-1])])
        for offset, start in zip(offsets, starts, strict=True):
            offset[axis] = start
        return offsets


def _check_joined(axis: int, shapes: list[Array]) -> None:
    """Raise unless all are vectors of one length, equal except in the element `axis`."""
    if any(np.ndim(sizes) != 1 for sizes in shapes):
        raise errors.invalid("Every shape should be a vector")
    first = shapes[0]
    rank = len(first)
    if not -rank <= axis < rank:
        raise errors.invalid(f"Concat dim is out of range: {axis} vs. {rank}")
    for number, sizes in enumerate(shapes):
        if len(sizes) != rank:
            raise errors.invalid(
                f"Shape {number} should contain {rank} elements, it has {len(sizes)}"
            )
        if not np.array_equal(np.delete(sizes, axis), np.delete(first, axis)):
            raise errors.invalid(
                f"All dimensions except {axis} must match. Input {number} has shape {_words(sizes)}"
                f" and doesn't match input 0 with shape {_words(first)}."
            )


def _words(sizes: Array) -> str:
    return f"[{' '.join(map(str, sizes.tolist()))}]"


class Tile(Op):
    """y = x repeated multiples[d] times along each axis d"""

    signature = "input: T, multiples: Tmultiples -> output: T; Tmultiples: index"

    def shape(self, input: Tensor, multiples: Tensor) -> TensorShape:
        rank = input.shape.with_rank(multiples.shape.with_rank(1)[0].value).rank
        if rank is None:
            return unknown_shape()
        sizes = input.shape.sizes or (None,) * rank
        times = constant_value_as_shape(multiples).with_rank(rank).sizes or ()
        return TensorShape.of(tuple(map(_times, sizes, times)))

    def numpy(self, input: Array, multiples: Array) -> Array:
        if np.any(multiples < 0):
            raise ValueError(f"Expected multiples >= 0, but got {multiples.tolist()}")
        return np.tile(input, tuple(multiples.tolist()))

    def loop(self, at: IndexTuple, input: Operand, multiples: Operand) -> Expr:
        return input[[index % size for index, size in zip(at, input.shape, strict=True)]]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        """Split each axis into (multiple, size), and sum over the multiples."""
        x, multiples = node.inputs
        pairs = stack([multiples, shaping.shape(x, out_type=multiples.dtype)], 1)
        apart = shaping.reshape(dy, shaping.reshape(pairs, [-1]))
        rank = node.output.shape.rank
        if rank is None:
            axes: Any = filling.range(0, 2 * shaping.rank(x), 2)
        else:
            axes = np.arange(0, 2 * rank, 2, dtype=np.int32)
        return [shaping.reshape(reduce.reduce_sum(apart, axes), shaping.shape(x)), None]


def _times(size: int | None, multiple: int | None) -> int | None:
    if 0 in (size, multiple):
        return 0
    return None if size is None or multiple is None else size * multiple


@public("tile", "manip.tile")
def tile(input: Any, multiples: Any, name: str | None = None) -> Tensor:
    """A tensor repeated a number of times along each axis.

    Args:
        input: any tensor.
        multiples: a number for each axis, as a list or an integer vector.
        name: the name of the node.

    Returns:
        A tensor whose size i is `multiples[i]` times that of `input`.

    Example:
        >>> sess.run(tf.tile([[1, 2]], [2, 2]))
        array([[1, 2, 1, 2],
               [1, 2, 1, 2]], dtype=int32)
    """
    return Tile()(input, shaping.index_tensor(multiples), name=name)


@public("repeat")
def repeat(input: Any, repeats: Any, axis: int | None = None, name: str | None = None) -> Tensor:
    """Each element (along `axis`; of the flat tensor if None) repeated a number of times."""
    with name_scope(name, "Repeat", [input, repeats]):
        x = convert_to_tensor(input)
        values = shaping.reshape(x, [-1]) if axis is None else x
        place = 0 if axis is None else axis
        size = shaping.shape(values)[place : None if place == -1 else place + 1]
        each = shaping.index_tensor(repeats)
        times = broadcast.broadcast_to(each, size)
        # Row i of the mask has times[i] true elements: the rows of all these are the indices.
        rows = choosing.where(filling.sequence_mask(times))[:, 0]
        rows.set_shape([_total(constant_value(times), constant_value(each))])
        return indexing.gather(values, rows, axis=place)


def _total(times: Array | None, each: Array | None) -> int | None:
    """The number of repeated elements, if it is known."""
    if each is not None and not each.any():
        return 0
    return None if times is None else int(times.sum())


# Conversion of lists that contain tensors


def _is_tensor(item: Any) -> bool:
    return isinstance(item, Tensor) or (hasattr(item, "dtype") and has_conversion(item))


def _first_tensor(values: Sequence[Any]) -> Any:
    """The first tensor in nested lists, or None."""
    pending = list(values)[::-1]
    while pending:
        item = pending.pop()
        if isinstance(item, list | tuple):
            pending += cast("Sequence[Any]", item)[::-1]
        elif _is_tensor(item):
            return item
    return None


def _stack_conversion(
    value: Any, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Any:
    """Convert a (nested) list that contains tensors by stacking."""
    tensor = _first_tensor(value)
    if tensor is None:
        return NotImplemented
    kind = tensor.dtype.base_dtype if dtype is None else dtype
    with name_scope(name, "packed", [tensor]) as scope:
        parts = [_part(item, kind, str(index)) for index, item in enumerate(value)]
        return Pack()(parts, name=scope)


def _part(item: Any, kind: DType, name: str) -> Tensor:
    if _is_tensor(item) and item.dtype.base_dtype is not kind:
        raise TypeError(
            f"Cannot convert a list containing a tensor of dtype {item.dtype.name} to {kind.name} "
            f"(Tensor is: {item!r})"
        )
    return convert_to_tensor(item, kind, name=name)


register_tensor_conversion_function((list, tuple), _stack_conversion, priority=99)
