"""The frame of a phase of a kernel: its argument words read once, integers, places and leaves.

What comes in is the kernel and a builder at the entry of a function with the native signature;
what goes out are the values that code in it needs: addresses, run-time integers, the elements that
expressions load, in one lane or along a variable.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from thalweg.codegen.llvm.builder import (
    I1,
    I64,
    POINTER,
    VOID,
    Builder,
    Module,
    Type,
    Value,
    constant,
)
from thalweg.codegen.math.conversion import (
    converted,
    from_memory,
    register_type,
    storage_type,
    to_memory,
)
from thalweg.codegen.math.elements import Evaluator, sensitivity
from thalweg.ir.dynamic import Dynamic, DynamicProduct, is_static
from thalweg.ir.expr import Accumulated, Cast, Expr, Index, Load, Variable, Word
from thalweg.ir.functions.dtypes import INT64
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Bound, Kernel
from thalweg.platform.caches import memoized

At = Mapping[Variable, Value]
Integer = Value | int  # one that may be dynamic


class Frame:
    """A phase in the making, or a part of one that is `given` some integers, and what its entry has
    read."""

    def __init__(
        self, module: Module, name: str, kernel: Kernel, scratch: bool, given: int = 0
    ) -> None:
        attributes = "noinline nounwind" if given else "nounwind"
        self.b: Builder = module.function(name, (POINTER, *[I64] * (2 + given)), VOID, attributes)
        self.arguments, self.thread, self.threads, *self.given = self.b.parameters
        self.pointers = {
            argument: self._word(1 + at, POINTER) for at, argument in enumerate(kernel.arguments)
        }
        after = 1 + len(kernel.arguments)
        self.scratch = self._word(after, POINTER) if scratch else Value(POINTER, "null")
        self.words = {n: self._word(n, I64) for n in kernel.words}
        self.sensitive = sensitivity()

    def _word(self, number: int, kind: Type) -> Value:
        return self.b.load(kind, self.b.element(self.arguments, "i64", number))

    def run(self, part: Frame, *given: Value) -> None:
        """Call a part of this phase."""
        values = ", ".join(map(str, (self.arguments, self.thread, self.threads, *given)))
        self.b.line(f"call void @{part.b.name}({values})")

    # Integers

    def integer(self, number: Integer) -> Value:
        """An integer as a value, read from the arguments where it is dynamic."""
        if type(number) is int:  # as most are, and neither of the other kinds is
            return _known(number)
        if isinstance(number, Value):
            return number
        if isinstance(number, DynamicProduct):
            result = self.integer(1)
            for part in number.factors:
                result = self.multiply(result, part)
            return result
        if isinstance(number, Dynamic):
            return self.words[number.word]
        return _known(number)

    def add(self, one: Integer, other: Integer) -> Value:
        """The sum of two integers."""
        a, b = self.integer(one), self.integer(other)
        if a.text == "0":
            return b
        return a if b.text == "0" else self.b.binary("add nsw", a, b)

    def subtract(self, one: Integer, other: Integer) -> Value:
        """The difference of two integers."""
        a, b = self.integer(one), self.integer(other)
        return a if b.text == "0" else self.b.binary("sub nsw", a, b)

    def multiply(self, one: Integer, other: Integer) -> Value:
        """The product of two integers."""
        if type(one) is int and type(other) is int:
            return _known(one * other)
        a, b = self.integer(one), self.integer(other)
        if a.text == "0" or b.text == "0":
            return _known(0)
        if b.text == "1":
            return a
        return b if a.text == "1" else self.b.binary("mul nsw", a, b)

    def plus(self, one: Integer, other: Integer) -> Value:
        """The sum of two integers; that of two constants is one."""
        a, b = self.integer(one), self.integer(other)
        if _is_number(a) and _is_number(b):
            return self.integer(int(a.text) + int(b.text))
        return self.add(a, b)

    def least(self, one: Integer, other: Integer) -> Value:
        """The smaller of two integers."""
        return self.b.intrinsic("smin", self.integer(one), self.integer(other))

    def most(self, one: Integer, other: Integer) -> Value:
        """The larger of two integers."""
        return self.b.intrinsic("smax", self.integer(one), self.integer(other))

    def ceiling(self, a: Value, step: int) -> Value:
        """How many steps (of a positive constant) reach at least `a`, which may be negative."""
        if step == 1:
            return a
        quotient = self.b.binary("sdiv", a, step)
        rest = self.b.binary("sub", a, self.b.binary("mul", quotient, step))
        more = self.b.compare("sgt", rest, 0)
        return self.b.binary("add", quotient, self.b.convert("zext", more, "i64"))

    def parts(self, number: Value, extents: Sequence[Integer]) -> list[Value]:
        """The digits of a number in a mixed base, the last one running fastest."""
        digits: list[Value] = []
        for extent in map(self.integer, reversed(extents)):
            if extent.text == "1":
                digits.append(self.integer(0))
                continue
            digits.append(self.b.binary("urem", number, extent))
            number = self.b.binary("udiv", number, extent)
        return digits[::-1]

    def chunks(self, extent: int, size: int) -> Value:
        """How many chunks of a size cover an extent."""
        if is_static(extent):
            return self.integer(ceil(extent / size))
        above = self.add(extent, size - 1)
        return self.b.binary("udiv", above, size)

    def product(self, numbers: Sequence[Integer]) -> Value:
        """The product of integers."""
        result = self.integer(1)
        for number in map(self.integer, numbers):
            if _is_number(result) and _is_number(number):
                result = self.integer(int(result.text) * int(number.text))
            elif "1" in (result.text, number.text):
                result = number if result.text == "1" else result
            else:
                result = self.b.binary("mul", result, number)
        return result

    @contextmanager
    def shared(self, extents: Sequence[Integer], slots: int) -> Generator[list[Value]]:
        """A loop over this thread's part of some nested loops; gives their indices."""
        start, stop = self.share(self.product(extents), slots)
        with self.b.loop(start, stop) as loop:
            yield self.parts(loop.index, extents)

    def share(self, pieces: Integer, slots: int) -> tuple[Value, Value]:
        """This thread's part of some pieces of work; threads beyond `slots` get none."""
        count = self.integer(pieces)
        working = self.least(self.threads, slots)
        after = self.add(self.thread, 1)
        ends = [self.b.binary("mul", count, number) for number in (self.thread, after)]
        first, last = (self.b.binary("udiv", end, working) for end in ends)
        return self.least(first, count), self.least(last, count)

    # Places and elements

    def element(self, base: Value, scalar: str, distance: Integer) -> Value:
        """The address of the element so far from another one."""
        place = self.integer(distance)
        return base if place.text == "0" else self.b.element(base, scalar, place)

    def place(self, offset: Affine, at: At) -> Value:
        """The number of an element at a place that is affine in scalars."""
        result = self.integer(0)
        assert offset.is_plain
        for variable, factor in offset.strides.items():
            result = self.add(result, self.multiply(at[variable], factor))
        return self.add(result, offset.constant)

    def lane_numbers(self, lanes: int) -> Value:
        """0, 1, 2, … in the lanes of 64-bit integers."""
        return self.b.lanes(I64.of(lanes))

    def lane_steps(self, step: int, lanes: int) -> Value:
        """0, step, 2 · step, … in the lanes."""
        steps = self.b.splat(self.integer(step), lanes)
        return self.b.binary("mul", self.lane_numbers(lanes), steps)

    def holds(self, bounds: Sequence[Bound], at: At) -> Value:
        """Whether bounds hold at values of their variables."""
        b, inside = self.b, constant(I1, True)
        for low, offset, high in bounds:
            value = self.place(offset, at)
            inside = b.binary("and", inside, b.compare("sge", value, self.integer(low)))
            inside = b.binary("and", inside, b.compare("slt", value, self.integer(high)))
        return inside

    def lanes_within(self, bound: Bound, at: At, lane: Variable, lanes: int) -> Value:
        """The lanes, in which a variable differs by one, where a bound holds."""
        b, (low, offset, high) = self.b, bound
        steps = self.lane_steps(offset.factor(lane), lanes)
        value = b.binary("add", b.splat(self.place(offset, at), lanes), steps)
        least, end = (b.splat(self.integer(limit), lanes) for limit in (low, high))
        return b.binary("and", b.compare("sge", value, least), b.compare("slt", value, end))

    def below(self, start: Integer, stop: Integer, lanes: int) -> Value:
        """A mask of the lanes start, start + 1, … that lie before `stop`."""
        left = self.b.convert("trunc", self.subtract(stop, start), "i32")
        left = self.b.intrinsic("smax", left, constant(left.type, 0))
        kind = left.type.of(lanes)
        return self.b.compare("ult", self.b.lanes(kind), self.b.splat(left, lanes))


@dataclass
class Leaves:
    """The leaves of expressions at a point of the code: a leaf function for an `Evaluator`.

    `lane` is the variable that differs from lane to lane, by one; `whole` is the mask of the lanes
    that exist at all. The point lies `beyond` a common one by known distances; addresses at the
    common one are `known` to all that share it. `sum` is the finished sum.
    """

    frame: Frame
    at: At
    lane: Variable | None
    lanes: int
    whole: Value | None = None
    sum: Value | None = None
    beyond: Mapping[Variable, int] = field(default_factory=dict[Variable, int])
    known: dict[tuple[Argument, Affine], Value] = field(
        default_factory=dict[tuple[Argument, Affine], Value]
    )

    def evaluator(self) -> Evaluator:
        """An evaluator with these leaves."""
        return Evaluator(self.frame.b, self.lanes, self, None, self.frame.sensitive)

    def __call__(self, expr: Expr, mask: Value | None) -> Value:
        """The value of a leaf."""
        match expr:
            case Accumulated() if self.sum is not None:
                return self.sum
            case Index():
                return self._index(expr.variable)
            case Word():
                whole = self.frame.integer(expr.number)
                return converted(self.frame.b, whole, INT64, expr.dtype)
            case Load():
                return self.load(expr.buffer, expr.offset, mask)
            case _:
                raise ValueError(f"a {type(expr).__name__} in a contraction")

    def _index(self, variable: Variable) -> Value:
        frame, b = self.frame, self.frame.b
        start = frame.add(self.at[variable], self.beyond.get(variable, 0))
        if variable is not self.lane or self.lanes == 1:
            return start
        return b.binary("add", b.splat(start, self.lanes), frame.lane_numbers(self.lanes))

    def load(self, argument: Argument, offset: Affine, mask: Value | None) -> Value:
        """An element per lane, or one for all lanes that read the same one."""
        return from_memory(self.frame.b, self._stored(argument, offset, mask), argument.dtype)

    def bits(self, value: Expr, dtype: Any, mask: Value | None) -> Value:
        """An expression per lane as it would lie in memory: as it does, where it is short and
        lies there, with no way through registers of another type."""
        b, is_short = self.frame.b, storage_type(dtype) != register_type(dtype)
        if is_short and isinstance(value, Load) and value.dtype == dtype:
            raw = self._stored(value.buffer, value.offset, mask)
            return raw if raw.type.lanes == self.lanes else b.splat(raw, self.lanes)
        return to_memory(b, self.evaluator().value_as(value, dtype, mask), dtype)

    def _stored(self, argument: Argument, offset: Affine, mask: Value | None) -> Value:
        address, spread = self.address(argument, offset, mask)
        b, kind = self.frame.b, storage_type(argument.dtype, self.lanes)
        if spread is None:
            return self._one(kind.of(1), address, mask)
        if isinstance(spread, int) and spread == 1:
            return b.load(kind, address, mask)
        addresses = b.element(address, kind.scalar, self.distances(spread))
        return b.gather(kind, addresses, mask)

    def _one(self, kind: Type, address: Value, mask: Value | None) -> Value:
        b = self.frame.b
        if mask is None or (self.whole is not None and mask.text == self.whole.text):
            return b.load(kind, address)
        return b.choose(b.any(mask), lambda: b.load(kind, address), lambda: constant(kind, 0))

    def distances(self, spread: int | Value) -> Value:
        """How far each lane lies from the first address, in elements."""
        if isinstance(spread, Value):
            return spread
        return self.frame.lane_steps(spread, self.lanes)

    def address(
        self, argument: Argument, offset: Affine, mask: Value | None
    ) -> tuple[Value, int | Value | None]:
        """Where an element lies: an address, and how far the lanes are from it.

        That is nothing (None), an integer per lane, or a vector of distances.
        """
        frame, scalar = self.frame, storage_type(argument.dtype).scalar
        moves = frame.integer(0)
        step, spread = None, None
        for variable, factor in offset.strides.items():
            moves = frame.plus(moves, frame.multiply(self.beyond.get(variable, 0), factor))
            step = factor if variable is self.lane and self.lanes > 1 else step
        for term, factor in offset.computed.items():
            value = self._computed(term, mask)
            if value.type.lanes == 1:
                moves = frame.plus(moves, frame.multiply(value, factor))
            else:
                spread = self._sum_of(spread, value, factor)
        if spread is not None and step is not None:
            spread = frame.b.binary("add", spread, self.distances(step))
        address = frame.element(self._common(argument, offset, scalar), scalar, moves)
        return address, step if spread is None else spread

    def _common(self, argument: Argument, offset: Affine, scalar: str) -> Value:
        """The address of an element at the common point, as far as variables decide about it."""
        key = argument, offset
        if key not in self.known:
            frame, start = self.frame, self.frame.integer(offset.constant)
            for variable, factor in offset.strides.items():
                start = frame.add(start, frame.multiply(self.at[variable], factor))
            self.known[key] = frame.b.element(frame.pointers[argument], scalar, start)
        return self.known[key]

    def _sum_of(self, distances: Value | None, value: Value, factor: int) -> Value:
        b = self.frame.b
        scaled = b.binary("mul", value, b.splat(self.frame.integer(factor), self.lanes))
        return scaled if distances is None else b.binary("add", distances, scaled)

    def _computed(self, term: Expr, mask: Value | None) -> Value:
        """An integer expression as 64 bits."""
        return self.evaluator().narrow(Cast(term, INT64), mask)


@memoized(4_096)
def _known(number: int) -> Value:
    return constant(I64, number)


def _is_number(value: Value) -> bool:
    return value.text.lstrip("-").isdigit()
