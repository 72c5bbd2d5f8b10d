"""Rows of the op table: arithmetic."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(0)
X, Y = R.normal(size=(3, 4)), R.normal(size=(3, 4))

ROWS = {
    "add": (tf.add, [X, Y], np.add),
    "add broadcast": (tf.add, [X, Y[:, :1]], np.add),
    "add scalar": (lambda x: x + 1.5, [X], lambda x: x + 1.5),
    "multiply": (tf.multiply, [X, Y[0]], np.multiply),
    "negative": (tf.negative, [X], np.negative),
    "add_n": (lambda *x: tf.add_n(x), [X, Y, X], lambda a, b, c: a + b + c),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)
