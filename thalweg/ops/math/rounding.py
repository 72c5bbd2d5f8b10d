"""Rounding to integers, down, up and to the nearest."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Node, Tensor
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.core import broadcast, filling
from thalweg.ops.core.elementwise import Binary, Unary, unary
from thalweg.public import public


class Rounding(Unary, abstract=True):
    """y = an integer near x; piecewise constant, so without a gradient"""

    signature = "x: T -> y: T; T: floating"
    not_differentiable = True


class Floor(Rounding):
    """y = the largest integer not above x

    Example:
        >>> sess.run(tf.floor([1.7, -1.2]))
        array([ 1., -2.], dtype=float32)
    """

    numpy = staticmethod(np.floor)

    def element(self, x: Expr) -> Expr:
        return call("floor", x)


floor = unary(Floor, "floor", "math.floor")


class Ceil(Rounding):
    """y = the smallest integer not below x

    Example:
        >>> sess.run(tf.ceil([1.2, -1.7]))
        array([ 2., -1.], dtype=float32)
    """

    numpy = staticmethod(np.ceil)

    def element(self, x: Expr) -> Expr:
        return call("ceil", x)


ceil = unary(Ceil, "ceil", "math.ceil")


class Rint(Rounding):
    """y = the integer nearest to x; the even one of two"""

    numpy = staticmethod(np.rint)

    def element(self, x: Expr) -> Expr:
        return call("rint", x)


rint = unary(Rint, "rint", "math.rint")


class Round(Unary):
    """y = the integer nearest to x; the even one of two"""

    signature = "x: T -> y: T; T: floating|complex"
    not_differentiable = True
    numpy = staticmethod(np.rint)

    def element(self, x: Expr) -> Expr:
        return call("rint", x)


@public("round", "math.round")
def round_half_even(x: Any, name: str | None = None) -> Tensor:
    """The integer nearest to each element; the even one of two.

    Args:
        x: a numeric tensor; integers are unchanged.
        name: the name of the node.

    Returns:
        A tensor of the shape and dtype of `x`.

    Example:
        >>> sess.run(tf.round([0.5, 1.5, 2.4]))
        array([0., 2., 2.], dtype=float32)
    """
    tensor = convert_to_tensor(x, name="x")
    return tensor if tensor.dtype.is_integer else Round()(tensor, name=name)


#: The integer dtype of the size of each float.
_BITS = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}


class NextAfter(Binary):
    """z = the next float after x in the direction of y"""

    signature = "x1: T, x2: T -> output: T; T: float32|float64"
    numpy = staticmethod(np.nextafter)

    def loop(self, at: IndexTuple, x1: Operand, x2: Operand) -> Expr:
        """Floats of one sign are ordered like their bits; next to zero are the least subnormals."""
        x, y = x1.broadcast(at), x2.broadcast(at)
        outwards = (x < y).eq(x > 0)
        kind = _BITS[x1.dtype]
        bits = x.bitcast(kind) + select(outwards, 1, -1).cast(kind)
        least = float(np.finfo(x1.dtype).smallest_subnormal)
        beside_zero = select(y > 0, least, -least).cast(x1.dtype)
        beside = select(x.eq(0), beside_zero, bits.bitcast(x1.dtype))
        # Return the input's NaN: the NaN of a sum depends on the processor.
        number = select(x.is_nan(), x, select(y.is_nan(), y, beside))
        return select(x.eq(y), y, number)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        return broadcast.both(node.inputs, dz, filling.zeros_like(dz))


@public("math.nextafter")
def nextafter(x1: Any, x2: Any, name: str | None = None) -> Tensor:
    """The next float after `x1` in the direction of `x2`."""
    return NextAfter()(x1, x2, name=name)
