"""Choosing elements by a condition: `tf.where` and its ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ir.expr import Expr
from thalweg.ir.expr import select as select_expression
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.core import broadcast, filling
from thalweg.ops.core.elementwise import Elementwise
from thalweg.platform.arrays import Array
from thalweg.public import public


class Select(Op):
    """y = t where the condition holds, else e; a vector condition chooses whole rows."""

    signature = "condition: bool, t: T, e: T -> output: T"

    def shape(self, condition: Tensor, t: Tensor, e: Tensor) -> TensorShape:
        merged = t.shape.merge_with(e.shape)
        given, sizes = condition.shape, merged.sizes
        if given.rank is None or given.rank == 0 or sizes is None:
            return merged
        if given.rank == 1 and len(sizes) > 1:
            given[0].assert_is_compatible_with(merged[0])
            return merged
        return merged.merge_with(given)

    def numpy(self, condition: Array, t: Array, e: Array) -> Array:
        rank, sizes = np.ndim(condition), np.shape(t)
        _check_run_time(np.shape(condition), sizes, np.shape(e))
        if rank == 1 and len(sizes) > 1:
            condition = np.reshape(condition, (-1,) + (1,) * (len(sizes) - 1))
        return np.where(condition, t, e)

    def loop(self, at: IndexTuple, condition: Operand, t: Operand, e: Operand) -> Expr:
        return select_expression(condition[at[: condition.rank]], t[at], e[at])

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        condition = node.inputs[0]
        zeros = filling.zeros_like(dy)
        return [None, Select()(condition, dy, zeros), Select()(condition, zeros, dy)]


def _check_run_time(condition: tuple[int, ...], t: tuple[int, ...], e: tuple[int, ...]) -> None:
    rows = len(condition) == 1 and condition == t[:1]
    if t == e and (condition in ((), t) or rows):
        return
    raise errors.invalid(
        f"'then' of shape {list(t)} and 'else' of shape {list(e)} must have the same shape, and "
        f"the condition, of shape {list(condition)}, that shape too, or be a scalar, or a vector "
        "with one element for each row"
    )


class SelectV2(Elementwise):
    """y = t where the condition holds, else e; all three broadcast."""

    signature = "condition: bool, t: T, e: T -> output: T"

    def numpy(self, condition: Array, t: Array, e: Array) -> Array:
        return np.where(condition, t, e)

    def element(self, condition: Expr, t: Expr, e: Expr) -> Expr:
        return select_expression(condition, t, e)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        condition, t, e = node.inputs
        zeros = filling.zeros_like(dy)
        dt, de = SelectV2()(condition, dy, zeros), SelectV2()(condition, zeros, dy)
        return [
            None,
            broadcast.reduce_to(dt, t, node.output),
            broadcast.reduce_to(de, e, node.output),
        ]


class Where(Op):
    """The indices of the elements of x that are true (or not zero), one row each."""

    signature = "input: T -> index: int64; T: numeric|bool"
    host_only = True
    not_differentiable = True

    def shape(self, input: Tensor) -> TensorShape:
        return TensorShape.of((None, input.shape.rank))

    def numpy(self, input: Array) -> Array:
        return np.argwhere(input).astype(np.int64)


@public("where")
def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """Elements of `x` where the condition holds, else of `y`; without both, the true indices.

    Args:
        condition: a bool tensor of the shape of `x`; a vector chooses whole rows.
        x: a tensor, or None together with `y`.
        y: a tensor of the shape and dtype of `x`.
        name: the name of the node.

    Returns:
        A tensor of the shape and dtype of `x`; without `x`, [count, rank] int64 indices.

    Example:
        >>> sess.run(tf.where([True, False], [1, 2], [10, 20]))
        array([ 1, 20], dtype=int32)
        >>> sess.run(tf.where([[True, False], [False, True]]))
        array([[0, 0],
               [1, 1]])
    """
    if x is None and y is None:
        return Where()(condition, name=name)
    _check_both(x, y)
    return Select()(condition, x, y, name=name)


@public("where_v2")
def where_v2(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """As `where`, but condition, `x` and `y` broadcast to one shape."""
    if x is None and y is None:
        return Where()(condition, name=name)
    _check_both(x, y)
    return SelectV2()(condition, x, y, name=name)


def _check_both(x: Any, y: Any) -> None:
    if x is None or y is None:
        raise ValueError("x and y must both be given, or neither: where(c, x, y) or where(c)")


@public("select")
def select(condition: Any, t: Any, e: Any, name: str | None = None) -> Tensor:
    """The old name of `tf.where` with three arguments.

    Args:
        condition: a bool tensor of the shape of `t`; a vector chooses whole rows.
        t: the values where it is true.
        e: the values where it is false.
        name: the name of the node.

    Returns:
        A tensor of the shape and dtype of `t`.

    Example:
        >>> sess.run(tf.select([True, False], [1, 2], [10, 20]))
        array([ 1, 20], dtype=int32)
    """
    return Select()(condition, t, e, name=name)
