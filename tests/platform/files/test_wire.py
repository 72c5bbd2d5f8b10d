"""The wire format, compared with protobuf's messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from thalweg.platform.files import wire

Event: Any = tf.Event
Summary: Any = tf.Summary

int64s = st.integers(-(1 << 63), (1 << 63) - 1)


@given(int64s, st.floats(allow_nan=False), st.binary())
def test_written_fields_equal_protobufs(step: int, time: float, graph: bytes) -> None:
    event = Event(wall_time=time or 0.0, step=step, graph_def=graph)
    written = wire.double_field(1, time) + wire.integer_field(2, step) + wire.bytes_field(4, graph)
    assert written == event.SerializeToString(deterministic=True)


@given(st.floats(width=32, allow_nan=False))
def test_float_fields_include_zeros(number: float) -> None:
    value = Summary.Value(simple_value=number)
    assert wire.float_field(2, number) == value.SerializeToString()


@given(int64s, st.floats(allow_nan=False), st.binary(), st.floats(width=32, allow_nan=False))
def test_fields_are_read(step: int, time: float, graph: bytes, number: float) -> None:
    parts = [
        wire.integer_field(2, step or 1),
        wire.double_field(1, time or 1.0),
        wire.bytes_field(100, graph),
        wire.float_field(3, number),
    ]
    actual = list(wire.fields(b"".join(parts)))
    assert [field.number for field in actual] == [2, 1, 100, 3]
    assert [field.raw for field in actual] == parts
    assert actual[0].value == (step or 1) % (1 << 64)
    assert actual[2].value == graph


@given(st.binary(max_size=64))
def test_any_bytes_parse_or_raise(message: bytes) -> None:
    try:
        assert b"".join(field.raw for field in wire.fields(message)) == message
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\x08", "a number is cut off at byte 1"),
        (b"\x08" + b"\xff" * 11, "more than 64 bits"),
        (b"\x0a\x05abc", "5 bytes at byte 2"),
        (b"\x0d\x00", "4 bytes"),
        (b"\x0b", "unknown kind 3"),
    ],
)
def test_errors_have_the_offset(message: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(wire.fields(message))
