"""Rounding of float32 numbers for tensor cores, which ignore the lowest 13 bits (TF32).

Tensor cores truncate: each factor would be smaller by 3.5e-4 of itself on average, and the results
of a deep network by a multiple of that. So numbers are rounded to the nearest TF32 number: by the
copy engine if the tensor map requires it, else by threads in registers.
"""

from __future__ import annotations

from thalweg.codegen.llvm.builder import Builder, Value, constant

UNSEEN_BITS = 13


def rounded(b: Builder, value: Value) -> Value:
    """float32 numbers, or their bits (i32), whose truncation is the nearest TF32 number.

    Half of the last TF32 bit is added; tensor cores truncate the rest.
    """
    bits = _bits(b, value)
    half = constant(bits.type, 1 << (UNSEEN_BITS - 1))
    found = b.select(_is_finite(b, bits), b.binary("add", bits, half), bits)
    return b.convert("bitcast", found, value.type.scalar) if value.type.is_float else found


def rounded_to_even(b: Builder, bits: Value) -> Value:
    """The bits of the nearest TF32 number, rounded as by the copy engine."""
    last = b.binary("lshr", bits, UNSEEN_BITS)
    odd = b.binary("and", last, 1)
    half = b.binary("add", odd, (1 << (UNSEEN_BITS - 1)) - 1)
    return b.select(_is_finite(b, bits), seen(b, b.binary("add", bits, half)), bits)


def seen(b: Builder, bits: Value) -> Value:
    """The TF32 bits of numbers."""
    return b.binary("and", bits, -(1 << UNSEEN_BITS))


def _bits(b: Builder, value: Value) -> Value:
    return b.convert("bitcast", value, "i32") if value.type.is_float else value


def _is_finite(b: Builder, bits: Value) -> Value:
    size = b.intrinsic("fabs", b.convert("bitcast", bits, "float"))
    return b.compare("olt", size, float("inf"))
