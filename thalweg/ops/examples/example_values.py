"""Machine code that decodes the values of features: numbers and strings in protobuf wire format.

`example_code` finds the features: it fills a table with the kind and the bounds of their lists.
`decode` writes the values of these lists to arrays. Both read fields by the primitives here.
"""

from __future__ import annotations

#: The kind of a table entry: no feature, or a list of one of three kinds.
MISSING, STRINGS, FLOATS, INTS = range(4)

#: The status of a row in `decode` besides a count: no values, another kind, or invalid bytes.
NO_VALUES, OTHER_KIND, BAD_BYTES = -1, -2, -16

#: Functions that read varints and fields, or return the offset of invalid bytes.
PRIMITIVES = """
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

#: In a loop over fields: reads the one at `%at`. Branches to `bad` or sets its key and bounds.
READ_FIELD = """read:
  %field = call {i64, i64, i64} @field(ptr %data, i64 %at, i64 %end)
  %key = extractvalue {i64, i64, i64} %field, 0
  %begin = extractvalue {i64, i64, i64} %field, 1
  %end_ = extractvalue {i64, i64, i64} %field, 2
  %is_bad = icmp slt i64 %end_, 0
  br i1 %is_bad, label %bad, label %look
look:
"""


def _values_text(name: str, keys: list[int], body: str) -> str:
    """A function that writes up to `room` values of a list to `out`; returns their number, or the
    offset of invalid bytes."""
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
{READ_FIELD}  switch i64 %key, label %next [{cases}]
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


# An unpacked number is read as a packed list of one.
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

#: Decodes the lists of `rows` table entries, `stride` numbers apart, of one kind. Up to `room`
#: values of a row are written at its offset in `out`; their number is stored in `counts`. Returns
#: the number of the first row with an error, whose count is the status.
DECODE = f"""{_VALUES}
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
