"""Invocations: the memory of one call of a program in flight.

An `Invocation` instantiates a program template: argument words, an arena, a fault word, and the
step table that threads interpret. One call uses it at a time; later calls reuse it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import numpy as np

from thalweg.codegen.cache import Loaded
from thalweg.device.cpu.early_outputs import Deliver
from thalweg.device.cpu.pool import Event, Pool, StepTable
from thalweg.device.cpu.table_template import Entry, Jump, Signal, TableTemplate
from thalweg.device.program_template import STREAM_BYTES
from thalweg.lower.memory.arena import rounded
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state.variable_uses import Use
from thalweg.platform.arrays import Array

#: The offset from the fault word of the byte that says whether packed factors are up to date.
PACKED = 8
_DATA_OFFSET = 16  # of the address of the elements in an array object
_word_at = ctypes.c_int64.from_address


def _address_by_layout(array: Array) -> int:
    """The address of an array's elements, read from the array object: seven times faster than
    `ctypes.data`."""
    return _word_at(id(array) + _DATA_OFFSET).value


def _address_by_ctypes(array: Array) -> int:
    return array.ctypes.data


_probe = np.zeros(3)
address_of: Callable[[Array], int] = (
    _address_by_layout if _address_by_layout(_probe) == _probe.ctypes.data else _address_by_ctypes
)


class Invocation:
    """A template with memory, whose addresses are in its argument words, and a step table."""

    def __init__(
        self,
        template: TableTemplate,
        loaded: Sequence[Loaded],
        pool: Pool,
        use: Use[VariableCell],
    ) -> None:
        alignment = pool.target.alignment
        self.memory = np.zeros(template.arena + 2 * alignment, np.uint8)
        arena = rounded(self.memory.ctypes.data, alignment)
        self.fault = np.zeros(8, np.int64)
        streams = max(len(template.streams), 1)
        self.streams = np.zeros((streams, STREAM_BYTES // 4), np.uint32)
        bases = [0, self.fault.ctypes.data, arena, self.streams.ctypes.data]
        bases += [constant.ctypes.data for constant in template.constants]
        self.bases = np.array(bases, np.int64)  # the address of each base of the words
        words = self.bases[template.bases] + template.words
        self.words: Any = memoryview(cast("Any", words))
        self.first_word = words.ctypes.data  # its address
        self._template = template  # its constants live as long as the words
        self.use = use
        self.addresses = [0] * len(template.references)  # of variables, as bound to the words
        self.scalars = self._bind_scalars(template)
        self.deliver: Deliver | None = None  # takes the early outputs of the next call
        self.early: dict[int, Event] = {}  # by the numbers of early outputs, in order
        #: of the variables that packed factors depend on: in this call, and when last packed
        self.versions: Sequence[int] = ()
        self.packed_versions: Sequence[int] | None = None
        functions = [function for kernel in loaded for function in kernel.functions]
        entries = [self._entry(item, functions, pool) for item in template.calls]
        options = self.fault.ctypes.data, template.threads, template.holds_gil
        self.table = StepTable(pool, entries, *options)

    def bind(self, targets: Collection[tuple[int, int]], address: int) -> None:
        """Store `address + shift` in the argument word of each target (word, shift)."""
        for word, shift in targets:
            self.words[word] = address + shift

    def close(self) -> None:
        """Does nothing: its memory is free when nobody refers to it."""

    def select_packing(self) -> None:
        """Choose whether the next run packs: only if the packed factors are not up to date, which
        they are again when it has succeeded."""
        self.fault[PACKED // 8] = self.packed_versions == self.versions
        self.packed_versions = None

    def _entry(
        self, item: Entry | Jump | Signal, functions: Sequence[int], pool: Pool
    ) -> Entry | Jump:
        """The entry of the step table for one of the template."""
        if isinstance(item, Signal):
            event = self.early[item.output] = Event(pool)
            return event.entry
        if isinstance(item, Jump):
            return item._replace(decides=int(self.bases[item.base]) + item.decides)
        arguments = self.first_word + 8 * item.arguments
        return item._replace(function=functions[item.function], arguments=arguments)

    def _bind_scalars(self, template: TableTemplate) -> list[tuple[int, Array]]:
        """Bind memory of the invocation for outputs without dimensions: (number, array)."""
        scalars: list[tuple[int, Array]] = []
        for number, (targets, shape, dtype, reference, _) in enumerate(template.outputs):
            if shape or reference >= 0:
                continue
            scalar = np.zeros((), dtype)
            scalars.append((number, scalar))
            self.bind(targets, scalar.ctypes.data)
        return scalars
