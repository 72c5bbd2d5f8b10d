"""float32 numbers on their way to tensor cores, which see all but the lowest 13 bits (TF32).

What they do not see is cut off: each factor would be smaller by 3.5e-4 of it on average, and what a
network of many layers computes by as many times that. So numbers are rounded to the nearest ones
that tensor cores see: by the copy engine where a tensor map says so, else by threads in registers.
"""

from __future__ import annotations

from thalweg.codegen.llvm.builder import Builder, Value, constant

UNSEEN_BITS = 13


def rounded(b: Builder, value: Value) -> Value:
    """float32 numbers, or their bits (i32), of which tensor cores see the nearest ones.

    Half of the last bit that is seen is added: what is behind it is cut off later.
    """
    bits = _bits(b, value)
    half = constant(bits.type, 1 << (UNSEEN_BITS - 1))
    found = b.select(_is_finite(b, bits), b.binary("add", bits, half), bits)
    return b.convert("bitcast", found, value.type.scalar) if value.type.is_float else found


def rounded_to_even(b: Builder, bits: Value) -> Value:
    """The bits of the nearest number that tensor cores see, as the copy engine gives them."""
    last = b.binary("lshr", bits, UNSEEN_BITS)
    odd = b.binary("and", last, 1)
    half = b.binary("add", odd, (1 << (UNSEEN_BITS - 1)) - 1)
    return b.select(_is_finite(b, bits), seen(b, b.binary("add", bits, half)), bits)


def seen(b: Builder, bits: Value) -> Value:
    """The bits of numbers that tensor cores look at."""
    return b.binary("and", bits, -(1 << UNSEEN_BITS))


def _bits(b: Builder, value: Value) -> Value:
    return b.convert("bitcast", value, "i32") if value.type.is_float else value


def _is_finite(b: Builder, bits: Value) -> Value:
    size = b.intrinsic("fabs", b.convert("bitcast", bits, "float"))
    return b.compare("olt", size, float("inf"))
