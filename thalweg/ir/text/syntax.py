"""The syntax of kernel text: names of dtypes, operators and their precedence.

A kernel reads like the loops it stands for:

    loops(x0: f32[4096], out y1: f32[4096]):
      for i < 64:
        t0 = max[r < 64](x0[64*i + r])
        t1 = sum[r < 64](exp(x0[64*i + r] - t0))
        for j < 64:
          y1[64*i + j] = exp(x0[64*i + j] - t0) / t1

    contraction f32(x0: f32[2048], x1: f32[1024], x2: f32[16], out y3: f32[512]):
      for rows i < 32, columns j < 16, reduced r < 64:
        left = x0[64*i + r]
        right = x1[16*r + j]
        y3[16*i + j] = tanh(acc + x2[j])

`t0 = …` names an expression; `acc` is the finished sum of a contraction. A number is an int64 or a
float32 unless it has a suffix (`2_i32`, `0.5_f64`). `w3~64` is read from argument word 3 at run
time; its hint is 64. `f64(x)` converts, `select(c, x, y)` evaluates one of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.ir.functions.dtypes import BOOL, INT64, Dtype
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.platform.dtype_traits import is_float

FLOAT32: Dtype = np.dtype(np.float32)

_SHORT: dict[Dtype, str] = {
    np.dtype("bfloat16"): "bf16",
    **{
        np.dtype(code): f"{code[0]}{8 * int(code[1])}"
        for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
    },
}
_LONG = {short: dtype for dtype, short in _SHORT.items()}

#: Operators and their precedence; all are left-associative.
OPERATORS: dict[str, tuple[str, int]] = {
    "or": ("or", 1),
    "and": ("and", 2),
    "not": ("not ", 3),
    "lt": ("<", 4),
    "le": ("<=", 4),
    "gt": (">", 4),
    "ge": (">=", 4),
    "eq": ("==", 4),
    "ne": ("!=", 4),
    "bit_or": ("|", 5),
    "bit_xor": ("^", 6),
    "bit_and": ("&", 7),
    "shift_left": ("<<", 8),
    "shift_right": (">>", 8),
    "add": ("+", 9),
    "sub": ("-", 9),
    "mul": ("*", 10),
    "div": ("/", 10),
    "floor_div": ("//", 10),
    "remainder": ("%", 10),
    "neg": ("-", 11),
}
UNARY = ("not", "neg")
COMPARISON, PRIMARY = 4, 12

SCAN = "scan_"  # the prefix of a scan's reduction
ROLES = ("batch", "rows", "columns", "reduced")  # of the variables of a contraction

#: The assignment operator of a store by how it combines, and the inverse: `=`, `+=`, `max=`.
SIGNS = {"set": "="} | {name: row.sign for name, row in REDUCTIONS.items() if row.sign}
COMBINES = {sign: combine for combine, sign in SIGNS.items()}


def dtype_name(dtype: Any) -> str:
    """The name of a dtype in kernel text: `f32`, `i64`, `bf16`."""
    known = np.dtype(dtype)
    return _SHORT.get(known, known.name)


def dtype_named(name: str) -> Dtype | None:
    """The dtype of a name, or None."""
    if name in _LONG:
        return _LONG[name]
    try:
        return np.dtype(name)
    except TypeError:
        return None


def number_text(value: Any) -> str:
    """A NumPy number: its digits, with a suffix unless its dtype is the default."""
    if value.dtype == BOOL:
        return "true" if value else "false"
    if not is_float(value.dtype):
        return typed(str(value), value.dtype, INT64)
    digits = str(value) if value.dtype == FLOAT32 else repr(float(value))
    if number_value(digits, value.dtype).tobytes() != value.tobytes():  # NaNs of other bits
        digits = f"0x{value.tobytes()[::-1].hex()}"
    return typed(digits, value.dtype, FLOAT32)


def typed(digits: str, dtype: Dtype, plain: Dtype) -> str:
    """Digits with the suffix of their dtype, unless it is the `plain` one."""
    return digits if dtype == plain else f"{digits}_{dtype_name(dtype)}"


def number_value(digits: str, dtype: Dtype) -> Any:
    """Digits as a NumPy scalar of a dtype."""
    if digits.startswith("0x"):
        return np.frombuffer(bytes.fromhex(digits[2:])[::-1], dtype)[0]
    number = float(digits) if is_float(dtype) else int(digits)
    return np.asarray(number).astype(dtype)[()]
