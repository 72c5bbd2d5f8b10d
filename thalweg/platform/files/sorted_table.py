"""Sorted tables of keys and values, the files of LevelDB that TensorFlow keeps indices in.

Comes in: the bytes of a table. Goes out: its pairs in order, or the other way round. Blocks are
checked by their checksums and may be compressed with Snappy; whatever is wrong is an error that
says at which byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from thalweg import errors
from thalweg.platform.files.checksum import masked_crc32c
from thalweg.platform.files.wire import varint

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER = 48
_TRAILER = 5  # the kind of a block and its checksum
_FULL = 4096  # bytes from which on a block is closed
_MAX_COPIED = 64  # bytes that one element of Snappy can stand for


class Damage(errors.DataLossError):
    """What is wrong with a table, and at which byte."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(None, None, f"at byte {offset}: {what}")


def is_table(content: bytes) -> bool:
    """Whether the end of a file is that of a table."""
    return len(content) >= _FOOTER and content[-8:] == MAGIC


def pairs(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table, in order."""
    if not is_table(content):
        raise Damage(len(content), "the file does not end as a table does")
    start = len(content) - _FOOTER
    _, place = _handle(content, start)  # of blocks with statistics
    index, _ = _handle(content, place)
    for _, handle in _block_pairs(_block(content, index), index[0]):
        where, _ = _handle(handle, 0, index[0])
        yield from _block_pairs(_block(content, where), where[0])


def _handle(content: bytes, place: int, offset: int = 0) -> tuple[tuple[int, int], int]:
    begin, place = _number(content, place, offset)
    size, place = _number(content, place, offset)
    return (begin, size), place


def _number(content: bytes, place: int, offset: int = 0) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(content):
            break
        group = content[place]
        place += 1
        number |= (group & 0x7F) << shift
        if group < 0x80:
            return number, place
    raise Damage(offset + place, "a number is cut off or too long")


def _block(content: bytes, where: tuple[int, int]) -> bytes:
    begin, size = where
    end = begin + size
    if end + _TRAILER > len(content):
        raise Damage(begin, f"a block of {size} bytes does not fit the file")
    kind = content[end]
    checksum = int.from_bytes(content[end + 1 : end + _TRAILER], "little")
    if masked_crc32c(content[begin : end + 1]) != checksum:
        raise Damage(begin, "the block does not have the checksum that it says")
    if kind > 1:
        raise Damage(end, f"the block is compressed in the unknown way {kind}")
    return unsnapped(content[begin:end], begin) if kind else content[begin:end]


def _block_pairs(block: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of a block: keys leave out what they share with the one before."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if len(block) < 4 or end < 0:
        raise Damage(offset, "the block is shorter than its list of restarts")
    key, place = b"", 0
    while place < end:
        shared, place = _number(block, place, offset)
        fresh, place = _number(block, place, offset)
        length, place = _number(block, place, offset)
        if shared > len(key) or place + fresh + length > end:
            raise Damage(offset + place, "a key or value does not fit its block")
        key = key[:shared] + block[place : place + fresh]
        place += fresh
        yield key, block[place : place + length]
        place += length


# Writing


def table(content: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A table of pairs that come in the order of their keys."""
    output = bytearray()
    handles: list[tuple[bytes, bytes]] = []
    pending: list[tuple[bytes, bytes]] = []
    for key, value in content:
        pending.append((key, value))
        if sum(len(k) + len(v) for k, v in pending) > _FULL:
            handles.append((key, _append(output, pending)))
            pending = []
    if pending:
        handles.append((pending[-1][0], _append(output, pending)))
    statistics = _append(output, [])
    footer = statistics + _append(output, handles)
    return bytes(output) + footer.ljust(_FOOTER - len(MAGIC), b"\0") + MAGIC


def _append(output: bytearray, content: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Add a block, keys in full; returns where it lies."""
    block = bytearray()
    starts: list[int] = []
    for key, value in content:
        starts.append(len(block))
        block += b"\0" + varint(len(key)) + varint(len(value)) + key + value
    for number in (*(starts or [0]), max(len(starts), 1)):
        block += number.to_bytes(4, "little")
    begin = len(output)
    output += block + b"\0" + masked_crc32c(bytes(block) + b"\0").to_bytes(4, "little")
    return varint(begin) + varint(len(block))


# Snappy


def unsnapped(packed: bytes, offset: int = 0) -> bytes:
    """What Snappy compressed."""
    size, place = _number(packed, 0, offset)
    if size > _MAX_COPIED * len(packed):
        raise Damage(offset, f"{len(packed)} bytes cannot stand for {size}")
    output = bytearray()
    while place < len(packed):
        tag = packed[place]
        place += 1
        if tag & 3 == 0:
            length, place = _literal_length(packed, place, tag)
            output += packed[place : place + length]
            place += length
        else:
            length, distance, place = _copy(packed, place, tag)
            _copy_back(output, length, distance, offset + place)
        if len(output) > size:
            break
    if len(output) != size or place != len(packed):
        raise Damage(offset + place, f"{len(output)} bytes came out of the block, not {size}")
    return bytes(output)


def _literal_length(packed: bytes, place: int, tag: int) -> tuple[int, int]:
    short = tag >> 2
    if short < 60:
        return short + 1, place
    width = short - 59
    return int.from_bytes(packed[place : place + width], "little") + 1, place + width


def _copy(packed: bytes, place: int, tag: int) -> tuple[int, int, int]:
    """How many bytes to repeat, and from how far back."""
    if tag & 3 == 1:
        low = int.from_bytes(packed[place : place + 1], "little")
        return (tag >> 2 & 7) + 4, tag >> 5 << 8 | low, place + 1
    width = 2 if tag & 3 == 2 else 4
    distance = int.from_bytes(packed[place : place + width], "little")
    return (tag >> 2) + 1, distance, place + width


def _copy_back(output: bytearray, length: int, distance: int, offset: int) -> None:
    if not 0 < distance <= len(output):
        raise Damage(offset, f"a copy from {distance} bytes back, of {len(output)} there are")
    start = len(output) - distance
    for index in range(start, start + length):  # what is copied may reach into the copy itself
        output.append(output[index])
