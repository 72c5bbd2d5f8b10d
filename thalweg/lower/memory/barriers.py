"""Barriers between launches, and which launches run on one thread.

Threads share launches. A barrier comes before a launch only where it reads or writes memory that a
launch since the last barrier wrote, or writes memory that one of those read, unless one thread ran
both. Launches between two barriers run in any order. A launch too small to share runs on one
thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, product
from typing import NamedTuple

from thalweg.graph.node import Node
from thalweg.ir.kernel import Kernel, Loops
from thalweg.ir.target import Target
from thalweg.lower.flops_bytes import flops_bytes
from thalweg.lower.lowered import Launch
from thalweg.lower.memory.arena import Arena
from thalweg.lower.memory.buffers import Buffer, BufferKind

#: Stands for all threads.
SHARED = -1

_MAX_SINGLE_RATIO = 0.8  # of the estimated time on all threads, for one thread to be chosen
_MAX_EXTENTS = 300  # that a launch is compared with; more force a barrier

Extent = Buffer | tuple[int, int]


def work_of(kernel: Kernel, target: Target) -> float:
    """The estimated number of vector instructions of a launch."""
    operations, touched, _ = flops_bytes(kernel)
    return max(operations / target.operations_per_work, sum(touched) / target.bytes_per_work)


def is_small(launch: Launch, target: Target) -> bool:
    """Whether a launch runs on one thread: sharing it would cost more."""
    return work_of(launch.kernel, target) < target.min_shared_work


def threads_for(launches: Sequence[Launch], threads: int, target: Target) -> int:
    """The number of threads of a step: one where that is estimated to be faster.

    A step of a few microseconds ends before other threads have joined. A longer one is divided
    among the threads, but they fetch from one another's caches what others wrote, in the next
    launch or in the next step. A step whose working set fits the cache of one core may be faster
    there.
    """
    if sum(work_of(launch.kernel, target) for launch in launches) < 2 * target.min_shared_work:
        return 1
    written = {buffer for launch in launches for buffer in launch.written}
    alone = fetched = 0.0
    touched: dict[Buffer, int] = {}
    for launch in launches:
        operations, traffic, _ = flops_bytes(launch.kernel)
        alone += max(operations * target.operation_time, sum(traffic) * target.byte_time)
        for buffer, amount in zip(launch.buffers, traffic, strict=True):
            touched[buffer] = max(touched.get(buffer, 0), amount)
            fetched += amount * target.fetched_byte_time if buffer in written else 0.0
    if alone < alone / threads + target.join_time:
        return 1
    fits = sum(touched.values()) <= target.l2
    return 1 if fits and alone < _MAX_SINGLE_RATIO * (alone / threads + fetched) else threads


class SlotPlan(NamedTuple):
    """Whether a barrier comes before a launch, and which thread runs it (or all)."""

    barrier: bool
    thread: int


class BarrierPlan:
    """Barriers and threads of launches, planned in order.

    A thread may read what it wrote without a barrier: small launches that depend on one another run
    on one thread.
    """

    def __init__(self, arena: Arena, target: Target) -> None:
        self._arena, self._target = arena, target
        self._begin()

    def _begin(self) -> None:
        """Start anew after a barrier."""
        self._threads = count()  # for small launches that depend on none since the barrier
        self._read: list[tuple[Extent, int]] = []
        self._written: list[tuple[Extent, int]] = []
        self._unchecked = False  # checks have run since the barrier
        self._work = 0.0

    def place(self, launch: Launch, scratch: tuple[int, int], phases: int) -> SlotPlan:
        """Plan the next launch. `scratch` is its range of the arena: (start, end)."""
        written = [self._extent(buffer) for buffer in launch.written]
        written += [scratch] if scratch[1] > scratch[0] else []
        touched = [*(self._extent(buffer) for buffer in launch.buffers), *written]
        met = _threads_of(self._written, touched) | _threads_of(self._read, written)
        is_alone = phases == 1 and is_small(launch, self._target)
        barrier = bool(met) if SHARED in met or not is_alone else len(met) > 1
        # No variable is written before all checks have passed.
        barrier |= self._unchecked and any(b.kind is BufferKind.VARIABLE for b in launch.written)
        barrier |= self._work > self._target.max_work_between_barriers
        barrier |= len(self._read) > _MAX_EXTENTS
        if barrier:
            met.clear()
            self._begin()
        thread = SHARED
        if is_alone:
            thread = met.pop() if met else next(self._threads)
        if isinstance(launch.kernel, Loops) and launch.kernel.checks:
            self._unchecked = True
        self._work += work_of(launch.kernel, self._target)
        self._read += [(extent, thread) for extent in touched]
        self._written += [(extent, thread) for extent in written]
        return SlotPlan(barrier, thread)

    def _extent(self, buffer: Buffer) -> Extent:
        if buffer.kind is not BufferKind.TEMPORARY:
            return buffer
        start = self._arena.offsets[buffer]
        return start, start + max(buffer.bytes, 1)


def amid_updates(launches: Sequence[Launch]) -> list[bool]:
    """For each launch, whether an update of a variable began before it and ends with it or later.

    A step must not stop before such a launch: the variable would be half updated.
    """
    spans: dict[tuple[Buffer, Node], tuple[int, int]] = {}
    for position, launch in enumerate(launches):
        written = [buffer for buffer in launch.written if buffer.kind is BufferKind.VARIABLE]
        updates = [node for node in launch.nodes if written and node.op.parsed.references]
        for key in product(written, updates):
            spans[key] = spans.get(key, (position, position))[0], position
    inside = {position for first, last in spans.values() for position in range(first + 1, last + 1)}
    return [position in inside for position in range(len(launches))]


def _threads_of(accesses: Sequence[tuple[Extent, int]], touched: Sequence[Extent]) -> set[int]:
    """The threads of the accesses that overlap with these extents."""
    ranges = [extent for extent in touched if isinstance(extent, tuple)]
    buffers = {extent for extent in touched if isinstance(extent, Buffer)}
    threads: set[int] = set()
    for extent, thread in accesses:
        if thread in threads:
            continue
        if isinstance(extent, Buffer):
            overlaps = extent in buffers
        else:
            start, end = extent
            overlaps = any(start < last and first < end for first, last in ranges)
        if overlaps:
            threads.add(thread)
    return threads
