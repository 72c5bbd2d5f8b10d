"""Tensor contraction over given axes, by a matrix product."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Sizes, TensorShape
from thalweg.ops.arrays import counting, indexing, joining, splitting, transposing
from thalweg.ops.core import choosing, filling, shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.math import reduce
from thalweg.public import public

#: Axes as numbers if they are static, else as an integer vector
Axes = list[int] | Tensor


@public("tensordot", "linalg.tensordot")
def tensordot(a: Any, b: Any, axes: TensorLike, name: str | None = None) -> Tensor:
    """The sum of products of `a` and `b` over axes.

    Args:
        a, b: tensors of one floating or complex dtype.
        axes: a number n contracts the last n axes of `a` with the first n of `b`; a pair names the
            axes of each.
        name: the name of the nodes.

    Returns:
        A tensor with the remaining axes of `a`, then those of `b`.

    Example:
        >>> a, b = tf.ones([2, 3, 4]), tf.ones([4, 5])
        >>> tf.tensordot(a, b, 1).shape.as_list()
        [2, 3, 5]
        >>> tf.tensordot(a, b, [[2], [0]]).shape.as_list()
        [2, 3, 5]
    """
    with name_scope(name, "Tensordot", [a, b, axes]) as scope:
        left, right = convert_to_tensor(a, name="a"), convert_to_tensor(b, name="b")
        left_axes, right_axes = _pair_of_axes(left, right, axes)
        x, y = _split(left, left_axes, inner_first=False), _split(right, right_axes, True)
        product = matmul.matmul(x.matrix, y.matrix)
        if isinstance(x.free, list) and isinstance(y.free, list):
            return shaping.reshape(product, x.free + y.free, name=scope)
        sizes = [_vector(x.free), _vector(y.free)]
        result = shaping.reshape(product, joining.concat(sizes, 0), name=scope)
        result.set_shape(x.static.concatenate(y.static))
        return result


@dataclass(frozen=True)
class _Split:
    """A tensor as a matrix of free by contracted axes (or vice versa)."""

    matrix: Tensor
    free: list[int] | Tensor  # the sizes of the free axes
    static: TensorShape  # their static shape


def _split(x: Tensor, axes: Axes, inner_first: bool) -> _Split:
    sizes = x.shape.sizes
    if sizes is None or isinstance(axes, Tensor):
        return _split_in_step(x, axes, inner_first)
    inner = [shaping.axis_within(axis, len(sizes)) for axis in axes]
    free = [axis for axis in range(len(sizes)) if axis not in inner]
    moved = _moved(x, inner + free if inner_first else free + inner)
    static = TensorShape.of(tuple(sizes[axis] for axis in free))
    if None not in sizes:
        return _split_of_known(moved, _picked(sizes, inner), _picked(sizes, free), inner_first)
    shape = shaping.shape(x)
    free_sizes = indexing.gather(shape, _vector(free))
    return _split_of_unknown(
        moved, indexing.gather(shape, _vector(inner)), free_sizes, static, inner_first
    )


def _picked(sizes: Sizes, axes: list[int]) -> list[int]:
    return [cast("int", sizes[axis]) for axis in axes]


def _moved(x: Tensor, order: list[int]) -> Tensor:
    return x if order == sorted(order) else transposing.transpose(x, order)


def _split_of_known(x: Tensor, inner: list[int], free: list[int], inner_first: bool) -> _Split:
    counts = [math.prod(inner), math.prod(free)]
    matrix = shaping.reshape(x, counts if inner_first else counts[::-1])
    return _Split(matrix, free, TensorShape.of(tuple(free)))


def _split_of_unknown(
    x: Tensor, inner: Tensor, free: Tensor, static: TensorShape, inner_first: bool
) -> _Split:
    counts = [reduce.reduce_prod(inner), reduce.reduce_prod(free)]
    matrix = shaping.reshape(x, joining.stack(counts if inner_first else counts[::-1]))
    return _Split(matrix, free, static)


def _split_in_step(x: Tensor, axes: Axes, inner_first: bool) -> _Split:
    shape, rank = shaping.shape(x), shaping.rank(x)
    given = _vector(axes)
    inner = choosing.where(given < 0, given + rank, given)
    free, _ = counting.setdiff1d(filling.range(0, rank), inner)
    order = joining.concat([inner, free] if inner_first else [free, inner], 0)
    return _split_of_unknown(
        transposing.transpose(x, order),
        indexing.gather(shape, inner),
        indexing.gather(shape, free),
        TensorShape(None),
        inner_first,
    )


def _vector(values: list[int] | Tensor) -> Tensor:
    if isinstance(values, Tensor):
        return values
    return convert_to_tensor(np.array(values, np.int32))


# Axes


def _pair_of_axes(a: Tensor, b: Tensor, axes: Any) -> tuple[Axes, Axes]:
    if hasattr(axes, "__index__"):
        return _counted_axes(a, operator.index(axes))
    if isinstance(axes, Tensor) and constant_value(axes) is None:
        return _axes_in_step(axes)
    known = constant_value(axes).tolist() if isinstance(axes, Tensor) else axes  # pyright: ignore[reportOptionalMemberAccess] - not None: checked above
    if isinstance(known, int):
        return _counted_axes(a, known)
    pair = _as_lists(known)
    if any(isinstance(axis, Tensor) for axis in pair[0] + pair[1]):
        return convert_to_tensor(pair[0], dtypes.int32), convert_to_tensor(pair[1], dtypes.int32)
    _check_sizes(a, b, pair)
    return pair


def _counted_axes(a: Tensor, count: int) -> tuple[Axes, Axes]:
    if count < 0:
        raise ValueError("'axes' must be at least 0.")
    rank = a.shape.rank
    first = list(range(count))
    if rank is None:
        return filling.range(shaping.rank(a) - count, shaping.rank(a)), first
    if count > rank:
        raise ValueError(f"'axes' must not be larger than the number of dimensions of tensor {a}.")
    return list(range(rank - count, rank)), first


def _axes_in_step(axes: Tensor) -> tuple[Tensor, Tensor]:
    axes.shape.with_rank_at_least(1)
    halves = splitting.unstack(axes, 2)
    return shaping.reshape(halves[0], [-1]), shaping.reshape(halves[1], [-1])


def _as_lists(axes: Any) -> tuple[list[Any], list[Any]]:
    if not isinstance(axes, list | tuple | np.ndarray) or len(cast("Sequence[Any]", axes)) != 2:
        raise ValueError(f"'axes' must be an integer or have length 2, not {axes!r}.")
    pair = tuple(_as_list(part) for part in cast("Sequence[Any]", axes))
    if len(pair[0]) != len(pair[1]):
        raise ValueError(
            f"Different number of contraction axes 'a' and 'b', {len(pair[0])} != {len(pair[1])}."
        )
    return pair[0], pair[1]


def _as_list(part: Any) -> list[Any]:
    if isinstance(part, list | tuple | np.ndarray | range):
        return [p if isinstance(p, Tensor) else int(p) for p in cast("Sequence[Any]", part)]
    return [part if isinstance(part, Tensor) else int(part)]


def _check_sizes(a: Tensor, b: Tensor, pair: tuple[list[int], list[int]]) -> None:
    if a.shape.sizes is None or b.shape.sizes is None:
        return
    for left, right in zip(*pair, strict=True):
        one = a.shape.sizes[shaping.axis_within(left, len(a.shape.sizes))]
        other = b.shape.sizes[shaping.axis_within(right, len(b.shape.sizes))]
        if one is not None and other is not None and one != other:
            raise ValueError(
                f"Dimensions must be equal, but are {one} and {other}: axis {left} of {a.name} "
                f"and axis {right} of {b.name}"
            )
