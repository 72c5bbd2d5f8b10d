"""The function that mixes values: masks of both kinds, causal, at lengths known or not."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg as tf

R = np.random.default_rng(2)
Q, K, V = R.normal(size=(2, 3, 5, 4)), R.normal(size=(2, 3, 6, 4)), R.normal(size=(2, 3, 6, 3))
SEES = R.random((2, 1, 5, 6)) < 0.7
SEES[..., 0] = True


def wanted(mask: np.ndarray, scale: float) -> np.ndarray:
    scores = Q @ K.swapaxes(-1, -2) * scale + mask
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ V


HIDDEN = np.where(SEES, 0.0, -np.inf)
FUTURE = np.triu(np.full((5, 6), -np.inf), 1)


@pytest.mark.parametrize("is_known", [True, False])
def test_masks(is_known: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        shapes = [[2, 3, None if not is_known else x.shape[2], x.shape[3]] for x in (Q, K, V)]
        fed = [tf.placeholder(tf.float64, shape) for shape in shapes]
        feeds = dict(zip(fed, (Q, K, V), strict=True))
        attend = tf.nn.scaled_dot_product_attention
        rows = {
            "none": (attend(*fed), wanted(np.zeros(1), 0.5)),
            "truths": (attend(*fed, SEES, scale=2.0), wanted(HIDDEN, 2.0)),
            "numbers": (attend(*fed, 3.0 * SEES), wanted(3.0 * SEES, 0.5)),
            "causal": (attend(*fed, is_causal=True), wanted(FUTURE, 0.5)),
            "both": (attend(*fed, SEES, is_causal=True), wanted(FUTURE + HIDDEN, 0.5)),
        }
        for name, (found, expected) in rows.items():
            np.testing.assert_allclose(session.run(found, feeds), expected, err_msg=name)


def test_gradients_of_masked_scores_are_numbers() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        given = [tf.constant(x) for x in (Q, K, V)]
        y = tf.nn.scaled_dot_product_attention(*given, SEES, is_causal=True)
        for slope in session.run(tf.gradients(y, given)):
            assert np.isfinite(slope).all()


def test_a_scale_is_needed_where_the_size_is_not_known() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2, 3, None])
        with pytest.raises(ValueError, match="scale"):
            tf.nn.scaled_dot_product_attention(x, x, x)
