"""Register values with operators, so that numerical code reads as the formulas it stands for.

A `Register` wraps a `Value` and the builder that instructions go to; Python numbers beside it
become constants of its type. Plain operators are never contracted: `fused` asks for a multiply-add.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.codegen.llvm.builder import Builder, Type, Value, constant

Operand = Any  # a Register, a Value or a Python number


@dataclass(frozen=True, eq=False)
class Register:
    """A value in registers; operators emit instructions. Integers are signed here."""

    builder: Builder
    value: Value

    @property
    def type(self) -> Type:
        """The type of the value."""
        return self.value.type

    def like(self, other: Operand) -> Register:
        """Something as a register of this one's type."""
        if isinstance(other, Register):
            return other
        return Register(
            self.builder, other if isinstance(other, Value) else constant(self.type, other)
        )

    def _binary(self, whole: str, floating: str, other: Operand) -> Register:
        operation = floating if self.type.is_float else whole
        return self._made(self.builder.binary(operation, self.value, self.like(other).value))

    def _made(self, value: Value) -> Register:
        return Register(self.builder, value)

    def __add__(self, other: Operand) -> Register:
        return self._binary("add", "fadd", other)

    def __radd__(self, other: Operand) -> Register:
        return self.like(other) + self

    def __sub__(self, other: Operand) -> Register:
        return self._binary("sub", "fsub", other)

    def __rsub__(self, other: Operand) -> Register:
        return self.like(other) - self

    def __mul__(self, other: Operand) -> Register:
        return self._binary("mul", "fmul", other)

    def __rmul__(self, other: Operand) -> Register:
        return self.like(other) * self

    def __truediv__(self, other: Operand) -> Register:
        return self._binary("sdiv", "fdiv", other)

    def __rtruediv__(self, other: Operand) -> Register:
        return self.like(other) / self

    def __neg__(self) -> Register:
        if self.type.is_float:
            return self._made(self.builder.emit(self.type, f"fneg {self.value}"))
        return self.like(0) - self

    def __and__(self, other: Operand) -> Register:
        return self._binary("and", "", other)

    def __or__(self, other: Operand) -> Register:
        return self._binary("or", "", other)

    def __xor__(self, other: Operand) -> Register:
        return self._binary("xor", "", other)

    def __invert__(self) -> Register:
        return self ^ (1 if self.type.bits == 1 else -1)

    def __lshift__(self, other: Operand) -> Register:
        return self._binary("shl", "", other)

    def __rshift__(self, other: Operand) -> Register:
        return self._binary("ashr", "", other)

    def unsigned_shift(self, other: Operand) -> Register:
        """Shifted right, zeros coming in."""
        return self._binary("lshr", "", other)

    def compare(self, whole: str, floating: str, other: Operand) -> Register:
        """A comparison, by the predicate for integers or the one for floats."""
        predicate = floating if self.type.is_float else whole
        return self._made(self.builder.compare(predicate, self.value, self.like(other).value))

    def __lt__(self, other: Operand) -> Register:
        return self.compare("slt", "olt", other)

    def __le__(self, other: Operand) -> Register:
        return self.compare("sle", "ole", other)

    def __gt__(self, other: Operand) -> Register:
        return self.compare("sgt", "ogt", other)

    def __ge__(self, other: Operand) -> Register:
        return self.compare("sge", "oge", other)

    def equals(self, other: Operand) -> Register:
        """Whether both are the same number; NaN never is."""
        return self.compare("eq", "oeq", other)

    def differs(self, other: Operand) -> Register:
        """Whether both are not the same number; NaN always is not."""
        return self.compare("ne", "une", other)

    def is_nan(self) -> Register:
        """Whether this is not a number."""
        return self.compare("", "uno", self)

    def choose(self, chosen: Operand, otherwise: Operand) -> Register:
        """Lane by lane, one of two values by this condition. One of them must be a register."""
        like = chosen if isinstance(chosen, Register) else otherwise
        yes, no = like.like(chosen).value, like.like(otherwise).value
        return self._made(self.builder.select(self.value, yes, no))

    def where(self, condition: Register, otherwise: Operand) -> Register:
        """This where a condition holds, else something else."""
        return condition.choose(self, otherwise)

    def convert(self, operation: str, scalar: str) -> Register:
        """A conversion instruction to another element type."""
        return self._made(self.builder.convert(operation, self.value, scalar))

    def bits(self) -> Register:
        """The bits of a float as an integer."""
        return self.convert("bitcast", f"i{self.type.bits}")

    def floats(self) -> Register:
        """Bits as the float they encode."""
        return self.convert("bitcast", "float" if self.type.bits == 32 else "double")

    def intrinsic(self, name: str, *others: Operand) -> Register:
        """An intrinsic over this type."""
        given = [self.like(other).value for other in others]
        return self._made(self.builder.intrinsic(name, self.value, *given))

    def fused(self, factor: Operand, addend: Operand) -> Register:
        """self · factor + addend, in one instruction where the target has it."""
        return self.intrinsic("fmuladd", factor, addend)

    def absolute(self) -> Register:
        """The magnitude of a float."""
        return self.intrinsic("fabs")

    def rounded(self) -> Register:
        """The nearest whole number, half to even."""
        return self.intrinsic("rint")

    def with_sign(self, sign: Register) -> Register:
        """This magnitude with the sign of another float."""
        return self.intrinsic("copysign", sign)

    def polynomial(self, coefficients: Sequence[float]) -> Register:
        """Σ coefficients[i] · selfⁱ, by Horner's rule."""
        *lower, first = coefficients
        total = self.like(first)
        for coefficient in reversed(lower):
            total = total.fused(self, coefficient)
        return total

    def any(self) -> Value:
        """Whether a condition holds in some lane."""
        if self.type.lanes == 1:
            return self.value
        kind = self.type
        name = f"llvm.vector.reduce.or.v{kind.lanes}i1"
        return self.builder.call(name, kind.of(1), self.value)


_LITERAL = re.compile(r"(?:splat \(i\d+ (-?\d+)\)|(-?\d+)|(zeroinitializer))$")


def literal(value: Value) -> int | None:
    """The integer that a constant is in every lane, if it is one."""
    found = _LITERAL.match(value.text)
    return None if found is None else int(found[1] or found[2] or 0)


_FLOAT_LITERAL = re.compile(r"(?:splat \((?:float|double) )?0x([0-9A-F]{16})\)?$")


def float_literal(value: Value) -> float | None:
    """The number that a floating-point constant is in every lane, if it is one."""
    found = _FLOAT_LITERAL.match(value.text)
    return None if found is None else struct.unpack(">d", bytes.fromhex(found[1]))[0]


def is_constant(value: Value) -> bool:
    """Whether a value is known before the code runs."""
    return not value.text.startswith("%")
