"""Strings, parsing, sets, serialisation."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import numpy as np

from tools.fuzz_tf.draw import Code, Draw, spec

_NUMBERS = [
    b"1",
    b"-7",
    b"3.25",
    b"1e3",
    b" 12 ",
    b"nan",
    b"inf",
    b"-Inf",
    b"0x10",
    b"",
    b"abc",
    b"1.5f",
    b"+4",
    b"99999999999",
]
_TEXT = [
    b"a b c",
    b"",
    b"  lead",
    b"tail  ",
    b"one,two,,three",
    b"x",
    b"Hello, World",
    b"\xc3\xa9t\xc3\xa9 \xe2\x82\xac",
    b"a\tb\nc",
]


@spec("string_to_number strings.to_number", ulps=2)
def _to_number(draw: Draw) -> None:
    pool = _NUMBERS if draw.chance(0.3) else _NUMBERS[:5]
    draw.call(
        draw.strings(pool, draw.shape(0, 2, high=5)),
        Code(f"tf.{draw.choice('float32', 'float64', 'int32', 'int64')}"),
    )


@spec("as_string")
def _as_string(draw: Draw) -> None:
    dtype = draw.choice("float32", "float64", "int32", "int64", "bool", "int8", "complex64")
    x = draw.tensor(dtype, draw.shape(0, 2), draw.choice("normal", "special", "ties"))
    more: dict[str, Any] = {}
    if "float" in dtype and draw.chance(0.6):
        more = draw.choice(
            {"precision": 3},
            {"scientific": True},
            {"shortest": True},
            {"precision": 2, "width": 9},
            {"width": 10, "fill": "0"},
        )
    elif "int" in dtype and draw.chance(0.4):
        more = {"width": 5, "fill": draw.choice("", "0", " ")}
    draw.call(x, **more)


@spec("strings.length string_length")
def _length(draw: Draw) -> None:
    more = {"unit": "UTF8_CHAR"} if draw.chance(0.4) else {}
    draw.call(draw.strings(_TEXT, draw.shape(0, 2)), **more)


@spec("strings.lower strings.upper string_strip strings.strip")
def _case(draw: Draw) -> None:
    draw.call(draw.strings(_TEXT, draw.shape(0, 2)))


@spec("substr strings.substr")
def _substr(draw: Draw) -> None:
    shape = draw.shape(0, 2, high=5)
    pool = [b"hello", b"abcdef", b"world!!"]
    if draw.chance(0.5):
        draw.call(draw.strings(pool, shape), draw.integer(-5, 4), draw.integer(0, 6))
    else:
        draw.call(
            draw.strings(pool, shape),
            draw.ints(shape, 0, 4, "int32"),
            draw.ints(shape, 0, 4, "int32"),
        )


@spec("string_join strings.join")
def _join(draw: Draw) -> None:
    shape = draw.shape(0, 2)
    parts = [draw.strings(_TEXT, draw.choice(shape, shape, ())) for _ in range(draw.integer(1, 3))]
    draw.call(parts, separator=draw.choice("", "-"))


@spec("string_split")
def _split(draw: Draw) -> None:
    draw.call(
        draw.strings(_TEXT, (draw.integer(0, 4),)),
        draw.choice(" ", ",", ", ", ""),
        skip_empty=draw.chance(0.6),
    )


@spec("strings.regex_replace regex_replace")
def _regex(draw: Draw) -> None:
    x = draw.strings(_TEXT, draw.shape(0, 2))
    draw.call(
        x,
        draw.choice("[aeo]", "l+", "^a", "(.) ", "\\s+", "b|c"),
        draw.choice("", "<\\0>", "-"),
        replace_global=draw.chance(0.6),
    )


@spec("strings.regex_full_match")
def _match(draw: Draw) -> None:
    draw.call(
        draw.strings(_TEXT, draw.shape(0, 2)), draw.choice(".*", "[a-z ]+", "x", "Hello.*", "")
    )


@spec("strings.to_hash_bucket_fast string_to_hash_bucket_fast string_to_hash_bucket")
def _hash(draw: Draw) -> None:
    draw.call(
        draw.strings([*_TEXT, b"0123456789" * 9, b"q" * 20, b"w" * 40], draw.shape(0, 2)),
        draw.choice(1, 10, 1000, 2**40),
    )


@spec("strings.to_hash_bucket_strong string_to_hash_bucket_strong")
def _hash_strong(draw: Draw) -> None:
    draw.call(
        draw.strings(_TEXT, draw.shape(0, 2)),
        draw.choice(10, 1000),
        key=[draw.integer(0, 99), draw.integer(0, 99)],
    )


@spec("encode_base64")
def _base64(draw: Draw) -> None:
    draw.line(f"y = {draw.calling(draw.strings(_TEXT, draw.shape(0, 2)), pad=draw.chance(0.5))}")
    draw.line("[y, tf.decode_base64(y)]")


@spec("decode_base64")
def _unbase64(draw: Draw) -> None:
    draw.call(draw.strings([b"YWJj", b"YQ==", b"YQ", b"", b"!!", b"abc", b"_-8="], ()))


@spec("decode_raw")
def _raw(draw: Draw) -> None:
    width = draw.choice(1, 2, 4, 8, 16)
    x = draw.strings([bytes(range(i, i + width)) for i in (1, 60, 9)], draw.shape(0, 2))
    draw.call(
        x,
        Code(f"tf.{draw.choice('uint8', 'int16', 'int32', 'float32', 'int64')}"),
        **({"little_endian": False} if draw.chance(0.3) else {}),
    )


@spec("decode_csv")
def _csv(draw: Draw) -> None:
    rows = [b"1,2.5,abc", b'3,,"q,""r"', b",4,x", b"7,1e2,", b"1,2"]
    x = draw.strings(rows if draw.chance(0.2) else rows[:4], draw.shape(0, 1, high=4))
    draw.call(x, [[0], [1.5], ["z"]])


@spec("strings.unicode_transcode")
def _transcode(draw: Draw) -> None:
    draw.call(
        draw.strings([*_TEXT, b"\xff\xfe", b"a\x80b"], draw.shape(0, 1)),
        "UTF-8",
        draw.choice("UTF-8", "UTF-16-BE", "UTF-32-BE"),
        errors=draw.choice("replace", "ignore"),
    )


@spec("strings.unsorted_segment_join")
def _segment_join(draw: Draw) -> None:
    count = draw.integer(0, 5)
    draw.call(draw.strings(_TEXT, (count,)), draw.ints((count,), -1, 3), 3, draw.choice("", ","))


@spec("strings.format")
def _format(draw: Draw) -> None:
    x = draw.tensor(draw.choice("float32", "int32", "bool"), draw.shape(0, 3), "ties")
    draw.call("a {} b", x, **({"summarize": 2} if draw.chance(0.4) else {}))


@spec("edit_distance", ulps=8)
def _edit(draw: Draw) -> None:
    def rows() -> Code:
        places = [(r, c) for r in range(2) for c in range(draw.integer(0, 4))]
        index = draw.given(np.array(places or np.zeros((0, 2))), "int64")
        return Code(f"tf.SparseTensor({index}, {draw.ints((len(places),), 0, 3, 'int64')}, [2, 4])")

    draw.call(rows(), rows(), normalize=draw.chance(0.5))


@spec("sets.intersection sets.union sets.difference")
def _sets(draw: Draw) -> None:
    dtype, rows = draw.choice("int32", "int64", "string", "uint8"), draw.shape(1, 2, low=1, high=4)
    draw.call(*(draw.tensor(dtype, (*rows, draw.integer(0, 5)), "0..6") for _ in range(2)))


@spec("sets.size")
def _set_size(draw: Draw) -> None:
    count = draw.integer(1, 4)
    x = draw.ints((count, 3), 0, 4, "int64")
    draw.call(Code(f"tf.sets.union({x}, {x})"))


@spec("serialize_tensor io.serialize_tensor")
def _serialize(draw: Draw) -> None:
    dtype = draw.anything()
    x = draw.tensor(dtype, draw.shape())
    draw.line(f"tf.io.parse_tensor({draw.calling(x)}, tf.{dtype})")


@spec("io.parse_tensor")
def _parse_tensor(draw: Draw) -> None:
    draw.call(draw.strings([b"", b"junk", b"\x08\x01\x12\x00"], ()), Code("tf.float32"))


@spec("decode_compressed io.decode_compressed")
def _decompress(draw: Draw) -> None:
    kind = draw.choice("ZLIB", "GZIP", "")
    pool = {
        "ZLIB": [zlib.compress(b"hello")],
        "GZIP": [gzip.compress(b"hi", mtime=0)],
        "": [b"as it is"],
    }
    draw.call(
        draw.strings(
            [*pool[kind], *([b"bad"] if draw.chance(0.2) else [])], draw.shape(0, 1, high=3)
        ),
        compression_type=kind,
    )


@spec("io.parse_single_example io.parse_example")
def _parse_example(draw: Draw) -> None:
    single = "single" in draw.function
    # Example{features{feature{key: "a", value{float_list{value: [1.5, 2.0]}}}}}
    good = bytes.fromhex("0a130a110a0161120c120a0a080000c03f00000040")
    pool = [good] if draw.chance(0.7) else [good, b"", b"junk"]
    feature = draw.choice(
        "tf.FixedLenFeature([2], tf.float32)",
        "tf.VarLenFeature(tf.float32)",
        "tf.FixedLenFeature([2], tf.float32, default_value=[7.0, 8.0])",
        "tf.FixedLenFeature([], tf.int64)",
        "tf.FixedLenSequenceFeature([], tf.float32, allow_missing=True)",
    )
    draw.call(
        draw.strings(pool, () if single else (draw.integer(0, 3),)), Code("{'a': " + feature + "}")
    )
