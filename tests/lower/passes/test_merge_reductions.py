"""Sums of products over the steps of an unrolled loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import native
from thalweg.ir.kernel import Contraction
from thalweg.runtime import engine

STEPS, BATCH, WIDTH = 9, 5, 24


def unrolled(cells: int = 1) -> tuple[Any, Any, list[Any]]:
    """The loss, the input and the weights of a recurrent network, written out step by step."""
    rng = np.random.default_rng(3)
    x = tf.placeholder(tf.float32, [STEPS, BATCH, WIDTH])
    weights = [
        tf.Variable(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 5)
        for _ in range(cells)
    ]
    states = [tf.ones([BATCH, WIDTH]) for _ in range(cells)]
    for step in range(STEPS):
        below = x[step]
        for cell, w in enumerate(weights):
            states[cell] = below = tf.tanh(tf.matmul(states[cell], w) + below)
    return tf.reduce_sum(states[-1] * states[-1]), x, weights


@pytest.mark.parametrize("cells", [1, 2])
def test_gradients_agree_with_the_reference_kernels(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.random.default_rng(4).standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)
    found: list[Any] = []
    for compiles in (False, True):
        monkeypatch.setattr(engine, "COMPILES", compiles)
        with tf.Graph().as_default(), tf.Session() as session:
            loss, x, weights = unrolled(cells)
            gradients = tf.gradients(loss, [*weights, x])
            session.run(tf.global_variables_initializer())
            found.append(session.run([loss, *gradients], {x: data}))
    for ours, theirs in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")
def test_a_weight_of_all_steps_gets_its_gradient_from_one_product() -> None:
    with tf.Graph().as_default():
        loss, _, _ = unrolled()
        step = native(tf.train.GradientDescentOptimizer(0.1).minimize(loss))
        kernels = [call.launch.kernel for call in step.listing.calls]
        sums = [k for k in kernels if isinstance(k, Contraction) and len(k.reduced) == 2]
        assert [[v.extent for v in k.reduced] for k in sums] == [[STEPS - 1, BATCH]]
