"""The inputs of a native control node: arrays, variables, and lists as arrays of rows.

For each value: the key of its program in this process, the buffer that it is lowered to, the text
of that buffer as a key for other processes, and, for lists, the capacity that loops along them
need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from thalweg.control.lists import ListValue
from thalweg.lower.control.program import Binding, BufferView, Capacity, ListBuffer, Storage
from thalweg.lower.fingerprint import text_of
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.platform.arrays import Array

FIRST_CAPACITY = 64  # the initial capacity of traces, in iterations


def capacity_for(values: Sequence[Any], least: Capacity) -> Capacity:
    """The capacity for as many iterations as the longest list has entries: many loops go along a
    list."""
    lists = [list_levels(value) for value in values if isinstance(value, ListValue)]
    if not lists:
        return least
    outer = max(levels[0].size() - (len(levels) > 1) for levels in lists)
    inner = max(levels[-1].size() for levels in lists)
    return least._replace(outer=_rounded(outer), inner=_rounded(inner))


def _rounded(size: int) -> int:
    """The next power of two, at least the initial capacity."""
    return max(FIRST_CAPACITY, 1 << max(size - 1, 0).bit_length())


def list_levels(value: ListValue) -> list[ListValue]:
    """A list, and, if it is a list of lists, the levels of the concatenation of its lists."""
    nested = value.as_nested()
    return [value] if nested is None else [value, *list_levels(nested.flat)]


def value_key(value: Any) -> Any:
    """The properties of a value that its program depends on."""
    if value is None:
        return None
    if isinstance(value, VariableCell):
        buffer = value.buffer
        return None if buffer is None else buffer.shape
    if isinstance(value, ListValue):
        return tuple(_list_key(level) for level in list_levels(value))
    return value.shape if isinstance(value, Buffer) else np.shape(value)


def _list_key(value: ListValue) -> Any:
    uniform = _uniform_value(value)
    content = None if uniform is None else uniform.tobytes()
    nested = value.as_nested()
    options = value.accumulates, value.clear_after_read, value.dynamic_size
    return value.size(), _element_shape(value), *options, content, nested and nested.each


def _element_shape(value: ListValue) -> tuple[int, ...] | None:
    """The shape of a list's elements, if it is known and the same for all."""
    return None if value.shapes.others else value.shapes.common


def _uniform_value(value: ListValue) -> Array | None:
    """The value of all entries of a list, if it is one broadcast value."""
    rows = None if value.on_device is not None else value.stacked
    return rows[0] if rows is not None and len(rows) > 1 and rows.strides[0] == 0 else None


def input_buffer(number: int, value: Any) -> Binding | None:
    """What an input is bound to, or None if native code cannot take it: None stands for a value of
    a branch that was not taken."""
    if value is None:
        return None
    if isinstance(value, VariableCell):
        buffer = value.buffer
        if buffer is None:
            return None
        return BufferView(Storage.VARIABLE, buffer.dtype, buffer.shape, number)
    if isinstance(value, ListValue):
        return _list_buffer(number, value)
    array = value if isinstance(value, Buffer) else np.asarray(value)
    return BufferView(Storage.INPUT, array.dtype, array.shape, number)


def buffer_text(buffer: Binding) -> str:
    """All that lowering depends on of the buffer of an input."""
    parts = [getattr(buffer, field.name) for field in fields(buffer)]
    texts = [buffer_text(part) if isinstance(part, Binding) else text_of(part) for part in parts]
    return f"{type(buffer).__name__}({','.join(texts)})"


def _list_buffer(number: int, value: ListValue, depth: int = 0) -> ListBuffer | None:
    if not value.dtype.is_numpy_compatible:
        return _nested_list_buffer(number, value, depth)
    element = _element_shape(value)
    if value.shapes.others or 0 in (element or ()):
        return None
    rows = ListBuffer(value.dtype, value.size(), element, Storage.INPUT)
    rows.value = _uniform_value(value)
    rows.grows = value.dynamic_size and not value.accumulates
    if not value.accumulates and not depth:
        rows.writes = BufferView(Storage.RESULT, np.dtype(np.int32), (rows.count,))
    if value.clear_after_read:
        rows.reads = BufferView(Storage.RESULT, np.dtype(np.int32), (rows.count,))
    if element is not None:
        dtype = np.dtype(value.dtype.as_numpy_dtype)
        rows.view = BufferView(Storage.INPUT, dtype, rows.shape, number, depth)
    return rows


def _nested_list_buffer(number: int, value: ListValue, depth: int) -> ListBuffer | None:
    nested = value.as_nested()
    entries = None if nested is None else _list_buffer(number, nested.flat, depth + 1)
    if nested is None or entries is None:
        return None
    entries.each = nested.each
    rows = ListBuffer(value.dtype, value.size(), (), Storage.INPUT, entries=entries)
    rows.view = BufferView(Storage.INPUT, np.dtype(np.int32), rows.shape, number, depth)
    return rows
