"""LevelDB's sorted tables of keys and values, the format of TensorFlow's checkpoint indices.

`pairs` decodes a table, `table` encodes one. Blocks have checksums and may be compressed with
Snappy; an error names the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from thalweg import errors
from thalweg.platform.files.checksum import masked_crc32c
from thalweg.platform.files.wire import read_varint, varint

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER = 48
_TRAILER = 5  # the compression type of a block and its checksum
_MAX_BLOCK = 4096  # bytes of entries after which a block is closed
_MAX_COPIED = 64  # bytes that one Snappy element can produce


class TableError(errors.DataLossError):
    """A malformed table: the error and its byte offset."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(None, None, f"at byte {offset}: {what}")


def is_table(content: bytes) -> bool:
    """Whether a file ends with the footer of a table."""
    return len(content) >= _FOOTER and content[-8:] == MAGIC


def pairs(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table, in order."""
    if not is_table(content):
        raise TableError(len(content), "the file does not end as a table does")
    start = len(content) - _FOOTER
    _, position = _handle(content, start)  # of the metaindex block
    index, _ = _handle(content, position)
    for _, entry in _block_pairs(_block(content, index), index[0]):
        handle, _ = _handle(entry, 0, index[0])
        yield from _block_pairs(_block(content, handle), handle[0])


def _handle(content: bytes, position: int, offset: int = 0) -> tuple[tuple[int, int], int]:
    """A block handle (offset and size), and the position after it."""
    begin, position = _number(content, position, offset)
    size, position = _number(content, position, offset)
    return (begin, size), position


def _number(content: bytes, position: int, offset: int = 0) -> tuple[int, int]:
    """A varint of content that begins at `offset` of the file, and the position after it."""
    try:
        return read_varint(content, position)
    except ValueError:
        raise TableError(offset + position, "a number is cut off or too long") from None


def _block(content: bytes, handle: tuple[int, int]) -> bytes:
    begin, size = handle
    end = begin + size
    if end + _TRAILER > len(content):
        raise TableError(begin, f"a block of {size} bytes does not fit the file")
    compression = content[end]
    checksum = int.from_bytes(content[end + 1 : end + _TRAILER], "little")
    if masked_crc32c(content[begin : end + 1]) != checksum:
        raise TableError(begin, "the block does not have the checksum that it says")
    if compression > 1:
        raise TableError(end, f"the block is compressed in the unknown way {compression}")
    return snappy_decompress(content[begin:end], begin) if compression else content[begin:end]


def _block_pairs(block: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of a block, in which a key omits the prefix that it shares with the one before."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if len(block) < 4 or end < 0:
        raise TableError(offset, "the block is shorter than its list of restarts")
    key, position = b"", 0
    while position < end:
        shared, position = _number(block, position, offset)
        unshared, position = _number(block, position, offset)
        length, position = _number(block, position, offset)
        if shared > len(key) or position + unshared + length > end:
            raise TableError(offset + position, "a key or value does not fit its block")
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        yield key, block[position : position + length]
        position += length


# Writing


def table(content: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A table of pairs, which must be sorted by key."""
    output = bytearray()
    handles: list[tuple[bytes, bytes]] = []
    pending: list[tuple[bytes, bytes]] = []
    for key, value in content:
        pending.append((key, value))
        if sum(len(k) + len(v) for k, v in pending) > _MAX_BLOCK:
            handles.append((key, _append(output, pending)))
            pending = []
    if pending:
        handles.append((pending[-1][0], _append(output, pending)))
    metaindex = _append(output, [])
    footer = metaindex + _append(output, handles)
    return bytes(output) + footer.ljust(_FOOTER - len(MAGIC), b"\0") + MAGIC


def _append(output: bytearray, content: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Append a block with unshortened keys; returns its handle."""
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


def snappy_decompress(packed: bytes, offset: int = 0) -> bytes:
    """Decompress a Snappy block, which begins at `offset` of the file."""
    size, position = _number(packed, 0, offset)
    if size > _MAX_COPIED * len(packed):
        raise TableError(offset, f"{len(packed)} bytes cannot stand for {size}")
    output = bytearray()
    while position < len(packed):
        tag = packed[position]
        position += 1
        if tag & 3 == 0:
            length, position = _literal_length(packed, position, tag)
            output += packed[position : position + length]
            position += length
        else:
            length, distance, position = _copy_element(packed, position, tag)
            _copy_back(output, length, distance, offset + position)
        if len(output) > size:
            break
    if len(output) != size or position != len(packed):
        raise TableError(
            offset + position, f"{len(output)} bytes came out of the block, not {size}"
        )
    return bytes(output)


def _literal_length(packed: bytes, position: int, tag: int) -> tuple[int, int]:
    short = tag >> 2
    if short < 60:
        return short + 1, position
    width = short - 59
    return int.from_bytes(packed[position : position + width], "little") + 1, position + width


def _copy_element(packed: bytes, position: int, tag: int) -> tuple[int, int, int]:
    """The length and distance of a back-reference, and the position after it."""
    if tag & 3 == 1:
        low = int.from_bytes(packed[position : position + 1], "little")
        return (tag >> 2 & 7) + 4, tag >> 5 << 8 | low, position + 1
    width = 2 if tag & 3 == 2 else 4
    distance = int.from_bytes(packed[position : position + width], "little")
    return (tag >> 2) + 1, distance, position + width


def _copy_back(output: bytearray, length: int, distance: int, offset: int) -> None:
    if not 0 < distance <= len(output):
        raise TableError(offset, f"a copy from {distance} bytes back, of {len(output)} there are")
    start = len(output) - distance
    for index in range(start, start + length):  # byte by byte, since the copy may overlap itself
        output.append(output[index])
