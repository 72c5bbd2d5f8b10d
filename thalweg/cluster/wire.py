"""The wire format of a cluster: the encoding of messages, and the validation of received bytes.

A message has a kind, a step, a few fields and some values. It is encoded as one ZeroMQ frame,
little-endian throughout:

    offset  bytes
    0       4      magic "THLW"
    4       2      format version; everything after the kind may differ between versions
    6       2      kind
    8       8      session: the number the accepting side assigned to this connection, 0 in a HELLO
    16      8      sequence: greater than that of every earlier message on this connection
    24      8      step; 0 for none
    32      8      number of the request that this message makes or answers; 0 for none
    40      2      flags: 1 if this is the answer to a request
    42      2      number of values
    44      4      bytes of fields
    48      …      fields: a JSON object in UTF-8; empty if there are none
    …       …      the header of each value
    …       …      the content of each inline value, each aligned to a multiple of 16 bytes

The header of a value:

    0       1      place: 0 inline, 1 in shared memory, 2 in a stream of chunks, 3 lent
    1       1      0 for bytes, else the element type as numbered in TensorFlow's types.proto
    2       1      rank
    3       5      zero
    8       8      bytes of content
    16      8      number of the shared-memory segment, or of the stream
    24      8      offset from the segment's second page; if lent, of its lease byte in the first
    32      8·rank shape

The content of a tensor is its elements in row-major order. The content of a string tensor is the
length of each string, 8 bytes each, followed by the strings. A CHUNK has a second frame, its data:
the next bytes of the stream whose number is in the step field.

A packet of a local connection, between processes on one host, is one message or a bundle:

    0       4      magic "THLB"
    4       2      format version
    6       2      number n of messages
    8       4·n    bytes of each message
    …       …      the messages

Large values between hosts use a bulk connection, a TCP connection of their own, which a WELCOME
offers: a port, a ticket and, if the cluster has a key, one key for each direction. The connecting
side first sends a preamble of 16 bytes:

    0       4      magic "THLW"
    4       2      format version
    6       2      zero
    8       8      ticket

Then follow messages, in both directions; the first one of the connecting side is an ATTACH:

    0       4      bytes of the frame
    4       4      bytes of the data, at most 1 MiB; 0 unless the message is a CHUNK
    8       …      the frame
    …       …      the data

With keys, the frame and the data, if any, are two records, each encrypted with AES-128-GCM; a tag
of 16 bytes, not counted in the lengths, follows each ciphertext. The nonce is 12 bytes, the number
of the record in its direction, counted from 1. The 8 bytes of the two lengths are the associated
data of both records. A record that fails authentication ends the connection.

Every length is checked against the bytes received before anything is decoded or allocated. No
received data is evaluated.
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
MAX_FRAME = 8 << 20  # bytes; ZeroMQ closes a connection that announces a larger one
MAX_FIELDS = 4 << 20  # bytes
MAX_VALUES = 4096
MAX_RANK = 64  # NumPy's own limit
MAX_ELEMENTS = 1 << 48  # with zero dimensions counted as 1
MAX_BUNDLE = 64  # messages in one packet of a local connection
MAX_PACKET = 160 << 10  # bytes of such a packet; close to the kernel's limit
_MAX_HEADS = 64  # cached heads per FixedFields


class Kind(IntEnum):
    """The type of a message."""

    # Of the transport: not passed to handlers
    HELLO = 1  # the first message on a connection: identity of the connecting side
    WELCOME = 2  # its answer: identity of the accepting side; carries the session
    REFUSED = 3  # the negative answer, with the reason
    CONFIRM = 4  # answers WELCOME: whether the sender can map the other side's memory
    BYE = 5  # the sender's endpoint closes
    ATTACH = 6  # the first message on a further connection of a session: bulk or local
    CHUNK = 7  # bytes of a stream
    CREDIT = 8  # flow control: bytes of chunks received, which may follow again
    FORGET = 9  # shared-memory segments that the sender has freed

    # Of masters and workers
    STATUS = 16
    REGISTER = 17
    CLOSE = 18  # ends a session
    RUN = 19  # runs one task's part of a step, with the values it receives
    DONE = 20  # its answer, with fetched values and others that the master receives
    FAILED = 21
    TENSOR = 22
    ABORT = 23
    RESET = 24
    DEREGISTER = 25  # the sender will not run a step again
    LOST = 26  # a task lost its connection to another; values in flight may be lost


_KINDS = {int(kind): kind for kind in Kind}
_NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


class FixedFields(dict[str, Any]):
    """Immutable fields shared by many messages, encoded once."""

    @cached_property
    def encoded(self) -> bytes:
        """The fields as JSON."""
        return _encode(self).encode()

    def prefix(self, kind: Kind, step: int, request: int, flags: int, values: int) -> bytearray:
        """The start of a frame with these fields: the fixed header and the fields."""
        cached = self.prefixes.get((kind, flags, values))
        if cached is None:
            if len(self.encoded) > MAX_FIELDS:
                raise ValueError(f"{kind.name}: {len(self.encoded)} bytes of fields")
            head = _HEAD.pack(MAGIC, VERSION, kind, 0, 0, 0, 0, flags, values, len(self.encoded))
            cached = self.prefixes[kind, flags, values] = head + self.encoded
        frame = bytearray(cached)
        _STEP.pack_into(frame, _STEP_OFFSET, step, request)
        return frame

    @cached_property
    def prefixes(self) -> dict[tuple[Kind, int, int], bytes]:
        """Cached prefixes, with step and request 0, by kind, flags and number of values."""
        return {}

    @cached_property
    def heads(self) -> dict[tuple[Any, ...], bytes]:
        """Cached bytes before the content of one small array, by kind, flags, type and shape."""
        return {}

    def keep_head(self, key: tuple[Any, ...], head: bytes) -> None:
        """Cache a head."""
        if len(self.heads) >= _MAX_HEADS:
            self.heads.clear()
        self.heads[key] = head


class Message(NamedTuple):
    """A message to be sent, or received with all of its values."""

    kind: Kind
    step: int = 0
    fields: Mapping[str, Any] = _NO_FIELDS  # small, encodable as JSON
    values: Sequence[Any] = ()  # NumPy arrays or bytes; immutable from now on
    request: int = 0  # of a received message: the number to answer; 0 for none


class ValueLocation(IntEnum):
    """Where the content of a value is."""

    INLINE = 0
    SHARED = 1
    STREAM = 2
    LENT = 3


class ValueHeader(NamedTuple):
    """The type and shape of a value, and the location of its content."""

    location: ValueLocation
    code: int  # element type; BYTES for bytes
    shape: tuple[int, ...]
    nbytes: int
    number: int = 0
    offset: int = 0

    @property
    def is_view(self) -> bool:
        """Whether `value_of` returns an array that is a view of the content."""
        return self.code not in (BYTES, _STRING)


class DecodedMessage(NamedTuple):
    """A decoded frame. A value that is not inline is represented by its ValueHeader."""

    kind: Kind
    session: int
    sequence: int
    step: int
    request: int
    is_answer: bool
    fields: Mapping[str, Any]
    values: Sequence[Any]
    is_complete: bool  # all values are inline


#: Creates an instance of a NamedTuple class without its slower constructor in Python.
new_tuple = cast("Any", tuple).__new__


class WireError(ValueError):
    """Received bytes are not a valid message."""


class VersionError(WireError):
    """A message of another format version."""


BYTES = 0
_STRING = 7
_HEAD = Struct("<4sHHQQQQHHI")
_NUMBERS = Struct("<QQQQHHI")  # all after the kind
_FORM = Struct("<4sHHHHI")  # the fixed header without session, sequence, step and request
_BUNDLE = Struct("<4sHH")
_STAMP = Struct("<QQ")
_VALUE = Struct("<BBB5xQQQ")
_STEP = Struct("<QQ")  # step, request
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
#: Types whose arrays are encoded as their memory.
_PLAIN_CODES: dict[Dtype, int] = {
    storage: code for code, storage in _STORAGE.items() if code != _STRING and not storage.hasobject
}
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
_MAX_KEPT, _MAX_KEPT_BYTES = 4096, 4096  # entries in the cache of layouts, and bytes of each
_LOCATIONS = {int(location): location for location in ValueLocation}


# Encoding


class Content(NamedTuple):
    """A value to be sent: the type, shape and size for its header, and its source."""

    code: int
    shape: tuple[int, ...]
    nbytes: int
    source: Any  # an array of any strides, or bytes

    def copy_to(self, memory: memoryview) -> None:
        """Copy the bytes to their place in a frame or in shared memory."""
        if isinstance(self.source, bytes):
            memory[:] = self.source
        else:
            np.copyto(np.ndarray(self.shape, self.source.dtype, memory), self.source)

    def contiguous(self) -> memoryview:
        """The bytes as contiguous memory; copies only a non-contiguous array."""
        if isinstance(self.source, bytes):
            return memoryview(self.source)
        return _bytes_of(np.ascontiguousarray(self.source))


def content_of(value: Any) -> Content:
    """Prepare a value for sending; raises TypeError if its type is not supported."""
    if isinstance(value, bytes):
        return Content(BYTES, (), len(value), value)
    array = np.asarray(value)
    traits = find_traits(array.dtype.newbyteorder("="))
    if traits is None:
        raise TypeError(f"A value of type {array.dtype} cannot be sent to another process")
    if traits.enum == _STRING:
        packed = _pack_strings(array)
        return Content(_STRING, array.shape, len(packed), packed)
    if not array.dtype.isnative:
        array = array.astype(traits.storage)
    return Content(traits.enum, array.shape, array.nbytes, array)


def _pack_strings(array: np.ndarray[Any, Dtype]) -> bytes:
    strings = [_encode_string(item) for item in array.ravel().tolist()]
    lengths = np.array([len(item) for item in strings], _LENGTH)
    return b"".join([lengths.tobytes(), *strings])


def _encode_string(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes):
        return item
    raise TypeError(f"A {type(item).__name__} cannot be sent to another process")


def _bytes_of(array: np.ndarray[Any, Dtype]) -> memoryview:
    """The memory of a contiguous array; extension types do not export a buffer themselves."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def write(
    message: Message,
    headers: Sequence[ValueHeader] = (),
    contents: Sequence[Content] = (),
    is_answer: bool = False,
) -> bytearray:
    """Encode a message, without session and sequence; `contents` are the inline values."""
    kind, step, fields, _, request = message
    flags = _IS_ANSWER if is_answer else 0
    if isinstance(fields, FixedFields):
        if not headers:
            return fields.prefix(kind, step, request, flags, 0)
        encoded_fields = fields.encoded
    else:
        encoded_fields = _encode(dict(fields)).encode() if fields else b""
    if len(encoded_fields) > MAX_FIELDS or len(headers) > MAX_VALUES:
        raise ValueError(
            f"{kind.name}: {len(encoded_fields)} bytes of fields, {len(headers)} values"
        )
    frame = bytearray(
        _HEAD.pack(
            MAGIC, VERSION, kind, 0, 0, step, request, flags, len(headers), len(encoded_fields)
        )
    )
    frame += encoded_fields
    for header in headers:
        _write_header(frame, header)
    for content in contents:
        frame += bytes(-len(frame) % _ALIGNMENT + content.nbytes)
        content.copy_to(memoryview(frame)[len(frame) - content.nbytes :])
    return frame


def write_inline(message: Message, is_answer: bool, request: int, limit: int) -> bytearray | None:
    """Encode a message with FixedFields whose values are plain arrays of at most `limit` bytes in
    total, the common case; returns None for any other message."""
    kind, step, fields, values, _ = message
    if not isinstance(fields, FixedFields):
        return None
    flags = _IS_ANSWER if is_answer else 0
    if not values:
        return fields.prefix(kind, step, request, flags, 0)
    if len(values) > 1:
        return _write_plain(fields, message, request, flags, limit)
    (value,) = values
    if not isinstance(value, _ARRAYS):
        return None
    array: np.ndarray[Any, Dtype] = value
    key = kind, flags, array.dtype, array.shape
    head = fields.heads.get(key)
    if head is None:
        frame = _write_plain(fields, message, request, flags, limit)
        if frame is not None:
            fields.keep_head(key, bytes(frame[: len(frame) - array.nbytes]))
        return frame
    frame = bytearray(head)
    _STEP.pack_into(frame, _STEP_OFFSET, step, request)
    frame += array.tobytes()
    return frame


def write_again(kind: Kind, step: int, fields: FixedFields, value: Any) -> bytearray | None:
    """Encode a message with one value from the head that `write_inline` cached for its kind, type
    and shape; returns None if there is none."""
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
    """Encode a message with plain arrays; None if one is not, or they exceed `limit` bytes."""
    kind, step, _, values, _ = message
    if len(values) > MAX_VALUES:
        return None
    frame = fields.prefix(kind, step, request, flags, len(values))
    contents = list[bytes]()
    for item in values:
        if not isinstance(item, _ARRAYS):
            return None
        value: np.ndarray[Any, Dtype] = item
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
    location, code, shape, nbytes, number, offset = header
    frame += _VALUE.pack(location, code, len(shape), nbytes, number, offset)
    if shape:
        frame += _shape_struct(len(shape)).pack(*shape)


#: Writes session and sequence into a frame: pack_stamp(frame, STAMP_OFFSET, session, sequence).
pack_stamp = _STAMP.pack_into


def bundle_head(sizes: Sequence[int]) -> bytes:
    """The header of a bundle of messages of these sizes."""
    return _BUNDLE.pack(BUNDLE_MAGIC, VERSION, len(sizes)) + _sizes_struct(len(sizes)).pack(*sizes)


@memoized(MAX_BUNDLE)
def _sizes_struct(count: int) -> Struct:
    return Struct(f"<{count}I")


# Decoding


def frames_of(packet: bytes) -> list[bytes]:
    """Split a packet of a local connection into frames; raises WireError if it is invalid."""
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


def read(frame: bytes) -> DecodedMessage:
    """Decode a frame; raises WireError if it is invalid, VersionError for another version."""
    length = len(frame)
    if length < _HEAD_SIZE:
        raise WireError(f"{length} bytes are no message")
    session, sequence, step, request, _, count, field_bytes = _unpack_numbers(frame, STAMP_OFFSET)
    end: int = _HEAD_SIZE + field_bytes
    if count == 1 and end + _RANK_OFFSET < length:
        end += _VALUE_SIZE + frame[end + _RANK_OFFSET] * 8
    elif count:
        end = _end_of_headers(frame, end, count)
    layout_bytes = frame[:STAMP_OFFSET] + frame[_FLAGS_OFFSET:end]
    parse = _parse_layout_cached if end <= _MAX_KEPT_BYTES else _parse_layout
    kind, is_answer, fields, layouts, is_complete, size = parse(layout_bytes)
    if length != size:
        raise WireError(f"{length} bytes where the values end at {size}")
    values: Sequence[Any] = ()
    if len(layouts) == 1 and layouts[0][1] is not None:  # the common case
        header, dtype, start = layouts[0]
        values = [_array(header.shape, dtype, frame, start)]
    elif layouts:
        values = [
            _array(header.shape, dtype, frame, start)
            if dtype is not None
            else value_of(header, frame, start)
            if start
            else header
            for header, dtype, start in layouts
        ]
    return new_tuple(
        DecodedMessage,
        (kind, session, sequence, step, request, is_answer, fields, values, is_complete),
    )


def _end_of_headers(frame: bytes, start: int, count: int) -> int:
    """The end of `count` value headers from `start`; validated later, by `_parse_layout`."""
    for _ in range(count if count <= MAX_VALUES else 0):
        rank = start + _RANK_OFFSET
        if rank >= len(frame):
            break
        start += _VALUE.size + frame[rank] * _LENGTH.itemsize
    return start


class _Layout(NamedTuple):
    """What a frame contains except its numbers and the content of values: equal in every step."""

    kind: Kind
    is_answer: bool
    fields: Mapping[str, Any]
    #: For each value its header, its dtype if it is an inline array, and the offset of its content
    #: in the frame; 0 if it is not inline.
    layouts: Sequence[tuple[ValueHeader, Dtype | None, int]]
    is_complete: bool
    size: int  # bytes of the frame


def _parse_layout(layout_bytes: bytes) -> _Layout:
    """Parse and validate a frame without its numbers and the content of its values."""
    skipped = _FLAGS_OFFSET - STAMP_OFFSET
    magic, version, number, flags, count, field_bytes = _FORM.unpack_from(layout_bytes)
    kind = _KINDS.get(number)
    if magic != MAGIC or version != VERSION or kind is None or flags & ~_IS_ANSWER:
        raise _header_error(magic, version, number, flags)
    end = _FORM.size + field_bytes
    if field_bytes > MAX_FIELDS or end > len(layout_bytes) or count > MAX_VALUES:
        raise WireError(f"fields of {field_bytes} bytes, {count} values")
    fields = _read_fields(layout_bytes[_FORM.size : end]) if field_bytes else _NO_FIELDS
    headers = _read_headers(layout_bytes, end, count)
    start, layouts = len(layout_bytes) + skipped, list[tuple[ValueHeader, Dtype | None, int]]()
    for header in headers:
        if header.location is not ValueLocation.INLINE:
            layouts.append((header, None, 0))
            continue
        start += -start % _ALIGNMENT
        layouts.append((header, _STORAGE[header.code] if header.is_view else None, start))
        start += header.nbytes
    is_complete = all(header.location is ValueLocation.INLINE for header in headers)
    return _Layout(kind, flags != 0, fields, layouts, is_complete, start)


def _read_headers(layout_bytes: bytes, start: int, count: int) -> list[ValueHeader]:
    headers = list[ValueHeader]()
    for _ in range(count):
        end = start + _VALUE.size
        if end > len(layout_bytes):
            raise WireError("a value's header ends early")
        end += layout_bytes[start + _RANK_OFFSET] * _LENGTH.itemsize
        headers.append(_read_header(layout_bytes[start:end]))
        start = end
    return headers


#: Messages of a step differ only in numbers and content. Results are shared, so read-only.
_parse_layout_cached = memoized(_MAX_KEPT)(_parse_layout)


def _header_error(magic: bytes, version: int, kind: int, flags: int) -> WireError:
    """The error for an invalid start of a frame."""
    if magic != MAGIC:
        return WireError("not a message of Thalweg")
    if version != VERSION:
        return VersionError(
            f"it speaks version {version} of the wire format, and this process version {VERSION}: "
            "all tasks need the same release of Thalweg"
        )
    return WireError(f"kind {kind} with flags {flags} is unknown")


def _read_fields(encoded_fields: bytes) -> Mapping[str, Any]:
    try:
        fields: Any = _decode(encoded_fields.decode())
    except (ValueError, RecursionError) as error:
        raise WireError(f"fields are no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise WireError("fields are no JSON object")
    return cast("dict[str, Any]", fields)


def _read_header(data: bytes) -> ValueHeader:
    location, code, rank, nbytes, number, offset = _VALUE.unpack_from(data)
    if location not in _LOCATIONS or rank > MAX_RANK or len(data) != _VALUE.size + rank * 8:
        raise WireError(f"a value of rank {rank} in place {location}")
    shape = _shape_struct(rank).unpack_from(data, _VALUE.size)
    header = ValueHeader(_LOCATIONS[location], code, shape, nbytes, number, offset)
    _check_size(header)
    return header


def _check_size(header: ValueHeader) -> None:
    """Raise WireError unless the size of a value agrees with its type and shape."""
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
    """Decode the content of a value: arrays are read-only views, strings and bytes copies."""
    if header.is_view:
        array = np.ndarray(header.shape, _STORAGE[header.code], memory, start)
        if not isinstance(memory, bytes):  # arrays over bytes are read-only already
            array.flags.writeable = False
        return array
    content = memoryview(memory)[start : start + header.nbytes]
    return bytes(content) if header.code == BYTES else _unpack_strings(header, content)


def _unpack_strings(header: ValueHeader, content: memoryview) -> np.ndarray[Any, Dtype]:
    count = prod(header.shape)
    lengths: list[int] = np.ndarray(count, _LENGTH, content).tolist()
    start = count * _LENGTH.itemsize
    if start + sum(lengths) != header.nbytes:
        raise WireError("strings are not as long as they say")
    array = np.empty(count, np.object_)
    for index, length in enumerate(lengths):
        array[index] = bytes(content[start : start + length])
        start += length
    array = array.reshape(header.shape)
    array.flags.writeable = False
    return array
