"""How elements of each dtype lie in registers and in memory, and conversions between them.

Booleans are i1 in registers and a byte in memory; float16 and bfloat16 are 16 bits in memory and
float32 in registers. Conversions are NumPy's; none needs a library call on any target.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.codegen.llvm.builder import Builder, Type, Value, constant
from thalweg.codegen.llvm.register import LlvmRegister
from thalweg.ir.functions.dtypes import BFLOAT16, BOOL, Dtype, Unsupported

FLOAT16: Dtype = np.dtype(np.float16)

_REGISTERS: dict[Dtype, str] = {
    BOOL: "i1",
    FLOAT16: "float",
    BFLOAT16: "float",
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    **{np.dtype(f"{sign}{size}"): f"i{8 * size}" for sign in "iu" for size in (1, 2, 4, 8)},
}


def register_type(dtype: Any, lanes: int = 1) -> Type:
    """The type that values of a dtype have in registers."""
    scalar = _REGISTERS.get(np.dtype(dtype))
    if scalar is None:
        raise Unsupported(f"elements of {np.dtype(dtype)}")
    return Type(scalar, lanes)


def storage_type(dtype: Any, lanes: int = 1) -> Type:
    """The type that values of a dtype have in memory."""
    known = np.dtype(dtype)
    if known == BOOL:
        return Type("i8", lanes)
    if known in (FLOAT16, BFLOAT16):
        return Type("i16", lanes)
    return register_type(known, lanes)


def from_memory(b: Builder, raw: Value, dtype: Any) -> Value:
    """What lies in memory as a register value."""
    known = np.dtype(dtype)
    if known == BOOL:
        return b.compare("ne", raw, constant(raw.type, 0))
    if known == FLOAT16:
        return _half_to_float(LlvmRegister(b, raw)).value
    if known == BFLOAT16:
        return (LlvmRegister(b, raw).convert("zext", "i32") << 16).floats().value
    return raw


def to_memory(b: Builder, value: Value, dtype: Any) -> Value:
    """A register value as it lies in memory; short floats are rounded to nearest even."""
    known = np.dtype(dtype)
    if known == BOOL:
        return b.convert("zext", value, "i8")
    if known == FLOAT16:
        return _float_to_half(LlvmRegister(b, value)).value
    if known == BFLOAT16:
        return _float_to_bfloat(LlvmRegister(b, value)).value
    return value


def _half_to_float(half: LlvmRegister) -> LlvmRegister:
    """Shift exponent and fraction into place and mend the bias by a product (denormals too)."""
    if half.builder.module.native_fp16:
        return half.convert("bitcast", "half").convert("fpext", "float")
    wide = half.convert("zext", "i32")
    magnitude = (wide & 0x7FFF) << 13
    scaled = (magnitude.floats() * 2.0**112).bits()
    special = magnitude >= 0x7C00 << 13
    return (scaled.where(~special, magnitude | 0x7F800000) | ((wide & 0x8000) << 16)).floats()


def _float_to_half(x: LlvmRegister) -> LlvmRegister:
    """Normal numbers round in the integer domain, denormal ones by adding a magic number."""
    if x.builder.module.native_fp16:
        return x.convert("fptrunc", "half").convert("bitcast", "i16")
    bits = x.bits()
    magnitude = bits & 0x7FFFFFFF
    rounded = magnitude + (((magnitude >> 13) & 1) + (0xFFF - (112 << 23)))
    magic = (127 - 15 + 23 - 10 + 1) << 23
    small = (magnitude.floats() + magnitude.like(magic).floats()).bits() - magic
    half = small.where(magnitude < 113 << 23, rounded >> 13)
    special = (magnitude > 0x7F800000).choose(magnitude.like(0x7E00), 0x7C00)
    finite = half.where(magnitude < (127 + 16) << 23, special)
    return (finite | (bits.unsigned_shift(16) & 0x8000)).convert("trunc", "i16")


def _float_to_bfloat(x: LlvmRegister) -> LlvmRegister:
    bits = x.bits()
    rounded = bits + ((bits.unsigned_shift(16) & 1) + 0x7FFF)
    kept = x.is_nan().choose(bits | 0x400000, rounded)
    return kept.unsigned_shift(16).convert("trunc", "i16")


def converted(b: Builder, value: Value, source: Any, target: Any) -> Value:
    """A register value of one dtype as another dtype, as `astype` does it."""
    old, new = np.dtype(source), np.dtype(target)
    kind = register_type(new)
    if old == new:
        return value
    x = LlvmRegister(b, value)
    if new == BOOL:
        return x.differs(0).value
    if new in (FLOAT16, BFLOAT16):
        return _shortened(x, old, new).value
    if kind.is_float:
        return _to_float(x, old, kind.scalar).value
    return (_truncated(x, new) if x.type.is_float else _resized(x, old, new)).value


def _shortened(x: LlvmRegister, old: Dtype, new: Dtype) -> LlvmRegister:
    """A number rounded to a short float, in a float32 register."""
    if new == FLOAT16 and x.type.scalar == "double":
        single = _rounded_to_odd(x)
    else:
        single = _to_float(x, old, "float")
    if old == BOOL:
        return single
    b = x.builder
    return LlvmRegister(b, from_memory(b, to_memory(b, single.value, new), new))


def _rounded_to_odd(x: LlvmRegister) -> LlvmRegister:
    """A double as a float that rounds to half as the double itself would."""
    single = x.convert("fptrunc", "float")
    back = single.convert("fpext", "double")
    inexact = back.compare("", "one", x)
    bits = single.bits()
    step = (back.absolute() < x.absolute()).choose(bits.like(1), -1)
    even = (bits & 1).equals(0)
    return (bits + step).where(inexact & even, bits).floats()


def _to_float(x: LlvmRegister, old: Dtype, scalar: str) -> LlvmRegister:
    if x.type.scalar == scalar:
        return x
    if x.type.is_float:
        return x.convert("fpext" if scalar == "double" else "fptrunc", scalar)
    return x.convert("sitofp" if old.kind == "i" else "uitofp", scalar)


def _truncated(x: LlvmRegister, new: Dtype) -> LlvmRegister:
    """A float as an integer. Out of range is what the machine gives, but always something."""
    bits = 8 * new.itemsize
    if bits == 64 and new.kind == "u":
        return _truncated_to_unsigned(x)
    wide = _whole(x, 64 if bits == 64 or (bits == 32 and new.kind == "u") else 32)
    return wide if wide.type.bits == bits else wide.convert("trunc", f"i{bits}")


def _truncated_to_unsigned(x: LlvmRegister) -> LlvmRegister:
    large = x >= 2.0**63
    whole = _whole(large.choose(x - 2.0**63, x), 64)
    # Both are 2⁶³ where even the difference is out of range.
    return whole | (large.convert("zext", "i64") << 63)


def _whole(x: LlvmRegister, bits: int) -> LlvmRegister:
    made = x.convert("fptosi", f"i{bits}")
    return LlvmRegister(x.builder, x.builder.emit(made.type, f"freeze {made.value}"))


def _resized(x: LlvmRegister, old: Dtype, new: Dtype) -> LlvmRegister:
    bits = 8 * new.itemsize
    if x.type.bits == bits:
        return x
    if x.type.bits > bits:
        return x.convert("trunc", f"i{bits}")
    return x.convert("sext" if old.kind == "i" else "zext", f"i{bits}")
