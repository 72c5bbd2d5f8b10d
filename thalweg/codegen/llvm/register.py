"""LLVM's values as the `Register`s that formulas are written over (`thalweg.ir.functions`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.codegen.llvm.builder import I1, I64, Builder, Type, Value, constant, suffix
from thalweg.ir.functions.register import Operand, Register


@dataclass(frozen=True, eq=False)
class LlvmRegister(Register):
    """A `Value` and the builder that emits instructions over it."""

    builder: Builder
    value: Value

    @property
    def type(self) -> Type:
        """The type of the value."""
        return self.value.type

    @property
    def scalar(self) -> str:
        return self.value.type.scalar

    @property
    def constant(self) -> int | float | None:
        return self.value.number

    def _wrap(self, value: Value) -> LlvmRegister:
        return LlvmRegister(self.builder, value)

    def number(self, scalar: str, number: Any) -> LlvmRegister:
        return self._wrap(constant(self.type.like(scalar), number))

    def binary(self, operation: str, other: LlvmRegister) -> LlvmRegister:
        return self._wrap(self.builder.binary(operation, self.value, other.value))

    def compared(self, predicate: str, other: LlvmRegister) -> LlvmRegister:
        return self._wrap(self.builder.compare(predicate, self.value, other.value))

    def selected(self, chosen: LlvmRegister, otherwise: LlvmRegister) -> LlvmRegister:
        return self._wrap(self.builder.select(self.value, chosen.value, otherwise.value))

    def convert(self, operation: str, scalar: str) -> LlvmRegister:
        return self._wrap(self.builder.convert(operation, self.value, scalar))

    def intrinsic(self, name: str, *others: Operand) -> LlvmRegister:
        given = [self.like(other).value for other in others]
        return self._wrap(self.builder.intrinsic(name, self.value, *given))

    def nan_extreme(self, name: str, other: LlvmRegister) -> LlvmRegister | None:
        if self.builder.module.nan_extremes and self.scalar == "float":
            return self.intrinsic(name, other)
        return None

    @property
    def approximations(self) -> Collection[str]:
        return self.builder.module.approximations

    def approximated(self, name: str, *others: LlvmRegister) -> LlvmRegister:
        return self._wrap(
            self.builder.module.approximations[name](
                self.builder, self.value, *(other.value for other in others)
            )
        )

    @property
    def contracts(self) -> bool:
        return self.builder.module.contracts

    def negated(self) -> LlvmRegister:
        return self._wrap(self.builder.emit(self.type, f"fneg {self.value}"))

    def leading_zeros(self) -> LlvmRegister:
        zero_is_defined = constant(I1, False)
        name = f"llvm.ctlz.{suffix(self.type)}"
        return self._wrap(self.builder.call(name, self.type, self.value, zero_is_defined))

    def across(self, operation: str) -> LlvmRegister:
        if self.type.lanes == 1:
            return self
        name = f"llvm.vector.reduce.{operation}.{suffix(self.type)}"
        return self._wrap(self.builder.call(name, self.type.of(1), self.value))

    def repeated(
        self,
        times: Operand,
        carried: Sequence[LlvmRegister],
        body: Callable[..., Sequence[LlvmRegister]],
    ) -> list[LlvmRegister]:
        count = times.value if isinstance(times, LlvmRegister) else constant(I64, times)
        start = [register.value for register in carried]
        with self.builder.loop(0, count, 1, start) as loop:
            after = body(self._wrap(loop.index), *map(self._wrap, loop.carried))
            loop.next = [register.value for register in after]
        return [self._wrap(value) for value in loop.results]

    def lookup(self, name: str, numbers: Sequence[float], index: LlvmRegister) -> LlvmRegister:
        b, element = self.builder, self.type.of(1)
        table = b.module.table(name, element, numbers)
        found = b.load(element, b.element(table, self.scalar, index.value))
        return self._wrap(b.splat(found, self.type.lanes))
