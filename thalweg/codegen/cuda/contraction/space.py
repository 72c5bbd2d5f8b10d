"""Several variables as one index: the rows, columns, terms and batch of a matrix product.

Given the variables of a role, it computes the number of indices (on the host from the run-time
sizes of a call, on the device as a value), and the values of the variables at an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from thalweg.codegen.frame import Frame
from thalweg.codegen.llvm.builder import I1, I32, Value, constant
from thalweg.ir.dynamic import Dynamic, DynamicProduct, factors_of, is_static
from thalweg.ir.expr import Variable

At = dict[Variable, Value]

_ANY_EXTENT = 512  # assumed for an extent that is known only at run time


class Words:
    """The run-time sizes of a call, by the indices of their argument words."""

    def __init__(self, first: int, sizes: Sequence[int] = ()) -> None:
        self._first, self._sizes = first, sizes

    def number(self, number: int) -> int:
        """The value of an integer of the kernel in this call; without sizes, a constant.

        The hint is not used: code runs for all values.
        """
        if isinstance(number, DynamicProduct):
            return prod(self.number(factor) for factor in factors_of(number))
        if not isinstance(number, Dynamic):
            return int(number)
        return int(self._sizes[number.word - self._first]) if self._sizes else _ANY_EXTENT


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple that is at least a number."""
    return -(-number // multiple) * multiple


@dataclass(frozen=True, eq=False)
class Space:
    """The values of some variables in order; the last one is the fastest.

    The last variable is padded to a `multiple` of values: those beyond its extent are not valid.
    """

    variables: tuple[Variable, ...]
    multiple: int = 1

    @property
    def last(self) -> Variable | None:
        """The fastest variable."""
        return self.variables[-1] if self.variables else None

    @property
    def is_static(self) -> bool:
        """Whether the number of its values is static."""
        return all(is_static(v.extent) for v in self.variables)

    def count(self, words: Words) -> int:
        """The number of indices in a call."""
        extents = [words.number(v.extent) for v in self.variables]
        if extents:
            extents[-1] = round_up(extents[-1], self.multiple)
        return prod(extents)

    def _extents(self, frame: Frame) -> list[Value]:
        extents = [frame.b.convert("trunc", frame.integer(v.extent), "i32") for v in self.variables]
        last = self.last
        if last is None or self.multiple == 1:
            return extents
        if is_static(last.extent):
            extents[-1] = constant(I32, round_up(last.extent, self.multiple))
        else:
            above = frame.b.binary("add", extents[-1], self.multiple - 1)
            extents[-1] = frame.b.binary("and", above, -self.multiple)
        return extents

    def size(self, frame: Frame) -> Value:
        """The number of indices (i32)."""
        if self.is_static:
            return constant(I32, self.count(Words(0)))
        result = constant(I32, 1)
        for extent in self._extents(frame):
            result = frame.b.binary("mul", result, extent)
        return result

    def at(self, frame: Frame, index: Value) -> tuple[At, Value]:
        """The variables at a non-negative index (i32), and whether it is valid."""
        b = frame.b
        extents = self._extents(frame)
        valid = b.compare("slt", index, self.size(frame))
        digits: list[Value] = []
        for extent in reversed(extents[1:]):
            divisor = b.intrinsic("smax", extent, constant(I32, 1))  # no division by zero
            digits.append(b.binary("urem", index, divisor))
            index = b.binary("udiv", index, divisor)
        digits.append(index if extents else constant(I32, 0))
        digits.reverse()
        last = self.last
        if last is not None and self.multiple > 1:
            end = b.convert("trunc", frame.integer(last.extent), "i32")
            valid = b.binary("and", valid, b.compare("slt", digits[-1], end))
        wide = [b.convert("zext", digit, "i64") for digit in digits]
        return dict(zip(self.variables, wide, strict=False)), valid


def always() -> Value:
    """The condition true."""
    return constant(I1, True)
