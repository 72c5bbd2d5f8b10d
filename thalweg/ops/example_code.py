"""Machine code that walks the wire format of Example and SequenceExample protobufs.

A walker goes over the fields of one message and calls a function for each field it knows; the
text of all walkers is made from one template. Nothing is read outside the bounds of a message, and
every function gives zero, or one plus the place where the bytes are no such message.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from thalweg.platform import machine_code

#: What a feature holds, as its table entry says: nothing, or a list of one of three kinds.
MISSING, STRINGS, FLOATS, INTS = range(4)

#: What `decode` says of a row besides a count: no values, another kind of them, or bad bytes.
NO_VALUES, OTHER_KIND, BAD_BYTES = -1, -2, -16

# A context is a key set (where its keys lie, their bounds and number, and the table of entries that
# are found) and what was seen of the current entry. That of feature lists follows it.
_KEYS, _BOUNDS, _COUNT, _TABLE, _KEY_BEGIN, _KEY_END, _KIND, _BEGIN, _END, _ROWS = range(10)
CONTEXT_SIZE = 10


@cache
def code() -> tuple[Any, ...]:
    """The functions `index_examples`, `index_sequences`, `rows` and `decode`."""
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
            _PRIMITIVES,
            *(_slot_text(f"take_{number}", {_KIND: number}) for number in (STRINGS, FLOATS, INTS)),
            _slot_text("take_list", {_KIND: STRINGS}),
            _KEY,
            _walker_text("feature", {1: "take_1", 2: "take_2", 3: "take_3"}),
            _walker_text("entry", {1: "take_key", 2: "feature"}),
            _walker_text("list_entry", {1: "take_key", 2: "take_list"}),
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
            _VALUES,
            _DECODE,
        )
    )


def _slot(name: str, number: int, context: str = "%context") -> str:
    return f"%{name} = getelementptr i64, ptr {context}, i64 {number}"


def _slot_text(name: str, constants: dict[int, int]) -> str:
    """Notes the bounds of a field, and constants, in the current entry."""
    notes = "".join(
        f"  {_slot(f'slot{slot}', slot)}\n  store i64 {value}, ptr %slot{slot}\n"
        for slot, value in constants.items()
    )
    return f"""
define private i64 @{name}(ptr %data, i64 %begin, i64 %end, ptr %context) {{
{notes}  {_slot("begin_slot", _BEGIN)}
  {_slot("end_slot", _END)}
  store i64 %begin, ptr %begin_slot
  store i64 %end, ptr %end_slot
  ret i64 0
}}
"""


def _walker_text(name: str, known: dict[int, str]) -> str:
    """Calls a function for each field of a message that is itself a message, list or string."""
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
read:
  %field = call {{i64, i64, i64}} @field(ptr %data, i64 %at, i64 %end)
  %key = extractvalue {{i64, i64, i64}} %field, 0
  %begin = extractvalue {{i64, i64, i64}} %field, 1
  %end_ = extractvalue {{i64, i64, i64}} %field, 2
  %is_bad = icmp slt i64 %end_, 0
  br i1 %is_bad, label %bad, label %look
look:
  switch i64 %key, label %next [{cases}]
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
    """Walks a map entry and notes its value in the table if its key is one that is wanted."""
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
    """Walks messages one after the other; the key sets' tables have a row for each of them."""
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


_PRIMITIVES = """
define private {i64, i64} @varint(ptr %data, i64 %start, i64 %end) {
entry:
  br label %loop
loop:
  %at = phi i64 [%start, %entry], [%next, %more]
  %value = phi i64 [0, %entry], [%sum, %more]
  %shift = phi i64 [0, %entry], [%further, %more]
  %is_inside = icmp ult i64 %at, %end
  %is_short = icmp ult i64 %shift, 64
  %is_fine = and i1 %is_inside, %is_short
  br i1 %is_fine, label %byte, label %bad
byte:
  %place = getelementptr i8, ptr %data, i64 %at
  %group = load i8, ptr %place
  %wide = zext i8 %group to i64
  %bits = and i64 %wide, 127
  %shifted = shl i64 %bits, %shift
  %sum = or i64 %value, %shifted
  %next = add i64 %at, 1
  %is_last = icmp ult i64 %wide, 128
  br i1 %is_last, label %done, label %more
more:
  %further = add i64 %shift, 7
  br label %loop
done:
  %half = insertvalue {i64, i64} poison, i64 %sum, 0
  %whole = insertvalue {i64, i64} %half, i64 %next, 1
  ret {i64, i64} %whole
bad:
  %where = insertvalue {i64, i64} {i64 0, i64 -1}, i64 %at, 0
  ret {i64, i64} %where
}

; The key of a field, and where its value begins and ends: -1 if it is none, as its begin says.
define private {i64, i64, i64} @field(ptr %data, i64 %start, i64 %end) {
entry:
  %tag = call {i64, i64} @varint(ptr %data, i64 %start, i64 %end)
  %key = extractvalue {i64, i64} %tag, 0
  %after = extractvalue {i64, i64} %tag, 1
  %cut = icmp slt i64 %after, 0
  br i1 %cut, label %cut_off, label %tagged
cut_off:
  br label %bad
tagged:
  %number = lshr i64 %key, 3
  %below = sub i64 %number, 1
  %is_number = icmp ult i64 %below, 536870911
  br i1 %is_number, label %numbered, label %bad
numbered:
  %type = and i64 %key, 7
  switch i64 %type, label %bad [i64 0, label %number_  i64 1, label %eight
                                i64 2, label %long  i64 5, label %four]
number_:
  %value = call {i64, i64} @varint(ptr %data, i64 %after, i64 %end)
  %value_end = extractvalue {i64, i64} %value, 1
  %is_value = icmp sge i64 %value_end, 0
  br i1 %is_value, label %good, label %bad
eight:
  br label %sized
four:
  br label %sized
long:
  %size = call {i64, i64} @varint(ptr %data, i64 %after, i64 %end)
  %length = extractvalue {i64, i64} %size, 0
  %size_end = extractvalue {i64, i64} %size, 1
  %is_size = icmp sge i64 %size_end, 0
  br i1 %is_size, label %sized, label %bad
sized:
  %begin = phi i64 [%after, %eight], [%after, %four], [%size_end, %long]
  %bytes = phi i64 [8, %eight], [4, %four], [%length, %long]
  %room = sub i64 %end, %begin
  %fits = icmp ule i64 %bytes, %room
  %sized_end = add i64 %begin, %bytes
  br i1 %fits, label %good, label %bad
good:
  %good_begin = phi i64 [%after, %number_], [%begin, %sized]
  %good_end = phi i64 [%value_end, %number_], [%sized_end, %sized]
  %first = insertvalue {i64, i64, i64} poison, i64 %key, 0
  %second = insertvalue {i64, i64, i64} %first, i64 %good_begin, 1
  %third = insertvalue {i64, i64, i64} %second, i64 %good_end, 2
  ret {i64, i64, i64} %third
bad:
  %where = insertvalue {i64, i64, i64} {i64 0, i64 0, i64 -1}, i64 %start, 1
  ret {i64, i64, i64} %where
}
"""

_KEY = f"""
define private i64 @take_key(ptr %data, i64 %begin, i64 %end, ptr %context) {{
  {_slot("begin_slot", _KEY_BEGIN)}
  {_slot("end_slot", _KEY_END)}
  store i64 %begin, ptr %begin_slot
  store i64 %end, ptr %end_slot
  ret i64 0
}}

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

# The features of a list go to the rows that the context points to; without rows they are counted.
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


def _values_text(name: str, keys: list[int], body: str) -> str:
    """Writes up to `room` values of a list to `out`; gives how many there are, or where not."""
    cases = " ".join(f"i64 {key}, label %take" for key in keys)
    return f"""
define private i64 @{name}(ptr %data, i64 %start, i64 %end, ptr %out, i64 %room) {{
entry:
  br label %loop
loop:
  %at = phi i64 [%start, %entry], [%end_, %next]
  %count = phi i64 [0, %entry], [%new_count, %next]
  %more = icmp ult i64 %at, %end
  br i1 %more, label %read, label %done
read:
  %field = call {{i64, i64, i64}} @field(ptr %data, i64 %at, i64 %end)
  %key = extractvalue {{i64, i64, i64}} %field, 0
  %begin = extractvalue {{i64, i64, i64}} %field, 1
  %end_ = extractvalue {{i64, i64, i64}} %field, 2
  %is_bad = icmp slt i64 %end_, 0
  br i1 %is_bad, label %bad, label %look
look:
  switch i64 %key, label %next [{cases}]
{body}
taken:
  br label %next
next:
  %new_count = phi i64 [%count, %look], [%counted, %taken]
  br label %loop
done:
  ret i64 %count
bad:
  %place = sub i64 {BAD_BYTES}, %begin
  ret i64 %place
}}
"""


# A single number is as good as a list of one.
_INTS_BODY = """
take:
  br label %numbers
numbers:
  %number_at = phi i64 [%begin, %take], [%after, %stored]
  %counted = phi i64 [%count, %take], [%one_more, %stored]
  %has_number = icmp ult i64 %number_at, %end_
  br i1 %has_number, label %number, label %taken
number:
  %read_number = call {i64, i64} @varint(ptr %data, i64 %number_at, i64 %end_)
  %value = extractvalue {i64, i64} %read_number, 0
  %after = extractvalue {i64, i64} %read_number, 1
  %is_cut = icmp slt i64 %after, 0
  br i1 %is_cut, label %bad, label %store
store:
  %has_room = icmp ult i64 %counted, %room
  br i1 %has_room, label %write, label %stored
write:
  %slot = getelementptr i64, ptr %out, i64 %counted
  store i64 %value, ptr %slot
  br label %stored
stored:
  %one_more = add i64 %counted, 1
  br label %numbers
"""

_FLOATS_BODY = """
take:
  %size = sub i64 %end_, %begin
  %odd = and i64 %size, 3
  %is_whole = icmp eq i64 %odd, 0
  br i1 %is_whole, label %copy, label %bad
copy:
  %numbers = lshr i64 %size, 2
  %left = call i64 @llvm.usub.sat.i64(i64 %room, i64 %count)
  %fitting = call i64 @llvm.umin.i64(i64 %numbers, i64 %left)
  %bytes = shl i64 %fitting, 2
  %source = getelementptr i8, ptr %data, i64 %begin
  %target = getelementptr float, ptr %out, i64 %count
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  %counted = add i64 %count, %numbers
  br label %taken
"""

_STRINGS_BODY = """
take:
  %has_room = icmp ult i64 %count, %room
  br i1 %has_room, label %write, label %written
write:
  %pair = shl i64 %count, 1
  %begin_slot = getelementptr i64, ptr %out, i64 %pair
  %end_slot = getelementptr i64, ptr %begin_slot, i64 1
  store i64 %begin, ptr %begin_slot
  store i64 %end_, ptr %end_slot
  br label %written
written:
  %counted = add i64 %count, 1
  br label %taken
"""

_VALUES = "".join(
    (
        "declare i64 @llvm.usub.sat.i64(i64, i64)\n",
        "declare i64 @llvm.umin.i64(i64, i64)\n",
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n",
        _values_text("ints", [1 << 3 | 2, 1 << 3], _INTS_BODY),
        _values_text("floats", [1 << 3 | 2, 1 << 3 | 5], _FLOATS_BODY),
        _values_text("strings", [1 << 3 | 2], _STRINGS_BODY),
    )
)

# Reads the lists of `rows` table entries, `stride` numbers apart, of one kind. The values of a row
# go to its place in `out`, up to `room` of them; `counts` says how many there are. Gives the number
# of the first row that is not as wanted, whose count says why.
_DECODE = f"""
define i64 @decode(ptr %data, ptr %table, i64 %rows, i64 %stride, i64 %wanted, ptr %out,
                   ptr %places, ptr %counts, i64 %room) {{
entry:
  br label %loop
loop:
  %row = phi i64 [0, %entry], [%next, %noted]
  %more = icmp slt i64 %row, %rows
  br i1 %more, label %read, label %done
read:
  %offset = mul i64 %row, %stride
  %kind_slot = getelementptr i64, ptr %table, i64 %offset
  %begin_slot = getelementptr i64, ptr %kind_slot, i64 1
  %end_slot = getelementptr i64, ptr %kind_slot, i64 2
  %count_slot = getelementptr i64, ptr %counts, i64 %row
  %place_slot = getelementptr i64, ptr %places, i64 %row
  %kind = load i64, ptr %kind_slot
  %begin = load i64, ptr %begin_slot
  %end = load i64, ptr %end_slot
  %place = load i64, ptr %place_slot
  %is_missing = icmp eq i64 %kind, {MISSING}
  br i1 %is_missing, label %missing, label %present
missing:
  br label %note
present:
  %is_wanted = icmp eq i64 %kind, %wanted
  br i1 %is_wanted, label %choose, label %other
other:
  store i64 {OTHER_KIND}, ptr %count_slot
  ret i64 %row
choose:
  switch i64 %kind, label %string [i64 {FLOATS}, label %float_  i64 {INTS}, label %int]
int:
  %int_out = getelementptr i64, ptr %out, i64 %place
  %int_count = call i64 @ints(ptr %data, i64 %begin, i64 %end, ptr %int_out, i64 %room)
  br label %note
float_:
  %float_out = getelementptr float, ptr %out, i64 %place
  %float_count = call i64 @floats(ptr %data, i64 %begin, i64 %end, ptr %float_out, i64 %room)
  br label %note
string:
  %pair = shl i64 %place, 1
  %string_out = getelementptr i64, ptr %out, i64 %pair
  %string_count = call i64 @strings(ptr %data, i64 %begin, i64 %end, ptr %string_out, i64 %room)
  br label %note
note:
  %count = phi i64 [{NO_VALUES}, %missing], [%int_count, %int], [%float_count, %float_],
                   [%string_count, %string]
  store i64 %count, ptr %count_slot
  %is_fine = icmp sge i64 %count, {NO_VALUES}
  br i1 %is_fine, label %noted, label %failed
noted:
  %next = add i64 %row, 1
  br label %loop
failed:
  ret i64 %row
done:
  ret i64 %rows
}}
"""
