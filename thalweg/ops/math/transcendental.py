"""Exponentials, logarithms, roots, trigonometric and hyperbolic functions and their inverses."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ir.expr import Expr, call, select
from thalweg.ops.core import broadcast, choosing, filling
from thalweg.ops.core.elementwise import Binary, Unary, binary, unary
from thalweg.ops.math import arithmetic, compare, complexes, division
from thalweg.platform.arrays import Array
from thalweg.public import public


class Smooth(Unary, abstract=True):
    """y = f(x), of real and complex floats"""

    signature = "x: T -> y: T; T: floating|complex"


class Backprop(Binary, abstract=True):
    """dx of y = f(x), from y and dy: one node in place of several"""

    signature = "y: T, dy: T -> z: T; T: floating|complex"


class Exp(Smooth):
    """y = eˣ

    Example:
        >>> sess.run(tf.exp([0.0, 1.0]))
        array([1.       , 2.7182817], dtype=float32)
    """

    numpy = staticmethod(np.exp)

    def element(self, x: Expr) -> Expr:
        return call("exp", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy * complexes.conj(node.output)


exp = unary(Exp, "exp", "math.exp")


class Expm1(Smooth):
    """y = eˣ - 1, exact near 0

    Example:
        >>> sess.run(tf.expm1([0.0]))
        array([0.], dtype=float32)
    """

    numpy = staticmethod(np.expm1)

    def element(self, x: Expr) -> Expr:
        return call("expm1", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy * exp(complexes.conj(node.inputs[0]))


expm1 = unary(Expm1, "expm1", "math.expm1")


class Log(Smooth):
    """y = ln x

    Example:
        >>> sess.run(tf.log([1.0, np.e]))
        array([0., 1.], dtype=float32)
    """

    numpy = staticmethod(np.log)

    def element(self, x: Expr) -> Expr:
        return call("log", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy / complexes.conj(node.inputs[0])


log = unary(Log, "log", "math.log")


class Log1p(Smooth):
    """y = ln(1 + x), exact near 0

    Example:
        >>> sess.run(tf.log1p([0.0, np.e - 1]))
        array([0., 1.], dtype=float32)
    """

    numpy = staticmethod(np.log1p)

    def element(self, x: Expr) -> Expr:
        return call("log1p", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy / (complexes.conj(node.inputs[0]) + 1)


log1p = unary(Log1p, "log1p", "math.log1p")


class Sqrt(Smooth):
    """y = √x

    Example:
        >>> sess.run(tf.sqrt([4.0, 9.0]))
        array([2., 3.], dtype=float32)
    """

    numpy = staticmethod(np.sqrt)

    def element(self, x: Expr) -> Expr:
        return call("sqrt", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return SqrtGrad()(complexes.conj(node.output), dy)


class SqrtGrad(Backprop):
    """dx = dy / 2y, for y = √x"""

    def numpy(self, y: Any, dy: Any) -> Any:
        return np.divide(np.multiply(dy, np.asarray(0.5, np.asarray(y).dtype)), y)

    def element(self, y: Expr, dy: Expr) -> Expr:
        return dy * 0.5 / y

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        y = complexes.conj(node.inputs[0])
        return [-dz * complexes.conj(node.output) / y, SqrtGrad()(y, dz)]


sqrt = unary(Sqrt, "sqrt", "math.sqrt")


class Rsqrt(Smooth):
    """y = 1 / √x

    Example:
        >>> sess.run(tf.rsqrt([4.0, 0.25]))
        array([0.5, 2. ], dtype=float32)
    """

    def numpy(self, x: Any) -> Any:
        root = np.reciprocal(np.sqrt(x))
        if not np.iscomplexobj(root):
            return root
        # Complex division gives no limits if a part is infinite or both are 0.
        pole = np.asarray(complex(np.inf, np.nan), root.dtype)
        limit = np.where(np.equal(x, 0), pole, np.zeros_like(root))
        return np.where(np.isinf(x) | np.equal(x, 0), limit, root)

    def element(self, x: Expr) -> Expr:
        return 1 / call("sqrt", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return RsqrtGrad()(complexes.conj(node.output), dy)


class RsqrtGrad(Backprop):
    """dx = -dy y³ / 2, for y = 1 / √x"""

    def numpy(self, y: Any, dy: Any) -> Any:
        return dy * np.asarray(-0.5, np.asarray(y).dtype) * (np.square(y) * y)

    def element(self, y: Expr, dy: Expr) -> Expr:
        return dy * -0.5 * (y * y * y)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        y, dy = (complexes.conj(tensor) for tensor in node.inputs)
        return [dz * dy * (arithmetic.square(y) * -1.5), RsqrtGrad()(y, dz)]


rsqrt = unary(Rsqrt, "rsqrt", "math.rsqrt")


class Sin(Smooth):
    """y = sin x

    Example:
        >>> sess.run(tf.sin([0.0, np.pi / 2]))
        array([0., 1.], dtype=float32)
    """

    numpy = staticmethod(np.sin)

    def element(self, x: Expr) -> Expr:
        return call("sin", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy * cos(complexes.conj(node.inputs[0]))


sin = unary(Sin, "sin", "math.sin")


class Cos(Smooth):
    """y = cos x

    Example:
        >>> sess.run(tf.cos([0.0, np.pi]))
        array([ 1., -1.], dtype=float32)
    """

    numpy = staticmethod(np.cos)

    def element(self, x: Expr) -> Expr:
        return call("cos", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return -dy * sin(complexes.conj(node.inputs[0]))


cos = unary(Cos, "cos", "math.cos")


class Tan(Smooth):
    """y = tan x

    Example:
        >>> sess.run(tf.tan([0.0]))
        array([0.], dtype=float32)
    """

    numpy = staticmethod(np.tan)

    def element(self, x: Expr) -> Expr:
        return call("tan", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy * (arithmetic.square(complexes.conj(node.output)) + 1)


tan = unary(Tan, "tan", "math.tan")


class Asin(Smooth):
    """y = arcsin x

    Example:
        >>> sess.run(tf.asin([0.0]))
        array([0.], dtype=float32)
    """

    numpy = staticmethod(np.arcsin)

    def element(self, x: Expr) -> Expr:
        return call("asin", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy * rsqrt(1 - arithmetic.square(complexes.conj(node.inputs[0])))


asin = unary(Asin, "asin", "math.asin")


class Acos(Smooth):
    """y = arccos x

    Example:
        >>> sess.run(tf.acos([1.0]))
        array([0.], dtype=float32)
    """

    numpy = staticmethod(np.arccos)

    def element(self, x: Expr) -> Expr:
        return call("acos", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return -dy * rsqrt(1 - arithmetic.square(complexes.conj(node.inputs[0])))


acos = unary(Acos, "acos", "math.acos")


class Atan(Smooth):
    """y = arctan x

    Example:
        >>> sess.run(tf.atan([0.0]))
        array([0.], dtype=float32)
    """

    numpy = staticmethod(np.arctan)

    def element(self, x: Expr) -> Expr:
        return call("atan", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy / (arithmetic.square(complexes.conj(node.inputs[0])) + 1)


atan = unary(Atan, "atan", "math.atan")


class Atan2(Binary):
    """The angle of the point (x, y), in (-π, π]"""

    signature = "y: T, x: T -> z: T; T: floating"
    numpy = staticmethod(np.arctan2)

    def element(self, y: Expr, x: Expr) -> Expr:
        return call("atan2", y, x)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        y, x = node.inputs
        scaled = dz / (arithmetic.square(x) + arithmetic.square(y))
        return broadcast.both(node.inputs, x * scaled, -y * scaled)


@public("atan2", "math.atan2")
def atan2(y: Any, x: Any, name: str | None = None) -> Tensor:
    """The angle of the point (x, y), in (-π, π].

    Args:
        y: a floating tensor.
        x: a tensor of the same dtype, of a shape that broadcasts.
        name: the name of the node.

    Returns:
        A tensor of the broadcast shape.

    Example:
        >>> sess.run(tf.atan2([0.0], [1.0]))
        array([0.], dtype=float32)
    """
    return Atan2()(y, x, name=name)


class Sinh(Smooth):
    """y = sinh x

    Example:
        >>> sess.run(tf.sinh([0.0]))
        array([0.], dtype=float32)
    """

    numpy = staticmethod(np.sinh)

    def element(self, x: Expr) -> Expr:
        return call("sinh", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy * cosh(complexes.conj(node.inputs[0]))


sinh = unary(Sinh, "sinh", "math.sinh")


class Cosh(Smooth):
    """y = cosh x

    Example:
        >>> sess.run(tf.cosh([0.0]))
        array([1.], dtype=float32)
    """

    numpy = staticmethod(np.cosh)

    def element(self, x: Expr) -> Expr:
        return call("cosh", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy * sinh(complexes.conj(node.inputs[0]))


cosh = unary(Cosh, "cosh", "math.cosh")


class Tanh(Smooth):
    """y = tanh x

    Example:
        >>> sess.run(tf.tanh([0.0, 100.0]))
        array([0., 1.], dtype=float32)
    """

    numpy = staticmethod(np.tanh)

    def element(self, x: Expr) -> Expr:
        return call("tanh", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return TanhGrad()(complexes.conj(node.output), dy)


class TanhGrad(Backprop):
    """dx = dy (1 - y²), for y = tanh x"""

    def numpy(self, y: Any, dy: Any) -> Any:
        return dy * (1 - np.square(y))

    def element(self, y: Expr, dy: Expr) -> Expr:
        return dy * (1 - y * y)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        y, dy = (complexes.conj(tensor) for tensor in node.inputs)
        return [dz * dy * (y * -2), TanhGrad()(y, dz)]


tanh = unary(Tanh, "tanh", "nn.tanh", "math.tanh")


class Asinh(Smooth):
    """y = arsinh x

    Example:
        >>> sess.run(tf.asinh([0.0, 1.0]))
        array([0.       , 0.8813736], dtype=float32)
    """

    numpy = staticmethod(np.arcsinh)

    def element(self, x: Expr) -> Expr:
        return call("asinh", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy / cosh(complexes.conj(node.output))


asinh = unary(Asinh, "asinh", "math.asinh")


class Acosh(Smooth):
    """y = arcosh x

    Example:
        >>> sess.run(tf.acosh([1.0, 2.0]))
        array([0.      , 1.316958], dtype=float32)
    """

    numpy = staticmethod(np.arccosh)

    def element(self, x: Expr) -> Expr:
        return call("acosh", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy / sinh(complexes.conj(node.output))


acosh = unary(Acosh, "acosh", "math.acosh")


class Atanh(Smooth):
    """y = artanh x

    Example:
        >>> sess.run(tf.atanh([0.0, 0.5]))
        array([0.        , 0.54930615], dtype=float32)
    """

    numpy = staticmethod(np.arctanh)

    def element(self, x: Expr) -> Expr:
        return call("atanh", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy / (1 - arithmetic.square(complexes.conj(node.inputs[0])))


atanh = unary(Atanh, "atanh", "math.atanh")


class Sigmoid(Smooth):
    """y = 1 / (1 + e⁻ˣ)

    Example:
        >>> sess.run(tf.sigmoid([0.0, 100.0]))
        array([0.5, 1. ], dtype=float32)
    """

    def numpy(self, x: Any) -> Any:
        if np.iscomplexobj(x):
            return _complex_sigmoid(np.asarray(x))
        return np.reciprocal(1 + np.exp(np.negative(x)))

    def element(self, x: Expr) -> Expr:
        return 1 / (1 + call("exp", -x))

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return SigmoidGrad()(complexes.conj(node.output), dy)


def _complex_sigmoid(x: Array) -> Array:
    """Complex division by an infinite number is nan: exponentials must not overflow."""
    right: Array = np.greater(np.real(x), 0)
    small: Array = np.exp(np.where(right, np.negative(x), x))
    above: Array = np.where(right, np.ones_like(small), small)
    return np.divide(above, 1 + small)


class SigmoidGrad(Backprop):
    """dx = dy y (1 - y), for y = sigmoid x"""

    def numpy(self, y: Any, dy: Any) -> Any:
        return dy * (y * (1 - y))

    def element(self, y: Expr, dy: Expr) -> Expr:
        return dy * (y * (1 - y))

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        y, dy = (complexes.conj(tensor) for tensor in node.inputs)
        return [dz * dy * (1 - y * 2), SigmoidGrad()(y, dz)]


sigmoid = unary(Sigmoid, "sigmoid", "nn.sigmoid", "math.sigmoid")


class Xlogy(Binary):
    """z = x ln y, and 0 where x is 0"""

    signature = "x: T, y: T -> z: T; T: floating|complex"

    def numpy(self, x: Array, y: Array) -> Array:
        zero = np.equal(x, 0)
        safe = np.where(zero, np.ones_like(y), y)
        return np.where(zero, np.zeros_like(x), np.multiply(x, np.log(safe)))

    def element(self, x: Expr, y: Expr) -> Expr:
        return select(call("eq", x, 0), x, x * call("log", y))

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        x, y = node.inputs
        dx = dz * complexes.conj(xlogy(_is_not_zero(x), y))
        return broadcast.both(node.inputs, dx, dz * complexes.conj(xdivy(x, y)))


xlogy = binary(Xlogy, "math.xlogy")


class Xdivy(Binary):
    """z = x / y, and 0 where x is 0"""

    signature = "x: T, y: T -> z: T; T: floating|complex"

    def numpy(self, x: Array, y: Array) -> Array:
        zero = np.equal(x, 0)
        safe = np.where(zero, np.ones_like(y), y)
        return np.where(zero, np.zeros_like(x), np.divide(x, safe))

    def element(self, x: Expr, y: Expr) -> Expr:
        return select(call("eq", x, 0), x, x / y)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        x, y = node.inputs
        dx = dz * complexes.conj(xdivy(_is_not_zero(x), y))
        return broadcast.both(node.inputs, dx, dz * complexes.conj(xdivy(-x, arithmetic.square(y))))


xdivy = binary(Xdivy, "math.xdivy")


def _is_not_zero(x: Tensor) -> Tensor:
    """1 where x is not 0, else 0, in the dtype of x."""
    return choosing.SelectV2()(compare.equal(x, 0), filling.zeros_like(x), filling.ones_like(x))


class MulNoNan(Binary):
    """z = x y, and 0 where y is 0 even if x is infinite or not a number"""

    signature = "x: T, y: T -> z: T; T: floating|complex"

    def numpy(self, x: Array, y: Array) -> Array:
        zero = np.equal(y, 0)
        return np.where(zero, np.zeros_like(y), np.multiply(x, y))

    def element(self, x: Expr, y: Expr) -> Expr:
        return select(call("eq", y, 0), y, x * y)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        x, y = (complexes.conj(tensor) for tensor in node.inputs)
        return broadcast.both(node.inputs, multiply_no_nan(dz, y), multiply_no_nan(x, dz))


@public("math.multiply_no_nan")
def multiply_no_nan(x: Any, y: Any, name: str | None = None) -> Tensor:
    """x y, and 0 where y is 0 even if x is infinite or not a number."""
    with name_scope(name, "multiply_no_nan", [x, y]) as scope:
        return MulNoNan()(x, y, name=scope)


@public("math.reciprocal_no_nan")
def reciprocal_no_nan(x: Any, name: str | None = None) -> Tensor:
    """1 / x, and 0 where x is 0."""
    with name_scope(name, "reciprocal_no_nan", [x]) as scope:
        return division.DivNoNan()(filling.ones_like(x), x, name=scope)
