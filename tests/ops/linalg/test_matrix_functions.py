"""Rows of the op table: functions of matrices."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(8)
BATCH = R.normal(size=(2, 2, 2)) + 2 * np.eye(2)
COMPLEX = R.normal(size=(2, 2)) + 1j * R.normal(size=(2, 2)) + 2 * np.eye(2)

ROWS = {
    "exponential": (tf.linalg.expm, [np.array([[0.0, 3.0], [-3.0, 0.0]])], scipy.linalg.expm),
    "exponential, complex": (tf.linalg.expm, [COMPLEX], scipy.linalg.expm),
    "square root": (tf.linalg.sqrtm, [BATCH[0] @ BATCH[0].T + np.eye(2)], scipy.linalg.sqrtm),
    "square root, complex": (tf.matrix_square_root, [COMPLEX], scipy.linalg.sqrtm),
    "logarithm": (tf.linalg.logm, [COMPLEX], scipy.linalg.logm),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)


def test_exponential_value() -> None:
    x = np.array([[[0.0, 3.0], [-3.0, 0.0]], [[40.0, 0.0], [0.0, -2.0]]])
    turn = [[np.cos(3), np.sin(3)], [-np.sin(3), np.cos(3)]]
    expected = np.array([turn, np.diag(np.exp([40.0, -2.0]))])
    check(tf.linalg.expm, x, expect=expected, gradient=False)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tf.linalg.sqrtm(np.diag([1.0, -1.0])), "no real square root"),
    ],
)
def test_run_time_errors(build: Callable[[], tf.Tensor], message: str) -> None:
    with (
        tf.Graph().as_default(),
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=message),
    ):
        session.run(build())
