"""Division: true, floored, truncated, with remainders, and guarded against zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.convert import has_conversion
from thalweg.graph.dtypes import DType
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ir import loop
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck
from thalweg.ops.core import broadcast, casting
from thalweg.ops.core.elementwise import Binary, binary
from thalweg.ops.core.overloads import aligned, overload
from thalweg.ops.math import complexes
from thalweg.platform.arrays import Array
from thalweg.public import public


class Quotient(Binary, abstract=True):
    """The base of divisions; integer division by zero is an error."""

    def requires(self, x: Operand, y: Operand) -> list[RuntimeCheck]:
        if y.dtype.kind not in "iu":
            return []
        return [loop.runtime_check(y.shape, lambda *at: y[at].ne(0))]


def _quotient(x: Array, y: Array, whole: Any, rounded: Any) -> Array:
    """`whole` for integers, without division by zero; floats are divided, then rounded."""
    if np.asarray(x).dtype.kind not in "iu":
        return rounded(np.divide(x, y))
    _check_divisor(y)
    return whole(x, y)


def _float_quotient(x: Expr, y: Expr, dtype: Any) -> Expr:
    """x / y rounded to the dtype, also for narrow floats, which are computed in float32."""
    if np.dtype(dtype).itemsize > 2:
        return x / y
    return (x.cast(np.float32) / y.cast(np.float32)).cast(dtype)


def _check_divisor(y: Array) -> None:
    if np.asarray(y).dtype.kind in "iu" and not np.all(y):
        raise errors.invalid("Integer division by zero")


class RealDiv(Binary):
    """z = x / y"""

    signature = "x: T, y: T -> z: T; T: floating|complex"
    numpy = staticmethod(np.divide)

    def element(self, x: Expr, y: Expr) -> Expr:
        return x / y

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        return _quotient_gradient(node, dz)


def _quotient_gradient(node: Node, dz: Tensor) -> list[Any]:
    dx = dz / complexes.conj(node.inputs[1])
    return broadcast.both(node.inputs, dx, -dx * complexes.conj(node.output))


realdiv = binary(RealDiv, "realdiv", "real_div")


class TruncateDiv(Quotient):
    """z = x / y rounded towards zero; of floats the rounded quotient is

    Example:
        >>> sess.run(tf.truncatediv([7, -7], 2))
        array([ 3, -3], dtype=int32)
    """

    signature = "x: T, y: T -> z: T; T: real"
    rounds_once = False
    not_differentiable = True

    def numpy(self, x: Array, y: Array) -> Array:
        return _quotient(x, y, _truncated_quotient, np.trunc)

    def loop(self, at: IndexTuple, x: Operand, y: Operand) -> Expr:
        left, right = x.broadcast(at), y.broadcast(at)
        if x.dtype.kind in "iu":
            return truncated_quotient(left, right)
        return _float_quotient(left, right, x.dtype).trunc()


def _truncated_quotient(x: Array, y: Array) -> Array:
    return np.floor_divide(np.subtract(x, np.fmod(x, y)), y)


def truncated_quotient(x: Expr, y: Expr) -> Expr:
    """x / y of integers, rounded towards zero."""
    return call("floor_div", x - call("truncated_remainder", x, y), y)


truncatediv = binary(TruncateDiv, "truncatediv", "truncate_div")


class Div(Quotient):
    """z = x / y, rounded towards zero for integers; in old graphs"""

    signature = "x: T, y: T -> z: T; T: numeric"

    def numpy(self, x: Array, y: Array) -> Array:
        if np.asarray(x).dtype.kind in "iu":
            return TruncateDiv().numpy(x, y)
        return np.divide(x, y)

    def loop(self, at: IndexTuple, x: Operand, y: Operand) -> Expr:
        whole = x.dtype.kind in "iu"
        left, right = x.broadcast(at), y.broadcast(at)
        return truncated_quotient(left, right) if whole else left / right

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        return [None, None] if dz.dtype.is_integer else _quotient_gradient(node, dz)


class FloorDiv(Quotient):
    """z = x / y rounded towards minus infinity; of floats the floor of the rounded quotient

    Example:
        >>> sess.run(tf.floor_div([7, -7], 2))
        array([ 3, -4], dtype=int32)
    """

    signature = "x: T, y: T -> z: T; T: real"
    rounds_once = False
    not_differentiable = True

    def numpy(self, x: Array, y: Array) -> Array:
        return _quotient(x, y, np.floor_divide, np.floor)

    def loop(self, at: IndexTuple, x: Operand, y: Operand) -> Expr:
        left, right = x.broadcast(at), y.broadcast(at)
        if x.dtype.kind in "iu":
            return left // right
        return _float_quotient(left, right, x.dtype).floor()


floor_div = binary(FloorDiv, "floor_div")


@public("floordiv", "math.floordiv")
def floordiv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x / y rounded towards minus infinity.

    Args:
        x: a real tensor.
        y: a tensor of the same dtype, of a shape that broadcasts.
        name: the name of the node.

    Returns:
        A tensor of the broadcast shape and the same dtype.

    Example:
        >>> sess.run(tf.floordiv([7, -7], 2))
        array([ 3, -4], dtype=int32)
    """
    with name_scope(name, "floordiv", [x, y]) as scope:
        return floor_div(x, y, name=scope)


overload("floordiv", floordiv)


class FloorMod(Quotient):
    """z = x - y floor(x / y), of the sign of y

    Example:
        >>> sess.run(tf.mod([7, -7], 3))
        array([1, 2], dtype=int32)
    """

    signature = "x: T, y: T -> z: T; T: real"

    def numpy(self, x: Array, y: Array) -> Array:
        _check_divisor(y)
        return np.remainder(x, y)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("remainder", x, y)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        return broadcast.both(node.inputs, dz, -dz * floor_div(*node.inputs))


floormod = overload("mod", binary(FloorMod, "floormod", "mod", "math.floormod", "math.mod"))


class TruncateMod(Quotient):
    """z = x - y trunc(x / y), of the sign of x"""

    signature = "x: T, y: T -> z: T; T: real"

    def numpy(self, x: Array, y: Array) -> Array:
        _check_divisor(y)
        return np.fmod(x, y)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("truncated_remainder", x, y)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        return broadcast.both(node.inputs, dz, -dz * truncatediv(*node.inputs))


truncatemod = binary(TruncateMod, "truncatemod", "truncate_mod")


class Mod(TruncateMod, name="Mod"):
    """z = x - y trunc(x / y); in old graphs"""


#: The dtypes to which integers are converted for true division.
_EXACT: dict[DType, DType] = {
    dtypes.uint8: dtypes.float32,
    dtypes.int8: dtypes.float32,
    dtypes.uint16: dtypes.float32,
    dtypes.int16: dtypes.float32,
    dtypes.int32: dtypes.float64,
    dtypes.uint32: dtypes.float64,
    dtypes.int64: dtypes.float64,
    dtypes.uint64: dtypes.float64,
}


@public("truediv", "math.truediv")
def truediv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x / y as in Python 3: integers are converted to floats first.

    Args:
        x: a numeric tensor.
        y: a tensor of the same dtype, of a shape that broadcasts.
        name: the name of the node.

    Returns:
        A tensor of the broadcast shape; of integers, float32 (8 and 16 bits) or float64.

    Example:
        >>> sess.run(tf.truediv([7, 8], 2))
        array([3.5, 4. ])
    """
    with name_scope(name, "truediv", [x, y]) as scope:
        left, right = aligned("truediv", x, y)
        kind = left.dtype.base_dtype
        if kind not in _EXACT and not (kind.is_floating or kind.is_complex):
            raise TypeError(f"Invalid dtype {kind.name} in __truediv__")
        wide = _EXACT.get(kind) or kind
        return realdiv(casting.cast(left, wide), casting.cast(right, wide), name=scope)


overload("truediv", truediv)


@public("div")
def div(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x / y as in Python 2: integers are rounded towards minus infinity.

    Args:
        x: a numeric tensor.
        y: a tensor of the same dtype, of a shape that broadcasts.
        name: the name of the node.

    Returns:
        A tensor of the broadcast shape and the same dtype.

    Raises:
        InvalidArgumentError: if an integer is divided by 0.

    Example:
        >>> sess.run(tf.div([7, -7], 2)), sess.run(tf.div(7.0, 2.0))
        (array([ 3, -4], dtype=int32), np.float32(3.5))
    """
    with name_scope(name, "div", [x, y]) as scope:
        left, right = aligned("div", x, y)
        smooth = left.dtype.is_floating or left.dtype.is_complex
        return (realdiv if smooth else floor_div)(left, right, name=scope)


overload("div", div)


@public("divide", "math.divide")
def divide(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y as by Python's operator.

    Args:
        x, y: a numeric tensor, and another or a number; the shapes broadcast.
        name: the name of the node.

    Returns:
        A tensor of the broadcast shape; of integers, a floating one.

    Example:
        >>> sess.run(tf.divide(tf.constant([7.0, 8.0]), 2.0))
        array([3.5, 4. ], dtype=float32)
    """
    if name is None and (has_conversion(x) or has_conversion(y)):
        left: Any = x
        return left / y
    return truediv(x, y, name=name)


class DivNoNan(Binary):
    """z = x / y, and 0 where y is 0"""

    signature = "x: T, y: T -> z: T; T: floating|complex"

    def numpy(self, x: Array, y: Array) -> Array:
        safe = np.where(np.equal(y, 0), np.ones_like(y), y)
        return np.where(np.equal(y, 0), np.zeros_like(x), np.divide(x, safe))

    def element(self, x: Expr, y: Expr) -> Expr:
        return select(call("eq", y, 0), 0 * y, x / y)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        dx = div_no_nan(dz, complexes.conj(node.inputs[1]))
        return broadcast.both(node.inputs, dx, -dx * complexes.conj(node.output))


@public("div_no_nan", "math.divide_no_nan")
def div_no_nan(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x / y, and 0 where y is 0."""
    with name_scope(name, "div_no_nan", [x, y]) as scope:
        return DivNoNan()(x, y, name=scope)
