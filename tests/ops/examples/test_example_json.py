"""Examples in JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.examples.test_parsing import example, floats, ints, run, strings


def decoded(value: Any) -> Any:
    with tf.Graph().as_default():
        return run(tf.decode_json_example(value))


def features(**lists: Any) -> str:
    return json.dumps({"features": {"feature": lists}})


@pytest.mark.parametrize(
    ("text", "binary"),
    [
        ("{}", b""),
        ('{"features": null}', b""),
        (features(a={"int64List": {"value": ["1", -2, "300"]}}), example(a=ints(1, -2, 300))),
        (features(a={"int64_list": {"value": [4.0]}}), example(a=ints(4))),
        (features(a={"floatList": {"value": [1.5, "2.5"]}}), example(a=floats(1.5, 2.5))),
        (features(a={"floatList": {"value": ["Infinity"]}}), example(a=floats(np.inf))),
        (
            features(a={"bytesList": {"value": ["aGk=", "_-8"]}}),
            example(a=strings(b"hi", b"\xff\xef")),
        ),
        (features(a={"floatList": {}}), example(a=b"\x12\x00")),
        (features(a={}), example(a=b"")),
    ],
)
def test_json_is_decoded_to_the_example(text: str, binary: bytes) -> None:
    assert decoded(text) == binary


def test_shapes_are_kept() -> None:
    actual = decoded([["{}", features(a={"int64List": {"value": [1]}})]])
    assert actual.tolist() == [[b"", example(a=ints(1))]]


@pytest.mark.parametrize(
    "text",
    [
        "{]",
        "[]",
        '"text"',
        '{"feature": {}}',
        features(a=3),
        features(a={"intList": {}}),
        features(a={"int64List": {"value": 3}}),
        features(a={"int64List": {"value": [1.5]}}),
        features(a={"int64List": {"value": ["x"]}}),
        features(a={"int64List": {"value": [1 << 63]}}),
        features(a={"int64List": {"value": [True]}}),
        features(a={"floatList": {"value": [None]}}),
        features(a={"bytesList": {"value": ["a"]}}),
        features(a={"bytesList": {"value": [1]}}),
        features(a={"floatList": {}, "int64List": {}}),
        "[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_invalid_json(text: Any) -> None:
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"Error while parsing JSON.*example 1"
    ):
        decoded(["{}", text])
