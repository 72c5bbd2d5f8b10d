"""Rows of the op table: strings."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

WORDS = np.array([[b"one", b"two  "], [b"", "Grüße".encode()]], object)
EMPTY = np.zeros((0, 2), object)


def texts(*rows: Any) -> Any:
    array = np.empty(len(rows), object)
    array[:] = [row.encode() if isinstance(row, str) else row for row in rows]
    return array


ROWS: dict[str, Any] = {
    "join": (
        lambda x: tf.string_join([x, "-", x]),
        [texts("a", "b")],
        texts("a-a", "b-b"),
    ),
    "join separator": (
        lambda x, y: tf.strings.join([x, y], ", "),
        [texts("a", "b"), texts("c", "")],
        texts("a, c", "b, "),
    ),
    "length": (tf.string_length, [WORDS], np.array([[3, 5], [0, 7]], np.int32)),
    "length in characters": (
        lambda x: tf.strings.length(x, unit="UTF8_CHAR"),
        [WORDS],
        np.array([[3, 5], [0, 5]], np.int32),
    ),
    "length empty": (tf.strings.length, [EMPTY], np.zeros((0, 2), np.int32)),
    "strip": (tf.string_strip, [texts(" a b\t\n", "")], texts("a b", "")),
    "lower": (tf.strings.lower, [texts("ÄB")], texts("Äb")),
    "lower utf-8": (lambda x: tf.strings.lower(x, "utf-8"), [texts("ÄB")], texts("äb")),
    "upper": (tf.strings.upper, [texts("äb")], texts("äB")),
    "substr": (lambda x: tf.substr(x, 1, 2), [texts("Hello", "abc")], texts("el", "bc")),
    "substr each": (
        lambda x: tf.substr(x, [0, -2], [1, 5]),
        [texts("Hello", "abc")],
        texts("H", "bc"),
    ),
    "substr broadcast": (
        lambda x: tf.strings.substr(x, [[1], [2]], [[1], [1]]),
        [texts("ab", "cd")],
        np.array([[b"b", b"d"], [b"", b""]], object),
    ),
    "substr in characters": (
        lambda x: tf.substr(x, 2, 2, unit="UTF8_CHAR"),
        [texts("Grüße")],
        texts("üß"),
    ),
    "replace": (
        lambda x: tf.regex_replace(x, "(a)(b*)", r"<\2\1\0>"),
        [texts("xabb a")],
        texts("x<bbaabb> <aa>"),
    ),
    "replace characters": (
        lambda x: tf.regex_replace(x, "^.(x)?", r"[\1]\\n"),
        [texts("üa", b"\xffb")],
        texts(r"[]\na", r"[]\nb"),
    ),
    "replace first": (
        lambda x: tf.strings.regex_replace(x, "a", "b", replace_global=False),
        [texts("aa", "")],
        texts("ba", ""),
    ),
    "full match": (
        lambda x: tf.strings.regex_full_match(x, "a+"),
        [texts("aa", "ab", "")],
        np.array([True, False, False]),
    ),
    "reduce_join all": (
        lambda x: tf.expand_dims(tf.reduce_join(x), 0),
        [np.array([[b"a", b"b"], [b"c", b"d"]], object)],
        texts("abcd"),
    ),
    "transcode": (
        lambda x: tf.strings.unicode_transcode(x, "UTF-8", "UTF-16-BE"),
        [texts("ä", b"\xff")],
        texts("ä".encode("utf-16-be"), b"\xff\xfd"),
    ),
    "transcode ignoring": (
        lambda x: tf.strings.unicode_transcode(
            x, "UTF-8", "UTF-8", errors="ignore", replace_control_characters=True
        ),
        [texts(b"a\xff\x01")],
        texts("a\ufffd"),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect, gradient=False)


@pytest.mark.parametrize(
    ("axis", "keep", "wanted"),
    [
        (0, False, [b"a-c", b"b-d"]),
        (1, False, [b"a-b", b"c-d"]),
        (-1, True, [[b"a-b"], [b"c-d"]]),
        ([0, 1], True, [[b"a-c-b-d"]]),
        ([1, 0], True, [[b"a-b-c-d"]]),
        ([], True, [[b"a-b-c-d"]]),
    ],
)
def test_reduce_join(axis: Any, keep: bool, wanted: Any) -> None:
    check(
        lambda x: tf.reduce_join(x, axis, keep_dims=keep, separator="-"),
        np.array([[b"a", b"b"], [b"c", b"d"]], object),
        expect=np.array(wanted, object),
        gradient=False,
    )


@pytest.mark.parametrize(
    ("build", "values", "places", "shape"),
    [
        (tf.string_split, ["a", "bc", "d"], [(0, 0), (0, 1), (2, 0)], (3, 2)),
        (
            lambda x: tf.string_split(x, skip_empty=False),
            ["", "a", "bc", "d"],  # of an empty string nothing
            [(0, 0), (0, 1), (0, 2), (2, 0)],
            (3, 3),
        ),
        (lambda x: tf.string_split(x, "b "), ["a", "c", "d"], [(0, 0), (0, 1), (2, 0)], (3, 2)),
        (tf.strings.split, ["a", "bc", "d"], [(0, 0), (0, 1), (2, 0)], (3, 2)),
        (
            lambda x: tf.strings.split(x, "bc"),
            [" a ", "", "", "d"],
            [(0, 0), (0, 1), (1, 0), (2, 0)],
            (3, 2),
        ),
        (
            lambda x: tf.strings.bytes_split(x),
            [" ", "a", " ", "b", "c", "d"],
            [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (2, 0)],
            (3, 5),
        ),
    ],
)
def test_split(build: Any, values: Any, places: Any, shape: Any) -> None:
    expected = [np.array(places), texts(*values), np.array(shape)]
    check(build, texts(" a bc", "", "d"), expect=expected, gradient=False)


def test_unsorted_segment_join() -> None:
    check(
        lambda x: tf.strings.unsorted_segment_join(x, [1, 0, 1], 3, ":"),
        texts("a", "b", "c"),
        expect=texts("b", "a:c", ""),
        gradient=False,
    )
    check(
        lambda x: tf.strings.unsorted_segment_join(x, np.zeros(0, np.int32), 2),
        texts(),
        expect=texts("", ""),
        gradient=False,
    )


def test_a_separator_never_comes_first() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        joined = tf.strings.unsorted_segment_join(["", "a", "", "b", ""], [1, 1, 1, 1, 0], 3, ":")
        assert session.run(joined).tolist() == [b"", b"a::b", b""]


@pytest.mark.parametrize("number", [-1, 3])
def test_unsorted_segments_are_in_range(number: int) -> None:
    joined = tf.strings.unsorted_segment_join(["a", "b"], [0, number], 3)
    with (
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="segment_ids"),
    ):
        session.run(joined)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tf.substr("abc", 4, 1), "pos 4 out of range for string b'abc'"),
        (lambda: tf.regex_replace("a", "(", "b"), "Invalid pattern"),
        (
            lambda: tf.strings.unicode_transcode(b"\xff", "UTF-8", "UTF-8", errors="strict"),
            "Invalid formatting",
        ),
        (
            lambda: tf.string_join(
                [tf.placeholder_with_default(["a"], None), tf.constant(["a", "b"])]
            ),
            "shapes do not match",
        ),
    ],
)
def test_bad_values_fail_the_step(build: Any, message: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        node = build()
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(node)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tf.substr("a", [1, 2], [1]), "shapes must match"),
        (lambda: tf.string_length("a", unit="WORD"), "unit must be"),
        (lambda: tf.string_split(["a"], ["b"]), "rank 0"),
        (lambda: tf.strings.lower("a", "latin-1"), "encoding"),
        (lambda: tf.reduce_join([["a"]], [0, 0]), "Duplicate reduction index 0"),
        (lambda: tf.reduce_join(["a"], 1), "Invalid reduction dimension 1"),
        (lambda: tf.string_split(["a"], result_type="Ragged"), "result_type"),
    ],
)
def test_impossible_arguments(build: Any, message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        build()
