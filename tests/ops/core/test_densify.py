"""Conversions of IndexedSlices and sparse tensors to dense ones."""

import warnings

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check


def slices(values: tf.Tensor, shape: object = (3, 2)) -> tf.IndexedSlices:
    dense_shape = None if shape is None else tf.convert_to_tensor(shape)
    return tf.IndexedSlices(values, tf.constant([2, 0, 2]), dense_shape)


def test_slices_are_converted_to_dense_tensors() -> None:
    values = np.arange(6.0).reshape(3, 2)
    expected = np.zeros((3, 2))
    np.add.at(expected, [2, 0, 2], values)
    check(lambda v: tf.convert_to_tensor(slices(v)), values, expect=expected)
    check(lambda v: tf.multiply(slices(v), v), values, expect=expected * values)


def test_a_conversion_of_slices_that_may_be_large_warns() -> None:
    with tf.Graph().as_default():
        values = tf.ones([3, 2])
        with pytest.warns(UserWarning, match="of unknown shape"):
            tf.convert_to_tensor(slices(values, tf.placeholder(tf.int32, [2])))
        with pytest.warns(UserWarning, match="with 400000000 elements"):
            tf.convert_to_tensor(slices(values, [200_000_000, 2]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tf.convert_to_tensor(slices(values))


def test_slices_need_a_shape_and_the_right_dtype() -> None:
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="without dense_shape"):
            tf.convert_to_tensor(slices(tf.ones([3, 2]), None))
        with pytest.raises(ValueError, match="requested dtype int32"):
            tf.convert_to_tensor(slices(tf.ones([3, 2])), tf.int32)


def test_composites_are_returned_unchanged() -> None:
    with tf.Graph().as_default():
        rows = slices(tf.ones([3, 2]))
        assert tf.convert_to_tensor_or_indexed_slices(rows) is rows
        assert isinstance(tf.convert_to_tensor_or_indexed_slices([1]), tf.Tensor)
        with pytest.raises(ValueError, match="int32"):
            tf.convert_to_tensor_or_indexed_slices(rows, tf.int32)
        value = tf.SparseTensorValue([[0]], [1.0], [2])
        assert isinstance(tf.convert_to_tensor_or_sparse_tensor(value), tf.SparseTensor)
        assert isinstance(tf.convert_to_tensor_or_sparse_tensor([1]), tf.Tensor)
        with pytest.raises(RuntimeError, match="requested = int32"):
            tf.convert_to_tensor_or_sparse_tensor(value, tf.int32)
