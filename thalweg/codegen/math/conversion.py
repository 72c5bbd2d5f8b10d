"""Register and storage types of each dtype, and conversions between dtypes.

A boolean is i1 in registers and a byte in memory. A narrow float is an integer of its bits in
memory and float32 in registers, converted by the exponent and mantissa bits in the table of dtypes.
Conversions are NumPy's; none needs a library call on any target.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.codegen.llvm.builder import I32, Builder, Type, Value
from thalweg.codegen.llvm.register import LlvmRegister
from thalweg.ir.functions.dtypes import BOOL, Dtype, Unsupported
from thalweg.platform.caches import memoized
from thalweg.platform.dtype_traits import TABLE, FloatFormat, Traits, find_traits

_HALF = FloatFormat(5, 10)  # what LLVM calls half, and processors convert
_BFLOAT = FloatFormat(8, 7)
_FLOAT = FloatFormat(8, 23)
_INFINITY, _NAN = _FLOAT.overflow, _FLOAT.nan
_HIGH_HALF = -(1 << 16)  # of a word
_LOADED_WORDS = 8  # fewer elements of 16 bits LLVM loads one by one


def _register_scalar(row: Traits) -> str:
    if row.dtype_class == "bool":
        return "i1"
    if row.dtype_class == "float":
        return "float" if row.compute.itemsize == 4 else "double"
    return f"i{8 * row.storage.itemsize}"


_REGISTERS = {
    row.storage: _register_scalar(row)
    for row in TABLE
    if row.dtype_class in ("bool", "float", "signed", "unsigned")
}


@memoized(1_000)
def register_type(dtype: Any, lanes: int = 1) -> Type:
    """The LLVM type of a dtype in registers."""
    scalar = _REGISTERS.get(np.dtype(dtype))
    if scalar is None:
        raise Unsupported(f"elements of {np.dtype(dtype)}")
    return Type(scalar, lanes)


@memoized(1_000)
def storage_type(dtype: Any, lanes: int = 1) -> Type:
    """The LLVM type of a dtype in memory."""
    known = np.dtype(dtype)
    if known == BOOL or _narrow_format(known):
        return Type(f"i{8 * known.itemsize}", lanes)
    return register_type(known, lanes)


def from_memory(b: Builder, raw: Value, dtype: Any) -> Value:
    """Convert a value from its storage type to its register type."""
    known = np.dtype(dtype)
    if known == BOOL:
        return b.compare("ne", raw, 0)
    if narrow := _narrow_format(known):
        return _widen(LlvmRegister(b, raw), narrow).value
    return raw


def to_memory(b: Builder, value: Value, dtype: Any) -> Value:
    """Convert a value from its register type to its storage type; narrow floats are rounded to
    nearest even."""
    known = np.dtype(dtype)
    if known == BOOL:
        return b.convert("zext", value, "i8")
    if narrow := _narrow_format(known):
        return _narrow(LlvmRegister(b, value), narrow, 8 * known.itemsize).value
    return value


@memoized(100)
def _narrow_format(dtype: Dtype) -> FloatFormat | None:
    """The format of a narrow float; None for any other dtype."""
    row = find_traits(dtype)
    return row.float_format if row is not None and row.is_narrow_float else None


def _widen(code: LlvmRegister, form: FloatFormat) -> LlvmRegister:
    """Bits of a narrow float to float32: normal numbers are rebiased, denormal ones normalized by a
    subtraction."""
    shift, rebias = _FLOAT.mantissa_bits - form.mantissa_bits, _FLOAT.bias - form.bias
    if form == _BFLOAT and code.builder.module.packs_words and not code.type.lanes % _LOADED_WORDS:
        return _widen_bfloat16_pairs(code)
    if not rebias:
        return (code.convert("zext", "i32") << shift).floats()
    if code.builder.module.native_fp16 and form.exponent_bits == _HALF.exponent_bits:
        same = code.convert("zext", "i16") if code.type.bits < 16 else code
        half = same << (_HALF.mantissa_bits - form.mantissa_bits)
        return half.convert("bitcast", "half").convert("fpext", "float")
    wide = code.convert("zext", "i32")
    magnitude = (wide & (_sign(form) - 1)) << shift
    least = (rebias + 1) << 23
    denormal = ((magnitude + least).floats() - magnitude.like(least).floats()).bits()
    finite = denormal.where(magnitude < 1 << 23, magnitude + (rebias << 23))
    special = (magnitude > form.overflow << shift).choose(magnitude.like(_NAN), _INFINITY)
    value = finite.where(magnitude < form.overflow << shift, special if form.has_infinity else _NAN)
    return (value | ((wide & _sign(form)) << (shift + 8 - form.exponent_bits))).floats()


def _widen_bfloat16_pairs(code: LlvmRegister) -> LlvmRegister:
    """bfloat16 to float32 where a GPU register holds two: one instruction per element."""
    b, count = code.builder, code.type.lanes // 2
    words = b.emit(I32.of(count), f"bitcast {code.value} to {I32.of(count)}")
    vector = Value(I32.of(2 * count), "poison")
    for number in range(count):
        pair = LlvmRegister(b, b.extract(words, number))
        for lane, half in enumerate((pair << 16, pair & _HIGH_HALF), 2 * number):
            vector = b.emit(vector.type, f"insertelement {vector}, {half.value}, i64 {lane}")
    return LlvmRegister(b, vector).floats()


def _narrow(x: LlvmRegister, form: FloatFormat, width: int) -> LlvmRegister:
    """float32 to the bits of a narrow float: normal numbers are rounded as integers, denormal ones
    by adding a power of two."""
    shift, rebias = _FLOAT.mantissa_bits - form.mantissa_bits, _FLOAT.bias - form.bias
    if form == _BFLOAT and x.builder.module.native_bf16:
        return x.convert("fptrunc", "bfloat").convert("bitcast", "i16")
    if not rebias:
        return _drop_mantissa_bits(x, shift, width)
    if form == _HALF and x.builder.module.native_fp16:
        return x.convert("fptrunc", "half").convert("bitcast", "i16")
    bits = x.bits()
    magnitude = bits & 0x7FFFFFFF
    half = (1 << (shift - 1)) - 1 - (rebias << 23)
    normal = (magnitude + (((magnitude >> shift) & 1) + half)) >> shift
    power = (rebias + shift + 1) << 23
    denormal = (magnitude.floats() + magnitude.like(power).floats()).bits() - power
    finite = denormal.where(magnitude < (rebias + 1) << 23, normal)
    number = finite.where(finite < form.overflow, form.overflow)
    code = number.where(magnitude <= _INFINITY, form.nan)
    sign = bits.unsigned_shift(32 - width) & _sign(form)
    return (code | sign).convert("trunc", f"i{width}")


def _drop_mantissa_bits(x: LlvmRegister, shift: int, width: int) -> LlvmRegister:
    """float32 to a format with the same exponent: round and drop the low mantissa bits."""
    bits = x.bits()
    rounded = bits + ((bits.unsigned_shift(shift) & 1) + ((1 << (shift - 1)) - 1))
    kept = x.is_nan().choose(bits | 0x400000, rounded)
    return kept.unsigned_shift(shift).convert("trunc", f"i{width}")


def _sign(form: FloatFormat) -> int:
    return 1 << (form.exponent_bits + form.mantissa_bits)


def converted(b: Builder, value: Value, source: Any, target: Any) -> Value:
    """Convert a register value to another dtype, as NumPy's `astype` does."""
    old, new = np.dtype(source), np.dtype(target)
    kind = register_type(new)
    if old == new:
        return value
    x = LlvmRegister(b, value)
    if new == BOOL:
        return x.differs(0).value
    if _narrow_format(new):
        return _rounded(x, old, new).value
    if kind.is_float:
        return _to_float(x, old, kind.scalar).value
    return (_to_integer(x, new) if x.type.is_float else _resized(x, old, new)).value


def _rounded(x: LlvmRegister, old: Dtype, new: Dtype) -> LlvmRegister:
    """A number rounded to a narrow float, in a float32 register."""
    if new.isbuiltin == 1 and x.type.scalar == "double":  # ml_dtypes rounds twice
        single = _rounded_to_odd(x)
    else:
        single = _to_float(x, old, "float")
    if old == BOOL:
        return single
    b = x.builder
    return LlvmRegister(b, from_memory(b, to_memory(b, single.value, new), new))


def _rounded_to_odd(x: LlvmRegister) -> LlvmRegister:
    """A double rounded to odd float32, which then rounds to a narrow float as the double would."""
    single = x.convert("fptrunc", "float")
    back = single.convert("fpext", "double")
    inexact = back.compared("one", x)
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


def _to_integer(x: LlvmRegister, new: Dtype) -> LlvmRegister:
    """A float as an integer. Out of range, the result is the target's but never poison; GPUs give
    x86's."""
    bits = 8 * new.itemsize
    if bits == 64 and new.kind == "u":
        return _to_uint64(x)
    wide = _to_signed(x, 64 if bits == 64 or (bits == 32 and new.kind == "u") else 32)
    return wide if wide.type.bits == bits else wide.convert("trunc", f"i{bits}")


def _to_uint64(x: LlvmRegister) -> LlvmRegister:
    large = x >= 2.0**63
    whole = _to_signed(large.choose(x - 2.0**63, x), 64)
    # Both parts are 2⁶³ where even the difference is out of range.
    return whole | (large.convert("zext", "i64") << 63)


def _to_signed(x: LlvmRegister, bits: int) -> LlvmRegister:
    made = x.convert("fptosi", f"i{bits}")
    whole = LlvmRegister(x.builder, x.builder.emit(made.type, f"freeze {made.value}"))
    if not x.builder.module.saturates:
        return whole
    fits = (x >= -(2.0 ** (bits - 1))) & (x < 2.0 ** (bits - 1))
    return whole.where(fits, -(1 << (bits - 1)))


def _resized(x: LlvmRegister, old: Dtype, new: Dtype) -> LlvmRegister:
    bits = 8 * new.itemsize
    if x.type.bits == bits:
        return x
    if x.type.bits > bits:
        return x.convert("trunc", f"i{bits}")
    return x.convert("sext" if old.kind == "i" else "zext", f"i{bits}")
