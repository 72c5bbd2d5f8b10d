"""Broadcasting and its transpose: summing a gradient back to the shape an input had."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from thalweg.graph.known import constant_value_as_shape
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import Size, TensorShape, broadcast_shapes, vector
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.core import shaping
from thalweg.ops.math import reduce
from thalweg.platform.arrays import Array
from thalweg.public import public

Sizes = tuple[int, ...]


class BroadcastGradientArgs(Op):
    """The axes that each of two broadcast shapes must be summed over in a gradient."""

    signature = "s0: T, s1: T -> r0: T, r1: T; T: index"
    of_shapes = True
    not_differentiable = True

    def shape(self, s0: Tensor, s1: Tensor) -> list[TensorShape]:
        sizes = constant_value_as_shape(s0).sizes, constant_value_as_shape(s1).sizes
        mine, theirs = (None if s is None or None in s else cast("Sizes", s) for s in sizes)
        if mine is None or theirs is None:
            return [vector(None), vector(None)]
        axes = summed_axes(mine, theirs), summed_axes(theirs, mine)
        return [vector(len(axes[0])), vector(len(axes[1]))]

    def numpy(self, s0: Array, s1: Array) -> tuple[Array, Array]:
        mine, theirs = tuple(s0.tolist()), tuple(s1.tolist())
        axes = (summed_axes(mine, theirs), summed_axes(theirs, mine))
        return np.array(axes[0], s0.dtype), np.array(axes[1], s0.dtype)


def summed_axes(mine: tuple[int, ...], theirs: tuple[int, ...]) -> list[int]:
    """The axes of the broadcast result along which `mine` was stretched or is 1."""
    rank = max(len(mine), len(theirs))
    padded = (1,) * (rank - len(mine)) + mine
    others = (1,) * (rank - len(theirs)) + theirs
    missing = rank - len(mine)
    return [
        axis
        for axis in range(rank)
        if axis < missing or (padded[axis] == 1 and (others[axis] != 1))
    ]


def reduce_to(gradient: Tensor, mine: Tensor, other: Tensor) -> Tensor:
    """Sum `gradient`, of the broadcast shape of `mine` and `other`, to the shape of `mine`."""
    known = _reduced(gradient, mine, other)
    if known is not None:
        return known
    shape = shaping.shape(mine)
    axes, _ = BroadcastGradientArgs()(shape, shaping.shape(other))
    return shaping.reshape(reduce.reduce_sum(gradient, axes), shape)


def _reduced(gradient: Tensor, mine: Tensor, other: Tensor) -> Tensor | None:
    """The reduced gradient if the static shapes determine the axes, else None."""
    sizes, others = mine.shape.sizes, other.shape.sizes
    if mine is other or (sizes == others and mine.shape.is_fully_defined()):
        return gradient
    if sizes == () and others != ():
        return reduce.reduce_sum(gradient)
    axes = _known_axes(sizes, others)
    if not axes:
        return None if axes is None else gradient
    summed = reduce.reduce_sum(gradient, axes)
    if len(axes) == (other.shape.rank or 0) - (mine.shape.rank or 0):
        return summed
    static = mine.shape.is_fully_defined()
    return shaping.reshape(summed, mine.shape.as_list() if static else shaping.shape(mine))


def _known_axes(mine: tuple[Size, ...] | None, theirs: tuple[Size, ...] | None) -> list[int] | None:
    """The axes along which `mine` was stretched, or None if that depends on unknown sizes.

    An axis of size 1 counts as stretched: if it was not, the sum over it changes nothing.
    """
    if theirs == ():
        return []
    if mine is None or theirs is None:
        return None
    missing = max(len(theirs) - len(mine), 0)
    axes = list(range(missing))
    for axis, size in enumerate(mine, missing):
        place = axis + len(theirs) - len(mine) - missing
        opposite = theirs[place] if place >= 0 else 1
        if opposite == 1 or (size is not None and size != 1):
            continue
        if size is None:
            return None
        axes.append(axis)
    return axes


class BroadcastTo(Op):
    """y = x stretched to `shape`"""

    signature = "input: T, shape: I -> output: T; I: index"

    def shape(self, input: Tensor, shape: Tensor) -> TensorShape:
        shape.shape.assert_has_rank(1)
        full = constant_value_as_shape(shape)
        if None not in (full.rank, input.shape.rank):
            broadcast_shapes(input.shape, full)
        return full

    def numpy(self, input: Array, shape: Array) -> Array:
        return np.broadcast_to(input, tuple(shape.tolist()))

    def loop(self, at: IndexTuple, input: Operand, shape: Operand) -> Expr:
        if np.broadcast_shapes(input.shape, at.shape) != at.shape:
            raise ValueError(f"{input.shape} does not broadcast to {at.shape}")
        return input.broadcast(at)

    def gradient(self, node: Node, dy: Tensor) -> list[Any]:
        return [reduce_to(dy, node.inputs[0], dy), None]


@public("broadcast_to")
def broadcast_to(input: Any, shape: Any, name: str | None = None) -> Tensor:
    """`input` repeated along its missing dimensions and those of size 1, up to `shape`."""
    return BroadcastTo()(input, shaping.shape_tensor(shape), name=name)


@public("broadcast_static_shape")
def broadcast_static_shape(shape_x: TensorShape, shape_y: TensorShape) -> TensorShape:
    """The shape that tensors of two static shapes broadcast to."""
    return broadcast_shapes(shape_x, shape_y)


class BroadcastArgs(Op):
    """The shape that tensors of two shapes broadcast to."""

    signature = "s0: T, s1: T -> r0: T; T: index"
    of_shapes = True
    not_differentiable = True

    def shape(self, s0: Tensor, s1: Tensor) -> TensorShape:
        lengths = [s.shape.with_rank(1)[0].value for s in (s0, s1)]
        known = [length for length in lengths if length is not None]
        return vector(max(known) if len(known) == 2 else None)

    def dimensions(self, s0: Tensor, s1: Tensor) -> TensorShape:
        return broadcast_shapes(constant_value_as_shape(s0), constant_value_as_shape(s1))

    def numpy(self, s0: Array, s1: Array) -> Array:
        shapes = tuple(s0.tolist()), tuple(s1.tolist())
        return np.array(np.broadcast_shapes(*shapes), s0.dtype)


@public("broadcast_dynamic_shape")
def broadcast_dynamic_shape(shape_x: Any, shape_y: Any) -> Tensor:
    """The shape, as a tensor, that tensors of two shapes broadcast to."""
    return BroadcastArgs()(shaping.shape_tensor(shape_x), shaping.shape_tensor(shape_y))


def both(node_inputs: tuple[Tensor, ...], dx: Tensor | None, dy: Tensor | None) -> list[Any]:
    """A binary op's gradients, each summed over the dimensions its input was broadcast in."""
    x, y = node_inputs
    results = [
        None if dx is None else _reduced(dx, x, y),
        None if dy is None else _reduced(dy, y, x),
    ]
    waiting = [i for i, d in enumerate((dx, dy)) if d is not None and results[i] is None]
    if waiting:
        shapes = [shaping.shape(x), shaping.shape(y)]
        axes = BroadcastGradientArgs()(*shapes)
        for i in waiting:
            summed = reduce.reduce_sum((dx, dy)[i], axes[i])
            results[i] = shaping.reshape(summed, shapes[i])
    return results
