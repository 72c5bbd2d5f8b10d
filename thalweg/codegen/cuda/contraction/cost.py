"""What a contraction costs on a GPU under a schedule, in cycles of a multiprocessor.

A block of terms takes as long as its products do, or as it takes to bring its tiles to shared
memory, whichever is longer; a tile adds its way out, and the time until its first operands are
there. Multiprocessors with a tile more than the others are waited for; shares of workers are even,
but parts are written, read and added by a second launch. Rates are those of the instructions; what
kernels reach of them was measured on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from thalweg.codegen.cuda.contraction.epilogue import (
    epilogue_cost,
    epilogue_of,
    varying_loads,
)
from thalweg.codegen.cuda.contraction.problem import FLOAT32, FLOAT64, Problem
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.contraction.space import Words
from thalweg.codegen.cuda.contraction.transposition import moved_bytes
from thalweg.codegen.cuda.contraction.work import Work
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.ir.dynamic import is_static

#: Products of 2-byte numbers that the tensor cores of a multiprocessor add in a cycle.
_TENSOR_RATES = {80: 1024, 86: 512, 89: 512, 90: 2048}
_WARP_SHARE = 0.3  # of the tensor cores' rate, that mma.sync reaches where wgmma exists
_CORES = {80: 64, 86: 128, 89: 128, 90: 128}  # products of float32 numbers in a cycle
_CORES_SHARE = 0.85
_DOUBLES = {80: 32, 86: 2, 89: 2, 90: 64}

#: What wgmma reaches with tiles of some columns, and with one group of warps instead of two.
_WIDTH_SHARES = {
    256: 0.98,
    224: 0.92,
    192: 0.93,
    160: 0.88,
    128: 0.86,
    96: 0.69,
    64: 0.55,
    32: 0.37,
}
_ONE_GROUP_SHARE = 0.75
_THREADS_SHARE = 0.2  # where threads bring operands in place of the copy engine

_CACHE_RATE = 64.0  # bytes a cycle from the second cache to a multiprocessor
_OWN_RATE = 31.0  # the same of bytes that only one of them reads, when all of them do
_WARP_OWN_SHARE = 0.5  # where threads copy them for mma.sync
_LINE_CYCLES = 2.0  # of the copy engine, for a line of a tile
_FIXUP_FILL = 5_200  # cycles until a second launch is there, has read its first parts, and ended
_PART_LATENCY = 25  # cycles for each part of a tile, which a thread of it adds up
_COPY_FILL = 3_500  # the same of a launch that transposes an operand
_COPY_SHARE = 0.75  # of the memory's rate, that it reaches
_ROUNDING = 2  # instructions of a thread, for a number that tensor cores see the nearest of
_FILL = 1_200  # cycles until the first operands of a tile are there
_LATENCY = 2_400  # cycles from a stage that is free to the next operands in it
_NARROW_OUT = 0.12  # cycles more for each sum in chunks of few columns
_OVERLAP = 0.1  # of the shorter of products and memory, that is not hidden by the other
_PARTS_RISK = 1.03  # where shares would save less, whole tiles are as good
_WAY_OUT, _READ_OUT = 0.25, 0.7  # cycles for each sum that threads store, and for each load of it
_PART_OUT = 0.18  # the same of a part, on its way to scratch memory
_SEEN_OUT = 0.5  # of the way out of a tile, where another block of the multiprocessor multiplies
_SHARED_BLOCK = 1.4  # of the time of a block of terms, where a multiprocessor has two blocks
#: Cycles for each instruction of the epilogue beyond a few: where it is code for every sum, and
#: where sums go through a loop, or threads store.
_FUNCTION_OUT, _LOOP_OUT = 0.017, 0.06
_FREE_FUNCTIONS = 4.0
_FEW = 8  # times fewer tiles than multiprocessors: each runs through code that no cache has yet
_SCATTERED_OUT = 2.0  # the same where rows are columns: neighbours do not lie side by side
_STAGED_OUT, _STAGED_READ = 0.08, 0.07  # the same where the copy engine reads and writes


@dataclass(frozen=True)
class Cost:
    """The cost of a problem under a schedule on a target."""

    problem: Problem
    target: CudaTarget
    schedule: Schedule
    is_copied: bool = True  # the copy engine reads both operands

    def cycles(self) -> float:
        """How long it takes."""
        schedule, units = self.schedule, self.target.multiprocessors
        batch, m, n, depth = Work(self.problem, schedule).counts(Words(0))
        tiles = batch * m * n
        block, out, after = self._block(), self._store_cycles(tiles), 0.0
        if schedule.workers:
            share = ceil(tiles * depth / schedule.workers) * ceil(schedule.workers / units)
            parts = 2 * schedule.workers
            ends = ceil(tiles / schedule.workers) + 1  # of tiles that a worker has something of
            time = _PARTS_RISK * (share * block + ends * (out + _FILL))
            after = _PARTS_RISK * self._fixup(parts)
        elif schedule.splits > 1:
            parts = tiles * schedule.splits
            each = ceil(depth / schedule.splits) * block + self._partial_store_cycles() + _FILL / 2
            time = _PARTS_RISK * ceil(parts / units) * each
            after = _PARTS_RISK * self._fixup(parts)
        else:
            rounds = ceil(tiles / units)
            fill = _FILL / (2 if schedule.unit == "wgmma" else 1)  # the next tile's is hidden
            seen = out + fill
            if schedule.residents > 1 and rounds > 1:  # one block stores while another multiplies
                seen *= (1 + _SEEN_OUT * (rounds - 1)) / rounds
            time = rounds * (depth * block + seen)
        memory = self._memory()
        before = self._transpositions()
        return before + max(time, memory) + _OVERLAP * min(time, memory) + after

    def _block(self) -> float:
        """A block of terms of one tile: its products, the lines that the copy engine brings one by
        one, whatever their length, or the bytes that no other multiprocessor asks for meanwhile."""
        schedule, sides = self.schedule, (self.problem.a, self.problem.b)
        products = schedule.m * schedule.n * schedule.k / self._rate() + self._rounding()
        sizes = [
            mn * schedule.k * operand.dtype.itemsize
            for mn, operand in zip((schedule.m, schedule.n), sides, strict=True)
        ]
        if schedule.unit == "cores":
            return max(products, sum(sizes) / _CACHE_RATE)
        lines = [size / side.line_bytes for size, side in zip(sizes, sides, strict=True)]
        if schedule.unit == "mma":
            lines = [0.0]
        _, rows, columns, depth = Work(self.problem, schedule).counts(Words(0))
        across = min(columns, ceil(self.target.multiprocessors / schedule.group))
        own = sizes[0] / across + sizes[1] / min(rows, schedule.group)
        rate = _OWN_RATE * (_WARP_OWN_SHARE if schedule.unit == "mma" else 1.0)
        shared = _SHARED_BLOCK if schedule.residents > 1 else 1.0
        full = shared * max(products, sum(lines) * _LINE_CYCLES, own / rate)
        if schedule.unit != "wgmma" or depth <= schedule.stages:
            return full  # the terms of the next tile are there when this one is stored
        ahead = schedule.stages * (1 + schedule.residents) / 2  # the other block may be storing
        return max(full, (_LATENCY + full) / ahead)

    def _rounding(self) -> float:
        """What warps take to round the factors of a block (see `tf32`): each warp those it reads.
        The copy engine rounds on the way, and where other threads bring operands they also wait."""
        schedule = self.schedule
        if schedule.unit != "mma" or self.problem.a.dtype != FLOAT32:
            return 0.0
        factors = schedule.m * schedule.warps_n + schedule.n * schedule.warps // schedule.warps_n
        return _ROUNDING * factors * schedule.k / _of(_CORES, self.target.capability)

    def _rate(self) -> float:
        """Products a cycle."""
        capability, schedule = self.target.capability, self.schedule
        if schedule.unit == "cores":
            table = _DOUBLES if self.problem.dtype == FLOAT64 else _CORES
            wide = min(1.0, (schedule.m * schedule.n / schedule.threads / 64) ** 0.5)
            return _of(table, capability) * _CORES_SHARE * wide
        rate = _of(_TENSOR_RATES, capability) * 2 / self.problem.a.dtype.itemsize
        if schedule.unit == "mma":
            share = _WARP_SHARE if capability >= 90 else 0.85
            return rate * share * min(1.0, (schedule.m * schedule.n / (128 * 128)) ** 0.5)
        share = _WIDTH_SHARES.get(schedule.n, 0.6) * (
            1.0 if schedule.m >= 128 else _ONE_GROUP_SHARE
        )
        share *= self._rewriting_share() if schedule.rewritten else 1.0
        return rate * share * (1.0 if self.is_copied else _THREADS_SHARE)

    def _rewriting_share(self) -> float:
        """What is left to tensor cores of shared memory, where columns are written a second time:
        each operand comes once, rows are read once, and columns by every group of warps."""
        schedule = self.schedule
        accesses = 2 * schedule.m + (1 + schedule.m // 64) * schedule.n
        return accesses / (accesses + 2 * schedule.n)

    def _store_cycles(self, tiles: int) -> float:
        """The stores of one of some tiles; with buffers, memory is read and written meanwhile."""
        schedule = self.schedule
        computed = max(0.0, epilogue_cost(self.problem) - _FREE_FUNCTIONS)
        size, reads = schedule.m * schedule.n, len(varying_loads(self.problem))
        if schedule.buffers:
            staged = epilogue_of(self.problem, schedule)
            is_slow = (
                staged is None or staged.is_long or _FEW * tiles <= self.target.multiprocessors
            )
            each = _LOOP_OUT if is_slow else _FUNCTION_OUT
            moved = _STAGED_OUT + _STAGED_READ * reads + bool(schedule.chunk) * _NARROW_OUT
            return size * (moved + computed * each)
        if schedule.swapped:
            return size * (_SCATTERED_OUT + computed * _LOOP_OUT)
        return size * (_WAY_OUT + computed * _LOOP_OUT + _READ_OUT * reads)

    def _partial_store_cycles(self) -> float:
        """A tile of sums on its way to scratch memory."""
        return self.schedule.m * self.schedule.n * _PART_OUT

    def _fixup(self, parts: int) -> float:
        """The launch that adds parts up: they are written and read once."""
        schedule, target = self.schedule, self.target
        moved = (
            1.5 * parts * schedule.m * schedule.n * 4 / (_CACHE_RATE / 2 * target.multiprocessors)
        )
        added = schedule.splits * _PART_LATENCY
        return moved + added + target.launch_time * 1e-9 * target.clock + _FIXUP_FILL

    def _transpositions(self) -> float:
        """The launches that make copies of operands."""
        target, moved = self.target, moved_bytes(self.problem)
        launch = target.launch_time * 1e-9 * target.clock + _COPY_FILL
        rate = _COPY_SHARE * target.memory_rate / target.clock
        return len(moved) * launch + sum(moved) / rate

    def _memory(self) -> float:
        """All buffers once from or to memory, as far as their sizes are known."""
        sizes = [
            argument.size * np.dtype(argument.dtype).itemsize
            for argument in self.problem.kernel.arguments
            if is_static(argument.size)
        ]
        return sum(sizes) / self.target.memory_rate * self.target.clock


def _of(table: dict[int, int], capability: int) -> int:
    """The row of the newest GPU that is not newer."""
    known = [number for number in table if number <= capability]
    return table[max(known, default=min(table))]
