"""The wire format of protocol buffers, written and read without message classes.

Comes in: numbers and bytes with the numbers of their fields, or a serialised message. Goes out: the
bytes of fields, or the fields of a message one after another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WORD = (1 << 64) - 1


class Field(NamedTuple):
    """A field of a message: its number, its value, and the bytes of both."""

    number: int
    value: int | bytes  # of fixed width: the bytes
    raw: bytes


def varint(number: int) -> bytes:
    """An integer in groups of seven bits; a negative one as 64 bits."""
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
    """An integer, a boolean or an enum; zero is left out, as it is the default."""
    return varint(number << 3 | _VARINT) + varint(value) if value else b""


def bytes_field(number: int, content: bytes) -> bytes:
    """A string or an inner message, also an empty one."""
    return varint(number << 3 | _BYTES) + varint(len(content)) + content


def double_field(number: int, value: float) -> bytes:
    """A float of 64 bits; zero is left out, as it is the default."""
    return varint(number << 3 | _FIXED64) + struct.pack("<d", value) if value else b""


def float_field(number: int, value: float) -> bytes:
    """A float of 32 bits, also a zero."""
    return varint(number << 3 | _FIXED32) + struct.pack("<f", value)


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a message in order; a ValueError says where it is not one."""
    place = 0
    while place < len(message):
        start = place
        key, place = _read_varint(message, place)
        value, place = _read_value(message, place, key & 7)
        yield Field(key >> 3, value, message[start:place])


def varints(content: bytes) -> Iterator[int]:
    """The integers of a packed list."""
    place = 0
    while place < len(content):
        number, place = _read_varint(content, place)
        yield number


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError(f"a number is cut off at byte {place}")
        group = message[place]
        place += 1
        number |= (group & 0x7F) << shift
        if group < 0x80:
            return number & _WORD, place
    raise ValueError(f"a number before byte {place} has more than 64 bits")


def _read_value(message: bytes, place: int, kind: int) -> tuple[int | bytes, int]:
    if kind == _VARINT:
        return _read_varint(message, place)
    if kind == _BYTES:
        length, place = _read_varint(message, place)
    elif kind in (_FIXED32, _FIXED64):
        length = 4 if kind == _FIXED32 else 8
    else:
        raise ValueError(f"byte {place - 1} announces a field of the unknown kind {kind}")
    end = place + length
    if end > len(message):
        raise ValueError(f"a field of {length} bytes at byte {place} ends after the message")
    return message[place:end], end
