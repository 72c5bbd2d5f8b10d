"""What comes into a native program of a control node: arrays, variables, and lists as memory.

Of each value: what its program depends on, where it lies for the lowering, and, of lists, how many
iterations a loop along them may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.control.lists import ListValue
from thalweg.lower.control.program import BufferView, Capacity, Given, ListBuffer, Storage
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell

Array = NDArray[Any]

FIRST_CAPACITY = 64  # iterations that traces have capacity for at first


def capacity_for(values: Sequence[Any], least: Capacity) -> Capacity:
    """Capacity for as many iterations as the longest list has entries: many loops go along one."""
    lists = [levels(value) for value in values if isinstance(value, ListValue)]
    if not lists:
        return least
    outer = max(each[0].size() - (len(each) > 1) for each in lists)
    inner = max(each[-1].size() for each in lists)
    return replace(least, outer=_rounded(outer), inner=_rounded(inner))


def _rounded(size: int) -> int:
    return max(FIRST_CAPACITY, 1 << max(size - 1, 0).bit_length())


def levels(value: ListValue) -> list[ListValue]:
    """A list; of one of lists also what all of these hold, and so on."""
    nested = value.as_nested()
    return [value] if nested is None else [value, *levels(nested.flat)]


def value_key(value: Any) -> Any:
    """What a value's program depends on."""
    if isinstance(value, VariableCell):
        buffer = value.buffer
        return None if buffer is None else buffer.shape
    if isinstance(value, ListValue):
        return tuple(_list_key(level) for level in levels(value))
    return value.shape if isinstance(value, Buffer) else np.shape(value)


def _list_key(value: ListValue) -> Any:
    known = _known_rows(value)
    content = None if known is None else known.tobytes()
    nested = value.as_nested()
    options = value.accumulates, value.clear_after_read, value.dynamic_size
    return value.size(), _element(value), *options, content, nested and nested.each


def _element(value: ListValue) -> tuple[int, ...] | None:
    """The shape of a list's elements, where it is known and the same for all."""
    return None if value.shapes.others else value.shapes.common


def _known_rows(value: ListValue) -> Array | None:
    """What all entries of a list are, where a loop found them to be one value."""
    rows = None if value.on_device is not None else value.stacked
    return rows[0] if rows is not None and len(rows) > 1 and rows.strides[0] == 0 else None


def given(place: int, value: Any) -> Given | None:
    """Where an input lies, or None where native code cannot take it."""
    if isinstance(value, VariableCell):
        buffer = value.buffer
        if buffer is None:
            return None
        return BufferView(Storage.VARIABLE, buffer.dtype, buffer.shape, place)
    if isinstance(value, ListValue):
        return _given_list(place, value)
    array = value if isinstance(value, Buffer) else np.asarray(value)
    return BufferView(Storage.INPUT, array.dtype, array.shape, place)


def _given_list(place: int, value: ListValue, depth: int = 0) -> ListBuffer | None:
    if not value.dtype.is_numpy_compatible:
        return _given_lists(place, value, depth)
    if value.shapes.others or 0 in (_element(value) or ()):
        return None
    rows = ListBuffer(value.dtype, value.size(), _element(value), Storage.INPUT)
    rows.value = _known_rows(value)
    rows.grows = value.dynamic_size and not value.accumulates
    if not value.accumulates and not depth:
        rows.writes = BufferView(Storage.RESULT, np.dtype(np.int32), (rows.count,))
    if value.clear_after_read:
        rows.reads = BufferView(Storage.RESULT, np.dtype(np.int32), (rows.count,))
    if rows.element is not None:
        dtype = np.dtype(value.dtype.as_numpy_dtype)
        rows.view = BufferView(Storage.INPUT, dtype, rows.shape, place, depth)
    return rows


def _given_lists(place: int, value: ListValue, depth: int) -> ListBuffer | None:
    nested = value.as_nested()
    entries = None if nested is None else _given_list(place, nested.flat, depth + 1)
    if nested is None or entries is None:
        return None
    entries.each = nested.each
    rows = ListBuffer(value.dtype, value.size(), (), Storage.INPUT, entries=entries)
    rows.view = BufferView(Storage.INPUT, np.dtype(np.int32), rows.shape, place, depth)
    return rows
