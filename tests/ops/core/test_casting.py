"""Rows of the op table: casts by value and by bits."""

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import assert_close, check

X = np.array([[-1.7, 0.0, 2.5], [3.0, 100.4, -6.0]])
KINDS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int8, np.int32, np.int64]


@pytest.mark.parametrize("target", [*KINDS, np.complex64, np.complex128, np.bool_])
def test_cast(target):
    check(lambda x: tf.cast(x, target), X, expect=X.astype(target), gradient=False)
    check(lambda x: tf.cast(x, target), X.astype(np.int32), gradient=False)


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_casts_between_floats_pass_gradients():
    check(lambda x: tf.cast(x, tf.complex128), X, expect=X.astype(complex))
    check(lambda x: tf.cast(x, tf.float64), X + 1j * X, expect=X)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("to_float", np.float32),
        ("to_double", np.float64),
        ("to_int32", np.int32),
        ("to_int64", np.int64),
        ("to_bfloat16", ml_dtypes.bfloat16),
        ("to_complex64", np.complex64),
        ("to_complex128", np.complex128),
    ],
)
def test_named_casts(name, kind):
    x = X.astype(np.int16)
    check(getattr(tf, name), x, expect=x.astype(kind), gradient=False)


def test_cast_returns_matching_tensors_and_maps_sparse_values():
    x = tf.constant([1.0])
    assert tf.cast(x, tf.float32) is x
    sparse = tf.SparseTensor([[0]], [1.5], [2])
    assert tf.cast(sparse, tf.int32).dtype == tf.int32


def test_strings_cannot_be_cast():
    with pytest.raises(tf.errors.UnimplementedError, match="Cast string to int32"):
        tf.cast(tf.constant("1"), tf.int32)


def value(tensor):
    with tf.Session(graph=tensor.graph) as session:
        return session.run(tensor)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.int64])
def test_saturate_cast_clips_to_the_range(kind):
    x = np.array([-1e30, -3.0, 5.0, 1e30], np.float32)
    limits = np.iinfo(kind)
    result = value(tf.saturate_cast(x, kind))
    assert result[0] == limits.min and result[2] == 5
    assert limits.max - result[3] <= limits.max // 2**23  # the nearest float below


def test_saturate_cast_of_integers():
    x = np.array([-300, -1, 7, 300], np.int32)
    assert_close(value(tf.saturate_cast(x, tf.uint8)), np.array([0, 0, 7, 255], np.uint8))


def test_bitcast():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    check(lambda t: tf.bitcast(t, tf.int32), x, expect=x.view(np.int32), gradient=False)
    parts = x[..., None].view(np.uint8)
    check(lambda t: tf.bitcast(t, tf.uint8), x, expect=parts, gradient=False)
    check(lambda t: tf.bitcast(t, tf.float32), parts, expect=x, gradient=False)


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.complex64])
def test_bitcast_of_wide_elements(kind):
    x = (np.arange(6).reshape(2, 3) - 2.5).astype(kind)
    parts = x[..., None].view(np.uint16)
    check(lambda t: tf.bitcast(t, tf.uint16), x, expect=parts, gradient=False)
    check(lambda t: tf.bitcast(t, kind), parts, expect=x, gradient=False)


def test_bitcast_needs_a_matching_last_axis():
    with pytest.raises(ValueError, match="Cannot bitcast due to shape"):
        tf.bitcast(np.zeros((2, 3), np.int8), tf.int32)
    fed = tf.placeholder(tf.int8)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="bitcast"):
        session.run(tf.bitcast(fed, tf.int32), {fed: np.zeros((2, 3), np.int8)})
