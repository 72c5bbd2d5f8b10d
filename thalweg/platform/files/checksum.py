"""CRC-32C (Castagnoli), the checksum of records and checkpoints, in machine code.

Short data are reduced by table lookups, many bytes at a time. Long data are first folded to a few
blocks of the same remainder, which the tables reduce. With carry-less multiplication, a block is
multiplied by the power of x that moves it onto a later block. Without it, a sparse multiple of the
checksum's polynomial says to which later blocks a block can be added without changing the
remainder: that takes only vector loads and exclusive ors.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from thalweg.platform import machine_code

Buffer = bytes | bytearray | memoryview

POLYNOMIAL = 0x11EDC6F41
_REFLECTED = 0x82F63B78  # bit-reflected, without the highest term

#: x^92 + x^80 + x^65 + x^24 + x^18 + x^17 + x^13 + 1 is a multiple of the polynomial, and so it is
#: with x^n in place of x, for n a power of two. Of the multiples with so few terms this one has a
#: low degree and a wide gap below its highest term.
MULTIPLE = (92, 80, 65, 24, 18, 17, 13, 0)
_REACH = MULTIPLE[0]
_UNROLL = 4  # blocks at once: at most the gap, and a divisor of the reach
_CHUNK = 256  # blocks between two moves of the history
_STEP = 32  # bytes per step of the table lookups

#: Block widths in bytes -> the number of bytes from which folding blocks of this width pays.
_LEVELS = {64: 24576, 16: 3072, 8: 1152}
_MASK_DELTA = 0xA282EAD8
_PIECE = 256 << 10  # bytes that are copied before their checksum is taken, to stay in the cache

#: With carry-less multiplication: accumulator vectors, enough to hide the latency of a product.
_PRODUCTS = 8
_SPAN = 64 * _PRODUCTS  # bytes that an iteration folds
_PCLMUL_FEATURES = ("avx512f", "vpclmulqdq")


#: The functions of a module: `crc32c(data, length, value)`, `copy(source, target, length, value)`.
SIGNATURES = {
    "crc32c": (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32),
    "copy": (
        ctypes.c_uint32,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_uint32,
    ),
}


def crc32c(data: Buffer, value: int = 0) -> int:
    """The checksum of `data`, or of all data so far if `value` is that of the data before."""
    if type(data) is bytes:
        return _compiled()(data, len(data), value)
    view = np.frombuffer(data, np.uint8)
    return _compiled()(view.ctypes.data, view.size, value)


def masked_crc32c(data: Buffer, value: int = 0) -> int:
    """`crc32c`, masked as in files, so that a checksum of data with checksums inside is sound."""
    crc = crc32c(data, value)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def copy_crc32c(source: Any, target: Any, value: int = 0) -> int:
    """Copy an array of bytes to another one of the same size; returns `crc32c` of the bytes.

    The target is written with non-temporal stores, where there are such: it is larger than the
    caches.
    """
    return _functions()[1](source.ctypes.data, target.ctypes.data, source.size, value)


def address() -> int:
    """The address of `i32 crc32c(ptr data, i64 length, i32 value)`, for other machine code."""
    return ctypes.cast(_compiled(), ctypes.c_void_p).value or 0


@cache
def _compiled() -> Any:
    return _functions()[0]


@cache
def _functions() -> list[Any]:
    return machine_code.functions(_module(), SIGNATURES)


def _module() -> str:
    return by_products() if machine_code.has(*_PCLMUL_FEATURES) else by_additions()


def by_products() -> str:
    """The module for processors with carry-less multiplication of vectors."""
    folding = _products_text("crc32c", False) + _products_text("folded_copy", True)
    return _table_text() + _by_tables_text() + folding + _aligned_copy_text()


def by_additions() -> str:
    """The module for all processors."""
    folds = "".join(_fold_text(width) for width in _LEVELS)
    return _table_text() + _by_tables_text() + folds + _crc_text() + _copy_text()


def _tables() -> list[list[int]]:
    """Entry [k][b]: the remainder of the byte b followed by k zero bytes."""
    first = list(range(256))
    for _ in range(8):
        first = [value >> 1 ^ (_REFLECTED if value & 1 else 0) for value in first]
    tables = [first]
    for _ in range(_STEP - 1):
        tables.append([value >> 8 ^ first[value & 255] for value in tables[-1]])
    return tables


def _table_text() -> str:
    entries = [f"i32 {value}" for table in _tables() for value in table]
    kind = f"[{len(entries)} x i32]"
    return f"@tables = private constant {kind} [{', '.join(entries)}], align 64\n"


def _by_tables_text() -> str:
    """The remainder of `start` and the bytes after it: `_STEP` at a time, then eight, then one."""
    return f"""
define private i32 @by_tables(ptr %data, i64 %length, i32 %start) {{
entry:
  br label %loop{_STEP}
{_loop_text(_STEP, "entry", "0", "%start", 8)}
{_loop_text(8, f"loop{_STEP}", f"%at{_STEP}", f"%state{_STEP}", 1)}
loop1:
  %at = phi i64 [%at8, %loop8], [%next, %step1]
  %state = phi i32 [%state8, %loop8], [%reduced, %step1]
  %more = icmp ult i64 %at, %length
  br i1 %more, label %step1, label %done
step1:
  %place = getelementptr i8, ptr %data, i64 %at
  %byte = load i8, ptr %place
  %single = zext i8 %byte to i32
  %joined = xor i32 %state, %single
  %low = and i32 %joined, 255
  %index = zext i32 %low to i64
  %slot = getelementptr i32, ptr @tables, i64 %index
  %found = load i32, ptr %slot
  %high = lshr i32 %state, 8
  %reduced = xor i32 %high, %found
  %next = add i64 %at, 1
  br label %loop1
done:
  ret i32 %state
}}
"""


def _loop_text(width: int, before: str, at: str, state: str, after: int) -> str:
    """A loop that reduces `width` bytes at a time, while so many are left."""
    return f"""loop{width}:
  %at{width} = phi i64 [{at}, %{before}], [%next{width}, %step{width}]
  %state{width} = phi i32 [{state}, %{before}], [%remainder{width}, %step{width}]
  %left{width} = sub i64 %length, %at{width}
  %more{width} = icmp uge i64 %left{width}, {width}
  br i1 %more{width}, label %step{width}, label %loop{after}
step{width}:
  %place{width} = getelementptr i8, ptr %data, i64 %at{width}
  {_step_text(width)}
  %next{width} = add i64 %at{width}, {width}
  br label %loop{width}
"""


def _step_text(width: int) -> str:
    """The remainder of the state and `width` bytes: the sum of a table entry for each byte.

    Only the first four bytes depend on the state: their entries are added last.
    """
    lines = [f"%wide{width} = zext i32 %state{width} to i64"]
    for word in range(width // 8):
        lines += [
            f"%from{width}.{word} = getelementptr i64, ptr %place{width}, i64 {word}",
            f"%word{width}.{word} = load i64, ptr %from{width}.{word}, align 1",
        ]
    lines.append(f"%mixed{width} = xor i64 %word{width}.0, %wide{width}")
    total = "0"
    for position in reversed(range(width)):
        lines += _entry_text(width, position)
        lines.append(f"%sum{width}.{position} = xor i32 {total}, %entry{width}.{position}")
        total = f"%sum{width}.{position}"
    return _lines([*lines, f"%remainder{width} = xor i32 {total}, 0"])


def _entry_text(width: int, position: int) -> list[str]:
    word = f"%word{width}.{position // 8}" if position >= 4 else f"%mixed{width}"
    name = f"{width}.{position}"
    return [
        f"%shifted{name} = lshr i64 {word}, {position % 8 * 8}",
        f"%byte{name} = and i64 %shifted{name}, 255",
        f"%index{name} = add i64 %byte{name}, {256 * (width - 1 - position)}",
        f"%slot{name} = getelementptr i32, ptr @tables, i64 %index{name}",
        f"%entry{name} = load i32, ptr %slot{name}",
    ]


def _fold_text(width: int) -> str:
    """Folds blocks of `width` bytes to `_REACH` blocks with the same remainder.

    `gone` holds the folded values of eliminated blocks: the last `_REACH` of earlier chunks, then
    those of this one. Several adjacent blocks are eliminated at once, since none of them is added
    to another.

    `gone` is an aligned allocation; `now` is a multiple of `width` (8, 16 or 64) bytes after it,
    and so aligned only to a block.
    """
    lanes = min(64, width * _UNROLL) // 8
    kind, step = f"<{lanes} x i64>", lanes * 8 // width
    history = _REACH * width
    return f"""
define private void @fold{width}(ptr %data, i64 %blocks, i32 %state, ptr %out) {{
entry:
  %gone = alloca [{history + _CHUNK * width} x i8], align 64
  %now = getelementptr i8, ptr %gone, i64 {history}
  call void @llvm.memset.p0.i64(ptr align 64 %gone, i8 0, i64 {history}, i1 false)
  %low = zext i32 %state to i64
  %first = insertelement {kind} zeroinitializer, i64 %low, i64 0
  %given_up = sub i64 %blocks, {_REACH}
  br label %chunks
chunks:
  %start = phi i64 [0, %entry], [%end, %chunk_done]
  %carried = phi {kind} [%first, %entry], [%extra, %chunk_done]
  %more = icmp ult i64 %start, %given_up
  br i1 %more, label %chunk, label %last
chunk:
  %left = sub i64 %given_up, %start
  %count = call i64 @llvm.umin.i64(i64 %left, i64 {_CHUNK})
  %end = add i64 %start, %count
  %start_byte = mul i64 %start, {width}
  %source = getelementptr i8, ptr %data, i64 %start_byte
  br label %giving
giving:
  %at = phi i64 [0, %chunk], [%next, %give]
  %extra = phi {kind} [%carried, %chunk], [zeroinitializer, %give]
  %some = icmp ult i64 %at, %count
  br i1 %some, label %give, label %chunk_done
give:
  {_sum_text("g", kind, width, "source", "at")}
  %folded = xor {kind} %gsum, %extra
  store {kind} %folded, ptr %ghere, align 8
  %next = add i64 %at, {step}
  br label %giving
chunk_done:
  %past_byte = mul i64 %count, {width}
  %past = getelementptr i8, ptr %gone, i64 %past_byte
  call void @llvm.memmove.p0.p0.i64(ptr %gone, ptr %past, i64 {history}, i1 false)
  br label %chunks
last:
  call void @llvm.memset.p0.i64(ptr align {width} %now, i8 0, i64 {history}, i1 false)
  %kept_byte = mul i64 %given_up, {width}
  %kept = getelementptr i8, ptr %data, i64 %kept_byte
  br label %keeping
keeping:
  %place = phi i64 [0, %last], [%after, %keep]
  %any = icmp ult i64 %place, {_REACH}
  br i1 %any, label %keep, label %done
keep:
  {_sum_text("k", kind, width, "kept", "place")}
  %target = getelementptr i8, ptr %out, i64 %kbyte
  store {kind} %ksum, ptr %target, align 8
  %after = add i64 %place, {step}
  br label %keeping
done:
  ret void
}}
"""


def _sum_text(prefix: str, kind: str, width: int, source: str, index: str) -> str:
    """The sum of a block of the data and the earlier blocks that are added to it."""
    lines = [
        f"%{prefix}byte = mul i64 %{index}, {width}",
        f"%{prefix}from = getelementptr i8, ptr %{source}, i64 %{prefix}byte",
        f"%{prefix}here = getelementptr i8, ptr %now, i64 %{prefix}byte",
        f"%{prefix}sum0 = load {kind}, ptr %{prefix}from, align 1",
    ]
    distances = [_REACH - exponent for exponent in MULTIPLE[1:]]
    for number, distance in enumerate(distances, 1):
        name = f"sum{number}" if number < len(distances) else "sum"
        lines += [
            f"%{prefix}slot{number} = getelementptr i8, ptr %{prefix}here, i64 -{distance * width}",
            f"%{prefix}old{number} = load {kind}, ptr %{prefix}slot{number}, align 8",
            f"%{prefix}{name} = xor {kind} %{prefix}sum{number - 1}, %{prefix}old{number}",
        ]
    return _lines(lines)


def _crc_text() -> str:
    """`@crc32c`: folds with the widest blocks that pay, then the result with narrower ones."""
    widths = list(_LEVELS)
    rests = [f"%rest{width} = alloca [{_REACH * width} x i8], align 64" for width in widths]
    levels = "".join(map(_level_text, [0, *widths], widths, [*widths[1:], 0]))
    return f"""
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)

define i32 @crc32c(ptr %data, i64 %length, i32 %value) {{
entry:
  {_lines(rests)}
  %start = xor i32 %value, -1
  br label %try{widths[0]}
{levels}
left0:
  %reduced = call i32 @by_tables(ptr %rest{widths[-1]}, i64 {_REACH * widths[-1]}, i32 0)
  br label %try0
try0:
  %done = phi i64 [0, %try{widths[-1]}], [%passed{widths[-1]}, %left0]
  %state = phi i32 [%start, %try{widths[-1]}], [%reduced, %left0]
  %tail = getelementptr i8, ptr %data, i64 %done
  %remaining = sub i64 %length, %done
  %last = call i32 @by_tables(ptr %tail, i64 %remaining, i32 %state)
  %result = xor i32 %last, -1
  ret i32 %result
}}
"""


def _level_text(wider: int, width: int, narrower: int) -> str:
    """Folds the data, if they are long enough for this width, or the result of a wider fold."""
    before = f", [%passed{wider}, %left{width}]" if wider else ""
    left = f"""left{width}:
  call void @fold{width}(ptr %rest{wider}, i64 {_REACH * wider // width}, i32 0, ptr %rest{width})
  br label %folded{width}
"""
    return f"""try{width}:
  %pays{width} = icmp uge i64 %length, {_LEVELS[width]}
  br i1 %pays{width}, label %fold{width}, label %try{narrower}
fold{width}:
  %blocks{width} = udiv i64 %length, {width}
  call void @fold{width}(ptr %data, i64 %blocks{width}, i32 %start, ptr %rest{width})
  %length{width} = and i64 %length, -{width}
  br label %folded{width}
{left if wider else ""}folded{width}:
  %passed{width} = phi i64 [%length{width}, %fold{width}]{before}
  br label %left{narrower}
"""


# Folding by carry-less products


def _power(exponent: int) -> int:
    """x to this power, modulo the polynomial, as 64 reflected bits."""
    remainder = 1
    for _ in range(exponent):
        remainder <<= 1
        remainder ^= POLYNOMIAL if remainder >> 32 else 0
    return int(f"{remainder:064b}"[::-1], 2)


def _products_text(name: str, copies: bool) -> str:
    """A function that folds the data into accumulator vectors, which the tables then reduce.

    The first 64 of the 128 bits of a lane are 64 powers of x higher than the others. A product of
    reflected bits is one power too high, which the factors compensate. If it `copies`, it also
    stores the data to the target, with non-temporal stores; the target must be aligned to a line.
    """
    kind, lanes = "<8 x i64>", range(_PRODUCTS)
    factors = [_power(8 * _SPAN + 63), _power(8 * _SPAN - 1)] * 4
    factor = f"<{', '.join(f'i64 {value}' for value in factors)}>"
    loads = [_vector_text("first", n, "data") for n in lanes]
    carries = "\n  ".join(_carried_text(n, kind, factor) for n in lanes)
    held = [
        f"%held{n} = phi {kind} [%{'mixed' if n == 0 else f'first{n}'}, %begin], [%sum{n}, %carry]"
        for n in lanes
    ]
    stores = [
        f"%slot{n} = getelementptr i8, ptr %rest, i64 {64 * n}\n  "
        f"store {kind} %held{n}, ptr %slot{n}, align 64"
        for n in lanes
    ]
    declared, linkage = ("", "private") if copies else (_DECLARED, "")
    target = ", ptr %target" if copies else ""
    return f"""{declared}
define {linkage} i32 @{name}(ptr %data{target}, i64 %length, i32 %value) {{
entry:
  %rest = alloca [{_SPAN} x i8], align 64
  %start = xor i32 %value, -1
  %pays = icmp uge i64 %length, {2 * _SPAN}
  br i1 %pays, label %begin, label %tail
begin:
  {_lines(loads)}
  {_lines([_stored_text("first", n, "%target") for n in lanes] if copies else [])}
  %low = zext i32 %start to i64
  %state = insertelement {kind} zeroinitializer, i64 %low, i64 0
  %mixed = xor {kind} %first0, %state
  br label %carrying
carrying:
  %at = phi i64 [{_SPAN}, %begin], [%next, %carry]
  {_lines(held)}
  %next = add i64 %at, {_SPAN}
  %more = icmp ule i64 %next, %length
  br i1 %more, label %carry, label %reduce
carry:
  %here = getelementptr i8, ptr %data, i64 %at
  {"%there = getelementptr i8, ptr %target, i64 %at" if copies else ""}
  {carries}
  {_lines([_stored_text("new", n, "%there") for n in lanes] if copies else [])}
  br label %carrying
reduce:
  {_lines(stores)}
  %reduced = call i32 @by_tables(ptr %rest, i64 {_SPAN}, i32 0)
  br label %tail
tail:
  %done = phi i64 [0, %entry], [%at, %reduce]
  %so_far = phi i32 [%start, %entry], [%reduced, %reduce]
  %left = getelementptr i8, ptr %data, i64 %done
  %remaining = sub i64 %length, %done
  {_lines(_tail_copy() if copies else [])}
  %last = call i32 @by_tables(ptr %left, i64 %remaining, i32 %so_far)
  %result = xor i32 %last, -1
  ret i32 %result
}}
"""


_DECLARED = """
declare <8 x i64> @llvm.x86.pclmulqdq.512(<8 x i64>, <8 x i64>, i8 immarg)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
"""


def _stored_text(name: str, number: int, target: str) -> str:
    """A non-temporal store of a line: `@copy`, the only caller, aligns the target."""
    place = f"%{name}to{number}"
    return (
        f"{place} = getelementptr i8, ptr {target}, i64 {64 * number}\n  "
        f"store <8 x i64> %{name}{number}, ptr {place}, align 64, !nontemporal !0"
    )


def _tail_copy() -> list[str]:
    """A copy of the tail, after a fence for the non-temporal stores."""
    return [
        "fence seq_cst",
        "%end = getelementptr i8, ptr %target, i64 %done",
        "call void @llvm.memcpy.p0.p0.i64(ptr %end, ptr %left, i64 %remaining, i1 false)",
    ]


def _aligned_copy_text() -> str:
    """`@copy` for `folded_copy`: first copies up to the target's first line."""
    return """
define i32 @copy(ptr %source, ptr %target, i64 %length, i32 %value) {
  %address = ptrtoint ptr %target to i64
  %negative = sub i64 0, %address
  %before = and i64 %negative, 63
  %first = call i64 @llvm.umin.i64(i64 %before, i64 %length)
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %first, i1 false)
  %start = call i32 @crc32c(ptr %source, i64 %first, i32 %value)
  %data = getelementptr i8, ptr %source, i64 %first
  %line = getelementptr i8, ptr %target, i64 %first
  %left = sub i64 %length, %first
  %result = call i32 @folded_copy(ptr %data, ptr %line, i64 %left, i32 %start)
  ret i32 %result
}
!0 = !{i32 1}
"""


def _copy_text() -> str:
    """`@copy` by pieces, which stay in the cache between the copy and the checksum."""
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define i32 @copy(ptr %source, ptr %target, i64 %length, i32 %value) {{
entry:
  br label %loop
loop:
  %done = phi i64 [0, %entry], [%next, %piece]
  %state = phi i32 [%value, %entry], [%changed, %piece]
  %left = sub i64 %length, %done
  %some = icmp ne i64 %left, 0
  br i1 %some, label %piece, label %end
piece:
  %count = call i64 @llvm.umin.i64(i64 %left, i64 {_PIECE})
  %from = getelementptr i8, ptr %source, i64 %done
  %to = getelementptr i8, ptr %target, i64 %done
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %count, i1 false)
  %changed = call i32 @crc32c(ptr %to, i64 %count, i32 %state)
  %next = add i64 %done, %count
  br label %loop
end:
  ret i32 %state
}}
"""


def _vector_text(name: str, number: int, source: str) -> str:
    return (
        f"%{name}from{number} = getelementptr i8, ptr %{source}, i64 {64 * number}\n  "
        f"%{name}{number} = load <8 x i64>, ptr %{name}from{number}, align 1"
    )


def _carried_text(number: int, kind: str, factor: str) -> str:
    """A vector times the power of x that moves it by the span, plus the data there."""
    product = f"call {kind} @llvm.x86.pclmulqdq.512({kind} %held{number}, {kind} {factor}, i8"
    return _lines(
        [
            _vector_text("new", number, "here"),
            f"%high{number} = {product} 0)",
            f"%low{number} = {product} 17)",
            f"%both{number} = xor {kind} %high{number}, %low{number}",
            f"%sum{number} = xor {kind} %both{number}, %new{number}",
        ]
    )


def _lines(instructions: list[str]) -> str:
    return "\n  ".join(instructions)
