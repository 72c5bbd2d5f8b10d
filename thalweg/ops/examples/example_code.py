"""Machine code that finds features in the wire format of Example and SequenceExample protobufs.

A walker iterates over the fields of one message and calls a function for each known field; all
walkers are generated from one template. Nothing is read outside the bounds of a message, and every
function returns zero, or one plus the offset at which the bytes are invalid.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from thalweg.ops.examples.example_values import (
    DECODE,
    FLOATS,
    INTS,
    PRIMITIVES,
    READ_FIELD,
    STRINGS,
)
from thalweg.platform import machine_code

# A context is a key set (the addresses of its keys, of their bounds and of the table of found
# entries, and their number) and the current entry. The context of feature lists follows it.
_KEYS, _BOUNDS, _COUNT, _TABLE, _KEY_BEGIN, _KEY_END, _KIND, _BEGIN, _END, _ROWS = range(10)
CONTEXT_SIZE = 10


@cache
def code() -> tuple[Any, ...]:
    """The functions `index_example`, `index_sequence`, `rows` and `decode`."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    index = (number, pointer, pointer, number, pointer)
    return tuple(
        machine_code.functions(
            _module(),
            {
                "index_example": index,
                "index_sequence": index,
                "rows": (number, pointer, number, number, pointer),
                "decode": (number, *[pointer] * 2, *[number] * 3, *[pointer] * 3, number),
            },
        )
    )


def _module() -> str:
    return "".join(
        (
            PRIMITIVES,
            *(_take_text(f"take_{kind}", _BEGIN, _END, kind) for kind in (STRINGS, FLOATS, INTS)),
            _take_text("take_key", _KEY_BEGIN, _KEY_END),
            _NOTE,
            _walker_text("feature", {kind: f"take_{kind}" for kind in (STRINGS, FLOATS, INTS)}),
            _walker_text("entry", {1: "take_key", 2: "feature"}),
            _walker_text("list_entry", {1: "take_key", 2: f"take_{STRINGS}"}),
            _found_text("found", "entry"),
            _found_text("found_list", "list_entry"),
            _walker_text("features", {1: "found"}),
            _walker_text("lists", {1: "found_list"}),
            _LISTS_PART,
            _walker_text("example", {1: "features"}),
            _walker_text("sequence", {1: "features", 2: "lists_part"}),
            _index_text("example"),
            _index_text("sequence"),
            _ROW,
            _walker_text("feature_list", {1: "row"}),
            _ROWS_TEXT,
            DECODE,
        )
    )


def _slot(name: str, number: int) -> str:
    return f"%{name} = getelementptr i64, ptr %context, i64 {number}"


def _take_text(name: str, begin: int, end: int, kind: int | None = None) -> str:
    """A function that stores the bounds of a field, and its kind, in slots of the current entry."""
    notes = ""
    if kind is not None:
        notes = f"  {_slot('kind_slot', _KIND)}\n  store i64 {kind}, ptr %kind_slot\n"
    return f"""
define private i64 @{name}(ptr %data, i64 %begin, i64 %end, ptr %context) {{
{notes}  {_slot("begin_slot", begin)}
  {_slot("end_slot", end)}
  store i64 %begin, ptr %begin_slot
  store i64 %end, ptr %end_slot
  ret i64 0
}}
"""


def _walker_text(name: str, known: dict[int, str]) -> str:
    """A walker, which calls a function for each known field that is a message, list or string."""
    cases = " ".join(f"i64 {number << 3 | 2}, label %known{number}" for number in known)
    calls = "".join(
        f"""known{number}:
  %result{number} = call i64 @{function}(ptr %data, i64 %begin, i64 %end_, ptr %context)
  %is_fine{number} = icmp eq i64 %result{number}, 0
  br i1 %is_fine{number}, label %next, label %failed
"""
        for number, function in known.items()
    )
    results = ", ".join(f"[%result{number}, %known{number}]" for number in known)
    return f"""
define private i64 @{name}(ptr %data, i64 %start, i64 %end, ptr %context) {{
entry:
  br label %loop
loop:
  %at = phi i64 [%start, %entry], [%end_, %next]
  %more = icmp ult i64 %at, %end
  br i1 %more, label %read, label %fine
{READ_FIELD}  switch i64 %key, label %next [{cases}]
{calls}next:
  br label %loop
failed:
  %result = phi i64 {results}
  ret i64 %result
fine:
  ret i64 0
bad:
  %place = add i64 %begin, 1
  ret i64 %place
}}
"""


def _found_text(name: str, entry: str) -> str:
    """A function that walks a map entry and stores its value in the table if its key is wanted."""
    clear = "".join(
        f"  {_slot(f'slot{slot}', slot)}\n  store i64 0, ptr %slot{slot}\n"
        for slot in range(_KEY_BEGIN, _END + 1)
    )
    return f"""
define private i64 @{name}(ptr %data, i64 %begin, i64 %end, ptr %context) {{
{clear}  %result = call i64 @{entry}(ptr %data, i64 %begin, i64 %end, ptr %context)
  call void @note(ptr %data, ptr %context)
  ret i64 %result
}}
"""


def _index_text(message: str) -> str:
    """A function that walks all messages; the key sets' tables have a row for each."""
    return f"""
define i64 @index_{message}(ptr %data, ptr %bounds, i64 %count, ptr %context) {{
entry:
  %lists = getelementptr i64, ptr %context, i64 {CONTEXT_SIZE}
  br label %loop
loop:
  %number = phi i64 [0, %entry], [%next, %walked]
  %more = icmp slt i64 %number, %count
  br i1 %more, label %walk, label %fine
walk:
  %begin_slot = getelementptr i64, ptr %bounds, i64 %number
  %end_slot = getelementptr i64, ptr %begin_slot, i64 1
  %begin = load i64, ptr %begin_slot
  %end = load i64, ptr %end_slot
  %result = call i64 @{message}(ptr %data, i64 %begin, i64 %end, ptr %context)
  %is_fine = icmp eq i64 %result, 0
  br i1 %is_fine, label %walked, label %failed
walked:
  call void @next_row(ptr %context)
  call void @next_row(ptr %lists)
  %next = add i64 %number, 1
  br label %loop
failed:
  {_slot("key_begin", _KEY_BEGIN)}
  store i64 %number, ptr %key_begin
  ret i64 %result
fine:
  ret i64 0
}}
"""


_NOTE = f"""
define private void @note(ptr %data, ptr %context) {{
entry:
  {_slot("keys_slot", _KEYS)}
  {_slot("bounds_slot", _BOUNDS)}
  {_slot("count_slot", _COUNT)}
  {_slot("table_slot", _TABLE)}
  {_slot("key_begin_slot", _KEY_BEGIN)}
  {_slot("key_end_slot", _KEY_END)}
  {_slot("kind_slot", _KIND)}
  {_slot("begin_slot", _BEGIN)}
  {_slot("end_slot", _END)}
  %keys = load ptr, ptr %keys_slot
  %bounds = load ptr, ptr %bounds_slot
  %count = load i64, ptr %count_slot
  %key_begin = load i64, ptr %key_begin_slot
  %key_end = load i64, ptr %key_end_slot
  %length = sub i64 %key_end, %key_begin
  %key = getelementptr i8, ptr %data, i64 %key_begin
  br label %loop
loop:
  %number = phi i64 [0, %entry], [%next, %differs]
  %more = icmp slt i64 %number, %count
  br i1 %more, label %compare, label %done
compare:
  %from = getelementptr i64, ptr %bounds, i64 %number
  %to = getelementptr i64, ptr %from, i64 1
  %wanted_begin = load i64, ptr %from
  %wanted_end = load i64, ptr %to
  %wanted_length = sub i64 %wanted_end, %wanted_begin
  %wanted = getelementptr i8, ptr %keys, i64 %wanted_begin
  %is_as_long = icmp eq i64 %length, %wanted_length
  br i1 %is_as_long, label %bytes, label %differs
bytes:
  %at = phi i64 [0, %compare], [%further, %same]
  %left = icmp slt i64 %at, %length
  br i1 %left, label %byte, label %equal
byte:
  %one = getelementptr i8, ptr %key, i64 %at
  %other = getelementptr i8, ptr %wanted, i64 %at
  %one_byte = load i8, ptr %one
  %other_byte = load i8, ptr %other
  %is_same = icmp eq i8 %one_byte, %other_byte
  br i1 %is_same, label %same, label %differs
same:
  %further = add i64 %at, 1
  br label %bytes
differs:
  %next = add i64 %number, 1
  br label %loop
equal:
  %table = load ptr, ptr %table_slot
  %row = mul i64 %number, 3
  %kind_place = getelementptr i64, ptr %table, i64 %row
  %begin_place = getelementptr i64, ptr %kind_place, i64 1
  %end_place = getelementptr i64, ptr %kind_place, i64 2
  %kind = load i64, ptr %kind_slot
  %begin = load i64, ptr %begin_slot
  %end = load i64, ptr %end_slot
  store i64 %kind, ptr %kind_place
  store i64 %begin, ptr %begin_place
  store i64 %end, ptr %end_place
  br label %done
done:
  ret void
}}

define private void @next_row(ptr %context) {{
  {_slot("count_slot", _COUNT)}
  {_slot("table_slot", _TABLE)}
  %count = load i64, ptr %count_slot
  %table = load ptr, ptr %table_slot
  %width = mul i64 %count, 3
  %row = getelementptr i64, ptr %table, i64 %width
  store ptr %row, ptr %table_slot
  ret void
}}
"""

_LISTS_PART = f"""
define private i64 @lists_part(ptr %data, i64 %begin, i64 %end, ptr %context) {{
  {_slot("lists", CONTEXT_SIZE)}
  %result = call i64 @lists(ptr %data, i64 %begin, i64 %end, ptr %lists)
  ret i64 %result
}}
"""

# The features of a list are stored in the rows that the context points to, or only counted.
_ROW = f"""
define private i64 @row(ptr %data, i64 %begin, i64 %end, ptr %context) {{
entry:
  {_slot("kind_slot", _KIND)}
  {_slot("begin_slot", _BEGIN)}
  {_slot("end_slot", _END)}
  {_slot("rows_slot", _ROWS)}
  {_slot("count_slot", _COUNT)}
  store i64 0, ptr %kind_slot
  %result = call i64 @feature(ptr %data, i64 %begin, i64 %end, ptr %context)
  %count = load i64, ptr %count_slot
  %counted = add i64 %count, 1
  store i64 %counted, ptr %count_slot
  %rows = load ptr, ptr %rows_slot
  %is_null = icmp eq ptr %rows, null
  br i1 %is_null, label %done, label %write
write:
  %kind = load i64, ptr %kind_slot
  %value_begin = load i64, ptr %begin_slot
  %value_end = load i64, ptr %end_slot
  %place = mul i64 %count, 3
  %kind_place = getelementptr i64, ptr %rows, i64 %place
  %begin_place = getelementptr i64, ptr %kind_place, i64 1
  %end_place = getelementptr i64, ptr %kind_place, i64 2
  store i64 %kind, ptr %kind_place
  store i64 %value_begin, ptr %begin_place
  store i64 %value_end, ptr %end_place
  br label %done
done:
  ret i64 %result
}}
"""

_ROWS_TEXT = f"""
define i64 @rows(ptr %data, i64 %begin, i64 %end, ptr %context) {{
  {_slot("count_slot", _COUNT)}
  store i64 0, ptr %count_slot
  %result = call i64 @feature_list(ptr %data, i64 %begin, i64 %end, ptr %context)
  ret i64 %result
}}
"""
