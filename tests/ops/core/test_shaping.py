"""Rows of the op table: shapes as values, reshape, expand_dims, squeeze."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(0)
X = R.normal(size=(2, 1, 3))

ROWS: dict[str, Any] = {
    "reshape": (lambda x: tf.reshape(x, [3, 2]), [X], lambda x: x.reshape(3, 2)),
    "reshape rest": (lambda x: tf.reshape(x, [3, -1, 1]), [X], lambda x: x.reshape(3, -1, 1)),
    "reshape scalar": (lambda x: tf.reshape(x, []), [X[:1, :, :1]], lambda x: x.reshape(())),
    "reshape empty": (lambda x: tf.reshape(x, [-1, 3]), [X[:0]], lambda x: x.reshape(0, 3)),
    "expand": (lambda x: tf.expand_dims(x, 1), [X], lambda x: np.expand_dims(x, 1)),
    "expand last": (lambda x: tf.expand_dims(x, -1), [X], lambda x: np.expand_dims(x, -1)),
    "expand old": (lambda x: tf.expand_dims(x, dim=0), [X], lambda x: x[None]),
    "squeeze": (tf.squeeze, [X], np.squeeze),
    "squeeze axis": (lambda x: tf.squeeze(x[None], [0, -2]), [X], lambda x: x[:, 0]),
    "squeeze one": (lambda x: tf.squeeze(x, 1), [X], lambda x: x[:, 0]),
    "squeeze old": (lambda x: tf.squeeze(x, squeeze_dims=[1]), [X], lambda x: x[:, 0]),
    "ensure": (lambda x: tf.ensure_shape(x, [None, 1, 3]), [X], lambda x: x),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)


def test_reshape_to_a_fed_shape() -> None:
    check(tf.reshape, X, np.array([3, -1], np.int64), expect=X.reshape(3, 2), gradient=[0])


@pytest.mark.parametrize("out_type", [tf.int32, tf.int64])
def test_shapes_as_values(out_type: tf.DType) -> None:
    kind = out_type.as_numpy_dtype
    check(
        lambda x: [tf.shape(x, out_type=out_type), tf.size(x, out_type=out_type)],
        X,
        expect=[np.array(X.shape, kind), np.array(6, kind)],
        gradient=False,
    )
    check(
        lambda x, y: tf.shape_n([x, y], out_type),
        *(X, X[0]),
        expect=[np.array([2, 1, 3]), np.array([1, 3])],
        gradient=False,
    )
    check(tf.rank, X, expect=np.array(3), gradient=False)


def test_shape_of_sparse_tensor() -> None:
    sparse = tf.SparseTensorValue(np.array([[0, 1]]), np.array([5.0]), np.array([2, 3]))
    with tf.Session() as session:
        for value in (sparse, tf.SparseTensor(*sparse)):
            results = session.run([tf.shape(value), tf.size(value), tf.rank(value)])
            assert [np.asarray(r).tolist() for r in results] == [[2, 3], 6, 2]


def test_reshape_infers_static_sizes() -> None:
    x, y = tf.placeholder(tf.float32, [None, 6]), tf.placeholder(tf.float32, [None, 4])
    assert tf.reshape(x, [tf.shape(y)[0], -1]).shape.as_list() == [None, None]
    assert tf.reshape(x, [tf.shape(x)[0], tf.shape(y)[1]]).shape.as_list() == [None, 4]
    assert tf.reshape(x, [-1, tf.shape(x)[1] // 2]).shape.as_list() == [None, 3]
    assert tf.reshape(x, tf.concat([tf.shape(x)[:1], [2, 3]], 0)).shape.as_list() == [None, 2, 3]
    assert tf.reshape(tf.zeros([12]), [tf.shape(y)[1], -1]).shape.as_list() == [4, 3]


WRONG: dict[str, Any] = {
    "elements": (lambda: tf.reshape(X, [5]), "Cannot reshape a tensor with 6 elements"),
    "divisible": (lambda: tf.reshape(X, [4, -1]), "must be evenly divisible by 4"),
    "scalar shape": (lambda: tf.reshape(X, 6), "must be a vector"),
    "matrix shape": (lambda: tf.reshape(X, [[6]]), "rank 1"),
    "expand where": (lambda: tf.expand_dims(X, 4), "not in the interval"),
    "expand nowhere": (lambda: tf.expand_dims(X), "Must specify an axis"),
    "expand twice": (lambda: tf.expand_dims(X, 0, dim=0), "both"),
    "squeeze": (lambda: tf.squeeze(X, [0]), r"squeeze dim\[0\], expected a dimension of 1, got 2"),
    "squeeze where": (lambda: tf.squeeze(X, [3]), "not in the range"),
    "squeeze twice": (lambda: tf.squeeze(X, 1, squeeze_dims=[1]), "both"),
    "ensure": (lambda: tf.ensure_shape(X, [None, 2, 3]), "not compatible"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    build, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build()


def test_wrong_at_run_time() -> None:
    x = tf.placeholder(tf.float32)
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="with 2 values"):
            session.run(tf.reshape(x, [3]), {x: [1, 2]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected"):
            session.run(tf.ensure_shape(x, [3]), {x: [1, 2]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected a dimension of 1"):
            session.run(tf.squeeze(x, [0]), {x: [1, 2]})


def test_the_tensors_of_a_list_have_one_dtype():
    with pytest.raises(TypeError, match=r"'ShapeN' Op have types \[float32, int32\] that don't"):
        tf.shape_n([tf.zeros([2]), tf.zeros([2], tf.int32)])
