"""Scans by blocks: a block scans chunks of neighbouring elements, and carries the total.

A thread scans a few neighbours; the lanes of a warp compute their prefixes in five exchanges, the
warps theirs in shared memory; the total is carried to the next chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.codegen.cuda.loops.emit import GridEmitter
from thalweg.codegen.cuda.loops.mapping import SCAN_THREADS, Mapping
from thalweg.codegen.llvm.builder import I32, I64, Value, constant
from thalweg.codegen.loops.scope import Scope
from thalweg.codegen.math.elements import Accumulator, accumulator_of
from thalweg.ir.expr import Scan, Variable

_CELL = 8  # bytes of a value in shared memory


def scan_bytes(mapping: Mapping) -> int:
    """The shared memory for the totals of a block's warps, double-buffered for consecutive
    chunks."""
    return 2 * len(mapping.form.every(Scan)) * mapping.threads // mapping.target.warp * _CELL


class ScanEmitter(GridEmitter):
    """The emitter of kernels in which each block has the scans of one item."""

    def write(self) -> None:
        b, m, grid = self.b, self.mapping, self._grid
        warp = constant(I32, m.target.warp)
        self._thread = grid.thread()
        self._lane = b.binary("urem", self._thread, warp)
        self._warp = b.binary("udiv", self._thread, warp)
        first, step = self._wide(grid.block()), self._wide(grid.blocks())
        with b.loop(first, self.count(m.items), step) as loop:
            grid.barrier()  # the totals of the previous item have been read
            scope = self._root.bind(self.digits(loop.index, m.items))
            self._hoist_statements(scope, self._statements)
            self._item(scope)

    def _item(self, scope: Scope) -> None:
        b, m = self.b, self.mapping
        (variable,) = m.serial
        count = self.extent(variable)
        carried = self._initial_scans(scope, self._scans)
        size = constant(I64, SCAN_THREADS * m.width)
        mine = self._times(self._wide(self._thread), constant(I64, m.width))
        even = constant(I64, 0)
        with b.loop(even, count, size, [even, *carried]) as loop:
            number = self._plus(loop.index, mine)
            inside = b.compare("slt", number, count)
            last = self.add(count, -m.width)
            index = b.select(inside, number, last)
            if variable in m.backward:
                index = b.binary("sub", last, index)
            inner = self._in_lanes(scope, variable, index)
            parity, *carries = loop.carried
            after = [
                self._scan(inner, scan, inside, carry, self._plus(parity, constant(I64, 2 * n)))
                for n, (scan, carry) in enumerate(zip(self._scans, carries, strict=True))
            ]
            loop.next = [b.binary("xor", parity, 1), *after]
            self._hoist_statements(inner, self._statements)
            with b.when(inside):
                self._execute(inner.bind({}), self._statements)

    def _in_lanes(self, scope: Scope, variable: Variable, index: Value) -> Scope:
        if self.mapping.width == 1:
            return scope.bind({variable: index})
        return scope.vectorize(variable, self.mapping.width, [index])

    def _scan(self, scope: Scope, scan: Scan, inside: Value, carry: Value, row: Value) -> Value:
        """Scan a chunk; returns the carry. `row` is the row of the warps' totals."""
        b, accumulator = self.b, accumulator_of(scan)
        self.hoist(scope, [scan.body])
        (copy,) = scope.vectors
        (nothing,) = accumulator.initial(1)
        mine = self._in_thread(accumulator, copy.value_as(scan.body, accumulator.dtype))
        element = b.select(inside, mine[-1], nothing)
        within = self._in_warp(accumulator, element, self.mapping.target.warp)
        before, total = self._of_warps(accumulator, within, row)
        left = self._grid.from_lane(within, b.binary("sub", self._lane, 1))
        left = b.select(self._is_lane(0), nothing, left)
        base = self._merged(accumulator, carry, self._merged(accumulator, before, left))
        found = [self._merged(accumulator, base, one) for one in mine]
        copy.define(scan, self._vector([base, *found[:-1]] if scan.exclusive else found))
        return self._merged(accumulator, carry, total)

    @property
    def _order(self) -> list[int]:
        """The lanes of a thread in the order of the scan."""
        lanes = list(range(self.mapping.width))
        return lanes[::-1] if self.mapping.serial[0] in self.mapping.backward else lanes

    def _in_thread(self, accumulator: Accumulator, value: Value) -> list[Value]:
        """The inclusive scan of a thread's elements, in order."""
        if value.type.lanes == 1:
            return [value]
        first, *others = (self.b.extract(value, lane) for lane in self._order)
        result = [first]
        for element in others:
            result.append(self._merged(accumulator, result[-1], element))
        return result

    def _vector(self, values: Sequence[Value]) -> Value:
        """Values in the order of the scan as a vector in the order of memory."""
        if len(values) == 1:
            return values[0]
        kind = values[0].type.of(len(values))
        vector = Value(kind, "poison")
        for lane, value in zip(self._order, values, strict=True):
            vector = self.b.emit(kind, f"insertelement {vector}, {value}, i64 {lane}")
        return vector

    def _is_lane(self, lane: int) -> Value:
        return self.b.compare("eq", self._lane, lane)

    def _in_warp(self, accumulator: Accumulator, value: Value, count: int) -> Value:
        """The inclusive scan of the first `count` lanes."""
        b, distance = self.b, 1
        while distance < count:
            by = constant(I32, distance)
            other = self._grid.from_lane(value, b.binary("sub", self._lane, by))
            merged = self._merged(accumulator, other, value)
            value = b.select(b.compare("uge", self._lane, by), merged, value)
            distance *= 2
        return value

    def _of_warps(self, accumulator: Accumulator, value: Value, row: Value) -> tuple[Value, Value]:
        """The prefix of this warp, and the total of all. Rows alternate: when one is overwritten,
        all threads have passed the barrier in between, and so have read it."""
        b, grid, warps = self.b, self._grid, SCAN_THREADS // self.mapping.target.warp
        (nothing,) = accumulator.initial(1)
        start = self._times(row, constant(I64, warps))
        with b.when(self._is_lane(self.mapping.target.warp - 1)):
            b.store(value, self._cell(start, self._warp))
        grid.barrier()
        place = b.binary("urem", self._lane, warps)
        totals = self._in_warp(accumulator, b.load(value.type, self._cell(start, place)), warps)
        before = grid.from_lane(totals, b.binary("sub", self._warp, 1))
        is_first = b.compare("eq", self._warp, 0)
        whole = grid.from_lane(totals, constant(I32, warps - 1))
        return b.select(is_first, nothing, before), whole

    def _merged(self, accumulator: Accumulator, one: Value, other: Value) -> Value:
        (merged,) = accumulator.merge(self.b, [one], [other])
        return merged

    def _cell(self, start: Value, place: Value) -> Value:
        at = self._plus(start, self._wide(place))
        return self.b.element(self._grid.shared(), "i64", at)
