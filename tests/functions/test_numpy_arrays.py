"""The caller owns the result of `numpy()`: writing to it changes no tensor and no variable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def eager():
    with tf.eager_mode():
        yield


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x * 1.0,
        tf.identity,
        lambda x: tf.reshape(x, [2, 3]),
        lambda x: tf.stop_gradient(x),
        lambda x: x[:],
    ],
)
def test_writing_to_an_array_changes_nothing_else(make: Any) -> None:
    x = tf.constant(np.arange(6, dtype=np.float32))
    kept = make(x)
    for array in (kept.numpy(), make(x).numpy()):
        array[...] = -1.0
    np.testing.assert_array_equal(x.numpy(), np.arange(6))
    np.testing.assert_array_equal(np.ravel(kept.numpy()), np.arange(6))


def test_variables_keep_their_values() -> None:
    v = tf.Variable(np.arange(6, dtype=np.float32))
    for array in (v.numpy(), v.read_value().numpy(), v.value().numpy(), (v + 0.0).numpy()):
        array[...] = -1.0
    np.testing.assert_array_equal(v.numpy(), np.arange(6))


def test_a_tape_keeps_what_it_needs() -> None:
    x = tf.constant(np.arange(6, dtype=np.float32))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        (y * 2.0).numpy()[...] = -1.0
        z = tf.reduce_sum(y * y)
    np.testing.assert_allclose(tape.gradient(z, x).numpy(), 4 * np.arange(6.0) ** 3)
