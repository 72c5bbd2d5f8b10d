"""Rows that a block keeps in shared memory between their reduction and their next use.

A softmax computes the maximum of a row and a sum of exponentials in one pass, and then reads the
row again. Tens of thousands of elements do not fit in registers, but in shared memory. A thread
reads only what it wrote itself, so no synchronization is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.codegen.cuda.builder import GridBuilder
from thalweg.codegen.cuda.grid import Grid
from thalweg.codegen.cuda.loops import online
from thalweg.codegen.cuda.loops.combine import shared_bytes
from thalweg.codegen.cuda.loops.mapping import Mapping
from thalweg.codegen.llvm.builder import I64, Value, constant
from thalweg.codegen.loops.scope import LaneScope, Scope
from thalweg.codegen.loops.simplify import static_extent, stride
from thalweg.codegen.math.conversion import from_memory, storage_type
from thalweg.ir.expr import Load, Reduce
from thalweg.ir.rewrite import outside_reductions, postorder

_ALIGNMENT = 16  # bytes
_RESERVED = 1 << 10  # bytes of shared memory that the driver reserves per block


def kept_rows(mapping: Mapping) -> list[Load]:
    """The loads of rows that are read again after their maximum and sum of exponentials are known,
    as far as the shared memory of all resident blocks allows."""
    along = mapping.reduced
    count = None if along is None else static_extent(along)
    if along is None or count is None or mapping.vector is not along:
        return []
    again = outside_reductions(mapping.form.roots)
    bodies = [most.body for most in online.sums_of_powers(mapping)]
    loads = [load for load in postorder(bodies) if isinstance(load, Load) and load in again]
    found = [load for load in loads if load.offset.is_plain and stride(load.offset, along) == 1]
    room = mapping.target.shared_bytes // online.BLOCKS - _RESERVED
    taken = _own_bytes(mapping) + sum(_row_bytes(load, count) for load in found)
    return found if taken <= room else []


def rows_bytes(mapping: Mapping) -> int:
    """The shared memory of a block with kept rows."""
    count = 0 if mapping.reduced is None else static_extent(mapping.reduced) or 0
    rows = sum(_row_bytes(load, count) for load in kept_rows(mapping))
    return _own_bytes(mapping) + rows if rows else 0


def _own_bytes(mapping: Mapping) -> int:
    """The shared memory for combining states, which precedes the rows."""
    return _padded(shared_bytes(mapping, mapping.form.every(Reduce)))


def _row_bytes(load: Load, count: int) -> int:
    return _padded(count * np.dtype(load.buffer.dtype).itemsize)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True)
class Rows:
    """The kept rows of a block."""

    mapping: Mapping
    b: GridBuilder
    grid: Grid

    def keep(self, scope: Scope) -> None:
        """Load vectors of rows, and store them in shared memory."""
        raws: list[tuple[LaneScope, Load, Value]] = []
        for copy in scope.vectors:
            for load in kept_rows(self.mapping):
                place = copy.locate(load.buffer, load.offset, None)
                kind = storage_type(load.buffer.dtype, copy.lanes)
                raw = self.b.load(kind, copy.pointer(load.buffer, place), None, place.aligned)
                raws.append((copy, load, raw))
                copy.define(load, from_memory(self.b, raw, np.dtype(load.buffer.dtype)))
        for copy, load, raw in raws:
            self.b.store(raw, self._cell(copy, load), None, copy.lanes)

    def recall(self, scope: Scope) -> None:
        """Load kept vectors of rows from shared memory."""
        for copy in scope.vectors:
            for load in kept_rows(self.mapping):
                kind = storage_type(load.buffer.dtype, copy.lanes)
                raw = self.b.load(kind, self._cell(copy, load), None, copy.lanes)
                copy.define(load, from_memory(self.b, raw, np.dtype(load.buffer.dtype)))

    def _cell(self, copy: LaneScope, load: Load) -> Value:
        along, loads = self.mapping.reduced, kept_rows(self.mapping)
        assert along is not None
        before = sum(_row_bytes(other, int(along.extent)) for other in loads[: loads.index(load)])
        start = constant(I64, _own_bytes(self.mapping) + before)
        row = self.b.element(self.grid.shared(), "i8", start)
        return self.b.element(row, storage_type(load.buffer.dtype).scalar, copy.at(along))
