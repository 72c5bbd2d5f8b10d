"""Rows of CSV files and features of Examples, in batches."""

from __future__ import annotations

import gzip

import pytest

import thalweg as tf
from tests.data.pipelines import Dataset, drained, elements, plain

experimental = tf.data.experimental


@pytest.fixture
def names(tmp_path) -> list[str]:
    contents = ["a,b,c\n1,2.5,x\n2,,y\n", "a,b,c\n3,4.5,\n"]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.csv").write_text(content)
    return [str(tmp_path / f"{number}.csv") for number in range(2)]


def test_rows_of_csv_files(names: list[str]) -> None:
    def make(**options) -> Dataset:
        return experimental.CsvDataset(names, [tf.int32, [0.5], [""]], header=True, **options)

    assert plain(elements(make)) == [(1, 2.5, b"x"), (2, 0.5, b"y"), (3, 4.5, b"")]
    chosen = elements(lambda: experimental.CsvDataset(names, [[""]], header=True, select_cols=[2]))
    assert plain(chosen) == [(b"x",), (b"y",), (b"",)]


def test_columns_are_inferred_from_the_files(names: list[str]) -> None:
    def make(**options) -> Dataset:
        return experimental.make_csv_dataset(names, 2, num_epochs=1, shuffle=False, **options)

    assert plain(elements(make)) == [
        {"a": [1, 2], "b": [2.5, 0.0], "c": [b"x", b"y"]},
        {"a": [3], "b": [4.5], "c": [b""]},
    ]
    actual = elements(lambda: make(label_name="a", select_columns=["a", "c"]))
    assert plain(actual) == [({"c": [b"x", b"y"]}, [1, 2]), ({"c": [b""]}, [3])]
    for options in ({"label_name": "z"}, {"select_columns": ["z"]}, {"column_names": "aa"}):
        with tf.Graph().as_default(), pytest.raises(ValueError):
            make(**options)


def test_packed_tables_without_a_header(tmp_path) -> None:
    path = tmp_path / "table.gz"
    path.write_bytes(gzip.compress(b"1|9999999999\n2|3\n"))

    def make() -> Dataset:
        return experimental.make_csv_dataset(
            str(path), 2, ["x", "y"], field_delim="|", header=False, num_epochs=1,
            shuffle=False, compression_type="GZIP",
        )  # fmt: skip

    (actual,) = elements(make)
    assert actual["x"].dtype.name == "int32"
    assert actual["y"].tolist() == [9999999999, 3]


def test_infinite_tables_have_full_batches(names: list[str]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = experimental.make_csv_dataset(names, 2, shuffle_seed=1, num_parallel_reads=2)
        following = dataset.make_one_shot_iterator().get_next()
        assert following["a"].shape.as_list() == [2]
        seen = [value for batch in drained(session, following, 6) for value in batch["a"].tolist()]
    assert sorted(seen) == sorted([1, 2, 3] * 4)


def test_features_in_batches(tmp_path) -> None:
    path = str(tmp_path / "examples")
    with tf.python_io.TFRecordWriter(path) as writer:
        for number in range(5):
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            features = tf.train.Features(feature={"n": feature, "label": feature})
            writer.write(tf.train.Example(features=features).SerializeToString())
    wanted = {"n": tf.FixedLenFeature([], tf.int64), "label": tf.FixedLenFeature([1], tf.int64)}

    def make() -> Dataset:
        return experimental.make_batched_features_dataset(
            path, 2, wanted, label_key="label", num_epochs=1, shuffle=False
        )

    assert plain(elements(make)) == [
        ({"n": [0, 1]}, [[0], [1]]),
        ({"n": [2, 3]}, [[2], [3]]),
        ({"n": [4]}, [[4]]),
    ]
