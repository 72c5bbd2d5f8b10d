"""Rows of the op table: bytes and numbers."""

import gzip
import zlib
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check
from tests.ops.text.test_strings import texts

ROWS: dict[str, Any] = {
    "to_number": (
        tf.string_to_number,
        [texts("1.5", " -3 ", "0xF", "1e3", "NaN", "inf", "3.5e38")],
        np.array([1.5, -3, 15, 1000, np.nan, np.inf, np.inf], np.float32),
    ),
    "to_number double": (
        lambda x: tf.strings.to_number(x, tf.float64),
        [texts("0.1", ".5")],
        np.array([0.1, 0.5]),
    ),
    "to_number int": (
        lambda x: tf.string_to_number(x, tf.int64),
        [texts("-12", "9223372036854775807")],
        np.array([-12, 2**63 - 1]),
    ),
    "as_string int": (tf.as_string, [np.array([[1, -20]])], np.array([[b"1", b"-20"]], object)),
    "as_string float": (
        tf.as_string,
        [np.array([0.5, np.inf], np.float32)],
        texts("0.500000", "inf"),
    ),
    "as_string shortest": (
        lambda x: tf.as_string(x, shortest=True, precision=3),
        [np.array([1234.5])],
        texts("1.23e+03"),
    ),
    "as_string scientific": (
        lambda x: tf.strings.as_string(x, scientific=True),
        [np.array([1.5])],
        texts("1.500000e+00"),
    ),
    "as_string filled": (
        lambda x: tf.as_string(x, width=4, fill="0"),
        [np.array([7, -7])],
        texts("0007", "-007"),
    ),
    "as_string filled, of what has no digits": (
        lambda x: tf.as_string(x, width=6, fill="0", precision=1),
        [np.array([np.nan, -np.inf, -1.5])],
        texts("   nan", "  -inf", "-001.5"),
    ),
    "as_string bool": (tf.as_string, [np.array([True, False])], texts("true", "false")),
    "as_string complex": (tf.as_string, [np.array([1 - 2j])], texts("(1.000000,-2.000000)")),
    "encode": (tf.encode_base64, [texts(b"\xff\xfe", "")], texts("__4", "")),
    "encode padded": (lambda x: tf.encode_base64(x, pad=True), [texts(b"\xff")], texts("_w==")),
    "decode": (tf.decode_base64, [texts("__4", "_w==", "")], texts(b"\xff\xfe", b"\xff", "")),
    "raw": (
        lambda x: tf.decode_raw(x, tf.int16),
        [texts(b"\x01\x00\x02\x01", b"\xff\xff\x00\x00")],
        np.array([[1, 258], [-1, 0]], np.int16),
    ),
    "raw big endian": (
        lambda x: tf.decode_raw(x, tf.int16, little_endian=False),
        [texts(b"\x01\x00")],
        np.array([[256]], np.int16),
    ),
    "raw empty": (
        lambda x: tf.decode_raw(x, tf.float32),
        [np.zeros(0, object)],
        np.zeros((0, 0), np.float32),
    ),
    "raw nothing": (
        lambda x: tf.decode_raw(x, tf.uint8),
        [texts("", "")],
        np.zeros((2, 0), np.uint8),
    ),
    "zlib": (
        lambda x: tf.decode_compressed(x, "ZLIB"),
        [texts(zlib.compress(b"abc"), zlib.compress(b""))],
        texts("abc", ""),
    ),
    "gzip": (
        lambda x: tf.decode_compressed(x, "GZIP"),
        [texts(gzip.compress(b"abc"))],
        texts("abc"),
    ),
    "not compressed": (tf.decode_compressed, [texts("abc")], texts("abc")),
    "csv": (
        lambda x: tf.decode_csv(x, [[0], ["none"], [1.5]]),
        [texts('1,"a,""b""",2', "2,,")],
        [np.array([1, 2], np.int32), texts('a,"b"', "none"), np.array([2, 1.5], np.float32)],
    ),
    "csv selected": (
        lambda x: tf.decode_csv(x, [[0], [0]], field_delim=";", na_value="NA", select_cols=[0, 2]),
        [texts("1;x;NA")],
        [np.array([1], np.int32), np.array([0], np.int32)],
    ),
    "csv without quotes": (
        lambda x: tf.decode_csv(x, [[""]], use_quote_delim=False),
        [texts('"a"')],
        [texts('"a"')],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect, gradient=False)


BAD: dict[str, Any] = {
    "number": (lambda: tf.string_to_number("10x"), "could not correctly convert string: 10x"),
    "too large": (lambda: tf.string_to_number("2147483648", tf.int32), "2147483648"),
    "no integer": (lambda: tf.string_to_number("2.5", tf.int32), "2.5"),
    "base64 alphabet": (lambda: tf.decode_base64("ab+c"), "Invalid character"),
    "base64 length": (lambda: tf.decode_base64("abcde"), "1 modulo 4"),
    "raw lengths": (lambda: tf.decode_raw(["a", "bc"], tf.uint8), "element 1 has size"),
    "raw multiple": (lambda: tf.decode_raw(["abc"], tf.int16), "not a multiple of 2"),
    "both formats": (
        lambda: tf.as_string(1.0, scientific=True, shortest=True),
        "Cannot select both",
    ),
    "long fill": (lambda: tf.as_string(1.0, fill="ab"), "one or fewer"),
    "int precision": (lambda: tf.as_string(1, precision=2), "precision not supported"),
    "csv missing": (
        lambda: tf.decode_csv(["1,"], [[0], tf.constant([], tf.int32)]),
        "Field 1 is required but missing in record 0",
    ),
    "csv no int": (lambda: tf.decode_csv(["x"], [[0]]), "Field 0 in record 0 is not a valid int32"),
    "csv count": (lambda: tf.decode_csv(["1,2"], [[0]]), "Expect 1 fields but have 2"),
    "csv quote inside": (lambda: tf.decode_csv(['a"b'], [[""]]), "cannot have quotes"),
    "csv quote open": (lambda: tf.decode_csv(['"a'], [[""]]), "has to end with quote"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_fail_the_step(name: str) -> None:
    build, message = BAD[name]
    with tf.Graph().as_default(), tf.Session() as session:
        node = build()
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(node)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"record_defaults": [[1, 2]]}, "length-0 or length-1"),
        ({"record_defaults": [[1]], "field_delim": "||"}, "single character"),
        ({"record_defaults": [[1]], "select_cols": [0, 1]}, "do not match"),
        ({"record_defaults": [[1], [1]], "select_cols": [1, 0]}, "strictly increasing"),
    ],
)
def test_impossible_csv(arguments: dict[str, Any], message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        tf.decode_csv(["1"], **arguments)


def test_uncompressed_data_is_an_error() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        with pytest.raises(tf.errors.DataLossError, match="cannot decompress"):
            session.run(tf.decode_compressed("abc", "ZLIB"))
        with pytest.raises(ValueError, match="compression_type"):
            tf.decode_compressed("abc", "LZ4")
