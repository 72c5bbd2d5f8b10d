"""Bucketing, choosing and sampling from datasets, scan, take_while, unique."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.data.pipelines import Dataset, elements, plain

experimental = tf.data.experimental


def _rows(lengths: list[int]) -> Any:
    return Dataset.from_tensor_slices(np.array(lengths)).map(lambda n: tf.fill([n], n))


def test_buckets() -> None:
    apply = experimental.bucket_by_sequence_length(tf.size, [3, 5], [2, 3, 1])
    actual = plain(elements(lambda: _rows([1, 6, 3, 2, 4, 4, 2]).apply(apply)))
    assert actual == [
        [[6, 6, 6, 6, 6, 6]],
        [[1, 0], [2, 2]],
        [[3, 3, 3, 0], [4, 4, 4, 4], [4, 4, 4, 4]],
        [[2, 2]],
    ]


def test_buckets_padded_to_their_boundaries() -> None:
    apply = experimental.bucket_by_sequence_length(
        tf.size, [3, 5], [1, 1, 1], padding_values=np.int64(-1), pad_to_bucket_boundary=True
    )
    assert plain(elements(lambda: _rows([1, 3]).apply(apply))) == [[[1, -1]], [[3, 3, 3, -1]]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="pad_to_bucket_boundary"):
        elements(lambda: _rows([5]).apply(apply))


def test_buckets_of_pairs_without_padding_and_remainders() -> None:
    apply = experimental.bucket_by_sequence_length(
        lambda x, y: x, [2], [2, 2], no_padding=True, drop_remainder=True
    )

    def make() -> Any:
        pairs = ([0, 3, 1, 4, 5], [[1], [2], [3], [4], [5]])
        return Dataset.from_tensor_slices(pairs).apply(apply)

    assert plain(elements(make)) == [([0, 1], [[1], [3]]), ([3, 4], [[2], [4]])]


def test_sample_frequencies_match_the_weights() -> None:
    def make() -> Any:
        many = [Dataset.from_tensors(n).repeat() for n in range(3)]
        return experimental.sample_from_datasets(many, [0.5, 0.2, 0.3], seed=4).batch(3000)

    drawn = elements(make, 1)[0]
    np.testing.assert_allclose(np.bincount(drawn) / 3000, [0.5, 0.2, 0.3], atol=0.04)
    np.testing.assert_array_equal(drawn, elements(make, 1)[0])


def test_samples_with_changing_weights() -> None:
    def make() -> Any:
        weights = Dataset.from_tensor_slices([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 3)
        halves = [Dataset.range(5), Dataset.range(10, 12)]
        return experimental.sample_from_datasets(halves, weights)

    assert plain(elements(make)) == [0, 1, 2, 10, 11]


def test_resampled_class_frequencies_match_the_target() -> None:
    labels = np.random.default_rng(0).choice(3, 6000, p=[0.7, 0.2, 0.1]).astype(np.int32)

    def make(initial: Any) -> Any:
        return Dataset.from_tensor_slices(labels).apply(
            experimental.rejection_resample(lambda x: x, [0.2, 0.4, 0.4], initial, seed=1)
        )

    for initial in ([0.7, 0.2, 0.1], None):
        actual = elements(lambda initial=initial: make(initial).batch(6000), 1)[0]
        assert np.array_equal(actual[0], actual[1]) and len(actual[0]) > 1000
        np.testing.assert_allclose(
            np.bincount(actual[0]) / len(actual[0]), [0.2, 0.4, 0.4], atol=0.05
        )


def test_a_scan_may_have_a_state_of_any_structure() -> None:
    def step(state: Any, x: Any) -> Any:
        last, count = state["last"], state["count"]
        return {"last": x, "count": count + 1}, (x - last, count)

    def make() -> Any:
        start = {"last": np.int64(0), "count": 0}
        return Dataset.from_tensor_slices(np.array([3, 5, 9])).apply(experimental.scan(start, step))

    assert plain(elements(make)) == [(3, 0), (2, 1), (4, 2)]

    def growing() -> Any:
        grow = experimental.scan([0], lambda s, x: (tf.concat([s, s], 0), tf.size(s)))
        return Dataset.range(4).apply(grow)

    assert plain(elements(growing)) == [1, 2, 4, 8]


def test_unique_words() -> None:
    words = ["a", "b", "a", "c", "b"]
    actual = elements(lambda: Dataset.from_tensor_slices(words).apply(experimental.unique()))
    assert actual == [b"a", b"b", b"c"]


def test_examples() -> None:
    def example(n: int) -> bytes:
        value = tf.train.Feature(int64_list=tf.train.Int64List(value=[n]))
        return tf.train.Example(
            features=tf.train.Features(feature={"n": value})
        ).SerializeToString()

    def make() -> Any:
        texts = Dataset.from_tensor_slices([example(n) for n in range(4)]).batch(2)
        features = {"n": tf.FixedLenFeature([], tf.int64)}
        return texts.apply(experimental.parse_example_dataset(features))

    assert plain(elements(make)) == [{"n": [0, 1]}, {"n": [2, 3]}]


def test_structure() -> None:
    with tf.Graph().as_default():
        dataset = Dataset.range(3)
        assert experimental.get_structure(dataset) == dataset.element_spec


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: experimental.bucket_by_sequence_length(tf.size, [1], [1]), ValueError),
        (lambda: experimental.choose_from_datasets([], Dataset.range(3)), ValueError),
        (
            lambda: experimental.choose_from_datasets(
                [Dataset.range(3)], Dataset.from_tensors(np.int32(0))
            ),
            TypeError,
        ),
        (
            lambda: experimental.choose_from_datasets(
                [Dataset.range(3), Dataset.from_tensors("a")], Dataset.range(2)
            ),
            TypeError,
        ),
        (lambda: experimental.sample_from_datasets([]), ValueError),
        (lambda: experimental.sample_from_datasets([Dataset.range(2)], [0.5, 0.5]), ValueError),
        (lambda: Dataset.range(3).apply(experimental.take_while(lambda x: x)), ValueError),
        (lambda: Dataset.range(3).apply(experimental.scan(0, lambda s, x: s)), TypeError),
        (lambda: Dataset.from_tensors(1.0).apply(experimental.unique()), TypeError),
        (lambda: experimental.parse_example_dataset(None), ValueError),
    ],
)
def test_errors_name_the_users_line(make: Any, error: Any) -> None:
    with tf.Graph().as_default(), pytest.raises(error):
        make()


def test_an_index_without_a_dataset_names_the_stage() -> None:
    def make() -> Any:
        return experimental.choose_from_datasets([Dataset.range(3)], Dataset.range(2))

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"1 >= 1(.|\n)*DirectedInterleave"):
        elements(make)
