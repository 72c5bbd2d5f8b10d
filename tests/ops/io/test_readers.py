"""Readers: the records of each kind of file, states, threads that share a reader, and errors."""

from __future__ import annotations

import gzip
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

import thalweg as tf
from thalweg.ops.io import readers
from thalweg.ops.io.reader_state import State
from thalweg.ops.state.queue_ops import FIFOQueueV2, QueueEnqueueV2


@pytest.fixture(autouse=True)
def session() -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def queue_of(session: Any, items: list[Any], close: bool = True) -> Any:
    queue = tf.FIFOQueue(100, [tf.string], shapes=[()])
    if items:
        session.run(queue.enqueue_many([[str(item) for item in items]]))
    if close:
        session.run(queue.close())
    return queue


def all_records(session: Any, reader: Any, queue: Any) -> list[tuple[str, bytes]]:
    fetch, result = reader.read(queue), []
    while True:
        try:
            key, value = session.run(fetch)
        except tf.errors.OutOfRangeError:
            return result
        result.append((key.decode(), value))


def files(folder: Path, *contents: bytes) -> list[Path]:
    paths = [folder / f"file{number}" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


# Kinds


def test_identity_reader(session: Any) -> None:
    actual = all_records(session, tf.IdentityReader(), queue_of(session, ["a", "b"]))
    assert actual == [("a", b"a"), ("b", b"b")]


def test_whole_files(session: Any, tmp_path: Path) -> None:
    one, two = files(tmp_path, b"1\n2", b"")
    actual = all_records(session, tf.WholeFileReader(), queue_of(session, [one, two]))
    assert actual == [(str(one), b"1\n2"), (str(two), b"")]


def test_lines(session: Any, tmp_path: Path) -> None:
    one, two, three = files(tmp_path, b"head\na\r\n\nb", b"head\n", b"")
    reader = tf.TextLineReader(skip_header_lines=1)
    actual = all_records(session, reader, queue_of(session, [one, two, three]))
    assert actual == [(f"{one}:2", b"a"), (f"{one}:3", b""), (f"{one}:4", b"b")]


@pytest.mark.parametrize("encoding", ["", "ZLIB", "GZIP"])
@pytest.mark.parametrize(
    ("hop", "values"),
    [(0, [b"abc", b"def", b"ghi"]), (2, [b"abc", b"cde", b"efg", b"ghi"]), (5, [b"abc", b"fgh"])],
)
def test_records_of_fixed_length(
    session: Any, tmp_path: Path, encoding: str, hop: int, values: list[bytes]
) -> None:
    pack = {"": bytes, "ZLIB": zlib.compress, "GZIP": gzip.compress}[encoding]
    (one,) = files(tmp_path, pack(b"HHabcdefghijFF"))
    reader = tf.FixedLengthRecordReader(
        3, header_bytes=2, footer_bytes=2, hop_bytes=hop, encoding=encoding
    )
    actual = all_records(session, reader, queue_of(session, [one]))
    assert actual == [(f"{one}:{number}", value) for number, value in enumerate(values)]


@pytest.mark.parametrize("kind", ["", "GZIP"])
def test_tf_records(session: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    with tf.python_io.TFRecordWriter(str(path), kind) as writer:
        for item in (b"one", b"", b"three"):
            writer.write(item)
    reader = tf.TFRecordReader(options=tf.python_io.TFRecordOptions(kind))
    actual = all_records(session, reader, queue_of(session, [path]))
    assert actual == [(f"{path}:0", b"one"), (f"{path}:19", b""), (f"{path}:35", b"three")]


# Several records, counts and states


def test_reading_several_stops_at_the_end_of_a_file(session: Any, tmp_path: Path) -> None:
    one, two = files(tmp_path, b"a\nb\nc\n", b"d\n")
    reader, queue = tf.TextLineReader(), queue_of(session, [one, two])
    fetch = reader.read_up_to(queue, 2)
    counts = [reader.num_records_produced(), reader.num_work_units_completed()]
    actual = [session.run(fetch.values).tolist() for _ in range(3)]
    assert actual == [[b"a", b"b"], [b"c"], [b"d"]]
    assert session.run(counts) == [4, 1]
    with pytest.raises(tf.errors.OutOfRangeError, match="is closed and has insufficient"):
        session.run(fetch)
    assert session.run(counts) == [4, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be positive"):
        session.run(reader.read_up_to(queue, 0))


def test_a_restored_reader_continues(session: Any, tmp_path: Path) -> None:
    one, two = files(tmp_path, b"a\nb\nc\n", b"d\n")
    reader, queue = tf.TextLineReader(), queue_of(session, [one, two])
    value = reader.read(queue).value
    assert [session.run(value) for _ in range(2)] == [b"a", b"b"]
    state = session.run(reader.serialize_state())
    assert State.from_bytes(state) == State(1, 0, 2, str(one).encode(), 2)
    other = tf.TextLineReader()
    session.run(other.restore_state(state))
    assert session.run(other.num_records_produced()) == 2
    assert [value for _, value in all_records(session, other, queue)] == [b"c", b"d"]
    assert reader.supports_serialize


def test_a_reset_reader_takes_the_next_file(session: Any, tmp_path: Path) -> None:
    one, two = files(tmp_path, b"a\nb\n", b"c\n")
    reader, queue = tf.TextLineReader(), queue_of(session, [one, two])
    value = reader.read(queue).value
    assert session.run(value) == b"a"
    session.run(reader.reset())
    assert session.run([reader.num_records_produced(), reader.num_work_units_completed()]) == [0, 0]
    assert session.run(value) == b"c"


@pytest.mark.parametrize(
    "state",
    [b"\x08", b"\x28\x01\x30\x01", b"\x0a\x01a", b"\x08\x03", b"\x08" + b"\xff" * 9 + b"\x01"],
)
def test_invalid_states(session: Any, state: bytes) -> None:
    reader = tf.IdentityReader("mine")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"Could not parse state for Ident.*mine"
    ):
        session.run(reader.restore_state(state))


# Sharing


def test_threads_share_a_reader_without_loss(session: Any, tmp_path: Path) -> None:
    paths = files(
        tmp_path, *(b"".join(b"%d\n" % (100 * n + k) for k in range(50)) for n in range(8))
    )
    reader, queue = tf.TextLineReader(), queue_of(session, [], close=False)
    value = reader.read(queue).value
    found: list[bytes] = []

    def take() -> None:
        while True:
            try:
                found.append(session.run(value))
            except tf.errors.OutOfRangeError:
                return

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    session.run(queue.enqueue_many([[str(path) for path in paths]]))
    session.run(queue.close())
    for thread in threads:
        thread.join()
    assert sorted(map(int, found)) == sorted(100 * n + k for n in range(8) for k in range(50))


def test_a_waiting_reader_holds_no_lock_and_is_cancelled_with_its_session(tmp_path: Path) -> None:
    reader = tf.IdentityReader()
    queue = tf.FIFOQueue(1, [tf.string], shapes=[()])
    fetch, count = reader.read(queue), reader.num_records_produced()
    session = tf.Session()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            session.run(fetch)
        except tf.errors.OpError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert session.run(count) == 0
    session.close()
    for thread in threads:
        thread.join()
    assert [type(error) for error in errors] == [tf.errors.CancelledError] * 3


# Errors


def test_a_missing_file_raises_and_is_skipped(session: Any, tmp_path: Path) -> None:
    (good,) = files(tmp_path, b"a\n")
    for reader in (tf.TextLineReader(), tf.WholeFileReader(), tf.FixedLengthRecordReader(1)):
        value = reader.read(queue_of(session, [tmp_path / "missing", good])).value
        with pytest.raises(tf.errors.NotFoundError, match="missing"):
            session.run(value)
        assert session.run(value).startswith(b"a")


def test_records_before_a_corrupt_one_are_read(session: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with tf.python_io.TFRecordWriter(str(path)) as writer:
        writer.write(b"one")
        writer.write(b"two")
    path.write_bytes(path.read_bytes()[:-1])
    reader = tf.TFRecordReader()
    values = reader.read_up_to(queue_of(session, [path, path]), 10).values
    assert session.run(values).tolist() == [b"one"]
    with pytest.raises(tf.errors.DataLossError, match="file: truncated record at 19"):
        session.run(values)
    assert session.run(values).tolist() == [b"one"]


def test_invalid_arguments(session: Any) -> None:
    for arguments in ({"record_bytes": 0}, {"record_bytes": 1, "hop_bytes": -1}):
        with pytest.raises(ValueError, match=r"_bytes must be"):
            tf.FixedLengthRecordReader(**arguments)
    with pytest.raises(ValueError, match="encoding must be"):
        tf.FixedLengthRecordReader(1, encoding="LZW")
    numbers = tf.FIFOQueue(1, [tf.int64], shapes=[()])
    with pytest.raises(tf.errors.InvalidArgumentError, match="takes single strings"):
        session.run(tf.IdentityReader().read(numbers))
    tf.IdentityReader("same")
    other = readers.WholeFileReaderOp(shared_name="same")()
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a WholeFileReader"):
        session.run([tf.get_default_graph().get_tensor_by_name("same:0"), other])


# By resource handles


@pytest.mark.parametrize(
    "op",
    [
        readers.IdentityReaderV2(),
        readers.WholeFileReaderV2(),
        readers.TextLineReaderV2(),
        readers.FixedLengthRecordReaderV2(record_bytes=3),
        readers.TFRecordReaderV2(),
    ],
)
def test_readers_by_resource_handles(session: Any, tmp_path: Path, op: Any) -> None:
    with tf.python_io.TFRecordWriter(str(tmp_path / "file")) as writer:
        writer.write(b"abc")
    queue = FIFOQueueV2(component_types=(tf.string,), shapes=(tf.TensorShape([]),), capacity=9)()
    enqueue = QueueEnqueueV2()(queue, [tf.constant(str(tmp_path / "file"))])
    reader = op()
    session.run([enqueue.name, enqueue.name])
    session.run(enqueue)
    key, _ = session.run(readers.ReaderReadV2()(reader, queue))
    assert key.decode().startswith(str(tmp_path / "file"))
    assert session.run(readers.ReaderNumRecordsProducedV2()(reader)) == 1
    assert session.run(readers.ReaderNumWorkUnitsCompletedV2()(reader)) in (0, 1)
    state = session.run(readers.ReaderSerializeStateV2()(reader))
    session.run(readers.ReaderResetV2()(reader))
    session.run(readers.ReaderRestoreStateV2()(reader, state))
    keys, values = session.run(readers.ReaderReadUpToV2()(reader, queue, tf.constant(2, tf.int64)))
    assert len(keys) == len(values) >= 1
