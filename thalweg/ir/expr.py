"""Expressions over elements: what one element of an output is.

An op's block builds an `Expr` from `Expr`s of its inputs (`element`) or from loads at computed
indices and reductions over index variables (`loop`, see `thalweg.ir.loop`). Code generators walk
it; `thalweg.ir.interpret` runs it on NumPy arrays, which is how tests hold lowerings to the
reference kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.platform.dtype_traits import widened


def cast(x: Any, dtype: Any) -> Any:
    """An array as one of another dtype; of complex numbers a real dtype takes the real part.

    What is out of the range of uint64 is 2⁶³, whatever the C compiler of NumPy made of it.
    """
    array, kind = widened(np.asarray(x)), np.dtype(dtype)
    if array.dtype.kind == "c" and kind.kind != "c":
        array = np.asarray(np.real(array))
    found = array.astype(kind)
    if kind != np.uint64 or array.dtype.kind in "biu":
        return found
    return np.where(array >= array.dtype.type(2.0**64), kind.type(2**63), found)


def _bitcast(x: Any, dtype: Any) -> Any:
    return np.asarray(x).view(dtype)


def _complex(real: Any, imaginary: Any) -> Any:
    kind = np.result_type(real, imaginary, np.complex64)
    number = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imaginary)), kind)
    number.real, number.imag = real, imaginary
    return number


#: The functions an element may use, with their meaning. Code generators know exactly these.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floor_div": np.floor_divide,
    "remainder": np.remainder,
    "truncated_remainder": np.fmod,
    "pow": np.power,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "rint": np.rint,
    "trunc": np.trunc,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "bit_not": np.invert,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "complex": _complex,
    "conj": np.conj,
    "real": np.real,
    "imag": np.imag,
    "is_nan": np.isnan,
    "is_inf": np.isinf,
    "is_finite": np.isfinite,
    "select": np.where,
    "cast": cast,
    "bitcast": _bitcast,
}


@dataclass(frozen=True, eq=False)
class Expr:
    """A call of a function of the table, or one of the leaves and binders:

    `input` (k): the element of input k at the place of the output element.
    `index` (variable): the value of an index variable.
    `load` (operand, indices): an element of an operand. Outside its range only under a `select`
    that does not choose it.
    `reduce` (kind, variables, body): the body combined over all values of the variables.
    """

    function: str
    arguments: tuple[Any, ...]

    def __add__(self, other: Any) -> Expr:
        return call("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return call("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return call("sub", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return call("sub", other, self)

    def __mul__(self, other: Any) -> Expr:
        return call("mul", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return call("mul", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return call("div", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return call("div", other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return call("floor_div", self, other)

    def __mod__(self, other: Any) -> Expr:
        return call("remainder", self, other)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __lt__(self, other: Any) -> Expr:
        return call("lt", self, other)

    def __le__(self, other: Any) -> Expr:
        return call("le", self, other)

    def __gt__(self, other: Any) -> Expr:
        return call("gt", self, other)

    def __ge__(self, other: Any) -> Expr:
        return call("ge", self, other)

    def __and__(self, other: Any) -> Expr:
        return call("and", self, other)

    def __or__(self, other: Any) -> Expr:
        return call("or", self, other)

    def __invert__(self) -> Expr:
        return call("not", self)

    def __getattr__(self, function: str) -> Callable[..., Expr]:
        """`x.exp()`, `x.max(y)`: any function of the table, with this as first argument."""
        if function not in FUNCTIONS:
            raise AttributeError(f"elements have no function '{function}'")
        return lambda *others: call(function, self, *others)


def call(function: str, *arguments: Any) -> Expr:
    """A function of the table applied to expressions, numbers and (for casts) a dtype."""
    return Expr(function, arguments)


def select(condition: Any, chosen: Any, otherwise: Any) -> Expr:
    """`chosen` where the condition holds, else `otherwise`; the other one is not computed."""
    return call("select", condition, chosen, otherwise)


def argument(position: int) -> Expr:
    """The element of input number `position`."""
    return Expr("input", (position,))
