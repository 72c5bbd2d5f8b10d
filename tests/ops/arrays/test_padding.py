"""Rows of the op table: padding in its three modes."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(0)
X = R.normal(size=(2, 3))
BORDERS = {"both": [[1, 1], [2, 0]], "none": [[0, 0], [0, 0]], "one": [[0, 1], [0, 0]]}


@pytest.mark.parametrize("name", BORDERS)
@pytest.mark.parametrize("mode", ["CONSTANT", "reflect", "SYMMETRIC"])
def test_pad(name: str, mode: str) -> None:
    border: Any = BORDERS[name]
    check(lambda x: tf.pad(x, border, mode), X, expect=lambda x: np.pad(x, border, mode.lower()))
    check(lambda x: tf.gradients(tf.pad(x, border, mode) ** 2, x), X, gradient=False)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.bool, tf.uint8, tf.complex64])
def test_pad_dtypes(dtype: tf.DType) -> None:
    values = (X > 0).astype(dtype.as_numpy_dtype)
    check(lambda x: tf.pad(x, [[1, 0], [0, 2]]), values, gradient=False)


def test_pad_with_a_value() -> None:
    border = [[1, 0], [0, 2]]
    check(
        lambda x: tf.pad(x, border, constant_values=5.5),
        X,
        expect=lambda x: np.pad(x, border, constant_values=5.5),
    )
    check(
        lambda x, v: tf.pad(x, border, constant_values=v),
        *(X, np.array(2.0)),
        expect=lambda x, v: np.pad(x, border, constant_values=v),
        gradient=[0],
    )


def test_pad_by_fed_sizes() -> None:
    border = np.array([[1, 0], [1, 2]], np.int64)
    for mode in ("CONSTANT", "SYMMETRIC"):
        check(
            lambda x, b, mode=mode: tf.pad(x, b, mode),
            *(X, border),
            expect=lambda x, b, mode=mode: np.pad(x, b, mode.lower()),
            gradient=[0],
        )


def test_pad_empty_and_strings() -> None:
    check(lambda x: tf.pad(x, [[1, 0], [0, 0]]), X[:0], expect=np.zeros((1, 3)))
    with tf.Session() as session:
        assert session.run(tf.pad(["a"], [[1, 0]])).tolist() == [b"", b"a"]


def test_static_shape() -> None:
    x, n = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.int32, [])
    assert tf.pad(x, [[1, 1], [1, 2]]).shape.as_list() == [None, 6]
    assert tf.pad(x, [[0, n], [0, 1]]).shape.as_list() == [None, 4]


WRONG: dict[str, Any] = {
    "mode": (lambda: tf.pad(X, BORDERS["both"], "weird"), "Unknown padding mode"),
    "negative": (lambda: tf.pad(X, [[-1, 0], [0, 0]]), "non-negative"),
    "rank": (lambda: tf.pad(X, [[1, 0]]), "rank"),
    "columns": (lambda: tf.pad(X, [[1, 0, 0], [1, 0, 0]]), "not compatible"),
    "reflect too far": (lambda: tf.pad(X, [[2, 0], [0, 0]], "REFLECT"), "no greater than 1"),
    "mirror too far": (lambda: tf.pad(X, [[3, 0], [0, 0]], "SYMMETRIC"), "no greater than 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str) -> None:
    build, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build()
