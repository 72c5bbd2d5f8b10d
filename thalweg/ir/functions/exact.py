"""Error-free transformations: sums and products as pairs of a rounded result and its error.

None needs a fused multiply-add, so they are exact on any target.
"""

from __future__ import annotations

from thalweg.ir.functions.register import Operand, Register

Pair = tuple[Register, Register]

_SPLITTER = 2.0**27 + 1.0


def quick_sum(large: Register, small: Register) -> Pair:
    """large + small, where |large| >= |small|."""
    total = large + small
    return total, small - (total - large)


def exact_sum(a: Register, b: Operand) -> Pair:
    """a + b"""
    other = a.like(b)
    total = a + other
    part = total - a
    return total, (a - (total - part)) + (other - part)


def product(a: Register, b: Operand) -> Pair:
    """a · b for doubles; the error is NaN where the product is near overflow."""
    other = a.like(b)
    (a_high, a_low), (b_high, b_low) = split(a), split(other)
    rounded = a * other
    loss = ((a_high * b_high - rounded) + a_high * b_low + a_low * b_high) + a_low * b_low
    return rounded, loss


def split(a: Register) -> Pair:
    """A double as a sum of two numbers of 26 bits."""
    scaled = a * _SPLITTER
    high = scaled - (scaled - a)
    return high, a - high
