"""Losses of sequences against their formula."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf

R = np.random.default_rng(8)
LOGITS = R.normal(size=(2, 3, 4)).astype(np.float32)
TARGETS = R.integers(0, 4, (2, 3))
WEIGHTS = np.array([[1, 1, 0], [2, 0, 0]], np.float32)
LOSSES = np.log(np.exp(LOGITS).sum(-1)) - np.take_along_axis(LOGITS, TARGETS[..., None], 2)[..., 0]
WEIGHED = LOSSES * WEIGHTS


def run(value: Any) -> Any:
    with tf.Session() as session:
        return session.run(value)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ((True, True), WEIGHED.sum() / 4),
        ((True, False), WEIGHED.sum(1) / [2, 2]),
        ((False, True), WEIGHED.sum(0) / np.array([3, 1, 1])),
        ((False, False), WEIGHED),
        ((False, False, True, True), WEIGHED.sum() / 3),
        ((False, False, True, False), WEIGHED.sum(1) / [2, 1]),
    ],
)
def test_sequence_loss(options: Any, wanted: Any) -> None:
    loss = run(tf.contrib.seq2seq.sequence_loss(LOGITS, TARGETS, WEIGHTS, *options))
    np.testing.assert_allclose(loss, wanted, rtol=1e-5, atol=1e-6)


def test_lists_of_steps() -> None:
    steps = [list(map(tf.constant, np.moveaxis(v, 1, 0))) for v in (LOGITS, TARGETS, WEIGHTS)]
    each = tf.contrib.legacy_seq2seq.sequence_loss_by_example(*steps)
    total = tf.contrib.legacy_seq2seq.sequence_loss(*steps, average_across_timesteps=False)
    each_value, total_value = run([each, total])
    np.testing.assert_allclose(each_value, WEIGHED.sum(1) / 2, rtol=1e-5)
    np.testing.assert_allclose(total_value, WEIGHED.sum() / 2, rtol=1e-5)
    with pytest.raises(ValueError, match="must be the same"):
        tf.contrib.legacy_seq2seq.sequence_loss(steps[0][:1], *steps[1:])


def test_bad_sequences() -> None:
    with pytest.raises(ValueError, match="Logits must be"):
        tf.contrib.seq2seq.sequence_loss(LOGITS[0], TARGETS, WEIGHTS)
    with pytest.raises(ValueError, match="not both"):
        tf.contrib.seq2seq.sequence_loss(LOGITS, TARGETS, WEIGHTS, sum_over_batch=True)
