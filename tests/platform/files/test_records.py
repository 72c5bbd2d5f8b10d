"""TFRecord files: round trips, compatibility with other tools, and corruption."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import thalweg as tf
from thalweg.platform.files import records
from thalweg.platform.files.checksum import masked_crc32c
from thalweg.platform.files.records import RecordReader, TFRecordOptions, framed

KINDS = ["", "ZLIB", "GZIP"]
RECORDS = [b"", b"a", b"hello" * 5, bytes(range(256)) * 40, b"", b"z" * 1_200_000, b"end"]

#: What TensorFlow writes for the records "abc" and "".
GOLDEN = bytes.fromhex("0300000000000000b099490e6162636e57f121000000000000000029039807d8ea82a2")


def write(path: Path, items: list[bytes], options: Any = None) -> Path:
    with tf.python_io.TFRecordWriter(str(path), options) as writer:
        for item in items:
            writer.write(item)
    return path


def read(path: Path, options: Any = None) -> list[bytes]:
    return list(tf.python_io.tf_record_iterator(str(path), options))


def header(length: int) -> bytes:
    """The header of a record with the given length and a valid checksum."""
    size = struct.pack("<Q", length)
    return size + struct.pack("<I", masked_crc32c(size))


# Round trips


@pytest.mark.parametrize("kind", KINDS)
def test_records_round_trip(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "file", RECORDS, kind)
    assert read(path, kind) == RECORDS
    assert read(path, TFRecordOptions(kind)) == RECORDS


def test_bytes_equal_those_of_tensorflow(tmp_path: Path) -> None:
    assert write(tmp_path / "file", [b"abc", b""]).read_bytes() == GOLDEN
    (tmp_path / "theirs").write_bytes(GOLDEN)
    assert read(tmp_path / "theirs") == [b"abc", b""]


def test_other_tools_can_read_compressed_files(tmp_path: Path) -> None:
    plain = b"".join(map(framed, RECORDS))
    packed = write(tmp_path / "z", RECORDS, "ZLIB").read_bytes()
    assert zlib.decompress(packed) == plain
    assert gzip.decompress(write(tmp_path / "gz", RECORDS, "GZIP").read_bytes()) == plain
    (tmp_path / "parts").write_bytes(gzip.compress(plain[:100]) + gzip.compress(plain[100:]))
    assert read(tmp_path / "parts", "GZIP") == RECORDS


def test_compression_options(tmp_path: Path) -> None:
    items = [b"abcd" * 1000] * 20
    stored = write(tmp_path / "0", items, TFRecordOptions("ZLIB", compression_level=0))
    small = write(tmp_path / "9", items, TFRecordOptions("ZLIB", compression_level=9))
    assert stored.stat().st_size > 80_000 > 10 * small.stat().st_size
    flushed = TFRecordOptions("ZLIB", flush_mode=zlib.Z_FULL_FLUSH, mem_level=1, window_bits=9)
    assert read(write(tmp_path / "f", items, flushed), "ZLIB") == items


def test_text_and_buffers_as_records(tmp_path: Path) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / "file")) as writer:
        writer.write("späte")
        writer.write(bytearray(b"ab"))
        writer.write(memoryview(b"cd"))
    assert read(tmp_path / "file") == ["späte".encode(), b"ab", b"cd"]


def test_invalid_records(tmp_path: Path) -> None:
    with (
        tf.python_io.TFRecordWriter(tmp_path / "r") as writer,
        pytest.raises(TypeError, match="bytes or text, not 3"),
    ):
        writer.write(3)


@pytest.mark.parametrize("kind", KINDS)
def test_flushed_records_can_be_read_while_the_file_is_open(tmp_path: Path, kind: str) -> None:
    writer = tf.python_io.TFRecordWriter(str(tmp_path / "file"), kind)
    writer.write(b"first")
    writer.flush()
    assert next(tf.python_io.tf_record_iterator(str(tmp_path / "file"), kind)) == b"first"
    writer.close()
    writer.close()
    with pytest.raises(tf.errors.FailedPreconditionError, match="closed"):
        writer.write(b"late")


def test_a_dropped_writer_completes_its_file(tmp_path: Path) -> None:
    writer = tf.python_io.TFRecordWriter(str(tmp_path / "file"), "GZIP")
    writer.write(b"kept")
    del writer
    assert read(tmp_path / "file", "GZIP") == [b"kept"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_without_records_is_created(tmp_path: Path, kind: str) -> None:
    assert read(write(tmp_path / "file", [], kind), kind) == []


def test_records_larger_than_a_block_and_many_small_ones(tmp_path: Path) -> None:
    items = [bytes([i % 251]) * (i % 700) for i in range(3000)]
    for kind in KINDS:
        path = write(tmp_path / f"file{kind}", items, kind)
        with (
            mock.patch.object(records, "_BLOCK", 64),
            mock.patch.object(records, "_MAX_SCANNED", 3),
        ):
            assert read(path, kind) == items


@pytest.mark.parametrize("kind", KINDS)
def test_reading_can_start_at_offsets_of_blocks(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "file", RECORDS, kind)
    with mock.patch.object(records, "_BLOCK", 1 << 12):
        reader = RecordReader(path, kind)
        blocks = list(reader.blocks())
        reader.close()
    offsets = [offset for block in blocks for offset in block.offsets]
    assert offsets == [sum(len(r) + 16 for r in RECORDS[:i]) for i in range(len(RECORDS))]
    assert reader.offset == sum(len(r) + 16 for r in RECORDS)
    for number, offset in enumerate(offsets):
        assert list(RecordReader(path, kind, offset)) == RECORDS[number:]


# Options and invalid files


def test_compression_types_in_every_spelling() -> None:
    text = TFRecordOptions.get_compression_type_string
    types = tf.python_io.TFRecordCompressionType
    assert [text(kind) for kind in (None, "", types.NONE, TFRecordOptions())] == [""] * 4
    assert [text(kind) for kind in ("ZLIB", types.ZLIB, TFRecordOptions(types.ZLIB))] == [
        "ZLIB"
    ] * 3
    assert text(TFRecordOptions(types.GZIP)) == "GZIP"
    with pytest.raises(ValueError, match="Not a valid compression_type"):
        TFRecordOptions("BZIP")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.NotFoundError, match="missing"):
        read(tmp_path / "missing")
    with pytest.raises(tf.errors.NotFoundError, match="missing"):
        read(tmp_path / "missing", "GZIP")
    with pytest.raises(tf.errors.NotFoundError):
        tf.python_io.TFRecordWriter(str(tmp_path / "missing" / "file"))


# Corrupted files


def test_truncation_raises_the_offset_after_complete_records(tmp_path: Path) -> None:
    items = [b"one", b"twotwo", b"three"]
    data = write(tmp_path / "file", items).read_bytes()
    starts = [0, 19, 41, len(data)]
    for cut in range(len(data)):
        path = tmp_path / "cut"
        path.write_bytes(data[:cut])
        whole = max(i for i, start in enumerate(starts) if start <= cut)
        actual: list[bytes] = []
        iterator = tf.python_io.tf_record_iterator(str(path))
        if cut in starts:
            assert list(iterator) == items[:whole]
            continue
        with pytest.raises(tf.errors.DataLossError, match=f"cut: truncated.* {starts[whole]}"):
            actual.extend(iterator)
        assert actual == items[:whole]


def test_every_changed_byte_is_detected(tmp_path: Path) -> None:
    items = [b"one", b"twotwo"]
    data = write(tmp_path / "file", items).read_bytes()
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 0x40
        (tmp_path / "bad").write_bytes(changed)
        start = 0 if index < 19 else 19
        with pytest.raises(tf.errors.DataLossError, match=rf"bad: corrupted record at {start}\b"):
            read(tmp_path / "bad")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1 << 20, 1 << 40, (1 << 63) - 1, (1 << 64) - 1, (1 << 64) - 16])
def test_a_corrupted_length_allocates_no_memory(tmp_path: Path, kind: str, length: int) -> None:
    data = framed(b"good") + header(length) + b"not so much"
    packed = {"": data, "ZLIB": zlib.compress(data), "GZIP": gzip.compress(data)}[kind]
    (tmp_path / "liar").write_bytes(packed)
    iterator = tf.python_io.tf_record_iterator(str(tmp_path / "liar"), kind)
    assert next(iterator) == b"good"
    with pytest.raises(tf.errors.DataLossError, match="liar: truncated record at 20"):
        next(iterator)


def test_a_truncated_compressed_file(tmp_path: Path) -> None:
    data = write(tmp_path / "file", [b"one", b"two"], "GZIP").read_bytes()
    for cut in range(1, len(data)):
        (tmp_path / "cut").write_bytes(data[:cut])
        with pytest.raises(tf.errors.DataLossError, match=r"cut: .*\d"):
            read(tmp_path / "cut", "GZIP")


def test_a_plain_file_is_not_a_compressed_one(tmp_path: Path) -> None:
    path = write(tmp_path / "file", [b"one"])
    with pytest.raises(tf.errors.DataLossError, match="file: cannot decompress from 0 on"):
        read(path, "ZLIB")
