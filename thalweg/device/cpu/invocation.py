"""Invocations: what one call of a program in flight needs.

An `Invocation` is a program template with memory of its own: argument words, an arena, a fault
word, and the step table that threads interpret. It is used by one call at a time, and again by the
next one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.device.cpu.courier import Deliver, Early
from thalweg.device.cpu.pool import Event, Pool, Signal, StepTable, TableEntry, entries_of
from thalweg.device.cpu.table_template import TableTemplate
from thalweg.device.program_template import STREAM_BYTES, base_addresses
from thalweg.lower.memory.arena import rounded
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state.variable_uses import Use

Array = NDArray[Any]

#: Vector instructions of a program whose results are delivered while it runs. A shorter one is over
#: before a thread that is woken for that has done as much as the program's own does afterwards.
_MIN_WORK_DELIVERED = 1_000_000
_DATA = 16  # where an array object keeps the address of its elements
_word_at = ctypes.c_int64.from_address


def _address_by_layout(array: Array) -> int:
    """The address of an array's elements, read where CPython's NumPy keeps it: seven times faster
    than asking."""
    return _word_at(id(array) + _DATA).value


def _address_by_asking(array: Array) -> int:
    return array.ctypes.data


_probe = np.zeros(3)
address_of: Callable[[Array], int] = (
    _address_by_layout if _address_by_layout(_probe) == _probe.ctypes.data else _address_by_asking
)


class Invocation:
    """A program with memory of its own."""

    def __init__(
        self,
        template: TableTemplate,
        functions: Sequence[Sequence[int]],
        pool: Pool,
        use: Use[VariableCell],
    ) -> None:
        alignment = pool.target.alignment
        memory = np.empty(template.arena + 2 * alignment, np.uint8)
        base = rounded(memory.ctypes.data, alignment)
        self.fault = np.zeros(8, np.int64)
        self.streams = np.zeros((max(len(template.streams), 1), STREAM_BYTES // 4), np.uint32)
        memory_of = self.fault.ctypes.data, base, self.streams.ctypes.data
        words = base_addresses(*memory_of, template.constants)[template.bases] + template.words
        self.words: Any = memoryview(cast("Any", words))
        self._kept = (memory, template, words)
        self.addresses = [0] * len(template.references)  # of the variables, as the words have them
        self.scalars = self._scalars(template)
        self.use = use
        self.deliver: Deliver | None = None  # takes early results of the call that is running
        self.early: list[Early] = []
        #: what the packed factors are made of in this call, and were when they were packed
        self.versions: Sequence[int] = ()
        self.packed: Sequence[int] | None = None
        entries = self._entries(template, functions, pool)
        how = self.fault.ctypes.data, template.threads, template.holds_gil
        self.table = self._without_packing = StepTable(pool, entries, *how)
        if any(call.keeps for call in template.calls):
            entries = self._entries(template, functions, pool, packs=False)
            places = _places_without_packing(template, functions)
            self._without_packing = StepTable(pool, entries, *how, places=places)

    def begin(self) -> StepTable:
        """The table to run: one that packs, or one that finds packed what it would pack."""
        if self.packed == self.versions:
            return self._without_packing
        self.packed = None
        return self.table

    def _entries(
        self,
        template: TableTemplate,
        functions: Sequence[Sequence[int]],
        pool: Pool,
        packs: bool = True,
    ) -> list[TableEntry]:
        """The calls in order; a result that others wait for is signalled after the one that makes
        it, but not inside an update of a variable, which must not pause. Where nothing is packed,
        calls that keep what they packed begin with what comes after that."""
        entries: list[TableEntry] = []
        delivers = sum(call.work for call in template.calls) >= _MIN_WORK_DELIVERED
        made: list[int] = []  # results that are there and not signalled yet
        start = self._kept[2].ctypes.data
        for number, call in enumerate(template.calls):
            kernel, word, barrier, thread, no_pause, work, keeps = call
            if made and not no_pause:
                entries += self._signals(made, pool)
                made = []
            arguments = start + 8 * word
            phases = functions[kernel]
            if keeps and not packs:  # the barrier after packing is also that of the other factor
                phases, barrier = phases[1:], True
            entries += entries_of(phases, arguments, barrier, thread, no_pause, work)
            if delivers:
                made += [n for n, one in enumerate(template.outputs) if one.made_by == number]
        return entries

    def _signals(self, numbers: Sequence[int], pool: Pool) -> list[Signal]:
        added = [Early(number, Event(pool)) for number in numbers]
        self.early += added
        return [Signal(event.address) for _, event in added]

    def _scalars(self, template: TableTemplate) -> list[tuple[int, Array]]:
        """Memory for results of a single number, which are read when the program has run."""
        found: list[tuple[int, Array]] = []
        for number, (targets, shape, dtype, reference, _) in enumerate(template.outputs):
            if shape or reference >= 0:
                continue
            scalar = np.zeros((), dtype)
            found.append((number, scalar))
            self.bind(targets, scalar.ctypes.data)
        return found

    def bind(self, targets: Collection[tuple[int, int]], address: int) -> None:
        """Point argument words to memory: each to so many bytes after its start."""
        for word, shift in targets:
            self.words[word] = address + shift


def _places_without_packing(
    template: TableTemplate, functions: Sequence[Sequence[int]]
) -> list[int]:
    """Of the entries of all calls, the numbers of those that pack nothing that is kept."""
    is_first = [
        call.keeps and phase == 0
        for call in template.calls
        for phase in range(len(functions[call.kernel]))
    ]
    return [number for number, packs in enumerate(is_first) if not packs]
