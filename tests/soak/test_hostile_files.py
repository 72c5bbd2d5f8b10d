"""Mutated records, examples and tensors: an error that says where, never a crash.

A few hundred mutations of each format always, ten thousand with THALWEG_SOAK=1.
"""

from __future__ import annotations

import ctypes
import gzip
import mmap
import random
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import thalweg as tf
from tests.ops.examples.test_parsing import example, floats, ints, sequence, strings
from tests.soak import SOAKING, rounds
from thalweg.ops.examples.example_format import BadMessage, Messages, OtherKind, keys_of
from thalweg.ops.examples.parse_example import ParseExample, ParseSingleExample
from thalweg.ops.examples.parse_sequence import ParseSequenceExample, ParseSingleSequenceExample
from thalweg.ops.io import tensor_format
from thalweg.ops.text.text import text_of
from thalweg.platform.files import checksum
from thalweg.platform.files.records import framed

pytestmark = pytest.mark.timeout(1800)

MUTATIONS = rounds(600, 10_000)


def mutations(originals: list[bytes]) -> Iterator[bytes]:
    """Originals with bytes changed, dropped, doubled, moved or cut, some of them several times."""
    source = random.Random(None if SOAKING else 7)
    for _ in range(MUTATIONS):
        data = bytearray(source.choice(originals))
        for _ in range(source.choice((1, 1, 1, 2, 5))):
            _mutate(data, source)
        yield bytes(data)


def _mutate(data: bytearray, source: random.Random) -> None:
    if not data:
        return
    place, other = source.randrange(len(data)), source.randrange(len(data))
    match source.randrange(7):
        case 0:
            data[place] = source.randrange(256)
        case 1:
            data[place] ^= 1 << source.randrange(8)
        case 2:
            del data[place : place + source.randrange(1, 5)]
        case 3:
            data[place:place] = source.randbytes(source.randrange(1, 5))
        case 4:
            del data[place:]
        case 5:
            data[place:place] = data[other : other + 20]
        case _:
            data[place : place + 10] = b"\xff" * source.randrange(1, 11)


# Files of records

RECORDS = b"".join(map(framed, [b"", b"a", b"example" * 30, bytes(3000), b"last"]))
PACKED = {"": RECORDS, "ZLIB": zlib.compress(RECORDS), "GZIP": gzip.compress(RECORDS)}


@pytest.mark.parametrize("kind", PACKED)
def test_files_of_records(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    for data in mutations([PACKED[kind]]):
        path.write_bytes(data)
        try:
            for record in tf.python_io.tf_record_iterator(str(path), kind):
                assert len(record) < 1 << 20
        except tf.errors.DataLossError as error:
            assert re.search(rf"{path}: .*\d", error.message)


# Examples

EXAMPLES = [
    example(),
    example(a=ints(1, -2, 3), b=floats(1.5, 2.5), c=strings(b"x", b"yy"), d=ints(9)),
    example(b=floats(*range(40)), c=strings(b"long" * 50), a=ints(*range(0, 1 << 40, 1 << 34))),
]
SEQUENCES = [
    sequence({"a": ints(1, -2, 3)}, {"b": [floats(1, 2), floats(3, 4)], "c": [strings(b"x")] * 3}),
    sequence({"b": floats(1)}, {"c": [strings(b"ab", b"c"), b""], "b": []}),
    sequence({}, {}),
]
_KEYS = ("a", "b", "c")
_TYPES = (tf.int64, tf.float32, tf.string)
_PLACE = r"Index: \d+|Could not parse .* \d+ on|Context feature: \w|is required"


def arrays(items: tuple[str, ...]) -> list[Any]:
    return [text_of([key.encode()], ()) for key in items]


def attempt(op: Any, *inputs: Any) -> None:
    try:
        op.numpy(*inputs)
    except tf.errors.InvalidArgumentError as error:
        assert re.search(_PLACE, error.message)


def test_examples() -> None:
    none = np.zeros(0, object)
    shapes = (tf.TensorShape([3]), tf.TensorShape([None]), tf.TensorShape([2]))
    defaults = [np.zeros(3, np.int64), np.zeros((), np.float32), text_of([b"", b""])]
    sparse = ParseExample(Tdense=(), sparse_types=_TYPES, dense_shapes=())
    dense = ParseExample(Tdense=_TYPES, sparse_types=(), dense_shapes=shapes)
    single = ParseSingleExample(
        num_sparse=3,
        Tdense=(),
        sparse_keys=_KEYS,
        dense_keys=(),
        sparse_types=_TYPES,
        dense_shapes=(),
    )
    for data in mutations(EXAMPLES):
        batch = text_of([EXAMPLES[1], data])
        attempt(sparse, batch, none, arrays(_KEYS), [], [])
        attempt(dense, batch, none, [], arrays(_KEYS), defaults)
        attempt(single, text_of([data], ()), [])


def test_sequence_examples() -> None:
    none = np.zeros(0, object)
    types: Any = {
        "context_sparse_types": _TYPES,
        "feature_list_sparse_types": _TYPES[2:],
        "feature_list_dense_types": _TYPES[1:2],
        "feature_list_dense_shapes": (tf.TensorShape([2]),),
    }
    single = ParseSingleSequenceExample(**types)
    batched = ParseSequenceExample(
        **types,
        feature_list_dense_missing_assumed_empty=("b",),
        context_sparse_keys=_KEYS,
        context_dense_keys=(),
        feature_list_sparse_keys=("c",),
        feature_list_dense_keys=("b",),
        Ncontext_sparse=3,
        Nfeature_list_sparse=1,
        Nfeature_list_dense=1,
    )
    lists = arrays(("c",)), arrays(("b",))
    for data in mutations(SEQUENCES):
        name, empty = text_of([b"it"], ()), text_of([b"b"])
        attempt(single, text_of([data], ()), empty, arrays(_KEYS), [], *lists, [], name)
        attempt(batched, text_of([SEQUENCES[0], data]), none, [])


# Reading stays inside


_PROT_NONE = 0


class Redzoned:
    """Memory that ends at a page which nobody may read."""

    def __init__(self, room: int) -> None:
        page = mmap.PAGESIZE
        self._size = -(-room // page) * page
        self._memory = mmap.mmap(-1, self._size + page)
        self._view = np.frombuffer(self._memory, np.uint8)
        redzone = ctypes.c_void_p(self._view.ctypes.data + self._size)
        assert ctypes.CDLL(None).mprotect(redzone, ctypes.c_size_t(page), _PROT_NONE) == 0

    def put(self, data: bytes) -> int:
        """The address of a copy of `data` that ends at the redzone."""
        start = self._size - len(data)
        self._view[start : self._size] = np.frombuffer(data, np.uint8)
        return self._view.ctypes.data + start


def test_checksums_read_nothing_behind_the_data() -> None:
    redzoned, data = Redzoned(1 << 17), random.Random(1).randbytes(1 << 17)
    for size in [*range(200), *range(1500, 1700), *range(3050, 3150), *range(24500, 24700), 99_999]:
        piece = data[:size]
        assert checksum._compiled()(redzoned.put(piece), size, 0) == checksum.crc32c(piece)


def test_parsing_reads_nothing_behind_the_messages() -> None:
    redzoned = Redzoned(1 << 16)
    keys = keys_of(tuple(key.encode() for key in _KEYS))
    for data in mutations(EXAMPLES + SEQUENCES):
        messages = Messages([data])
        messages.data = cast("bytes", redzoned.put(data))
        with suppress(BadMessage, OtherKind):
            table = messages.index_examples(keys)
            for column, dtype in enumerate(_TYPES):
                messages.counts(table, column, dtype)
        with suppress(BadMessage, OtherKind):
            _, lists = messages.index_sequences(keys, keys)
            for column, dtype in enumerate(_TYPES):
                features = messages.features_of(lists[0, column])
                messages.counts(features, 0, dtype)


# Tensors


def test_tensors() -> None:
    originals = [
        np.arange(6.0).reshape(2, 3),
        np.array([b"a", b"bc" * 40], object),
        np.array(3, np.int16),
        np.zeros((2, 0, 5), np.complex64),
    ]
    single = bytes.fromhex("0801120208032a04") + np.float32(2).tobytes()
    for data in mutations([*map(tensor_format.to_bytes, originals), single]):
        try:
            assert tensor_format.from_bytes(data).nbytes <= 1 << 31
        except ValueError as error:
            assert str(error)
