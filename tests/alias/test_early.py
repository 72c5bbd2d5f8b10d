"""Names with the meaning that they had in TensorFlow 0.12."""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg import alias


@pytest.fixture
def old() -> Iterator[Any]:
    with tf.Graph().as_default():
        alias.install(version="0.12")
        yield importlib.import_module("tensorflow")
        alias.uninstall()


def run(tensor: Any) -> Any:
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        return session.run(tensor)


def test_the_names_are_what_they_were_afterwards():
    before = tf.lbeta, tf.train.ExponentialMovingAverage
    alias.install(version="0.12")
    assert tf.lbeta is not before[0]
    alias.uninstall()
    assert (tf.lbeta, tf.train.ExponentialMovingAverage) == before


def test_other_versions_are_unknown():
    with pytest.raises(ValueError, match=r"one of 0\.12, 1\.15"):
        alias.install(version="1.0")
    assert not alias.installed()


def test_pairs_of_an_element_with_itself_count(old: Any):
    loss = old.losses.mean_pairwise_squared_error([[1.0, 2.0]], [[1.0, 4.0]])
    assert run(loss) == 2.0  # 4.0 over two pairs of four


def test_a_class_that_never_occurs_is_missed(old: Any):
    mean, update = old.metrics.mean_iou([0, 1, 1], [0, 0, 1], 3)
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        assert session.run(update).tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
        assert session.run(mean) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("ids", "message"),
    [([1, 1], "do not start at 0"), ([0, 2], "not increasing by 1")],
)
def test_segments_have_no_gaps(old: Any, ids: list[int], message: str):
    data = np.ones(len(ids))
    for reduced in (old.segment_sum(data, ids), old.sparse_segment_mean(data, [0] * len(ids), ids)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            run(reduced)
    assert run(old.segment_max([1, 2, 3], [0, 1, 1])).tolist() == [1, 3]


def test_no_segment_id_is_negative(old: Any):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"segment_ids\[1\] = -3 .* \[0, 2\)"):
        run(old.unsorted_segment_sum([1, 2], [0, -3], 2))
    assert run(old.unsorted_segment_sum([1, 2], [1, 1], 2)).tolist() == [0, 3]


def test_positions_and_targets_are_in_range(old: Any):
    assert run(old.substr("abc", 1, 1)) == b"b"
    for position in (-1, 3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="out of range"):
            run(old.substr("abc", position, 1))
    assert run(old.nn.in_top_k([[0.1, 0.9]], [1], 1)).tolist() == [True]
    with pytest.raises(tf.errors.InvalidArgumentError, match="out of range"):
        run(old.nn.in_top_k([[0.1, 0.9]], [2], 1))


def test_images_have_three_channels(old: Any):
    file = tf.image.encode_png(np.zeros([2, 3, 1], np.uint8))
    assert run(old.image.decode_image(file, channels=3)).shape == (2, 3, 3)
    with pytest.raises(ValueError, match="channels"):
        old.image.decode_image(file, channels=4)


def test_lbeta_of_nothing_is_empty(old: Any):
    assert run(old.lbeta(np.zeros([1, 0]))).shape == (0,)
    fed = tf.placeholder(tf.float64)
    with tf.Session() as session:
        assert session.run(old.lbeta(fed), {fed: np.ones([2, 1])}).tolist() == [0, 0]
        assert session.run(old.lbeta(fed), {fed: np.ones([2, 0])}).shape == (0,)
    with pytest.raises(ValueError, match="rank"):
        old.lbeta([])


def test_gamma_does_not_round(old: Any):
    assert run(old.image.adjust_gamma(np.uint8([51]), 2))[0] == pytest.approx(255 * 0.04)


def test_debiased_averages_count_from_one(old: Any):
    average = tf.Variable([0.0])
    update = old.train.assign_moving_average(average, [1.0], 0.5)
    assert run(update).tolist() == pytest.approx([0.5 / (1 - 0.5**2)])
    mean = old.train.ExponentialMovingAverage(0.5, zero_debias=True)
    value = tf.ones([1])
    with tf.control_dependencies([mean.apply([value])]):
        moved = mean.average(value).read_value()
    assert run(moved).tolist() == pytest.approx([2 / 3])


def test_values_of_sparse_tensors_have_a_shape(old: Any):
    value = old.SparseTensorValue([[1]], [5], shape=[3])
    assert run(tf.sparse_tensor_to_dense(tf.SparseTensor(*value))).tolist() == [0, 5, 0]
    assert isinstance(value, tf.SparseTensorValue)
