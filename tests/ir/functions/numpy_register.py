"""Registers that are NumPy arrays: a second target for the formulas of scalar functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.ir.functions.register import Operand, Register

_TYPES: dict[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "i1": np.bool_,
    **{f"i{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
}
_NAMES = {np.dtype(dtype): name for name, dtype in _TYPES.items()}
_BINARY: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "fadd"), np.add),
    **dict.fromkeys(("sub", "fsub"), np.subtract),
    **dict.fromkeys(("mul", "fmul"), np.multiply),
    "fdiv": np.divide,
    "sdiv": lambda x, y: (x - np.fmod(x, y)) // y,
    "srem": np.fmod,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "ashr": np.right_shift,
}
_COMPARISONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("slt", "olt"), np.less),
    **dict.fromkeys(("sle", "ole"), np.less_equal),
    **dict.fromkeys(("sgt", "ogt"), np.greater),
    **dict.fromkeys(("sge", "oge"), np.greater_equal),
    **dict.fromkeys(("eq", "oeq"), np.equal),
    **dict.fromkeys(("ne", "une"), np.not_equal),
    "uno": lambda x, y: np.isnan(x) | np.isnan(y),
}
_INTRINSICS: dict[str, Callable[..., Any]] = {
    "fmuladd": lambda x, y, z: x * y + z,
    "fabs": np.abs,
    "sqrt": np.sqrt,
    "rint": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "copysign": np.copysign,
    "smax": np.maximum,
    "smin": np.minimum,
}
_ACROSS: dict[str, Callable[..., Any]] = {"or": np.bitwise_or.reduce, "smax": np.maximum.reduce}


@dataclass(frozen=True, eq=False)
class NumpyRegister(Register):
    """An array, a lane for each of its elements."""

    value: Any

    @property
    def scalar(self) -> str:
        return _NAMES[self.value.dtype]

    @property
    def constant(self) -> int | float | None:
        return None

    def number(self, scalar: str, number: Any) -> NumpyRegister:
        made = np.asarray(number).astype(_TYPES[scalar])
        return NumpyRegister(np.broadcast_to(made, self.value.shape))

    def binary(self, operation: str, other: NumpyRegister) -> NumpyRegister:
        if operation == "lshr":
            unsigned = f"u{self.value.dtype.itemsize}"
            shifted = self.value.view(unsigned) >> other.value.view(unsigned)
            return NumpyRegister(shifted.view(self.value.dtype))
        return NumpyRegister(_BINARY[operation](self.value, other.value))

    def compared(self, predicate: str, other: NumpyRegister) -> NumpyRegister:
        return NumpyRegister(_COMPARISONS[predicate](self.value, other.value))

    def selected(self, chosen: NumpyRegister, otherwise: NumpyRegister) -> NumpyRegister:
        return NumpyRegister(np.where(self.value, chosen.value, otherwise.value))

    def convert(self, operation: str, scalar: str) -> NumpyRegister:
        target = _TYPES[scalar]
        if operation == "bitcast":
            return NumpyRegister(np.ascontiguousarray(self.value).view(target))
        return NumpyRegister(self.value.astype(target))

    def intrinsic(self, name: str, *others: Operand) -> NumpyRegister:
        given = [self.like(other).value for other in others]
        return NumpyRegister(_INTRINSICS[name](self.value, *given))

    def negated(self) -> NumpyRegister:
        return NumpyRegister(-self.value)

    def leading_zeros(self) -> NumpyRegister:
        lengths = [self.width - (int(n) & ((1 << self.width) - 1)).bit_length() for n in self.value]
        return NumpyRegister(np.asarray(lengths, self.value.dtype))

    def across(self, operation: str) -> NumpyRegister:
        return NumpyRegister(_ACROSS[operation](self.value, keepdims=True))

    def repeated(
        self,
        times: Operand,
        carried: Sequence[NumpyRegister],
        body: Callable[..., Sequence[NumpyRegister]],
    ) -> list[NumpyRegister]:
        count = int(times.value[0]) if isinstance(times, NumpyRegister) else times
        state = list(carried)
        for index in range(count):
            state = list(body(NumpyRegister(np.asarray([index])), *state))
        return state

    def lookup(self, name: str, numbers: Sequence[float], index: NumpyRegister) -> NumpyRegister:
        return self.number(self.scalar, numbers[int(index.value[0])])
