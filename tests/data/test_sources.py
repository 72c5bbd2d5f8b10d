"""Sources of elements: tensors, rows, generators, files."""

from __future__ import annotations

import gzip
import os
import zlib
from collections import namedtuple

import numpy as np
import pytest

import thalweg as tf
from tests.data.pipelines import Dataset, drained, elements, plain

Point = namedtuple("Point", "x y")


def test_from_tensors_is_one_element_of_any_structure() -> None:
    actual = elements(lambda: Dataset.from_tensors({"a": [1, 2], "b": (3.0, "x")}))
    assert plain(actual) == [{"a": [1, 2], "b": (3.0, b"x")}]


def test_from_tensor_slices_gives_rows() -> None:
    found = elements(lambda: Dataset.from_tensor_slices(Point([[1, 2], [3, 4]], ["a", "b"])))
    assert [type(element) for element in found] == [Point, Point]
    assert [(p.x.tolist(), p.y) for p in found] == [([1, 2], b"a"), ([3, 4], b"b")]


def test_from_tensor_slices_checks_the_number_of_rows() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="not compatible"):
        Dataset.from_tensor_slices(([1, 2], [1, 2, 3]))


def test_rows_of_a_placeholder() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        given = tf.placeholder(tf.int32, [None])
        iterator = Dataset.from_tensor_slices(given).make_initializable_iterator()
        following = iterator.get_next()
        for values in ([1, 2], [5]):
            session.run(iterator.initializer, {given: values})
            assert plain(drained(session, following)) == values


def test_sparse_tensors_are_sliced_mapped_and_batched() -> None:
    def make() -> Dataset:
        sparse = tf.SparseTensor([[0, 1], [2, 0]], [1.0, 2.0], [3, 2])
        return Dataset.from_tensor_slices(sparse).map(lambda s: s * 2.0).batch(2)

    first, second = elements(make)
    assert first.indices.tolist() == [[0, 1]]
    assert first.dense_shape.tolist() == [2, 2]
    assert second.indices.tolist() == [[0, 0]]
    assert second.values.tolist() == [4.0]


@pytest.mark.parametrize("given", [(5,), (2, 5), (1, 10, 3), (5, 0, -2), (3, 3)])
def test_range_matches_python(given: tuple[int, ...]) -> None:
    assert plain(elements(lambda: Dataset.range(*given))) == list(range(*given))
    batches = elements(lambda: Dataset.range(*given).batch(2))
    assert [x for batch in batches for x in batch.tolist()] == list(range(*given))


# Generators


def test_each_pass_restarts_a_generator() -> None:
    starts = []

    def generate():
        starts.append(1)
        yield from [(1, [2.0]), (2, [3.0, 4.0])]

    actual = elements(
        lambda: Dataset.from_generator(generate, (tf.int64, tf.float32), ([], [None])).repeat(2)
    )
    assert plain(actual) == [(1, [2.0]), (2, [3.0, 4.0])] * 2
    assert len(starts) == 2


def test_a_generator_gets_arguments() -> None:
    def count(limit):
        yield from range(limit)

    assert plain(elements(lambda: Dataset.from_generator(count, tf.int32, [], args=[3]))) == [
        0,
        1,
        2,
    ]


def test_a_generator_may_yield_strings_and_dicts() -> None:
    def words():
        yield {"word": "a", "size": 1}
        yield {"word": b"bc", "size": 2}

    types = {"word": tf.string, "size": tf.int32}
    actual = elements(lambda: Dataset.from_generator(words, types, {"word": [], "size": []}))
    assert plain(actual) == [{"word": b"a", "size": 1}, {"word": b"bc", "size": 2}]


def test_an_error_in_a_generator_is_the_cause_of_the_steps_error() -> None:
    def broken():
        yield 1
        raise KeyError("lost")

    with tf.Graph().as_default(), tf.Session() as session:
        following = Dataset.from_generator(broken, tf.int32, []).make_one_shot_iterator().get_next()
        assert session.run(following) == 1
        with pytest.raises(tf.errors.UnknownError, match="KeyError: 'lost'"):
            session.run(following)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(following)


@pytest.mark.parametrize(
    ("values", "message"),
    [([1, "a"], "could not be converted"), ([1, [2, 3]], "of shape"), ([1, 2.5], "converted")],
)
def test_a_generator_must_yield_the_declared_types_and_shapes(values: list, message: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = Dataset.from_generator(lambda: iter(values), tf.int32, [])
        following = dataset.make_one_shot_iterator().get_next()
        assert session.run(following) == 1
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(following)


# Files


def _packed(data: bytes, kind: str) -> bytes:
    return {"": lambda d: d, "GZIP": gzip.compress, "ZLIB": zlib.compress}[kind](data)


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_lines_of_text(tmp_path, kind: str) -> None:
    names = []
    for number, content in enumerate([b"one\r\ntwo\n\nfour", b"", b"five\n"]):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(_packed(content, kind))
        names.append(str(path))
    actual = elements(lambda: tf.data.TextLineDataset(names, kind))
    assert actual == [b"one", b"two", b"", b"four", b"five"]


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_records(tmp_path, kind: str) -> None:
    names = []
    for number in range(3):
        path = str(tmp_path / f"{number}.tfrecord")
        options = tf.python_io.TFRecordOptions(kind)
        with tf.python_io.TFRecordWriter(path, options) as writer:
            for record in range(number * 2):
                writer.write(f"{number} {record}".encode())
        names.append(path)
    expected = [f"{n} {r}".encode() for n in range(3) for r in range(n * 2)]
    assert elements(lambda: tf.data.TFRecordDataset(names, kind)) == expected
    batches = elements(lambda: tf.data.TFRecordDataset(names, kind).batch(4))
    assert [record for batch in batches for record in batch.tolist()] == expected
    parallel = elements(lambda: tf.data.TFRecordDataset(names, kind, num_parallel_reads=2))
    assert sorted(parallel) == sorted(expected)


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_records_of_a_fixed_length(tmp_path, kind: str) -> None:
    names = []
    for number in range(2):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(_packed(b"head" + b"abcdefghi"[: 3 * (number + 1)] + b"f", kind))
        names.append(str(path))

    def make() -> Dataset:
        return tf.data.FixedLengthRecordDataset(names, 3, 4, 1, compression_type=kind)

    assert elements(make) == [b"abc", b"abc", b"def"]


def test_a_broken_record_is_an_error_that_names_the_file(tmp_path) -> None:
    path = str(tmp_path / "broken.tfrecord")
    with tf.python_io.TFRecordWriter(path) as writer:
        for record in (b"one", b"two"):
            writer.write(record)
    os.truncate(path, os.path.getsize(path) - 2)
    with tf.Graph().as_default(), tf.Session() as session:
        following = tf.data.TFRecordDataset(path).make_one_shot_iterator().get_next()
        assert session.run(following) == b"one"
        with pytest.raises(tf.errors.DataLossError, match=r"broken\.tfrecord.*\n.*TFRecordDataset"):
            session.run(following)


def test_a_missing_file_is_an_error() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        following = tf.data.TextLineDataset("/no/such/file").make_one_shot_iterator().get_next()
        with pytest.raises(tf.errors.NotFoundError):
            session.run(following)


def test_files_by_pattern(tmp_path) -> None:
    for name in ("b.txt", "a.txt", "c.csv"):
        (tmp_path / name).write_text(name)
    pattern = str(tmp_path / "*.txt")
    expected = [str(tmp_path / name).encode() for name in ("a.txt", "b.txt")]
    assert elements(lambda: Dataset.list_files(pattern, shuffle=False)) == expected
    assert sorted(elements(lambda: Dataset.list_files(pattern, seed=1))) == expected
    with pytest.raises(tf.errors.InvalidArgumentError, match="No files matched"):
        elements(lambda: Dataset.list_files(str(tmp_path / "*.png")))


def test_parsed_examples_in_batches(tmp_path) -> None:
    path = str(tmp_path / "examples.tfrecord")
    example = tf.train.Example
    with tf.python_io.TFRecordWriter(path) as writer:
        for number in range(10):
            features = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=[number, number + 0.5])),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
            }
            message = example(features=tf.train.Features(feature=features))
            writer.write(message.SerializeToString())

    def parse(record):
        wanted = {"x": tf.FixedLenFeature([2], tf.float32), "y": tf.FixedLenFeature([], tf.int64)}
        found = tf.parse_single_example(record, wanted)
        return found["x"] * 2.0, tf.one_hot(found["y"], 10)

    batches = elements(lambda: tf.data.TFRecordDataset(path).map(parse).batch(4))
    assert [len(x) for x, _ in batches] == [4, 4, 2]
    assert batches[1][0].tolist() == [[2.0 * n, 2.0 * n + 1] for n in range(4, 8)]
    assert np.argmax(batches[2][1], 1).tolist() == [8, 9]
