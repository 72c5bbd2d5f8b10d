"""Emission of one function of a kernel: arguments, integer arithmetic, masks.

A `Frame` is a function with its buffers and run-time integers; it emits index arithmetic with
constants folded. A `PhaseFrame` opens one with the native signature (argument words, thread,
threads) and loads its argument words once.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial, reduce
from itertools import accumulate

from thalweg.codegen.llvm.builder import (
    I64,
    POINTER,
    VOID,
    Builder,
    Module,
    Type,
    Value,
    constant,
)
from thalweg.codegen.machine import SLOTS
from thalweg.codegen.math.conversion import storage_type
from thalweg.codegen.math.elements import mask_sensitivity, reads_or_faults
from thalweg.ir.dynamic import Dynamic, DynamicProduct
from thalweg.ir.expr import Expr, Load, Variable
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Bound, Kernel, Store
from thalweg.ir.rewrite import Fold
from thalweg.platform.caches import memoized

At = Mapping[Variable, Value]
Integer = Value | int  # an int may be `Dynamic`


class Frame:
    """A function being emitted: its builder, the addresses of its buffers, and the values of its
    run-time integers."""

    def __init__(
        self, b: Builder, pointers: Mapping[Argument, Value], words: Mapping[int, Value]
    ) -> None:
        self.b, self.pointers, self.words = b, pointers, words

    @cached_property
    def sensitive(self) -> Fold[bool]:
        """Whether the mask matters under which an expression is computed."""
        return mask_sensitivity(self.reads_or_faults)

    def reads_or_faults(self, expr: Expr) -> bool:
        """The same of an expression by itself, its parts aside."""
        return reads_or_faults(expr)

    # Integers

    def integer(self, number: Integer) -> Value:
        """An integer as an i64 value; a dynamic one is read from the argument words."""
        if type(number) is int:  # the common case, and excludes `Dynamic`
            return _literal(number)
        if isinstance(number, Value):
            return number
        if isinstance(number, DynamicProduct):
            return self.product(number.factors)
        return self.words[number.word] if isinstance(number, Dynamic) else _literal(number)

    def add(self, one: Integer, other: Integer) -> Value:
        """The sum of two integers."""
        a, b = self.integer(one), self.integer(other)
        if "0" in (a.text, b.text):
            return b if a.text == "0" else a
        if a.number is not None and b.number is not None:
            return _literal(int(a.number + b.number))
        return self.b.binary("add nsw", a, b)

    def subtract(self, one: Integer, other: Integer) -> Value:
        """The difference of two integers."""
        a, b = self.integer(one), self.integer(other)
        return a if b.text == "0" else self.b.binary("sub nsw", a, b)

    def multiply(self, one: Integer, other: Integer) -> Value:
        """The product of two integers."""
        a, b = self.integer(one), self.integer(other)
        if "0" in (a.text, b.text):
            return _literal(0)
        if "1" in (a.text, b.text):
            return b if a.text == "1" else a
        if a.number is not None and b.number is not None:
            return _literal(int(a.number * b.number))
        return self.b.binary("mul nsw", a, b)

    def minimum(self, one: Integer, other: Integer) -> Value:
        """The smaller of two integers."""
        return self.b.intrinsic("smin", self.integer(one), self.integer(other))

    def maximum(self, one: Integer, other: Integer) -> Value:
        """The larger of two integers."""
        return self.b.intrinsic("smax", self.integer(one), self.integer(other))

    def ceil_div_signed(self, a: Value, step: int) -> Value:
        """a / step rounded up, for a positive constant step and an `a` of any sign."""
        if step == 1:
            return a
        quotient = self.b.binary("sdiv", a, step)
        rest = self.b.binary("sub", a, self.b.binary("mul", quotient, step))
        more = self.b.compare("sgt", rest, 0)
        return self.b.binary("add", quotient, self.b.convert("zext", more, "i64"))

    def unravel(self, number: Value, extents: Sequence[Integer]) -> list[Value]:
        """The indices of a row-major number in an array of these extents."""
        indices: list[Value] = []
        for place, extent in reversed(list(enumerate(map(self.integer, extents)))):
            if extent.text == "1" or not place:
                indices.append(self.integer(0) if extent.text == "1" else number)
                continue
            indices.append(self.b.binary("urem", number, extent))
            number = self.b.binary("udiv", number, extent)
        return indices[::-1]

    def ceil_div(self, extent: Integer, size: int) -> Value:
        """extent / size rounded up, for an extent that is not negative."""
        above = self.add(extent, size - 1)
        if above.number is not None:
            return _literal(int(above.number // size))
        return above if size == 1 else self.b.binary("udiv", above, size)

    def whole_end(self, first: Value, last: Value, unit: int) -> Value:
        """The end of the last whole unit of a range that is not negative."""
        if unit == 1:
            return last
        return self.subtract(last, self.b.binary("urem", self.subtract(last, first), unit))

    def shares(self, count: Value, part: Value, parts: Value) -> tuple[Value, Value]:
        """The half-open range of `count` iterations that belongs to a part of several."""
        first, last = (
            self.b.binary("udiv", self.b.binary("mul", count, number), parts)
            for number in (part, self.add(part, 1))
        )
        return first, last

    def product(self, numbers: Sequence[Integer]) -> Value:
        """The product of integers."""
        return reduce(self.multiply, numbers, self.integer(1))

    # Addresses, masks

    def element(self, base: Value, scalar: str, distance: Integer) -> Value:
        """The address `distance` elements from a base address."""
        index = self.integer(distance)
        return base if index.text == "0" else self.b.element(base, scalar, index)

    def address(self, access: Load | Store, at: At) -> Value:
        """The address of a load or store at scalar values of its variables."""
        scalar = storage_type(access.buffer.dtype).scalar
        return self.element(self.pointers[access.buffer], scalar, self.evaluate(access.offset, at))

    def evaluate(self, offset: Affine, at: At) -> Value:
        """The value of an affine offset in variables, at scalar values of these."""
        result = self.integer(0)
        assert offset.is_plain
        for variable, factor in offset.strides.items():
            result = self.add(result, self.multiply(at[variable], factor))
        return self.add(result, offset.constant)

    def in_bounds(
        self, bounds: Sequence[Bound], at: At, lane: Variable | None = None, lanes: int = 1
    ) -> Value:
        """Whether all bounds hold at scalar values of their variables; with a `lane`, in each of
        the lanes along that variable."""
        b, tests = self.b, list[Value]()
        for low, offset, high in bounds:
            value = b.splat(self.evaluate(offset, at), lanes)
            if lane is not None:
                steps = b.splat(self.integer(offset.factor(lane)), lanes)
                value = b.binary("add", value, b.binary("mul", b.lanes(steps.type), steps))
            for predicate, limit in (("sge", low), ("slt", high)):
                tests.append(b.compare(predicate, value, b.splat(self.integer(limit), lanes)))
        return reduce(partial(b.binary, "and"), tests)

    def lanes_below(self, start: Integer, stop: Integer, lanes: int) -> Value:
        """A mask of the lanes start, start + 1, … that are less than `stop`."""
        left = self.minimum(self.subtract(stop, start), lanes)
        short = self.b.splat(self.b.convert("trunc", left, "i32"), lanes)
        return self.b.compare("slt", self.b.lanes(short.type), short)


class PhaseFrame(Frame):
    """A phase of a kernel, or a helper of one that takes `extra` i64 arguments and is never
    inlined."""

    def __init__(
        self, module: Module, name: str, kernel: Kernel, scratch: bool, extra: int = 0
    ) -> None:
        attributes = "noinline nounwind" if extra else "nounwind"
        self.b = module.function(name, (POINTER, *[I64] * (2 + extra)), VOID, attributes)
        self.arguments, self.thread, self.threads, *self.extra = self.b.parameters
        pointers = {a: self._word(1 + n, POINTER) for n, a in enumerate(kernel.arguments)}
        after = 1 + len(kernel.arguments)
        self.scratch = self._word(after, POINTER) if scratch else Value(POINTER, "null")
        super().__init__(self.b, pointers, {n: self._word(n, I64) for n in kernel.words})

    def _word(self, number: int, kind: Type) -> Value:
        return self.b.load(kind, self.b.element(self.arguments, "i64", number))

    def call(self, helper: PhaseFrame, *extra: Value) -> None:
        """Call a helper of this phase."""
        values = ", ".join(map(str, (self.arguments, self.thread, self.threads, *extra)))
        self.b.line(f"call void @{helper.b.name}({values})")

    def thread_parts(self, scalar: str, sizes: Sequence[int], shared: int = 0) -> list[Value]:
        """The addresses of the parts, of these sizes in elements, of this thread's scratch memory,
        which lies behind `shared` elements."""
        start = self.add(shared, self.multiply(self.thread, sum(sizes)))
        base = self.b.element(self.scratch, scalar, start)
        return [self.element(base, scalar, place) for place in accumulate((0, *sizes[:-1]))]

    @contextmanager
    def thread_loop(self, extents: Sequence[Integer]) -> Generator[list[Value]]:
        """A loop over this thread's share of a loop nest; yields the nest's indices."""
        start, stop = self.thread_range(self.product(extents))
        with self.b.loop(start, stop) as loop:
            yield self.unravel(loop.index, extents)

    def thread_range(self, iterations: Integer) -> tuple[Value, Value]:
        """The half-open range of iterations that this thread runs; only `SLOTS` threads work."""
        count, working = self.integer(iterations), self.minimum(self.threads, SLOTS)
        ends = self.shares(count, self.thread, working)
        return self.minimum(ends[0], count), self.minimum(ends[1], count)


@memoized(4_096)
def _literal(number: int) -> Value:
    return constant(I64, number)
