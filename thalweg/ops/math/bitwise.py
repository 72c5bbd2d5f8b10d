"""Bitwise logic and shifts of integers: `tf.bitwise`."""

from __future__ import annotations

import numpy as np

from thalweg.ir.expr import Expr, call
from thalweg.ops.core.elementwise import Binary, Unary, binary, unary


class Bitwise(Binary, abstract=True):
    """z = x ? y, bit by bit"""

    signature = "x: T, y: T -> z: T; T: integer"
    not_differentiable = True


class BitwiseAnd(Bitwise):
    """z = x and y, bit by bit"""

    commutative = True
    numpy = staticmethod(np.bitwise_and)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("bit_and", x, y)


bitwise_and = binary(BitwiseAnd, "bitwise.bitwise_and")


class BitwiseOr(Bitwise):
    """z = x or y, bit by bit"""

    commutative = True
    numpy = staticmethod(np.bitwise_or)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("bit_or", x, y)


bitwise_or = binary(BitwiseOr, "bitwise.bitwise_or")


class BitwiseXor(Bitwise):
    """z = the bits in which x and y differ"""

    commutative = True
    numpy = staticmethod(np.bitwise_xor)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("bit_xor", x, y)


bitwise_xor = binary(BitwiseXor, "bitwise.bitwise_xor")


class Invert(Unary):
    """y = not x, bit by bit"""

    signature = "x: T -> y: T; T: integer"
    not_differentiable = True
    numpy = staticmethod(np.invert)

    def element(self, x: Expr) -> Expr:
        return call("bit_not", x)


invert = unary(Invert, "bitwise.invert")


class LeftShift(Bitwise):
    """z = x shifted left by y bits"""

    numpy = staticmethod(np.left_shift)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("shift_left", x, y)


left_shift = binary(LeftShift, "bitwise.left_shift")


class RightShift(Bitwise):
    """z = x shifted right by y bits, arithmetically"""

    numpy = staticmethod(np.right_shift)

    def element(self, x: Expr, y: Expr) -> Expr:
        return call("shift_right", x, y)


right_shift = binary(RightShift, "bitwise.right_shift")
