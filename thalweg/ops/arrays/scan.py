"""Running sums and products along an axis, inclusive or exclusive, from either end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.core import choosing, filling
from thalweg.ops.linalg import matmul
from thalweg.ops.math import transcendental
from thalweg.platform.arrays import Array
from thalweg.platform.dtype_traits import compute_dtype
from thalweg.public import public


class AlongAxis(Op, abstract=True):
    """A function of the lines of x along one axis, of the same shape."""

    signature = "x: T, axis: Tidx -> out: T; T: numeric, Tidx: index"
    reverse: bool = False

    def shape(self, x: Tensor, axis: Tensor) -> TensorShape:
        return x.shape.with_rank_at_least(1)

    def _lines(self, x: Array, axis: Array) -> Array:
        """A view with the axis first, in the order of the scan."""
        lines = np.moveaxis(x, _normal_axis(axis, x.ndim), 0)
        return lines[::-1] if self.reverse else lines

    def _back(self, lines: Array, axis: Array) -> Array:
        """The inverse of `_lines`."""
        return np.moveaxis(lines[::-1] if self.reverse else lines, 0, int(axis))


def _line(at: IndexTuple, x: Operand, axis: Operand) -> tuple[int, Callable[[Any], Expr]]:
    """The axis, and the element at an index of the line through `at`."""
    along = _normal_axis(axis.constant(), x.rank) % x.rank
    return along, lambda k: x[(*at[:along], k, *at[along + 1 :])]


def _normal_axis(axis: Array, rank: int) -> int:
    if np.ndim(axis):
        raise ValueError(f"scan: axis must be a scalar, not {np.asarray(axis).tolist()}")
    if not -rank <= axis < rank:
        raise ValueError(
            f"scan: Expected scan axis in the range [{-rank}, {rank}), but got {int(axis)}"
        )
    return int(axis)


class Scan(AlongAxis, abstract=True):
    """y[k] = x[0] ∘ … ∘ x[k] along an axis, without x[k] if exclusive"""

    exclusive: bool = False
    function: ClassVar[Any]  # the NumPy ufunc
    combine: ClassVar[str]  # the loop reduction
    neutral: ClassVar[int] = 0

    def _neutral(self, dtype: Any) -> Any:
        return self.neutral

    def numpy(self, x: Array, axis: Array) -> Array:
        lines = self._lines(x, axis)
        wide = compute_dtype(x.dtype)
        scanned = type(self).function.accumulate(lines, axis=0, dtype=wide).astype(x.dtype)
        if self.exclusive:
            first = np.full_like(lines[:1], self._neutral(x.dtype))
            scanned = np.concatenate([first, scanned[:-1]])[: len(lines)]
        return self._back(scanned, axis)

    def loop(self, at: IndexTuple, x: Operand, axis: Operand) -> Expr:
        along, line = _line(at, x, axis)
        return self._prefix(self.combine, at, along, line)

    def _prefix(self, kind: str, at: IndexTuple, along: int, body: Callable[[Any], Expr]) -> Expr:
        return loop.prefix(
            kind, at.shape[along], at[along], body, exclusive=self.exclusive, reverse=self.reverse
        )


class Cumsum(Scan):
    """y[k] = x[0] + … + x[k] along an axis"""

    function = np.add
    combine = "sum"

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        transposed = Cumsum(exclusive=self.exclusive, reverse=not self.reverse)
        return [transposed(dy, node.inputs[1]), None]


@public("cumsum", "math.cumsum")
def cumsum(
    x: Any,
    axis: Any = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The running sum along an axis: `[a, b, c]` gives `[a, a + b, a + b + c]`.

    Args:
        x: a numeric tensor.
        axis: the axis.
        exclusive: exclude the element itself: `[0, a, a + b]`.
        reverse: sum from the end.
        name: the name of the node.

    Returns:
        A tensor of the shape and dtype of `x`.

    Example:
        >>> sess.run(tf.cumsum([1, 2, 3])), sess.run(tf.cumsum([1, 2, 3], exclusive=True))
        (array([1, 3, 6], dtype=int32), array([0, 1, 3], dtype=int32))
    """
    return Cumsum(exclusive=exclusive, reverse=reverse)(x, axis, name=name or "Cumsum")


class Cumprod(Scan):
    """y[k] = x[0] ⋯ x[k] along an axis"""

    function = np.multiply
    combine = "prod"
    neutral = 1

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        """dx[k] = (x[0] ⋯ x[k-1]) h[k] with h[k] = dy[k] + x[k+1] h[k+1]: correct at zeros."""
        x, axis = node.inputs
        factor = matmul.conjugate(x)
        before = Cumprod(exclusive=True, reverse=self.reverse)(factor, axis)
        inclusive = Shift(reverse=not self.reverse)(dy, axis) if self.exclusive else dy
        after = Recurrence(reverse=self.reverse, transposed=True)(factor, inclusive, axis)
        return [before * after, None]


@public("cumprod", "math.cumprod")
def cumprod(
    x: Any,
    axis: Any = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The running product along an axis: `[a, b, c]` gives `[a, a b, a b c]`.

    Args:
        x: a numeric tensor.
        axis: the axis.
        exclusive: exclude the element itself: `[1, a, a b]`.
        reverse: multiply from the end.
        name: the name of the node.

    Returns:
        A tensor of the shape and dtype of `x`.

    Example:
        >>> sess.run(tf.cumprod([1, 2, 3]))
        array([1, 2, 6], dtype=int32)
    """
    return Cumprod(exclusive=exclusive, reverse=reverse)(x, axis, name=name or "Cumprod")


class CumulativeLogsumexp(Scan):
    """y[k] = log(exp(x[0]) + … + exp(x[k])) along an axis; the lowest number for an empty sum"""

    signature = "x: T, axis: Tidx -> out: T; T: float16|float32|float64, Tidx: index"
    function = np.logaddexp

    def _neutral(self, dtype: Any) -> Any:
        return np.finfo(dtype).min

    def loop(self, at: IndexTuple, x: Operand, axis: Operand) -> Expr:
        """The maximum is subtracted in each sum, unless it is infinite."""
        along, line = _line(at, x, axis)
        largest = self._prefix("max", at, along, line)
        offset = select(largest.is_finite(), largest, 0)
        total = self._prefix("sum", at, along, lambda k: (line(k) - offset).exp())
        logarithm = total.log() + offset
        if not self.exclusive:
            return logarithm
        first = at.shape[along] - 1 if self.reverse else 0
        return select(at[along].eq(first), float(self._neutral(x.dtype)), logarithm)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        """dx[j] = Σ dy[k] exp(x[j] - y[k]), separately for positive and negative dy."""
        x, axis = node.inputs
        scan = CumulativeLogsumexp(exclusive=self.exclusive, reverse=not self.reverse)

        def flow(part: Tensor) -> Tensor:
            logarithm = choosing.where(part > 0, transcendental.log(part), _lowest(part))
            return transcendental.exp(scan(logarithm - node.output, axis) + x)

        return [flow(dy) - flow(-dy), None]


def _lowest(like: Tensor) -> Tensor:
    """Half the lowest number, so that differences stay finite."""
    return filling.zeros_like(like) + like.dtype.min / 2


@public("math.cumulative_logsumexp")
def cumulative_logsumexp(
    x: Any,
    axis: Any = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The logarithm of the running sum of exponentials along `axis`."""
    op = CumulativeLogsumexp(exclusive=exclusive, reverse=reverse)
    return op(x, axis, name=name or "CumulativeLogsumexp")


class Shift(AlongAxis):
    """y[k] = x[k-1] along an axis, and y[0] = 0"""

    private = True

    def numpy(self, x: Array, axis: Array) -> Array:
        lines = self._lines(x, axis)
        shifted = np.zeros_like(lines)
        shifted[1:] = lines[:-1]
        return self._back(shifted, axis)

    def loop(self, at: IndexTuple, x: Operand, axis: Operand) -> Expr:
        along, line = _line(at, x, axis)
        if self.reverse:
            return select(at[along] < at.shape[along] - 1, line(at[along] + 1), 0)
        return select(at[along] > 0, line(at[along] - 1), 0)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [Shift(reverse=not self.reverse)(dy, node.inputs[1]), None]


class Recurrence(AlongAxis):
    """h[k] = g[k] + a[k] h[k-1] along an axis; transposed, h[k] = g[k] + a[k+1] h[k+1]

    As linear maps of g the two are each other's transpose, so each is the other's gradient.
    """

    private = True
    signature = "a: T, g: T, axis: I -> h: T; T: numeric, I: index"
    host_only = True  # a recurrence: as an expression it would be cubic
    transposed: bool = False

    def shape(self, a: Tensor, g: Tensor, axis: Tensor) -> TensorShape:
        return a.shape.merge_with(g.shape)

    def numpy(self, a: Array, g: Array, axis: Array) -> Array:
        factors, lines = self._lines(a, axis), self._lines(g, axis)
        if self.transposed:
            factors, lines = factors[:0:-1], lines[::-1]
        else:
            factors = factors[1:]
        h = lines.copy()
        for k, factor in enumerate(factors, 1):
            h[k] += factor * h[k - 1]
        return self._back(h[::-1] if self.transposed else h, axis)

    def gradient(self, node: Node, dh: Tensor) -> list[Tensor | None]:
        a, _, axis = node.inputs
        other = Recurrence(reverse=self.reverse, transposed=not self.transposed)
        dg = other(matmul.conjugate(a), dh, axis)
        shift = Shift(reverse=self.reverse)
        h = matmul.conjugate(node.output)
        da = shift(dg, axis) * h if self.transposed else dg * shift(h, axis)
        return [da, dg, None]
