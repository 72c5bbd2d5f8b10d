"""The cost model of contractions on a GPU under a schedule, in cycles of a multiprocessor.

A block of terms takes the maximum of the times of its products and of loading its tiles to shared
memory; a tile adds the times of its output and until its first operands arrive. Multiprocessors
with an additional tile determine the end; shares of workers are even, but parts are written, read
and added by a second launch. Rates are those of the instructions; the fraction that kernels reach
was measured on an H200.
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

#: Products of 2-byte numbers per cycle of a multiprocessor's tensor cores.
_TENSOR_RATES = {80: 1024, 86: 512, 89: 512, 90: 2048}
_WARP_SHARE = 0.3  # of the tensor cores' rate, that mma.sync reaches where wgmma exists
_CORES = {80: 64, 86: 128, 89: 128, 90: 128}  # products of float32 numbers per cycle
_CORES_SHARE = 0.85
_DOUBLES = {80: 32, 86: 2, 89: 2, 90: 64}

#: The fraction that wgmma reaches by columns of a tile, and with one group of warps, not two.
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
_THREADS_SHARE = 0.2  # if threads load operands instead of the copy engine

_CACHE_RATE = 64.0  # bytes per cycle from the L2 cache to a multiprocessor
_OWN_RATE = 31.0  # the same for bytes that are not shared, if all multiprocessors read
_WARP_OWN_SHARE = 0.5  # if threads copy them for mma.sync
_LINE_CYCLES = 2.0  # of the copy engine, per line of a tile
_FIXUP_FILL = 5_200  # cycles for the start of a second launch, its first reads, and its end
_PART_LATENCY = 25  # cycles per part of a tile, which one thread adds up
_COPY_FILL = 3_500  # the same for a launch that transposes an operand
_COPY_SHARE = 0.75  # of the memory bandwidth that it reaches
_ROUNDING = 2  # instructions of a thread to round a number to TF32
_FILL = 1_200  # cycles until the first operands of a tile arrive
_LATENCY = 2_400  # cycles from freeing a stage to its next operands
_NARROW_OUT = 0.12  # additional cycles per sum in chunks of few columns
_OVERLAP = 0.1  # of the shorter of products and memory, that is not hidden
_PARTS_RISK = 1.03  # shares must save more than this over whole tiles
_WAY_OUT, _READ_OUT = 0.25, 0.7  # cycles per sum that threads store, and per load for it
_PART_OUT = 0.18  # the same for a partial sum
_SEEN_OUT = 0.5  # of a tile's output, while another block of the multiprocessor multiplies
_SHARED_BLOCK = 1.4  # of the time of a block of terms, if a multiprocessor has two blocks
#: Cycles per instruction of the epilogue beyond a few: if it is unrolled, and if sums are processed
#: in a loop, or stored by threads.
_FUNCTION_OUT, _LOOP_OUT = 0.017, 0.06
_FREE_FUNCTIONS = 4.0
_MIN_COLD = 8  # multiprocessors per tile: the code is not in the instruction caches
_SCATTERED_OUT = 2.0  # the same if rows and columns are exchanged: stores are not contiguous
_STAGED_OUT, _STAGED_READ = 0.08, 0.07  # the same by the copy engine


@dataclass(frozen=True)
class Cost:
    """The cost of a problem under a schedule on a target."""

    problem: Problem
    target: CudaTarget
    schedule: Schedule
    is_copied: bool = True  # the copy engine reads both operands

    def cycles(self) -> float:
        """The estimated cycles."""
        schedule, units = self.schedule, self.target.multiprocessors
        batch, m, n, depth = Work(self.problem, schedule).counts(Words(0))
        tiles = batch * m * n
        block, out, after = self._block(), self._store_cycles(tiles), 0.0
        if schedule.workers:
            share = ceil(tiles * depth / schedule.workers) * ceil(schedule.workers / units)
            parts = 2 * schedule.workers
            ends = ceil(tiles / schedule.workers) + 1  # tiles of a worker
            time = _PARTS_RISK * (share * block + ends * (out + _FILL))
            after = _PARTS_RISK * self._fixup(parts)
        elif schedule.splits > 1:
            parts = tiles * schedule.splits
            each = ceil(depth / schedule.splits) * block + self._partial_store_cycles() + _FILL / 2
            time = _PARTS_RISK * ceil(parts / units) * each
            after = _PARTS_RISK * self._fixup(parts)
        else:
            rounds = ceil(tiles / units)
            fill = _FILL / (2 if schedule.unit == "wgmma" else 1)  # hidden for later tiles
            seen = out + fill
            if (
                schedule.residents > 1 and rounds > 1
            ):  # one block's stores overlap with another's products
                seen *= (1 + _SEEN_OUT * (rounds - 1)) / rounds
            time = rounds * (depth * block + seen)
        memory = self._memory()
        before = self._transpositions()
        return before + max(time, memory) + _OVERLAP * min(time, memory) + after

    def _block(self) -> float:
        """A block of terms of one tile: the maximum of its products, of the lines, which the copy
        engine transfers one by one, and of the bytes that no other multiprocessor reads."""
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
            return full  # the next tile's terms are loaded during this one's stores
        ahead = schedule.stages * (1 + schedule.residents) / 2  # the other block may store
        return max(full, (_LATENCY + full) / ahead)

    def _rounding(self) -> float:
        """The time of rounding the factors of a block (see `tf32`): each warp rounds those it
        reads. The copy engine rounds for free; threads that load operands also wait."""
        schedule = self.schedule
        if schedule.unit != "mma" or self.problem.a.dtype != FLOAT32:
            return 0.0
        factors = schedule.m * schedule.warps_n + schedule.n * schedule.warps // schedule.warps_n
        return _ROUNDING * factors * schedule.k / _of(_CORES, self.target.capability)

    def _rate(self) -> float:
        """Products per cycle."""
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
        """The share of shared memory's bandwidth that is left to tensor cores if columns are
        rewritten: operands are written once, rows read once, columns by every group of warps."""
        schedule = self.schedule
        accesses = 2 * schedule.m + (1 + schedule.m // 64) * schedule.n
        return accesses / (accesses + 2 * schedule.n)

    def _store_cycles(self, tiles: int) -> float:
        """The stores of one of `tiles` tiles; with buffers, they overlap with memory accesses."""
        schedule = self.schedule
        computed = max(0.0, epilogue_cost(self.problem) - _FREE_FUNCTIONS)
        size, reads = schedule.m * schedule.n, len(varying_loads(self.problem))
        if schedule.buffers:
            staged = epilogue_of(self.problem, schedule)
            is_slow = (
                staged is None or staged.is_long or _MIN_COLD * tiles <= self.target.multiprocessors
            )
            each = _LOOP_OUT if is_slow else _FUNCTION_OUT
            moved = _STAGED_OUT + _STAGED_READ * reads + bool(schedule.chunk) * _NARROW_OUT
            return size * (moved + computed * each)
        if schedule.swapped:
            return size * (_SCATTERED_OUT + computed * _LOOP_OUT)
        return size * (_WAY_OUT + computed * _LOOP_OUT + _READ_OUT * reads)

    def _partial_store_cycles(self) -> float:
        """The store of a tile of partial sums."""
        return self.schedule.m * self.schedule.n * _PART_OUT

    def _fixup(self, parts: int) -> float:
        """The launch that adds up parts, which are written and read once."""
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
        """One transfer of all buffers with known sizes."""
        sizes = [
            argument.size * np.dtype(argument.dtype).itemsize
            for argument in self.problem.kernel.arguments
            if is_static(argument.size)
        ]
        return sum(sizes) / self.target.memory_rate * self.target.clock


def _of(table: dict[int, int], capability: int) -> int:
    """The entry of the newest listed GPU that is not newer than `capability`."""
    known = [number for number in table if number <= capability]
    return table[max(known, default=min(table))]
