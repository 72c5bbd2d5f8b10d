"""Comparisons, logical connectives and tests of floats: elementwise ops with boolean results."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph.node import operator
from thalweg.ir.expr import Expr, call
from thalweg.ops.core.elementwise import Comparison, Elementwise, Unary, binary, unary
from thalweg.ops.core.overloads import overload
from thalweg.public import public


class Less(Comparison):
    """z = x < y

    Example:
        >>> sess.run(tf.less([1, 2, 3], 2))
        array([ True, False, False])
    """

    signature = "x: T, y: T -> z: bool; T: real"
    numpy = staticmethod(np.less)

    def element(self, x: Expr, y: Expr) -> Expr:
        return x < y


less = operator("lt")(binary(Less, "less", "math.less"))


class LessEqual(Comparison):
    """z = x <= y

    Example:
        >>> sess.run(tf.less_equal([1, 2, 3], 2))
        array([ True,  True, False])
    """

    signature = "x: T, y: T -> z: bool; T: real"
    numpy = staticmethod(np.less_equal)

    def element(self, x: Expr, y: Expr) -> Expr:
        return x <= y


less_equal = operator("le")(binary(LessEqual, "less_equal", "math.less_equal"))


class Greater(Comparison):
    """z = x > y

    Example:
        >>> sess.run(tf.greater([1, 2, 3], 2))
        array([False, False,  True])
    """

    signature = "x: T, y: T -> z: bool; T: real"
    numpy = staticmethod(np.greater)

    def element(self, x: Expr, y: Expr) -> Expr:
        return x > y


greater = operator("gt")(binary(Greater, "greater", "math.greater"))


class GreaterEqual(Comparison):
    """z = x >= y

    Example:
        >>> sess.run(tf.greater_equal([1, 2, 3], 2))
        array([False,  True,  True])
    """

    signature = "x: T, y: T -> z: bool; T: real"
    numpy = staticmethod(np.greater_equal)

    def element(self, x: Expr, y: Expr) -> Expr:
        return x >= y


greater_equal = operator("ge")(binary(GreaterEqual, "greater_equal", "math.greater_equal"))


def _comparable(x: Any) -> Any:
    # NumPy's fixed-width bytes ignore trailing zeros; object arrays compare Python's bytes.
    return np.asarray(x, object) if isinstance(x, bytes) else x


class Equal(Comparison):
    """z = (x = y)

    Example:
        >>> sess.run(tf.equal([1, 2, 3], [1, 0, 3]))
        array([ True, False,  True])
    """

    signature = "x: T, y: T -> z: bool; T: numeric|bool|string"
    commutative = True

    def numpy(self, x: Any, y: Any) -> Any:
        return np.equal(_comparable(x), _comparable(y))

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("eq", x, y)


equal = binary(Equal, "equal", "math.equal")


class NotEqual(Comparison):
    """z = (x ≠ y)

    Example:
        >>> sess.run(tf.not_equal([1, 2, 3], 2))
        array([ True, False,  True])
    """

    signature = "x: T, y: T -> z: bool; T: numeric|bool|string"
    commutative = True

    def numpy(self, x: Any, y: Any) -> Any:
        return np.not_equal(_comparable(x), _comparable(y))

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("ne", x, y)


not_equal = binary(NotEqual, "not_equal", "math.not_equal")


class ApproximateEqual(Comparison):
    """z = |x - y| < tolerance"""

    signature = "x: T, y: T -> z: bool; T: numeric"
    commutative = True
    tolerance: float = 1e-5

    def numpy(self, x: Any, y: Any) -> Any:
        return np.abs(x - y) < self.tolerance

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("abs", x - y) < self.tolerance


@public("approximate_equal", "math.approximate_equal")
def approximate_equal(x: Any, y: Any, tolerance: float = 1e-5, name: str | None = None) -> Any:
    """Whether |x - y| < `tolerance`, element by element."""
    return ApproximateEqual(tolerance=tolerance)(x, y, name=name)


class Connective(Elementwise, abstract=True):
    """z = x ? y, of booleans"""

    signature = "x: bool, y: bool -> z: bool"
    commutative = True
    not_differentiable = True


class LogicalAnd(Connective):
    """z = x and y

    Example:
        >>> sess.run(tf.logical_and([True, True, False], [True, False, False]))
        array([ True, False, False])
    """

    numpy = staticmethod(np.logical_and)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("and", x, y)


logical_and = overload("and", binary(LogicalAnd, "logical_and", "math.logical_and"))


class LogicalOr(Connective):
    """z = x or y

    Example:
        >>> sess.run(tf.logical_or([True, True, False], [True, False, False]))
        array([ True,  True, False])
    """

    numpy = staticmethod(np.logical_or)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("or", x, y)


logical_or = overload("or", binary(LogicalOr, "logical_or", "math.logical_or"))


class LogicalNot(Unary):
    """y = not x

    Example:
        >>> sess.run(tf.logical_not([True, False]))
        array([False,  True])
    """

    signature = "x: bool -> y: bool"
    not_differentiable = True
    numpy = staticmethod(np.logical_not)

    def element(self, x: Expr) -> Expr:
        return call("not", x)


logical_not = operator("invert")(unary(LogicalNot, "logical_not", "math.logical_not"))


@public("logical_xor", "math.logical_xor")
def logical_xor(x: Any, y: Any, name: str | None = "LogicalXor") -> Any:
    """Whether exactly one of x and y is true, element by element.

    Args:
        x: a bool tensor.
        y: a bool tensor, of a shape that broadcasts.
        name: the name of the nodes.

    Returns:
        A bool tensor of the broadcast shape.

    Example:
        >>> sess.run(tf.logical_xor([True, True, False], [True, False, False]))
        array([False,  True, False])
    """
    some, all_ = logical_or(x, y), logical_and(x, y)
    return logical_and(some, logical_not(all_), name=name)


overload("xor", logical_xor)


class FloatTest(Elementwise, abstract=True):
    """A property of a floating-point number."""

    signature = "x: T -> y: bool; T: floating"
    not_differentiable = True


class IsNan(FloatTest):
    """y = whether x is not a number

    Example:
        >>> sess.run(tf.is_nan([1.0, np.inf, np.nan]))
        array([False, False,  True])
    """

    numpy = staticmethod(np.isnan)

    def element(self, x: Expr) -> Expr:
        return call("is_nan", x)


is_nan = unary(IsNan, "is_nan", "math.is_nan", "debugging.is_nan")


class IsInf(FloatTest):
    """y = whether x is infinite

    Example:
        >>> sess.run(tf.is_inf([1.0, np.inf, np.nan]))
        array([False,  True, False])
    """

    numpy = staticmethod(np.isinf)

    def element(self, x: Expr) -> Expr:
        return call("is_inf", x)


is_inf = unary(IsInf, "is_inf", "math.is_inf", "debugging.is_inf")


class IsFinite(FloatTest):
    """y = whether x is a finite number

    Example:
        >>> sess.run(tf.is_finite([1.0, np.inf, np.nan]))
        array([ True, False, False])
    """

    numpy = staticmethod(np.isfinite)

    def element(self, x: Expr) -> Expr:
        return call("is_finite", x)


is_finite = unary(IsFinite, "is_finite", "math.is_finite", "debugging.is_finite")
