"""The wire format: what is written is read back, and what is not a message is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from thalweg.cluster import wire
from thalweg.cluster.wire import Kind, Message, ValueHeader, ValueLocation, VersionError, WireError


def written(message: Message) -> bytes:
    contents = [wire.content_of(value) for value in message.values]
    headers = [ValueHeader(ValueLocation.INLINE, *content[:3]) for content in contents]
    return bytes(wire.write(message, headers, contents))


def opened(frame: bytes) -> Message:
    decoded = wire.read(frame)
    assert decoded.is_complete
    return Message(decoded.kind, decoded.step, decoded.fields, decoded.values)


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(12).reshape(3, 4)[:, ::2],
    np.array(7, np.int64),
    np.zeros((0, 5), np.complex128),
    np.array([1.5, -2], ml_dtypes.bfloat16),
    np.array([1.5, -2], ml_dtypes.float8_e5m2),
    np.array([True, False]),
    np.arange(3, dtype=">i4"),
    np.array([b"", b"a", b"\x00\xff" * 9], object),
    np.array(b"scalar", object),
    np.zeros((0,), object),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_an_array_of_every_type_is_read_as_it_was_written(array: Any):
    (value,) = opened(written(Message(Kind.TENSOR, 3, {"key": "k"}, [array]))).values
    assert value.shape == array.shape
    assert value.dtype == array.dtype.newbyteorder("=")
    assert value.tolist() == array.tolist()
    assert not value.flags.writeable


def test_fields_and_many_values_are_read_as_they_were_written():
    message = Message(Kind.RUN, 2**64 - 1, {"ö": [1, "x", None]}, [b"raw", *ARRAYS[:2]])
    read = opened(written(message))
    assert read[:3] == message[:3]
    assert read.values[0] == b"raw"
    assert all(np.array_equal(*pair) for pair in zip(read.values[1:], ARRAYS[:2], strict=True))


def test_arrays_in_a_frame_are_aligned():
    values = opened(
        written(Message(Kind.RUN, 0, {"a": 1}, [b"x", ARRAYS[0], b"yz", ARRAYS[1]]))
    ).values
    assert all(value.ctypes.data % 16 == 0 for value in values[1::2])


@pytest.mark.parametrize("value", [object(), np.array([object()]), np.array(["2020"], "M8[Y]")])
def test_what_has_no_bytes_cannot_be_sent(value: Any):
    with pytest.raises(TypeError, match="cannot be sent"):
        wire.content_of(value)


def test_every_truncated_message_is_refused():
    frame = written(Message(Kind.RUN, 1, {"a": 1}, [ARRAYS[0], ARRAYS[8], b"bytes"]))
    for length in range(len(frame)):
        with pytest.raises(WireError):
            opened(frame[:length])


def test_a_longer_message_is_refused():
    with pytest.raises(WireError):
        opened(written(Message(Kind.RUN, 1)) + b"more")


def test_another_version_is_told_apart_from_garbage():
    frame = bytearray(written(Message(Kind.HELLO)))
    frame[4] = 99
    with pytest.raises(VersionError, match=rf"version 99 .* version {wire.VERSION}"):
        wire.read(bytes(frame))
    with pytest.raises(WireError, match="not a message of Thalweg"):
        wire.read(b"GET / HTTP/1.1\r\nHost: a-web-browser.example.com\r\n\r\n")


@pytest.mark.parametrize(
    "header",
    [
        ValueHeader(ValueLocation.SHARED, 1, (1 << 62, 4), 1 << 63),
        ValueHeader(ValueLocation.SHARED, 1, (1 << 63, 0), 0),
        ValueHeader(ValueLocation.SHARED, 1, (2, 2), 12),
        ValueHeader(ValueLocation.SHARED, 7, (1000,), 12),
        ValueHeader(ValueLocation.SHARED, 0, (3,), 3),
        ValueHeader(ValueLocation.SHARED, 20, (), 8),
        ValueHeader(ValueLocation.SHARED, 200, (), 8),
    ],
    ids=str,
)
def test_values_of_impossible_sizes_and_types_are_refused(header: ValueHeader):
    frame = bytes(wire.write(Message(Kind.RUN), [header]))
    with pytest.raises(WireError):
        opened(frame)


@pytest.mark.parametrize("fields", [b"[1]", b"{", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_fields_that_are_no_json_object_are_refused(fields: bytes):
    frame = bytearray(wire.write(Message(Kind.RUN)))
    frame[44:48] = len(fields).to_bytes(4, "little")
    with pytest.raises(WireError):
        opened(bytes(frame + fields))


def test_ten_thousand_mutated_messages_are_read_or_refused():
    random = np.random.default_rng(1)
    frame = written(Message(Kind.TENSOR, 1, {"key": "abc"}, [ARRAYS[0], ARRAYS[8], b"x"]))
    outcomes = set[str]()
    for _ in range(10_000):
        mutated = bytearray(frame)
        for place in random.integers(0, len(frame), random.integers(1, 4)):
            mutated[place] = random.integers(256)
        try:
            opened(bytes(mutated))
            outcomes.add("read")
        except WireError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def bundled(*frames: bytes) -> bytes:
    return wire.bundle_head([len(frame) for frame in frames]) + b"".join(frames)


def test_messages_that_left_together_are_told_apart():
    frames = [written(Message(Kind.RUN, 1)), written(Message(Kind.TENSOR, 1, {}, [ARRAYS[0]]))]
    assert wire.frames_of(bundled(*frames)) == frames
    assert wire.frames_of(frames[0]) == frames[:1]


def test_every_truncated_packet_of_messages_is_refused():
    packet = bundled(written(Message(Kind.RUN, 1)), written(Message(Kind.DONE, 1, {"a": 1})))
    for length in range(len(wire.BUNDLE_MAGIC), len(packet)):
        with pytest.raises(WireError):
            wire.frames_of(packet[:length])
    with pytest.raises(WireError):
        wire.frames_of(packet + b"more")


def test_a_packet_with_more_messages_than_there_may_be_is_refused():
    frames = [written(Message(Kind.RUN))] * (wire.MAX_BUNDLE + 1)
    with pytest.raises(WireError, match="messages in version"):
        wire.frames_of(bundled(*frames))


def test_a_message_that_is_written_again_has_its_own_step_and_value():
    fields = wire.FixedFields(key="k")
    shapes = [(2, 3), (2, 3), (3,), ()]
    for step, shape in enumerate(shapes, 1):
        value = np.full(shape, step, np.float32)
        frame = wire.write_inline(Message(Kind.TENSOR, step, fields, [value]), False, step, 1000)
        assert frame is not None
        decoded = wire.read(bytes(frame))
        assert (decoded.step, decoded.request, decoded.fields) == (step, step, {"key": "k"})
        assert decoded.values[0].shape == shape and np.all(decoded.values[0] == step)


def test_a_value_above_the_limit_is_not_written_inline():
    fields, value = wire.FixedFields(key="k"), np.zeros(100, np.float32)
    message = Message(Kind.TENSOR, 1, fields, [value])
    assert wire.write_inline(message, False, 0, 400) is not None
    assert wire.write_inline(message._replace(values=[value.repeat(2)]), False, 0, 400) is None
