"""Parsing of Examples: every kind of feature, in batches and single, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.ops.examples.parse_sequence import ParseSequenceExample
from thalweg.ops.examples.parsing import parse_arguments
from thalweg.platform.files import wire

INVALID = tf.errors.InvalidArgumentError


# Hand-written messages: tests of parsing need no message classes


def varints(values: list[int]) -> bytes:
    return b"".join(wire.varint(value) for value in values)


def ints(*values: int) -> bytes:
    return wire.bytes_field(3, wire.bytes_field(1, varints(list(values))))


def floats(*values: float) -> bytes:
    return wire.bytes_field(2, wire.bytes_field(1, np.array(values, "<f4").tobytes()))


def strings(*values: bytes) -> bytes:
    return wire.bytes_field(1, b"".join(wire.bytes_field(1, value) for value in values))


def entries(parts: dict[str, bytes]) -> bytes:
    return b"".join(
        wire.bytes_field(1, wire.bytes_field(1, key.encode()) + wire.bytes_field(2, value))
        for key, value in parts.items()
    )


def example(**features: bytes) -> bytes:
    return wire.bytes_field(1, entries(features))


def sequence(context: dict[str, bytes], lists: dict[str, list[bytes]]) -> bytes:
    rows = {
        key: b"".join(wire.bytes_field(1, feature) for feature in features)
        for key, features in lists.items()
    }
    return wire.bytes_field(1, entries(context)) + wire.bytes_field(2, entries(rows))


def run(fetch: Any) -> Any:
    with tf.Session() as session:
        return session.run(fetch)


def parts(value: Any) -> tuple[Any, Any, Any]:
    return value.indices.tolist(), value.values.tolist(), value.dense_shape.tolist()


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default():
        yield


FIRST = example(a=ints(1, 2, -3), b=floats(1.5, 2.5), c=strings(b"x", b""))
SECOND = example(a=ints(4, 5, 6), c=strings(b"y", b"z"), other=ints(7))


# Examples


def test_dense_and_sparse_features_of_a_batch() -> None:
    actual = run(
        tf.parse_example(
            [FIRST, SECOND],
            {
                "a": tf.FixedLenFeature([3], tf.int64),
                "b": tf.VarLenFeature(tf.float32),
                "c": tf.FixedLenFeature([2, 1], tf.string),
                "d": tf.FixedLenFeature([], tf.float32, default_value=0.5),
            },
        )
    )
    assert actual["a"].tolist() == [[1, 2, -3], [4, 5, 6]]
    assert actual["a"].dtype == np.int64
    assert parts(actual["b"]) == ([[0, 0], [0, 1]], [1.5, 2.5], [2, 2])
    assert actual["c"].tolist() == [[[b"x"], [b""]], [[b"y"], [b"z"]]]
    assert actual["d"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("names", [None, "first"])
def test_a_single_example_has_no_batch_axis(names: str | None) -> None:
    tensors = tf.parse_single_example(
        FIRST,
        {
            "a": tf.FixedLenFeature((3,), tf.int64),
            "b": tf.VarLenFeature(tf.float32),
            "e": tf.FixedLenFeature([], tf.string, "none"),
        },
        example_names=names,
    )
    assert tensors["a"].shape == [3]
    assert tensors["b"].indices.shape.as_list() == [None, 1]
    actual = run(tensors)
    assert actual["a"].tolist() == [1, 2, -3]
    assert parts(actual["b"]) == ([[0], [1]], [1.5, 2.5], [2])
    assert actual["e"] == b"none"


def test_sequences_are_padded() -> None:
    batch = [example(a=ints(1, 2)), example(), example(a=ints(3, 4, 5, 6))]
    padded = tf.FixedLenSequenceFeature([2], tf.int64, allow_missing=True, default_value=-1)
    actual = run(tf.parse_example(batch, {"a": padded}))["a"]
    assert actual.tolist() == [[[1, 2], [-1, -1]], [[-1, -1]] * 2, [[3, 4], [5, 6]]]
    text = tf.FixedLenSequenceFeature([], tf.string, allow_missing=True)
    actual = run(tf.parse_example([FIRST, example()], {"c": text}))["c"]
    assert actual.tolist() == [[b"x", b""], [b"", b""]]
    with pytest.raises(INVALID, match=r"Number of int64 values != expected.  values size: 2"):
        run(tf.parse_example(batch, {"a": padded._replace(shape=[4])}))
    with pytest.raises(ValueError, match="requires allow_missing to be True"):
        tf.parse_example(batch, {"a": tf.FixedLenSequenceFeature([], tf.int64)})


def test_sparse_features() -> None:
    batch = [
        example(i=ints(3, 1), j=ints(0, 2), v=floats(1, 2)),
        example(i=ints(), j=ints(), v=floats()),
    ]
    features = {
        "one": tf.SparseFeature("i", "v", tf.float32, 10),
        "two": tf.SparseFeature(["i", "j"], "v", tf.float32, [10, 5], already_sorted=True),
    }
    actual = run(tf.parse_example(batch, features))
    assert parts(actual["one"]) == ([[0, 1], [0, 3]], [2, 1], [2, 10])
    assert parts(actual["two"]) == ([[0, 3, 0], [0, 1, 2]], [1, 2], [2, 10, 5])
    assert set(actual) == {"one", "two"}


def test_unpacked_numbers_unknown_fields_and_repeated_keys() -> None:
    unpacked = wire.bytes_field(3, b"".join(b"\x08" + wire.varint(v) for v in (1, 300, -1)))
    single = wire.bytes_field(2, wire.float_field(1, 1.5) + wire.float_field(1, -2.0))
    odd = wire.integer_field(9, 5) + wire.double_field(10, 1.0) + wire.bytes_field(11, b"?")
    message = odd + example(a=ints(8), n=odd + unpacked) + example(a=ints(9), f=single)
    features = {key: tf.VarLenFeature(tf.int64) for key in "an"} | {
        "f": tf.VarLenFeature(tf.float32)
    }
    actual = run(tf.parse_single_example(message, features))
    assert actual["a"].values.tolist() == [9]
    assert actual["n"].values.tolist() == [1, 300, -1]
    assert actual["f"].values.tolist() == [1.5, -2.0]


def test_empty_batches_and_empty_messages() -> None:
    features = {"a": tf.VarLenFeature(tf.string), "b": tf.FixedLenFeature([2], tf.float32, [1, 2])}
    none = run(tf.parse_example(tf.zeros([0], tf.string), features))
    assert parts(none["a"]) == ([], [], [0, 0])
    assert none["b"].shape == (0, 2)
    actual = run(tf.parse_example([b"", b""], features))
    assert parts(actual["a"]) == ([], [], [2, 0])
    assert actual["b"].tolist() == [[1, 2], [1, 2]]


def test_a_default_may_be_a_tensor() -> None:
    default = tf.placeholder_with_default(tf.constant([7], tf.int64), [1])
    feature = tf.FixedLenFeature([1], tf.int64, default_value=default)
    assert run(tf.parse_example([b""], {"k": feature}))["k"].tolist() == [[7]]


# Errors


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (tf.FixedLenFeature([2], tf.float32), r"Name: n1, Feature: b \(data type: float\) is requ"),
        (tf.VarLenFeature(tf.int64), r"Name: n0, Key: b, Index: 0.  Data types don.t match. Data"),
        (tf.FixedLenFeature([3], tf.float32, [0, 0, 0]), r"n0, Key: b, Index: 0.  Number of float"),
    ],
)
def test_errors_name_missing_features_and_wrong_kinds(feature: Any, message: str) -> None:
    parsed = tf.parse_example([FIRST, SECOND], {"b": feature}, example_names=["n0", "n1"])
    with pytest.raises(INVALID, match=message):
        run(parsed)


def test_errors_name_the_offset_of_invalid_bytes() -> None:
    feature = {"a": tf.VarLenFeature(tf.int64)}
    with pytest.raises(INVALID, match=r"Could not parse example input, Index: 1: .* from 0 on"):
        run(tf.parse_example([FIRST, b"\x0a\x7f"], feature))
    broken = example(b=ints(1), a=wire.bytes_field(3, wire.bytes_field(1, b"\x01\xff")))
    with pytest.raises(INVALID, match=rf"Index: 0: the bytes from {len(broken) - 2} on"):
        run(tf.parse_single_example(broken, feature))
    with pytest.raises(INVALID, match=r"len\(names\) == len\(serialized\).*: 1 vs. 2"):
        run(tf.parse_example([FIRST, FIRST], feature, example_names=["one"]))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({}, "Missing: features was"),
        ({"a": tf.VarLenFeature(None)}, "Missing type for feature a"),
        ({"a": tf.FixedLenFeature(None, tf.int64)}, "Missing shape for feature a"),
        ({"a": tf.FixedLenFeature([None], tf.int64)}, "need to be known"),
        ({"a": 3}, "Invalid feature a:3"),
        ({"a": tf.SparseFeature("", "v", tf.int64, 3)}, "Missing index_key"),
        ({"a": tf.SparseFeature("i", "", tf.int64, 3)}, "Missing value_key"),
        (
            {"a": tf.SparseFeature("i", "v", tf.int64, 3), "i": tf.VarLenFeature(tf.float32)},
            "Conflicting type",
        ),
        (
            {"v": tf.FixedLenFeature([], tf.int64), "s": tf.SparseFeature("i", "v", tf.int64, 3)},
            "must not intersect",
        ),
    ],
)
def test_invalid_features(features: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tf.parse_example([b""], features)


def test_features_have_three_dtypes() -> None:
    with pytest.raises(TypeError, match="not float64"):
        tf.parse_example([b""], {"a": tf.VarLenFeature(tf.float64)})
    with pytest.raises(ValueError, match="must be a scalar"):
        tf.parse_single_example([b""], {"a": tf.VarLenFeature(tf.int64)})
    with pytest.raises(ValueError, match="Missing features"):
        tf.parse_single_example(b"", {})


# Sequence examples

CONTEXT = {"n": tf.FixedLenFeature([], tf.int64), "w": tf.VarLenFeature(tf.string)}
LISTS = {
    "d": tf.FixedLenSequenceFeature([2], tf.float32),
    "m": tf.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
    "s": tf.VarLenFeature(tf.int64),
}
LONG = sequence(
    {"n": ints(5), "w": strings(b"a", b"b")},
    {"d": [floats(1, 2), floats(3, 4)], "s": [ints(1), b"", ints(2, 3)]},
)
SHORT = sequence({"n": ints(6)}, {"d": [floats(5, 6)], "m": [ints(9)]})


def test_one_sequence_example() -> None:
    context, lists = run(tf.parse_single_sequence_example(LONG, CONTEXT, LISTS))
    assert context["n"] == 5
    assert parts(context["w"]) == ([[0], [1]], [b"a", b"b"], [2])
    assert lists["d"].tolist() == [[1, 2], [3, 4]]
    assert lists["m"].tolist() == []
    assert parts(lists["s"]) == ([[0, 0], [2, 0], [2, 1]], [1, 2, 3], [3, 2])


def test_a_batch_of_sequence_examples() -> None:
    context, lists, lengths = run(tf.io.parse_sequence_example([LONG, SHORT], CONTEXT, LISTS))
    assert context["n"].tolist() == [5, 6]
    assert parts(context["w"]) == ([[0, 0], [0, 1]], [b"a", b"b"], [2, 2])
    assert lists["d"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [0, 0]]]
    assert lists["m"].tolist() == [[0], [9]]
    assert parts(lists["s"]) == ([[0, 0, 0], [0, 2, 0], [0, 2, 1]], [1, 2, 3], [2, 3, 2])
    assert {key: value.tolist() for key, value in lengths.items()} == {"d": [2, 1], "m": [0, 1]}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (sequence({"n": ints(1)}, {}), "Name: it, Feature list 'd' is required but could not"),
        (sequence({}, {"d": []}), "Name: it, Context feature 'n' is required but could not be"),
        (
            sequence({"n": floats(1)}, {"d": []}),
            "Name: it, Context feature: n.  Data types don't match. Expected type: int64",
        ),
        (
            sequence({"n": ints(1)}, {"d": [floats(1, 2), ints(1, 2)]}),
            "Feature list: d, Index: 1.  Data types don't match. Expected type: float  Feature is:",
        ),
        (
            sequence({"n": ints(1)}, {"d": [floats(1, 2), b""]}),
            "Feature list: d, Index: 1.  Data types don't match. Expected type: float  Feature is:",
        ),
        (
            sequence({"n": ints(1)}, {"d": [floats(1, 2, 3)]}),
            r"Key: d, Index: 0.  Number of float values != expected.  values size: 3 but output",
        ),
        (LONG[:-1], "Could not parse sequence example input, Index: 0: the bytes from"),
    ],
)
def test_bad_sequence_examples(message: bytes, error: str) -> None:
    with pytest.raises(INVALID, match=error):
        run(tf.parse_single_sequence_example(message, CONTEXT, LISTS, example_name="it"))
    with pytest.raises(INVALID, match=error):
        run(tf.io.parse_sequence_example([message], CONTEXT, LISTS, example_names=["it"]))


def test_invalid_sequence_features() -> None:
    with pytest.raises(ValueError, match="Missing features"):
        tf.parse_single_sequence_example(b"")
    with pytest.raises(ValueError, match="Unsupported FixedLenFeature"):
        tf.parse_single_sequence_example(b"", None, {"a": tf.FixedLenFeature([], tf.int64)})
    with pytest.raises(ValueError, match="must be None"):
        lists = {"a": tf.FixedLenSequenceFeature([], tf.int64, True, 3)}
        tf.parse_single_sequence_example(b"", None, lists)


# Graphs


def test_parsing_ops_can_be_exported_and_imported() -> None:
    serialized = tf.placeholder(tf.string, [None], name="in")
    features = {"a": tf.FixedLenFeature([3], tf.int64), "b": tf.VarLenFeature(tf.float32)}
    tf.identity(tf.parse_example(serialized, features)["a"], name="out")
    tf.identity(tf.parse_single_example(serialized[0], features)["a"], name="one")
    lists = tf.parse_single_sequence_example(serialized[1], CONTEXT, LISTS)[1]
    tf.identity(lists["d"], name="lists")
    proto = tf.get_default_graph().as_graph_def()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(proto, name="")
        out = session.run("out:0", {"in:0": [FIRST, SECOND]})
        one, lists = session.run(["one:0", "lists:0"], {"in:0": [FIRST, LONG]})
    assert out.tolist() == [[1, 2, -3], [4, 5, 6]]
    assert one.tolist() == [1, 2, -3]
    assert lists.tolist() == [[1, 2], [3, 4]]


def test_node_names() -> None:
    parsed = tf.parse_example([FIRST], {"b": tf.VarLenFeature(tf.float32)}, name="mine")
    assert parsed["b"].values.op.name == "mine/mine"
    assert parsed["b"].values.op.type == "ParseExample"
    parsed = tf.parse_single_example(FIRST, {"b": tf.VarLenFeature(tf.float32)})
    assert parsed["b"].values.op.name == "ParseSingleExample/ParseSingleExample"
    arguments = parse_arguments({"a": tf.VarLenFeature(tf.int64)}, [tf.VarLenFeature])
    assert arguments.sparse == {"a": tf.int64}
    assert ParseSequenceExample.type_name == "ParseSequenceExample"
