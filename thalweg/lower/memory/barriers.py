"""When launches wait for one another, who runs them, and what they amount to.

Threads walk the launches together. A launch waits only where it touches memory that a launch since
the last wait wrote, or writes memory that one of those touched, unless that was the same thread's;
launches of several threads between two waits run in any order. A launch too small to share is one
thread's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from thalweg.graph.node import Node
from thalweg.ir.kernel import Kernel, Loops
from thalweg.ir.target import Target
from thalweg.lower.flops_bytes import operations, touched_bytes
from thalweg.lower.memory.arena import Arena
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.bufferize import Launch

#: The owner of a launch that all threads share.
SHARED = -1

_CLEARLY = 0.8  # of the time that all threads take, below which one is better
_MAX_EXTENTS = 300  # that launches are compared with, before a barrier comes in any case

Extent = Buffer | tuple[int, int]


def work_of(kernel: Kernel, target: Target) -> float:
    """About how many vector instructions a call takes."""
    touched = sum(touched_bytes(kernel))
    return max(operations(kernel) / target.operations_per_work, touched / target.bytes_per_work)


def is_small(launch: Launch, target: Target) -> bool:
    """Whether a launch is better left to one thread: sharing costs more."""
    return work_of(launch.kernel, target) < target.min_shared_work


def threads_for(launches: Sequence[Launch], threads: int, target: Target) -> int:
    """On how many threads a step runs: on one where that is likely faster.

    A step of a few microseconds is done before others have joined in. Shared among threads, a
    longer one takes a part of the time, but what one of them wrote the others must fetch from its
    cache, in the next launch or in the next step. What is written and read over and over, and fits
    into one core's own cache is better left there.
    """
    if sum(work_of(launch.kernel, target) for launch in launches) < 2 * target.min_shared_work:
        return 1
    written = {buffer for launch in launches for buffer in launch.written}
    alone = fetched = 0.0
    touched: dict[Buffer, int] = {}
    for launch in launches:
        amounts = touched_bytes(launch.kernel)
        computing = operations(launch.kernel) * target.operation_time
        alone += max(computing, sum(amounts) * target.byte_time)
        for buffer, amount in zip(launch.buffers, amounts, strict=True):
            touched[buffer] = max(touched.get(buffer, 0), amount)
            fetched += amount * target.fetched_byte_time if buffer in written else 0.0
    if alone < alone / threads + target.join_time:
        return 1
    fits = sum(touched.values()) <= target.l2
    return 1 if fits and alone < _CLEARLY * (alone / threads + fetched) else threads


class SlotPlan(NamedTuple):
    """Whether a launch waits for all that came before it, and who runs it: a thread or all."""

    waits: bool
    owner: int


class BarrierPlan:
    """When launches wait and who runs them, asked one after the other.

    What one thread wrote, the same thread may read without waiting: launches that follow from one
    another and are too small to share are the same thread's.
    """

    def __init__(self, arena: Arena, target: Target) -> None:
        self._arena, self._target = arena, target
        self._begin()

    def _begin(self) -> None:
        """Nothing has run since all threads met."""
        self._owners = 0  # given out
        self._read: list[tuple[Extent, int]] = []
        self._written: list[tuple[Extent, int]] = []
        self._unsettled = False  # checks have run whose verdict nobody has looked at
        self._work = 0.0

    def place(self, launch: Launch, scratch: tuple[int, int], phases: int) -> SlotPlan:
        """SlotPlan the next launch. `scratch` is its piece of the arena: (start, end)."""
        written = [self._extent(buffer) for buffer in launch.written]
        written += [scratch] if scratch[1] > scratch[0] else []
        touched = [*(self._extent(buffer) for buffer in launch.buffers), *written]
        met = _who(self._written, touched) | _who(self._read, written)
        is_alone = phases == 1 and is_small(launch, self._target)
        waits = bool(met) if SHARED in met or not is_alone else len(met) > 1
        if self._unsettled and any(b.kind is BufferKind.VARIABLE for b in launch.written):
            waits = True  # nothing that lasts is written before all checks have held
        is_long = self._work > self._target.max_work_between_barriers
        if waits or is_long or len(self._read) > _MAX_EXTENTS:
            waits = True
            met.clear()
            self._begin()
        owner = SHARED
        if is_alone:
            owner = met.pop() if met else self._next_owner()
        if isinstance(launch.kernel, Loops) and launch.kernel.checks:
            self._unsettled = True
        self._work += work_of(launch.kernel, self._target)
        self._read += [(extent, owner) for extent in touched]
        self._written += [(extent, owner) for extent in written]
        return SlotPlan(waits, owner)

    def _next_owner(self) -> int:
        """A thread for a launch that follows from none since the last wait: each in its turn."""
        self._owners += 1
        return self._owners - 1

    def _extent(self, buffer: Buffer) -> Extent:
        if buffer.kind is not BufferKind.TEMPORARY:
            return buffer
        start = self._arena.offsets[buffer]
        return start, start + max(buffer.bytes, 1)


def amid_updates(launches: Sequence[Launch]) -> list[bool]:
    """For each launch, whether an update of a variable that began before it ends with it or later.

    A step must not be stopped there: the variable would be left with some of its new elements.
    """
    spans: dict[tuple[Buffer, Node], tuple[int, int]] = {}
    for place, launch in enumerate(launches):
        written = [buffer for buffer in launch.written if buffer.kind is BufferKind.VARIABLE]
        updates = [node for node in launch.nodes if written and node.op.parsed.references]
        for key in product(written, updates):
            spans[key] = spans.get(key, (place, place))[0], place
    inside = {place for first, last in spans.values() for place in range(first + 1, last + 1)}
    return [place in inside for place in range(len(launches))]


def _who(ones: Sequence[tuple[Extent, int]], others: Sequence[Extent]) -> set[int]:
    """Who touched what overlaps with others."""
    pieces = [other for other in others if isinstance(other, tuple)]
    whole = {other for other in others if isinstance(other, Buffer)}
    found: set[int] = set()
    for one, who in ones:
        if who not in found and (one in whole or _meets(one, pieces)):
            found.add(who)
    return found


def _meets(one: Extent, pieces: Sequence[tuple[int, int]]) -> bool:
    """Whether a piece of the arena overlaps with others."""
    if isinstance(one, Buffer):
        return False
    start, end = one
    return any(start < last and first < end for first, last in pieces)
