"""Sampled losses against the same formulas over given samples."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf

R = np.random.default_rng(4)
WEIGHTS = R.normal(size=(6, 3)).astype(np.float32)
BIASES = R.normal(size=6).astype(np.float32)
INPUTS = R.normal(size=(2, 3)).astype(np.float32)
LABELS = np.array([[0], [4]])
SAMPLED = np.array([1, 4, 5])
TRUE_EXPECTED = np.array([[0.3], [0.2]], np.float32)
EXPECTED = np.array([0.5, 0.2, 0.1], np.float32)
VALUES = (SAMPLED, TRUE_EXPECTED, EXPECTED)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def run(value: Any) -> Any:
    with tf.Session() as session:
        return session.run(value)


def logits(remove_hits: bool) -> Any:
    scores = INPUTS @ WEIGHTS.T + BIASES
    true = np.take_along_axis(scores, LABELS, 1) - np.log(TRUE_EXPECTED)
    sampled = scores[:, SAMPLED] - np.log(EXPECTED)
    if remove_hits:
        sampled[LABELS == SAMPLED] = -1e30
    return np.concatenate([true, sampled], 1)


def test_nce_loss() -> None:
    actual = run(tf.nn.nce_loss(WEIGHTS, BIASES, LABELS, INPUTS, 3, 6, sampled_values=VALUES))
    x, target = logits(False), np.array([1, 0, 0, 0])
    expected = (np.maximum(x, 0) - x * target + np.log1p(np.exp(-np.abs(x)))).sum(1)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_sampled_softmax_loss(swapped: bool, count: int) -> None:
    weights = [WEIGHTS[i::count] for i in range(count)]
    pair = (INPUTS, LABELS) if swapped else (LABELS, INPUTS)
    actual = run(tf.nn.sampled_softmax_loss(weights, BIASES, *pair, 3, 6, sampled_values=VALUES))
    x = logits(True)
    np.testing.assert_allclose(actual, np.log(np.exp(x).sum(1)) - x[:, 0], rtol=1e-5, atol=1e-6)


def test_it_samples_for_itself_and_trains() -> None:
    weights = tf.Variable(WEIGHTS)
    inputs = tf.constant(INPUTS)
    loss = tf.nn.nce_loss(weights, tf.zeros([6]), tf.constant(LABELS), inputs, 2, 6)
    assert loss.shape.as_list() == [2]
    gradients = tf.gradients(loss, [weights, inputs])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        _, input_gradient = session.run([loss, gradients[1]])
    assert np.all(np.isfinite(input_gradient))


def test_several_true_classes_share_the_target() -> None:
    labels = np.array([[0, 1], [4, 2]])
    values = (SAMPLED, np.full((2, 2), 0.3, np.float32), EXPECTED)
    loss = tf.nn.sampled_softmax_loss(
        WEIGHTS, BIASES, labels, INPUTS, 3, 6, num_true=2, sampled_values=values
    )
    assert run(loss).shape == (2,)
