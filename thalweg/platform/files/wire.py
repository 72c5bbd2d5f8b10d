"""The wire format of protocol buffers, written and read without message classes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WORD = (1 << 64) - 1


class Field(NamedTuple):
    """A field of a message: its number, its value, and its encoding."""

    number: int
    value: int | bytes  # of fixed width: the bytes
    raw: bytes


def varint(number: int) -> bytes:
    """An integer as a varint; a negative one as 64 bits."""
    if 0 <= number < 0x80:
        return bytes((number,))
    number &= _WORD
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def integer_field(number: int, value: int) -> bytes:
    """An integer, boolean or enum; zero, the default, is left out."""
    return varint(number << 3 | _VARINT) + varint(value) if value else b""


def bytes_field(number: int, content: bytes) -> bytes:
    """A string or an inner message, also an empty one."""
    return varint(number << 3 | _BYTES) + varint(len(content)) + content


def double_field(number: int, value: float) -> bytes:
    """A float of 64 bits; zero, the default, is left out."""
    return varint(number << 3 | _FIXED64) + struct.pack("<d", value) if value else b""


def float_field(number: int, value: float) -> bytes:
    """A float of 32 bits, also a zero."""
    return varint(number << 3 | _FIXED32) + struct.pack("<f", value)


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a message in order; a ValueError if the message is malformed."""
    offset = 0
    while offset < len(message):
        start = offset
        key, offset = read_varint(message, offset)
        value, offset = _read_value(message, offset, key & 7)
        yield Field(key >> 3, value, message[start:offset])


def varints(content: bytes) -> Iterator[int]:
    """The integers of a packed list."""
    offset = 0
    while offset < len(content):
        number, offset = read_varint(content, offset)
        yield number


def read_varint(message: bytes, offset: int) -> tuple[int, int]:
    """The varint at an offset, and the offset after it; a ValueError if it is malformed."""
    number = 0
    for shift in range(0, 70, 7):
        if offset >= len(message):
            raise ValueError(f"a number is cut off at byte {offset}")
        group = message[offset]
        offset += 1
        number |= (group & 0x7F) << shift
        if group < 0x80:
            return number & _WORD, offset
    raise ValueError(f"a number before byte {offset} has more than 64 bits")


def _read_value(message: bytes, offset: int, wire_type: int) -> tuple[int | bytes, int]:
    if wire_type == _VARINT:
        return read_varint(message, offset)
    if wire_type == _BYTES:
        length, offset = read_varint(message, offset)
    elif wire_type in (_FIXED32, _FIXED64):
        length = 4 if wire_type == _FIXED32 else 8
    else:
        raise ValueError(f"byte {offset - 1} announces a field of the unknown kind {wire_type}")
    end = offset + length
    if end > len(message):
        raise ValueError(f"a field of {length} bytes at byte {offset} ends after the message")
    return message[offset:end], end
