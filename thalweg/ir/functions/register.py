"""Register values with operators, so that numerical code reads like its formulas.

A `Register` is a scalar or vector of some target; Python numbers combined with it become constants
of its type. A code generator implements the abstract methods; instructions and scalar types have
LLVM's names. Integers are signed unless an instruction says otherwise. Plain operators are never
contracted: `fused` emits a multiply-add.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self, TypeVar

Operand = Any  # a Register or a Python number
Number = TypeVar("Number", bound="Register")


def _operator(whole: str, floating: str = "") -> Callable[[Number, Operand], Number]:
    """The method of an operator: an instruction for integers, and one for floats."""
    return lambda x, y: x.binary(floating if floating and x.is_float else whole, x.like(y))


def _reflected(whole: str, floating: str) -> Callable[[Number, Operand], Number]:
    """The same for a number on the left."""
    return lambda y, x: y.like(x).binary(floating if y.is_float else whole, y)


def _comparison(whole: str, floating: str) -> Callable[[Number, Operand], Number]:
    """The method of a comparison: a predicate for integers, and one for floats."""
    return lambda x, y: x.compared(floating if x.is_float else whole, x.like(y))


class Register(ABC):
    """A value in registers; operators emit instructions."""

    # Implemented by targets

    @property
    @abstractmethod
    def scalar(self) -> str:
        """The type of an element: `float`, `double`, `i1`, `i32` …"""

    @property
    @abstractmethod
    def constant(self) -> int | float | None:
        """The number in every lane, if it is a compile-time constant."""

    @abstractmethod
    def number(self, scalar: str, number: Any) -> Self:
        """A constant of a scalar type, in as many lanes as this."""

    @abstractmethod
    def binary(self, operation: str, other: Self) -> Self:
        """An instruction over two values of one type: `add`, `fadd`, `udiv`, `ashr` …"""

    @abstractmethod
    def compared(self, predicate: str, other: Self) -> Self:
        """A comparison: `slt`, `eq` of integers, `olt`, `une` of floats …"""

    @abstractmethod
    def selected(self, chosen: Self, otherwise: Self) -> Self:
        """A select of two values by this condition."""

    @abstractmethod
    def convert(self, operation: str, scalar: str) -> Self:
        """A conversion to another element type: `sitofp`, `fpext`, `bitcast` …"""

    @abstractmethod
    def intrinsic(self, name: str, *others: Operand) -> Self:
        """An intrinsic over this type: `sqrt`, `floor`, `smax` …"""

    @abstractmethod
    def negated(self) -> Self:
        """A float with its sign flipped."""

    @abstractmethod
    def leading_zeros(self) -> Self:
        """The number of zero bits above the highest one of an integer."""

    @abstractmethod
    def across(self, operation: str) -> Self:
        """All lanes combined into one: `or`, `smax` …"""

    @abstractmethod
    def repeated(
        self, times: Operand, carried: Sequence[Self], body: Callable[..., Sequence[Self]]
    ) -> list[Self]:
        """A loop: `carried = body(index, *carried)`, repeated `times`, a scalar i64."""

    @abstractmethod
    def lookup(self, name: str, numbers: Sequence[float], index: Self) -> Self:
        """The element of a constant table at a scalar i64 index, splat to all lanes."""

    # Optional features of targets

    @property
    def approximations(self) -> Collection[str]:
        """The target's approximate instructions for functions of float32."""
        return ()

    def approximated(self, name: str, *others: Self) -> Self:
        """Emit one of `approximations`: `tanh`, `sqrt`, `div`, `exp2`, or `normal_exp2`, which
        flushes denormal results to zero."""
        raise NotImplementedError(name)

    @property
    def contracts(self) -> bool:
        """Whether products and sums that allow it are contracted."""
        return False

    # Derived

    @property
    def width(self) -> int:
        """The bits of an element."""
        return {"float": 32, "double": 64}.get(self.scalar) or int(self.scalar[1:])

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.scalar in ("float", "double")

    def like(self, other: Operand) -> Self:
        """A number as a constant of this type; a register as it is."""
        return other if type(other) is type(self) else self.number(self.scalar, other)

    __add__, __radd__ = _operator("add", "fadd"), _reflected("add", "fadd")
    __sub__, __rsub__ = _operator("sub", "fsub"), _reflected("sub", "fsub")
    __mul__, __rmul__ = _operator("mul", "fmul"), _reflected("mul", "fmul")
    __truediv__, __rtruediv__ = _operator("sdiv", "fdiv"), _reflected("sdiv", "fdiv")
    __and__, __or__, __xor__ = _operator("and"), _operator("or"), _operator("xor")
    __lshift__, __rshift__ = _operator("shl"), _operator("ashr")

    def __neg__(self) -> Self:
        return self.negated() if self.is_float else self.like(0) - self

    def __invert__(self) -> Self:
        return self ^ (1 if self.scalar == "i1" else -1)

    def unsigned_shift(self, other: Operand) -> Self:
        """Shifted right, zeros coming in."""
        return self.binary("lshr", self.like(other))

    __lt__, __le__ = _comparison("slt", "olt"), _comparison("sle", "ole")
    __gt__, __ge__ = _comparison("sgt", "ogt"), _comparison("sge", "oge")

    #: Whether both are equal (false for NaN), and whether they differ (true for NaN).
    equals, differs = _comparison("eq", "oeq"), _comparison("ne", "une")

    def is_nan(self) -> Self:
        """Whether a float is not a number."""
        return self.compared("uno", self)

    def nan_extreme(self, name: str, other: Self) -> Self | None:
        """The `maximum` or `minimum` of floats, NaN if either is, where that is an instruction."""
        return None

    def choose(self, chosen: Operand, otherwise: Operand) -> Self:
        """A select of two values by this condition. One of them must be a register."""
        if type(chosen) is not type(self):
            return self.selected(otherwise.like(chosen), otherwise)
        return self.selected(chosen, chosen.like(otherwise))

    def where(self, condition: Self, otherwise: Operand) -> Self:
        """This where a condition holds, else `otherwise`."""
        return condition.choose(self, otherwise)

    def any(self) -> Self:
        """Whether a condition holds in any lane, as a scalar."""
        return self.across("or")

    def bits(self) -> Self:
        """The bits of a float as an integer."""
        return self.convert("bitcast", f"i{self.width}")

    def floats(self) -> Self:
        """Bits as the float they encode."""
        return self.convert("bitcast", "float" if self.width == 32 else "double")

    def fused(self, factor: Operand, addend: Operand) -> Self:
        """self · factor + addend, fused where the target has an instruction."""
        return self.intrinsic("fmuladd", factor, addend)

    def absolute(self) -> Self:
        """The magnitude of a float."""
        return self.intrinsic("fabs")

    def square_root(self) -> Self:
        """√self, correctly rounded."""
        return self.intrinsic("sqrt")

    def rounded(self) -> Self:
        """The nearest whole number, half to even."""
        return self.intrinsic("rint")

    def with_sign(self, sign: Self) -> Self:
        """This magnitude with the sign of another float."""
        return self.intrinsic("copysign", sign)

    def polynomial(self, coefficients: Sequence[float]) -> Self:
        """Σ coefficients[i] · selfⁱ, by Horner's rule."""
        *lower, first = coefficients
        total = self.like(first)
        for coefficient in reversed(lower):
            total = total.fused(self, coefficient)
        return total
