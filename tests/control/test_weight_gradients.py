"""Gradients of weights that every iteration multiplies by: one product after the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.runtime.dataflow import control_region

W = np.array([[0.5, -0.3, 0.2], [0.1, 0.4, -0.6], [-0.2, 0.3, 0.7]])


def unrolled(w: Any, x: Any, iterations: int) -> Any:
    for _ in range(iterations):
        x = tf.tanh(tf.matmul(x, w))
    return x


def looped(w: Any, x: Any, iterations: Any) -> Any:
    _, end = tf.while_loop(
        lambda i, x: i < iterations,
        lambda i, x: (i + 1, tf.tanh(tf.matmul(x, w))),
        [tf.constant(0), x],
    )
    return end


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("rows", [None, 2])
def test_first_and_second_order(
    monkeypatch: pytest.MonkeyPatch, native: bool, rows: int | None
) -> None:
    monkeypatch.setattr(control_region, "NATIVE", native)
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.constant(W)
        x = tf.placeholder(tf.float64, [rows, 3])
        iterations = tf.placeholder(tf.int32, [])
        (slope,) = tf.gradients(tf.reduce_sum(looped(w, x, iterations) ** 2), w)
        (second,) = tf.gradients(tf.reduce_sum(slope**2), w)
        assert "MatMul" in {node.type for node in session.graph.get_operations()}
        for count in (0, 1, 4, 70):
            start = np.linspace(-1, 1, 6).reshape(2, 3)
            (wanted,) = tf.gradients(tf.reduce_sum(unrolled(w, x, count) ** 2), w)
            wanted = tf.zeros_like(w) if wanted is None else wanted
            feeds = {x: start, iterations: count}
            result, exact = session.run([slope, wanted], feeds)
            np.testing.assert_allclose(result, exact, rtol=1e-9, atol=1e-12)
            if 0 < count < 70:
                (exact_second,) = tf.gradients(tf.reduce_sum(wanted**2), w)
                result, exact = session.run([second, exact_second], feeds)
                np.testing.assert_allclose(result, exact, rtol=1e-8, atol=1e-12)
