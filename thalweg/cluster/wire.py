"""The wire format of a cluster: what bytes a message is, and which bytes are refused.

A message comes in as a kind, a step, a few fields and some values, and goes out as one ZeroMQ
frame, little-endian throughout:

    offset  bytes
    0       4      the magic word "THLW"
    4       2      version of this format; what comes after the kind may differ between versions
    6       2      kind
    8       8      session: the number that the accepting side gave to this connection, 0 in a HELLO
    16      8      sequence: greater than that of every message before it on this connection
    24      8      step; 0 for none
    32      8      request that this asks or answers; 0 for none
    40      2      flags: 1 if this answers a request
    42      2      number of values
    44      4      bytes of fields
    48      …      fields: a JSON object in UTF-8; nothing at all where there are none
    …       …      the header of each value
    …       …      the content of each inline value, from the next multiple of 16 bytes

The header of a value:

    0       1      place: 0 inline, 1 in shared memory, 2 in a stream of chunks, 3 lent
    1       1      0 for bytes, else the element type as numbered in TensorFlow's types.proto
    2       1      rank
    3       5      zero
    8       8      bytes of content
    16      8      the number of the segment of shared memory, or of the stream
    24      8      offset in the segment; of what is lent, the byte of its first page to clear
    32      8·rank shape

The content of a tensor is its elements in row-major order. That of a tensor of strings is the
length of each string, 8 bytes, and then the strings. A CHUNK has a second frame, its data: the
next bytes of the stream whose number it has in the place of the step.

A packet of a connection within the host is one message, or several that left together:

    0       4      the magic word "THLB"
    4       2      version of this format
    6       2      number of messages
    8       4·n    bytes of each
    …       …      the messages

Large values between hosts have a TCP connection of their own, which a WELCOME offers: a port, a
ticket, and a key for each direction where the cluster has one. It begins with 16 bytes:

    0       4      the magic word "THLW"
    4       2      version of this format
    6       2      zero
    8       8      the ticket

and goes on, in both directions, with messages, the first of which is an ATTACH:

    0       4      bytes of the frame
    4       4      bytes of data, 1 MB at most; 0 where the message is no CHUNK
    8       …      the frame
    …       …      the data

With keys, frame and data are sealed, each by AES-256-GCM: 16 bytes of tag follow the content. The
nonce is 12 bytes, the number of the piece in its direction, counted from 1; the 8 bytes of the two
lengths are authenticated with it. A piece that does not open ends the connection.

Every length is checked against the bytes that are there before anything is made of them. Nothing
that comes in is evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from math import prod
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg.platform.caches import memoized
from thalweg.platform.dtype_traits import TABLE, Dtype, find_traits

MAGIC = b"THLW"
BUNDLE_MAGIC = b"THLB"
VERSION = 5
MAX_FRAME = 8 << 20  # bytes; ZeroMQ closes a connection on which a larger one is announced
MAX_FIELDS = 4 << 20  # bytes
MAX_VALUES = 4096
MAX_RANK = 64  # NumPy's own limit
MAX_ELEMENTS = 1 << 48  # also of a shape with a zero in it
MAX_BUNDLE = 64  # messages in one packet within a host
MAX_PACKET = 160 << 10  # bytes of it; the system takes little more at once
_MAX_HEADS = 64  # of messages with the same fields: shapes of their values


class Kind(IntEnum):
    """What a message is about."""

    # Of the transport: handlers never see these
    HELLO = 1  # who connects; the first message on a connection
    WELCOME = 2  # the answer: who accepts, and the number of the session
    REFUSED = 3  # the other answer: why not
    CONFIRM = 4  # of who was welcome: whether it can map the memory of who accepted
    BYE = 5  # the endpoint closes
    ATTACH = 6  # the first message on another connection of a session: for chunks, or local
    CHUNK = 7  # bytes of a stream
    CREDIT = 8  # so many bytes of chunks were taken: as many may follow
    FORGET = 9  # segments of shared memory that the sender has done with

    # Of masters and workers
    STATUS = 16
    REGISTER = 17
    CLOSE = 18  # a session ends
    RUN = 19  # a part of a step, with values that it receives
    DONE = 20  # the answer, with values that are fetched, and others that the master receives
    FAILED = 21
    TENSOR = 22
    ABORT = 23
    RESET = 24
    DEREGISTER = 25  # a step will not be run again
    LOST = 26  # a task has lost its way to another: values that it sent there may be gone


_KINDS = {int(kind): kind for kind in Kind}
_NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


class FixedFields(dict[str, Any]):
    """Fields of many messages, which are encoded once: nobody may change them."""

    @cached_property
    def encoded(self) -> bytes:
        """As they travel."""
        return _encode(self).encode()

    def prefix(self, kind: Kind, step: int, request: int, flags: int, values: int) -> bytearray:
        """The start of a message with these fields: its head and them."""
        known = self.prefixes.get((kind, flags, values))
        if known is None:
            if len(self.encoded) > MAX_FIELDS:
                raise ValueError(f"{kind.name}: {len(self.encoded)} bytes of fields")
            head = _HEAD.pack(MAGIC, VERSION, kind, 0, 0, 0, 0, flags, values, len(self.encoded))
            known = self.prefixes[kind, flags, values] = head + self.encoded
        frame = bytearray(known)
        _STEP.pack_into(frame, _STEP_OFFSET, step, request)
        return frame

    @cached_property
    def prefixes(self) -> dict[tuple[Kind, int, int], bytes]:
        """The starts that were written, by kind, flags and number of values."""
        return {}

    @cached_property
    def heads(self) -> dict[tuple[Any, ...], bytes]:
        """All that comes before the content of one small array, by its type and shape."""
        return {}

    def keep_head(self, shaped: tuple[Any, ...], head: bytes) -> None:
        """Write no such head again."""
        if len(self.heads) >= _MAX_HEADS:
            self.heads.clear()
        self.heads[shaped] = head


class Message(NamedTuple):
    """What one process tells another."""

    kind: Kind
    step: int = 0
    fields: Mapping[str, Any] = _NO_FIELDS  # small: strings, numbers, lists
    values: Sequence[Any] = ()  # NumPy arrays, or bytes; nobody may write to them afterwards
    request: int = 0  # of one that was received: what an answer to it refers to


class Place(IntEnum):
    """Where the content of a value is."""

    INLINE = 0
    SHARED = 1
    STREAM = 2
    LENT = 3


class ValueHeader(NamedTuple):
    """What a value is, and where its content is to be found."""

    place: Place
    code: int  # of the element type; BYTES for bytes
    shape: tuple[int, ...]
    nbytes: int
    number: int = 0
    offset: int = 0

    @property
    def is_view(self) -> bool:
        """Whether `value_of` makes an array that uses its content in place."""
        return self.code not in (BYTES, _STRING)


class Letter(NamedTuple):
    """A frame that was read. Of a value that is elsewhere, its header tells where."""

    kind: Kind
    session: int
    sequence: int
    step: int
    request: int
    is_answer: bool
    fields: Mapping[str, Any]
    values: Sequence[Any]
    is_complete: bool  # no value is elsewhere


#: Make a tuple of one of these types without the constructor in Python that it has by its names.
new_tuple = cast("Any", tuple).__new__


class WireError(ValueError):
    """Bytes that are no message."""


class VersionError(WireError):
    """A message in another version of the format."""


BYTES = 0
_STRING = 7
_HEAD = Struct("<4sHHQQQQHHI")
_NUMBERS = Struct("<QQQQHHI")  # what follows the kind
_FORM = Struct("<4sHHHHI")  # the head of a message without its numbers
_BUNDLE = Struct("<4sHH")
_STAMP = Struct("<QQ")
_VALUE = Struct("<BBB5xQQQ")
_STEP = Struct("<QQ")  # and the request
STAMP_OFFSET, _STEP_OFFSET, _FLAGS_OFFSET, _RANK_OFFSET = 8, 24, 40, 2
_ALIGNMENT = 16
_HEAD_SIZE, _VALUE_SIZE = _HEAD.size, _VALUE.size
_unpack_numbers = _NUMBERS.unpack_from
_IS_ANSWER = 1
_ARRAYS: Any = (np.ndarray, np.generic)
_array: Any = np.ndarray
_PADDING = [bytes(-size % _ALIGNMENT) for size in range(_ALIGNMENT)]
_LENGTH = np.dtype("<u8")
_STORAGE: dict[int, Dtype] = {row.enum: row.storage for row in TABLE if row.dtype_class != "opaque"}
#: Of types whose arrays travel as they are.
_PLAIN_CODES: dict[Dtype, int] = {
    storage: code for code, storage in _STORAGE.items() if code != _STRING and not storage.hasobject
}
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
_MAX_KEPT, _MAX_KEPT_BYTES = 4096, 1024  # messages that were read, and bytes of each
_PLACES = {int(place): place for place in Place}


# Out


class Content(NamedTuple):
    """A value that is about to travel: its header's facts and where its bytes are."""

    code: int
    shape: tuple[int, ...]
    nbytes: int
    source: Any  # an array of any strides, or bytes

    def copy_to(self, memory: memoryview) -> None:
        """Copy the bytes to where they travel; the only copy that is made of a large array."""
        if isinstance(self.source, bytes):
            memory[:] = self.source
        else:
            np.copyto(np.ndarray(self.shape, self.source.dtype, memory), self.source)

    def contiguous(self) -> memoryview:
        """The bytes in one piece of memory."""
        if isinstance(self.source, bytes):
            return memoryview(self.source)
        return _bytes_of(np.ascontiguousarray(self.source))


def content_of(value: Any) -> Content:
    """How a value travels; a TypeError for what cannot."""
    if isinstance(value, bytes):
        return Content(BYTES, (), len(value), value)
    array = np.asarray(value)
    traits = find_traits(array.dtype.newbyteorder("="))
    if traits is None:
        raise TypeError(f"A value of type {array.dtype} cannot be sent to another process")
    if traits.enum == _STRING:
        packed = _packed_strings(array)
        return Content(_STRING, array.shape, len(packed), packed)
    if not array.dtype.isnative:
        array = array.astype(traits.storage)
    return Content(traits.enum, array.shape, array.nbytes, array)


def _packed_strings(array: np.ndarray[Any, Dtype]) -> bytes:
    strings = [_string(item) for item in array.ravel().tolist()]
    lengths = np.array([len(item) for item in strings], _LENGTH)
    return b"".join([lengths.tobytes(), *strings])


def _string(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes):
        return item
    raise TypeError(f"A {type(item).__name__} cannot be sent to another process")


def _bytes_of(array: np.ndarray[Any, Dtype]) -> memoryview:
    """The memory of a contiguous array; other types than NumPy's own export none themselves."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def write(
    message: Message,
    headers: Sequence[ValueHeader] = (),
    contents: Sequence[Content] = (),
    is_answer: bool = False,
) -> bytearray:
    """The frame of a message, to be stamped; `contents` are those of the inline values."""
    kind, step, fields, _, request = message
    if isinstance(fields, FixedFields):
        if not headers:
            return fields.prefix(kind, step, request, _IS_ANSWER if is_answer else 0, 0)
        told = fields.encoded
    else:
        told = _encode(dict(fields)).encode() if fields else b""
    if len(told) > MAX_FIELDS or len(headers) > MAX_VALUES:
        raise ValueError(f"{kind.name}: {len(told)} bytes of fields, {len(headers)} values")
    flags = _IS_ANSWER if is_answer else 0
    frame = bytearray(
        _HEAD.pack(MAGIC, VERSION, kind, 0, 0, step, request, flags, len(headers), len(told))
    )
    frame += told
    for header in headers:
        _write_header(frame, header)
    for content in contents:
        frame += bytes(-len(frame) % _ALIGNMENT + content.nbytes)
        content.copy_to(memoryview(frame)[len(frame) - content.nbytes :])
    return frame


def write_inline(message: Message, is_answer: bool, request: int, limit: int) -> bytearray | None:
    """The frame of a message that is alike in every step, and whose values are plain arrays of a
    few bytes, as most are; None for any other."""
    kind, step, fields, values, _ = message
    if not isinstance(fields, FixedFields):
        return None
    flags = _IS_ANSWER if is_answer else 0
    if not values:
        known = fields.prefixes.get((kind, flags, 0))
        if known is None:
            return fields.prefix(kind, step, request, flags, 0)
        frame = bytearray(known)
        _STEP.pack_into(frame, _STEP_OFFSET, step, request)
        return frame
    if len(values) > 1:
        return _write_plain(fields, message, request, flags, limit)
    (value,) = values
    if not isinstance(value, _ARRAYS):
        return None
    array: np.ndarray[Any, Dtype] = value
    shaped = kind, flags, array.dtype, array.shape
    head = fields.heads.get(shaped)
    if head is None:
        frame = _write_plain(fields, message, request, flags, limit)
        if frame is not None:
            fields.keep_head(shaped, bytes(frame[: len(frame) - array.nbytes]))
        return frame
    frame = bytearray(head)
    _STEP.pack_into(frame, _STEP_OFFSET, step, request)
    frame += array.tobytes()
    return frame


def write_again(kind: Kind, step: int, fields: FixedFields, value: Any) -> bytearray | None:
    """The frame of a message with a value like one that `write_inline` has written; None for any
    other."""
    if not isinstance(value, _ARRAYS):
        return None
    head = fields.heads.get((kind, 0, value.dtype, value.shape))
    if head is None:
        return None
    frame = bytearray(head)
    _STEP.pack_into(frame, _STEP_OFFSET, step, 0)
    frame += value.tobytes()
    return frame


def _write_plain(
    fields: FixedFields, message: Message, request: int, flags: int, limit: int
) -> bytearray | None:
    """A message with plain arrays of a few bytes; None where some are not."""
    kind, step, _, values, _ = message
    if len(values) > MAX_VALUES:
        return None
    frame = fields.prefix(kind, step, request, flags, len(values))
    contents = list[bytes]()
    for given in values:
        if not isinstance(given, _ARRAYS):
            return None
        value: np.ndarray[Any, Dtype] = given
        code, nbytes = _PLAIN_CODES.get(value.dtype), value.nbytes
        if code is None or nbytes > limit:
            return None
        limit -= nbytes
        shape = value.shape
        frame += _VALUE.pack(0, code, len(shape), nbytes, 0, 0)
        if shape:
            frame += _shape_struct(len(shape)).pack(*shape)
        contents.append(value.tobytes())
    for content in contents:
        frame += _PADDING[len(frame) % _ALIGNMENT]
        frame += content
    return frame


@memoized(MAX_RANK + 1)
def _shape_struct(rank: int) -> Struct:
    return Struct(f"<{rank}Q")


def _write_header(frame: bytearray, header: ValueHeader) -> None:
    place, code, shape, nbytes, number, offset = header
    frame += _VALUE.pack(place, code, len(shape), nbytes, number, offset)
    if shape:
        frame += _shape_struct(len(shape)).pack(*shape)


#: Write into a frame, from STAMP_OFFSET on, of which connection and which message it is.
pack_stamp = _STAMP.pack_into


def stamp(frame: bytearray, session: int, sequence: int) -> None:
    """Write which message of which connection a frame is."""
    pack_stamp(frame, STAMP_OFFSET, session, sequence)


def bundle_head(sizes: Sequence[int]) -> bytes:
    """What comes before messages of some sizes that travel in one packet."""
    return _BUNDLE.pack(BUNDLE_MAGIC, VERSION, len(sizes)) + _sizes_struct(len(sizes)).pack(*sizes)


@memoized(MAX_BUNDLE)
def _sizes_struct(count: int) -> Struct:
    return Struct(f"<{count}I")


# In


def frames_of(packet: bytes) -> list[bytes]:
    """The frames of a packet of a connection within the host; a WireError where it has none."""
    if not packet.startswith(BUNDLE_MAGIC):
        return [packet]
    if len(packet) < _BUNDLE.size:
        raise WireError(f"{len(packet)} bytes are no messages")
    _, version, count = _BUNDLE.unpack_from(packet)
    start = _BUNDLE.size + 4 * count
    if version != VERSION or count > MAX_BUNDLE or start > len(packet):
        raise WireError(f"{count} messages in version {version}")
    frames = list[bytes]()
    for size in _sizes_struct(count).unpack_from(packet, _BUNDLE.size):
        frames.append(packet[start : start + size])
        start += size
    if start != len(packet):
        raise WireError(f"{len(packet)} bytes where the messages end at {start}")
    return frames


def read(frame: bytes) -> Letter:
    """A message, read; a WireError where the frame is none, or of another version."""
    length = len(frame)
    if length < _HEAD_SIZE:
        raise WireError(f"{length} bytes are no message")
    session, sequence, step, request, _, count, field_bytes = _unpack_numbers(frame, STAMP_OFFSET)
    end: int = _HEAD_SIZE + field_bytes
    if count == 1 and end + _RANK_OFFSET < length:
        end += _VALUE_SIZE + frame[end + _RANK_OFFSET] * 8
    elif count:
        end = _end_of_headers(frame, end, count)
    repeated = frame[:STAMP_OFFSET] + frame[_FLAGS_OFFSET:end]
    read_form = _read_form_again if end <= _MAX_KEPT_BYTES else _read_form
    kind, is_answer, fields, places, is_complete, size = read_form(repeated)
    if length != size:
        raise WireError(f"{length} bytes where the values end at {size}")
    values: Sequence[Any] = ()
    if len(places) == 1 and places[0][1] is not None:  # as most have it
        header, dtype, start = places[0]
        values = [_array(header.shape, dtype, frame, start)]
    elif places:
        values = [
            _array(header.shape, dtype, frame, start)
            if dtype is not None
            else value_of(header, frame, start)
            if start
            else header
            for header, dtype, start in places
        ]
    return new_tuple(
        Letter, (kind, session, sequence, step, request, is_answer, fields, values, is_complete)
    )


def _end_of_headers(frame: bytes, start: int, count: int) -> int:
    """Where the headers of values that begin somewhere end, if the frame is as long as it says."""
    for _ in range(count if count <= MAX_VALUES else 0):
        rank = start + _RANK_OFFSET
        if rank >= len(frame):
            break
        start += _VALUE.size + frame[rank] * _LENGTH.itemsize
    return start


class _Form(NamedTuple):
    """A message without its numbers and the content of its values: the same in every step."""

    kind: Kind
    is_answer: bool
    fields: Mapping[str, Any]
    #: Of each value its header, its type if it is an array in the frame, and where its content
    #: begins there; 0 if that is elsewhere.
    places: Sequence[tuple[ValueHeader, Dtype | None, int]]
    is_complete: bool
    size: int  # bytes of the frame


def _read_form(repeated: bytes) -> _Form:
    """What the bytes of a frame say that are no numbers, step, or content."""
    skipped = _FLAGS_OFFSET - STAMP_OFFSET
    magic, version, number, flags, count, field_bytes = _FORM.unpack_from(repeated)
    kind = _KINDS.get(number)
    if magic != MAGIC or version != VERSION or kind is None or flags & ~_IS_ANSWER:
        raise _foreign(magic, version, number, flags)
    end = _FORM.size + field_bytes
    if field_bytes > MAX_FIELDS or end > len(repeated) or count > MAX_VALUES:
        raise WireError(f"fields of {field_bytes} bytes, {count} values")
    fields = _read_fields(repeated[_FORM.size : end]) if field_bytes else _NO_FIELDS
    headers = _read_headers(repeated, end, count)
    start, places = len(repeated) + skipped, list[tuple[ValueHeader, Dtype | None, int]]()
    for header in headers:
        if header.place is not Place.INLINE:
            places.append((header, None, 0))
            continue
        start += -start % _ALIGNMENT
        places.append((header, _STORAGE[header.code] if header.is_view else None, start))
        start += header.nbytes
    is_complete = all(header.place is Place.INLINE for header in headers)
    return _Form(kind, flags != 0, fields, places, is_complete, start)


def _read_headers(repeated: bytes, start: int, count: int) -> list[ValueHeader]:
    headers = list[ValueHeader]()
    for _ in range(count):
        end = start + _VALUE.size
        if end > len(repeated):
            raise WireError("a value's header ends early")
        end += repeated[start + _RANK_OFFSET] * _LENGTH.itemsize
        headers.append(_read_header(repeated[start:end]))
        start = end
    return headers


#: A step's messages are the same every time but for numbers; whoever reads them changes nothing.
_read_form_again = memoized(_MAX_KEPT)(_read_form)


def _foreign(magic: bytes, version: int, kind: int, flags: int) -> WireError:
    """Why the start of a frame is not that of a message."""
    if magic != MAGIC:
        return WireError("not a message of Thalweg")
    if version != VERSION:
        return VersionError(
            f"it speaks version {version} of the wire format, and this process version {VERSION}: "
            "all tasks need the same release of Thalweg"
        )
    return WireError(f"kind {kind} with flags {flags} is unknown")


def _read_fields(told: bytes) -> Mapping[str, Any]:
    try:
        fields: Any = _decode(told.decode())
    except (ValueError, RecursionError) as error:
        raise WireError(f"fields are no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise WireError("fields are no JSON object")
    return cast("dict[str, Any]", fields)


def _read_header(data: bytes) -> ValueHeader:
    place, code, rank, nbytes, number, offset = _VALUE.unpack_from(data)
    if place not in _PLACES or rank > MAX_RANK or len(data) != _VALUE.size + rank * 8:
        raise WireError(f"a value of rank {rank} in place {place}")
    shape = _shape_struct(rank).unpack_from(data, _VALUE.size)
    header = ValueHeader(_PLACES[place], code, shape, nbytes, number, offset)
    _check_size(header)
    return header


def _check_size(header: ValueHeader) -> None:
    """Whether a value has as many bytes as its type and shape need."""
    elements = prod(header.shape)
    if prod(size or 1 for size in header.shape) > MAX_ELEMENTS:
        raise WireError(f"shape {header.shape}")
    if header.code == BYTES:
        fits = header.shape == ()
    elif header.code == _STRING:
        fits = elements * _LENGTH.itemsize <= header.nbytes
    else:
        storage = _STORAGE.get(header.code)
        fits = storage is not None and elements * storage.itemsize == header.nbytes
    if not fits:
        raise WireError(f"type {header.code}, shape {header.shape}: not {header.nbytes} bytes")


def value_of(header: ValueHeader, memory: Any, start: int = 0) -> Any:
    """A value made of its content: an array is a view of it, strings and bytes are copies."""
    if header.is_view:
        array = np.ndarray(header.shape, _STORAGE[header.code], memory, start)
        if not isinstance(memory, bytes):  # of which no array can be written to
            array.flags.writeable = False
        return array
    content = memoryview(memory)[start : start + header.nbytes]
    return bytes(content) if header.code == BYTES else _unpacked_strings(header, content)


def _unpacked_strings(header: ValueHeader, content: memoryview) -> np.ndarray[Any, Dtype]:
    count = prod(header.shape)
    lengths: list[int] = np.ndarray(count, _LENGTH, content).tolist()
    start = count * _LENGTH.itemsize
    if start + sum(lengths) != header.nbytes:
        raise WireError("strings are not as long as they say")
    array = np.empty(count, np.object_)
    for place, length in enumerate(lengths):
        array[place] = bytes(content[start : start + length])
        start += length
    array = array.reshape(header.shape)
    array.flags.writeable = False
    return array
