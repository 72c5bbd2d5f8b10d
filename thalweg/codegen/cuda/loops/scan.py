"""Scans by whole blocks: a block takes neighbouring elements at a time, and what came before.

Lanes of a warp add up what lies before each of them in five exchanges, warps what lies before each
of them in shared memory; the total is carried to the next elements.
"""

from __future__ import annotations

from thalweg.codegen.cuda.loops.emit import GridEmitter
from thalweg.codegen.cuda.loops.mapping import SCAN_THREADS, Mapping
from thalweg.codegen.llvm.builder import I32, I64, Value, constant
from thalweg.codegen.loops.scope import Scope
from thalweg.codegen.math.reductions import Accumulator, accumulator_of
from thalweg.ir.expr import Scan

_CELL = 8  # bytes of a value in shared memory


def scan_bytes(mapping: Mapping) -> int:
    """The shared memory that a block needs for the totals of its warps."""
    return mapping.threads // mapping.target.warp * _CELL


class ScanEmitter(GridEmitter):
    """A kernel in which each block has the scans of one item."""

    def write(self) -> None:
        b, m, grid = self._b, self.mapping, self._grid
        warp = constant(I32, m.target.warp)
        self._thread = grid.thread()
        self._lane = b.binary("urem", self._thread, warp)
        self._warp = b.binary("udiv", self._thread, warp)
        first, step = self._wide(grid.block()), self._wide(grid.blocks())
        with b.loop(first, self.count(m.items), step) as loop:
            scope = self._root.bind(self.digits(loop.index, m.items))
            self._prepare(scope, self._works)
            self._item(scope)

    def _item(self, scope: Scope) -> None:
        b, m = self._b, self.mapping
        (variable,) = m.serial
        count = self._computation.extent(variable)
        carried = self._scan_starts(scope, self._scans)
        size = constant(I64, SCAN_THREADS)
        with b.loop(constant(I64, 0), count, size, carried) as loop:
            number = self._plus(loop.index, self._wide(self._thread))
            inside = b.compare("slt", number, count)
            last = self._add(count, -1)
            index = b.select(inside, number, last)
            if variable in m.backward:
                index = b.binary("sub", last, index)
            inner = scope.bind({variable: index})
            loop.next = [
                self._scan(inner, scan, inside, carry)
                for scan, carry in zip(self._scans, loop.carried, strict=True)
            ]
            self._prepare(inner, self._works)
            with b.when(inside):
                self._perform(inner.bind({}), self._works)

    def _scan(self, scope: Scope, scan: Scan, inside: Value, carry: Value) -> Value:
        """Scan the elements of a block; what is carried on."""
        b, accumulator = self._b, accumulator_of(scan)
        self._computation.ready(scope, [scan.body])
        (copy,) = scope.copies
        (nothing,) = accumulator.start(1)
        element = b.select(inside, copy.value_as(scan.body, accumulator.dtype), nothing)
        warps = SCAN_THREADS // self.mapping.target.warp
        within = self._in_warp(accumulator, element, self.mapping.target.warp)
        before, total = self._of_warps(accumulator, within, warps)
        if scan.exclusive:
            left = b.binary("sub", self._lane, constant(I32, 1))
            other = self._grid.from_lane(within, left)
            within = b.select(self._is_lane(0), nothing, other)
        whole = self._merged(accumulator, before, within)
        copy.remember(scan, self._merged(accumulator, carry, whole))
        return self._merged(accumulator, carry, total)

    def _is_lane(self, lane: int) -> Value:
        return self._b.compare("eq", self._lane, constant(I32, lane))

    def _in_warp(self, accumulator: Accumulator, value: Value, count: int) -> Value:
        """The scan of the first `count` lanes, each lane's own element included."""
        b, distance = self._b, 1
        while distance < count:
            by = constant(I32, distance)
            other = self._grid.from_lane(value, b.binary("sub", self._lane, by))
            merged = self._merged(accumulator, other, value)
            value = b.select(b.compare("uge", self._lane, by), merged, value)
            distance *= 2
        return value

    def _of_warps(self, accumulator: Accumulator, value: Value, warps: int) -> tuple[Value, Value]:
        """What the warps before this one have, and all of them."""
        b, grid = self._b, self._grid
        (nothing,) = accumulator.start(1)
        grid.barrier()
        with b.when(self._is_lane(self.mapping.target.warp - 1)):
            b.store(value, self._cell(self._warp))
        grid.barrier()
        place = b.binary("urem", self._lane, constant(I32, warps))
        totals = self._in_warp(accumulator, b.load(value.type, self._cell(place)), warps)
        before = grid.from_lane(totals, b.binary("sub", self._warp, constant(I32, 1)))
        is_first = b.compare("eq", self._warp, constant(I32, 0))
        whole = grid.from_lane(totals, constant(I32, warps - 1))
        return b.select(is_first, nothing, before), whole

    def _merged(self, accumulator: Accumulator, one: Value, other: Value) -> Value:
        (merged,) = accumulator.merge(self._b, [one], [other])
        return merged

    def _cell(self, place: Value) -> Value:
        return self._b.element(self._grid.shared(), "i64", self._wide(place))
