"""The loops of a kernel as instructions, by its plan.

What comes in is a `Plan` and a function to write into; loops, scans, checks and stores go out as
instructions. Before each loop, everything invariant in it is computed.
"""

from __future__ import annotations

from contextlib import nullcontext

from thalweg.codegen.llvm.builder import I64, Builder, Value, constant
from thalweg.codegen.loops.facts import extent_of
from thalweg.codegen.loops.lanes import Lanes, Slots
from thalweg.codegen.loops.plan import BLOCK, Plan
from thalweg.codegen.loops.scope import LaneScope, Scope
from thalweg.codegen.loops.works import WorkEmitter
from thalweg.ir.kernel import Argument
from thalweg.ir.loop import Variable

_MANY = 64  # blocks of a loop that threads may share block by block


class Emission(WorkEmitter):
    """A kernel being written into a function of (pointers …, fault, words …, thread, threads)."""

    def __init__(
        self,
        plan: Plan,
        builder: Builder,
        pointers: dict[Argument, Value],
        words: dict[int, Value],
        fault: Value,
        threads: tuple[Value, Value],
    ) -> None:
        super().__init__(plan, builder, pointers, words, fault)
        self._threads = threads

    def write(self) -> None:
        """The whole kernel."""
        scope = Scope((LaneScope(self._frame),))
        with self._b.when(self._is_first()) if self._plan.split is None else nullcontext():
            self._level(scope, 0)

    # Small things

    def _is_first(self) -> Value:
        return self._b.compare("eq", self._threads[0], constant(I64, 0))

    # Levels of the kernel's loops

    def _level(self, scope: Scope, depth: int) -> None:
        """All that is done where the first `depth` variables are bound, loops inside included."""
        here = [work for work in self._works if self._plan.depth(work) == depth]
        self._prepare(scope, [work for work in self._works if self._plan.depth(work) >= depth])
        split = self._plan.split
        once = split is not None and depth <= split[0]
        self._perform(scope, here, self._is_first if once else None)
        if depth < len(self._plan.variables):
            self._loop(scope, depth)

    def _loop(self, scope: Scope, depth: int) -> None:
        split = self._plan.split
        variable = self._plan.variables[depth]
        if split is not None and split[0] == depth and split[1] > depth:
            self._flattened(scope, depth, split[1])
        elif variable is self._plan.vector:
            self._vector_loop(scope, depth)
        else:
            self._scalar_loop(scope, depth, variable)

    def _bounds(self, depth: int, count: Value, unit: int) -> tuple[Value, Value]:
        """From where to where a loop goes on this thread: whole units of it, but for the last."""
        b = self._b
        if not self._is_shared(depth):
            return constant(I64, 0), count
        units = count
        if unit > 1:
            units = b.binary("udiv", self._add(count, unit - 1), constant(I64, unit))
        thread, threads = self._threads
        first, last = (
            b.binary("udiv", b.binary("mul", units, number), threads)
            for number in (thread, self._add(thread, 1))
        )
        if unit == 1:
            return first, last
        ends = [b.binary("mul", number, constant(I64, unit)) for number in (first, last)]
        return ends[0], b.call("llvm.smin.i64", I64, ends[1], count)

    def _is_shared(self, depth: int) -> bool:
        """Whether threads share the loop at a level."""
        return self._plan.split is not None and self._plan.split[0] == depth

    def _scalar_loop(self, scope: Scope, depth: int, variable: Variable) -> None:
        count = self._computation.extent(variable)
        first, last = self._bounds(depth, count, 1)
        if variable in self._plan.blocks:
            first, last = self._block(scope, variable, count)
        scans = [scan for scan in self._scans if scan.variable is variable]
        carried = self._scan_starts(scope, scans)
        with self._b.loop(first, last, constant(I64, 1), carried) as loop:
            index = loop.index
            if variable in self._plan.backward:
                index = self._b.binary("sub", self._add(count, -1), index)
            inner = scope.bind({variable: index})
            loop.next = self._scanned(inner, scans, loop.carried)
            self._level(inner, depth + 1)

    def _block(self, scope: Scope, variable: Variable, count: Value) -> tuple[Value, Value]:
        """From where to where a variable goes in the block that the loops outside are at."""
        b = self._b
        number = scope.copies[0].at(self._plan.blocks[variable])
        first = b.binary("mul", number, constant(I64, BLOCK))
        return first, b.call("llvm.smin.i64", I64, self._add(first, BLOCK), count)

    def _flattened(self, scope: Scope, first: int, last: int) -> None:
        """Several loops as one, so that threads have enough to share."""
        b, variables = self._b, self._plan.variables[first : last + 1]
        counts = [self._computation.extent(variable) for variable in variables]
        total = counts[0]
        for count in counts[1:]:
            total = b.binary("mul", total, count)
        low, high = self._bounds(first, total, 1)
        with b.loop(low, high, constant(I64, 1)) as loop:
            rest, values = loop.index, dict[Variable, Value]()
            for variable, count in zip(variables[:0:-1], counts[:0:-1], strict=True):
                values[variable] = b.binary("urem", rest, count)
                rest = b.binary("udiv", rest, count)
            values[variables[0]] = rest
            self._level(scope.bind(values), last + 1)

    def _vector_loop(self, scope: Scope, depth: int) -> None:
        """Blocks of several vectors, then vectors, then what is left in a masked one or singly."""
        variable, lanes = self._plan.variables[depth], self._plan.width
        loop = Lanes(self._b, variable, lanes, self._plan.copies, self._plan.masked)
        count = extent_of(variable)
        unit = loop.block if count is not None and count >= _MANY * loop.block else lanes
        first, last = self._bounds(depth, self._computation.extent(variable), unit)

        def inside(inner: Scope, slots: Slots) -> Slots:
            self._level(inner, depth + 1)
            return slots

        whole = unit == loop.block or not self._is_shared(depth)
        loop.run(scope, first, last, inside, [[] for _ in loop.kept], whole)
