"""Arithmetic: sums, products, powers, extremes, and their operators. Division has its own file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph.composite import IndexedSlices, SparseTensor
from thalweg.graph.convert import convert_all, convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor, operator, operators
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, call
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck
from thalweg.ops.core import basic, broadcast, choosing, filling
from thalweg.ops.core.elementwise import Binary, Elementwise, Unary, binary, unary
from thalweg.ops.core.overloads import overload
from thalweg.ops.math import compare, complexes, transcendental
from thalweg.public import public


class Add(Binary):
    """z = x + y

    Example:
        >>> sess.run(tf.add([[1.0], [2.0]], [10.0, 20.0]))
        array([[11., 21.],
               [12., 22.]], dtype=float32)
    """

    signature = "x: T, y: T -> z: T; T: numeric|string"
    commutative = True

    def numpy(self, x: Any, y: Any) -> Any:
        return np.add(x, y)

    def element(self, x: Expr, y: Expr) -> Expr:
        return x + y

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        return broadcast.both(node.inputs, dz, dz)


add = overload("add", binary(Add, "add", "math.add"))


class Sub(Binary):
    """z = x - y

    Example:
        >>> sess.run(tf.subtract([5, 6], [1, 2]))
        array([4, 4], dtype=int32)
    """

    signature = "x: T, y: T -> z: T; T: numeric"
    numpy = staticmethod(np.subtract)

    def element(self, x: Expr, y: Expr) -> Expr:
        return x - y

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        dx, dy = broadcast.both(node.inputs, dz, dz)
        return [dx, -dy]


subtract = overload("sub", binary(Sub, "subtract", "sub", "math.subtract"))


class Neg(Unary):
    """y = -x

    Example:
        >>> sess.run(tf.negative([1.0, -2.0]))
        array([-1.,  2.], dtype=float32)
    """

    signature = "x: T -> y: T; T: numeric"
    numpy = staticmethod(np.negative)

    def element(self, x: Expr) -> Expr:
        return -x

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return -dy


negative = operator("neg")(unary(Neg, "negative", "neg", "math.negative"))


class Mul(Binary):
    """z = x y

    Example:
        >>> sess.run(tf.multiply([1.0, 2.0, 3.0], 10.0))
        array([10., 20., 30.], dtype=float32)
    """

    signature = "x: T, y: T -> z: T; T: numeric"
    commutative = True
    numpy = staticmethod(np.multiply)

    def element(self, x: Expr, y: Expr) -> Expr:
        return x * y

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        x, y = node.inputs
        return broadcast.both(node.inputs, dz * complexes.conj(y), complexes.conj(x) * dz)


multiply = binary(Mul, "multiply", "mul", "math.multiply")


def _multiply_any(x: Any, y: Any, name: str | None = None) -> Any:
    if isinstance(y, SparseTensor):
        return operators["sparse_mul"](y, x)
    return multiply(x, y, name=name)


overload("mul", _multiply_any)


@public("scalar_mul", "math.scalar_mul")
def scalar_mul(scalar: Any, x: Any, name: str | None = None) -> Any:
    """A scalar times a tensor.

    Args:
        scalar: a number or a scalar tensor.
        x: a tensor or IndexedSlices.
        name: the name of the node.

    Returns:
        A value of the type of `x`.

    Example:
        >>> sess.run(tf.scalar_mul(2.0, tf.constant([1.0, 2.0])))
        array([2., 4.], dtype=float32)
    """
    factor = convert_to_tensor(scalar, x.dtype.base_dtype, name="scalar")
    if factor.shape.rank != 0:
        raise ValueError(f"Only scalar multiply works, got shape {factor.shape}")
    if isinstance(x, IndexedSlices):
        values = multiply(factor, x.values, name=name)
        return IndexedSlices(values, x.indices, x.dense_shape)
    return multiply(factor, x, name=name or "mul")


class Square(Unary):
    """y = x²

    Example:
        >>> sess.run(tf.square([-3.0, 2.0]))
        array([9., 4.], dtype=float32)
    """

    signature = "x: T -> y: T; T: numeric"
    numpy = staticmethod(np.square)

    def element(self, x: Expr) -> Expr:
        return x * x

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy * (complexes.conj(node.inputs[0]) * 2)


square = unary(Square, "square", "math.square")


class SquaredDifference(Binary):
    """z = |x - y|², as (x - y) times its conjugate

    Example:
        >>> sess.run(tf.squared_difference([1.0, 5.0], [4.0, 4.0]))
        array([9., 1.], dtype=float32)
    """

    signature = "x: T, y: T -> z: T; T: numeric"
    commutative = True

    def numpy(self, x: Any, y: Any) -> Any:
        difference = np.subtract(x, y)
        return np.multiply(difference, np.conj(difference))

    def element(self, x: Expr, y: Expr) -> Expr:
        difference = x - y
        return difference * call("conj", difference)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        x, y = node.inputs
        slope = dz * 2 * (x - y)  # in this order, since twice the difference might overflow
        dx, dy = broadcast.both(node.inputs, slope, slope)
        return [dx, -dy]


squared_difference = binary(SquaredDifference, "squared_difference", "math.squared_difference")


class Abs(Unary):
    """y = |x|"""

    signature = "x: T -> y: T; T: real"
    numpy = staticmethod(np.abs)

    def element(self, x: Expr) -> Expr:
        return call("abs", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy * sign(node.inputs[0])


class ComplexAbs(Elementwise):
    """y = |x|, of a complex number"""

    signature = "x: T -> y: Tout; T: complex, Tout: float32|float64"
    Tout: DType
    numpy = staticmethod(np.abs)

    def element(self, x: Expr) -> Expr:
        return call("abs", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return complexes.from_real(dy) * sign(node.inputs[0])


@operator("abs")
@public("abs", "math.abs", "complex_abs")
def absolute(x: TensorLike | SparseTensor, name: str | None = None) -> Tensor | SparseTensor:
    """|x|, element by element.

    Args:
        x: a numeric tensor, or a SparseTensor, whose values are mapped.
        name: the name of the node.

    Returns:
        What `x` is, of the same shape; of complex numbers, their real lengths.

    Example:
        >>> sess.run(tf.abs([-1.5, 2.0]))
        array([1.5, 2. ], dtype=float32)
        >>> sess.run(tf.abs(3 + 4j))
        np.float64(5.0)
    """
    if isinstance(x, SparseTensor):
        return SparseTensor(x.indices, absolute(x.values, name), x.dense_shape)
    tensor = convert_to_tensor(x, name="x")
    kind = tensor.dtype.base_dtype
    op = ComplexAbs(Tout=kind.real_dtype) if kind.is_complex else Abs()
    return op(tensor, name=name)


class Sign(Unary):
    """y = x / |x|, and 0 at 0

    Example:
        >>> sess.run(tf.sign([-2.5, 0.0, 3.0]))
        array([-1.,  0.,  1.], dtype=float32)
    """

    signature = "x: T -> y: T; T: numeric"
    numpy = staticmethod(np.sign)

    def element(self, x: Expr) -> Expr:
        return call("sign", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        if not dy.dtype.is_complex:
            return filling.zeros_like(dy)
        # The sign does not change along x: only the component of dy orthogonal to it counts.
        direction = node.output
        along = complexes.real(complexes.conj(direction) * dy)
        across = dy - direction * complexes.from_real(along)
        length = complexes.from_real(absolute(node.inputs[0]))
        return choosing.SelectV2()(
            compare.equal(length, 0), filling.zeros_like(dy), across / length
        )


sign = unary(Sign, "sign", "math.sign")


class Reciprocal(Unary):
    """y = 1 / x

    Example:
        >>> sess.run(tf.reciprocal([4.0, 0.5]))
        array([0.25, 2.  ], dtype=float32)
    """

    signature = "x: T -> y: T; T: floating|complex"
    numpy = staticmethod(np.reciprocal)

    def element(self, x: Expr) -> Expr:
        return 1 / x

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return ReciprocalGrad()(complexes.conj(node.output), dy)


class ReciprocalGrad(Binary):
    """dx = -dy y², for y = 1 / x"""

    signature = "y: T, dy: T -> z: T; T: floating|complex"

    def numpy(self, y: Any, dy: Any) -> Any:
        return np.negative(dy) * np.square(y)

    def element(self, y: Expr, dy: Expr) -> Expr:
        return -dy * (y * y)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        y, dy = (complexes.conj(tensor) for tensor in node.inputs)
        return [dz * dy * (y * -2), ReciprocalGrad()(y, dz)]


reciprocal = unary(Reciprocal, "reciprocal", "inv", "math.reciprocal")


class Maximum(Binary):
    """z = the larger of x and y

    Example:
        >>> sess.run(tf.maximum([1.0, 5.0], 3.0))
        array([3., 5.], dtype=float32)
    """

    signature = "x: T, y: T -> z: T; T: real"
    commutative = True
    numpy = staticmethod(np.maximum)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("max", x, y)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        return _to_winner(node, compare.greater_equal(*node.inputs), dz)


maximum = binary(Maximum, "maximum", "math.maximum")


class Minimum(Binary):
    """z = the smaller of x and y

    Example:
        >>> sess.run(tf.minimum([1.0, 5.0], 3.0))
        array([1., 3.], dtype=float32)
    """

    signature = "x: T, y: T -> z: T; T: real"
    commutative = True
    numpy = staticmethod(np.minimum)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("min", x, y)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        return _to_winner(node, compare.less_equal(*node.inputs), dz)


minimum = binary(Minimum, "minimum", "math.minimum")


def _to_winner(node: Node, x_won: Tensor, dz: Tensor) -> list[Any]:
    zero = basic.zeros_constant(dz)
    choose = choosing.SelectV2()
    return broadcast.both(node.inputs, choose(x_won, dz, zero), choose(x_won, zero, dz))


@public("clip_by_value")
def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Any:
    """`t` with elements clipped to a minimum and a maximum.

    Args:
        t: a real tensor, or IndexedSlices.
        clip_value_min: the smallest value; a number or a tensor that broadcasts.
        clip_value_max: the largest value, likewise.
        name: the name of the node.

    Returns:
        What `t` is, of the same shape and dtype.

    Example:
        >>> sess.run(tf.clip_by_value([-2.0, 0.5, 9.0], 0.0, 1.0))
        array([0. , 0.5, 1. ], dtype=float32)
    """
    if isinstance(t, IndexedSlices):
        values = clip_by_value(t.values, clip_value_min, clip_value_max, name)
        return IndexedSlices(values, t.indices, t.dense_shape)
    with name_scope(name, "clip_by_value", [t, clip_value_min, clip_value_max]) as scope:
        tensor = convert_to_tensor(t, name="t")
        below = minimum(tensor, clip_value_max)
        tensor.shape.assert_is_compatible_with(below.shape)
        clipped = maximum(below, clip_value_min, name=scope)
        tensor.shape.assert_is_compatible_with(clipped.shape)
        return clipped


class Pow(Binary):
    """z = x to the y

    Example:
        >>> sess.run(tf.pow([2.0, 3.0], [3.0, 2.0]))
        array([8., 9.], dtype=float32)
    """

    signature = "x: T, y: T -> z: T; T: numeric"

    def numpy(self, x: Any, y: Any) -> Any:
        if np.asarray(y).dtype.kind == "i" and np.any(np.less(y, 0)):
            raise errors.invalid("Integers to negative integer powers are not allowed")
        return np.power(x, y)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("pow", x, y)

    def requires(self, x: Operand, y: Operand) -> list[RuntimeCheck]:
        if y.dtype.kind != "i":
            return []
        return [loop.runtime_check(y.shape, lambda *at: y[at] >= 0)]

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        x, y = (complexes.conj(tensor) for tensor in node.inputs)
        dx = dz * y * power(x, y - 1)
        dy = dz * complexes.conj(node.output) * _log_or_zero(x)
        return broadcast.both(node.inputs, dx, dy)


def _log_or_zero(x: Tensor) -> Tensor:
    """log x where it is defined, else 0: the derivative of a power of 0 by its exponent."""
    if not (x.dtype.is_floating or x.dtype.is_complex):
        return filling.zeros_like(x)
    defined = compare.not_equal(x, 0) if x.dtype.is_complex else x > 0
    one, zero = filling.ones_like(x), filling.zeros_like(x)
    choose = choosing.SelectV2()
    return choose(defined, transcendental.log(choose(defined, x, one)), zero)


power = overload("pow", binary(Pow, "pow", "math.pow"))


class AddN(Op):
    """The sum of tensors of one shape."""

    signature = "inputs: N*T -> sum: T; T: numeric"
    commutative = True

    def shape(self, inputs: list[Tensor]) -> TensorShape:
        merged = inputs[0].shape
        for tensor in inputs[1:]:
            merged = merged.merge_with(tensor.shape)
        return merged

    def numpy(self, inputs: list[Any]) -> Any:
        total = np.array(inputs[0])
        for value in inputs[1:]:
            if np.shape(value) != total.shape:
                raise errors.invalid(
                    f"Inputs must have one shape, got {list(total.shape)} and "
                    f"{list(np.shape(value))}"
                )
            total += value
        return total

    def loop(self, at: IndexTuple, inputs: list[Operand]) -> Expr:
        total = inputs[0][at]
        for value in inputs[1:]:
            total = total + value[at]
        return total

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor]:
        return [dy] * len(node.inputs)


@public("add_n", "math.add_n")
def add_n(inputs: Sequence[Any], name: str | None = None) -> Tensor:
    """The sum of tensors of one shape.

    Args:
        inputs: a list of tensors, IndexedSlices among them, of one shape and dtype.
        name: the name of the node.

    Returns:
        A tensor of that shape and dtype.

    Example:
        >>> sess.run(tf.add_n([[1, 2], [3, 4], [5, 6]]))
        array([ 9, 12], dtype=int32)
    """
    tensors = _summands(inputs)
    if len(tensors) == 1:
        return basic.identity(tensors[0], name=name) if name else tensors[0]
    return AddN()(tensors, name=name)


@public("accumulate_n", "math.accumulate_n")
def accumulate_n(
    inputs: Sequence[Any], shape: Any = None, tensor_dtype: Any = None, name: str | None = None
) -> Tensor:
    """The sum of tensors of one shape, which may be given if it is not static."""
    tensors = _summands(inputs)
    kind = tensors[0].dtype.base_dtype
    if tensor_dtype is not None and as_dtype(tensor_dtype).base_dtype is not kind:
        wanted = as_dtype(tensor_dtype).name
        raise TypeError(f"tensor_dtype is {wanted}, but input is of type {kind.name}")
    known = as_shape(shape)
    for tensor in tensors:
        known = known.merge_with(tensor.shape)
    if len(tensors) == 1:
        return basic.identity(tensors[0], name=name) if name else tensors[0]
    total = AddN()(tensors, name=name or "AccumulateN")
    total.set_shape(known)
    return total


def _summands(inputs: Any) -> list[Tensor]:
    if not isinstance(inputs, list | tuple) or not inputs:
        raise ValueError(
            "inputs must be a list of at least one Tensor with the same dtype and shape"
        )
    return convert_all(cast("Sequence[Any]", inputs))


class Cross(Op):
    """z = the cross product of x and y, 3-vectors along the last axis"""

    signature = "a: T, b: T -> product: T; T: real"

    def shape(self, a: Tensor, b: Tensor) -> TensorShape:
        merged = a.shape.merge_with(b.shape).with_rank_at_least(1)
        if merged.rank is not None:
            merged[-1].assert_is_compatible_with(3)
        return merged

    def numpy(self, a: Any, b: Any) -> Any:
        if np.shape(a) != np.shape(b) or np.shape(a)[-1:] != (3,):
            raise errors.invalid(
                f"Cross products need two tensors of one shape [..., 3], got {list(np.shape(a))} "
                f"and {list(np.shape(b))}"
            )
        return np.cross(a, b)

    def loop(self, at: IndexTuple, a: Operand, b: Operand) -> Expr:
        *rest, axis = at
        one, two = (*rest, (axis + 1) % 3), (*rest, (axis + 2) % 3)
        return a[one] * b[two] - a[two] * b[one]

    def gradient(self, node: Node, dz: Tensor) -> list[Tensor]:
        a, b = node.inputs
        return [cross(b, dz), cross(dz, a)]


@public("cross", "linalg.cross")
def cross(a: Any, b: Any, name: str | None = None) -> Tensor:
    """The cross products of the 3-vectors along the last axis.

    Args:
        a, b: real tensors [..., 3] of one shape.
        name: the name of the node.

    Returns:
        A tensor of that shape.

    Example:
        >>> sess.run(tf.cross([1, 0, 0], [0, 1, 0]))
        array([0, 0, 1], dtype=int32)
    """
    return Cross()(a, b, name=name)


@public("math.polyval")
def polyval(coeffs: Sequence[Any], x: Any, name: str | None = None) -> Tensor:
    """The polynomial of the given coefficients, highest power first, at `x` (Horner's rule)."""
    if not isinstance(coeffs, list | tuple):
        raise ValueError(f"coeffs must be a list, not {type(coeffs).__name__}")
    with name_scope(name, "polyval", [*coeffs, x]):
        point = convert_to_tensor(x, name="x")
        if not coeffs:
            return filling.zeros_like(point, name=name)
        total, *rest = [convert_to_tensor(c, point.dtype.base_dtype) for c in coeffs]
        for coefficient in rest:
            total = coefficient + total * point
        return total
