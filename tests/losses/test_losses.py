"""Losses against their formulas, weights, reductions, collections and errors."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf

R = np.random.default_rng(5)
LABELS = R.uniform(size=(2, 3)).astype(np.float32)
PREDICTIONS = R.uniform(size=(2, 3)).astype(np.float32)
ERRORS = PREDICTIONS - LABELS
EPSILON = 1e-7


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def run(value: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        return session.run(value, feeds)


def huber(delta: float) -> Any:
    size = np.abs(ERRORS)
    return np.where(size <= delta, size**2 / 2, delta * size - delta**2 / 2)


FORMULAS = {
    "absolute_difference": ({}, np.abs(ERRORS)),
    "mean_squared_error": ({}, ERRORS**2),
    "huber_loss": ({"delta": 0.2}, huber(0.2)),
    "hinge_loss": ({}, np.maximum(0, 1 - (2 * LABELS - 1) * PREDICTIONS)),
    "log_loss": (
        {},
        -LABELS * np.log(PREDICTIONS + EPSILON) - (1 - LABELS) * np.log(1 - PREDICTIONS + EPSILON),
    ),
    "cosine_distance": ({"axis": 1}, 1 - (LABELS * PREDICTIONS).sum(1, keepdims=True)),
    "sigmoid_cross_entropy": ({}, np.log1p(np.exp(PREDICTIONS)) - LABELS * PREDICTIONS),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name: str) -> None:
    options, expected = FORMULAS[name]
    loss = getattr(tf.losses, name)
    mean = loss(LABELS, PREDICTIONS, **options)
    each = loss(LABELS, PREDICTIONS, reduction=tf.losses.Reduction.NONE, **options)
    mean_value, each_value = run([mean, each])
    np.testing.assert_allclose(each_value, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mean_value, expected.mean(), rtol=1e-5)
    assert tf.losses.get_losses() == [mean, each]


WEIGHTED = np.array([[1.0, 2.0, 0.0], [0.0, 4.0, 5.0]], np.float32)


@pytest.mark.parametrize(
    ("reduction", "divisor"),
    [
        (tf.losses.Reduction.SUM, 1),
        (tf.losses.Reduction.MEAN, 12),
        (tf.losses.Reduction.SUM_OVER_BATCH_SIZE, 6),
        (tf.losses.Reduction.SUM_BY_NONZERO_WEIGHTS, 4),
        (tf.losses.Reduction.SUM_OVER_NONZERO_WEIGHTS, 4),
    ],
)
def test_reductions(reduction: str, divisor: int) -> None:
    loss = tf.losses.compute_weighted_loss(LABELS, WEIGHTED, reduction=reduction)
    np.testing.assert_allclose(run(loss), (LABELS * WEIGHTED).sum() / divisor, rtol=1e-5)


@pytest.mark.parametrize(
    ("weights", "full"),
    [
        (2.0, np.full((2, 3), 2.0)),
        ([3.0, 0.0], [[3.0] * 3, [0.0] * 3]),
        ([[3.0], [0.0]], [[3.0] * 3, [0.0] * 3]),
        ([[1.0, 0.0, 2.0]], [[1.0, 0.0, 2.0]] * 2),
        (0.0, np.zeros((2, 3))),
    ],
)
@pytest.mark.parametrize("shape", [[2, 3], [None, None]])
def test_weights_broadcast(weights: Any, full: Any, shape: Any) -> None:
    predictions = tf.placeholder(tf.float32, shape)
    loss = tf.losses.absolute_difference(LABELS, predictions, weights)
    full = np.asarray(full)
    expected = (np.abs(ERRORS) * full).sum() / max(1, (full != 0).sum())
    np.testing.assert_allclose(run(loss, {predictions: PREDICTIONS}), expected, rtol=1e-5)


def test_softmax_with_smoothing_and_weights() -> None:
    logits = R.normal(size=(2, 3)).astype(np.float32)
    onehot = np.eye(3)[[0, 2]]
    smooth = onehot * 0.9 + 0.1 / 3
    losses = np.log(np.exp(logits).sum(1)) - (smooth * logits).sum(1)
    loss = tf.losses.softmax_cross_entropy(onehot, logits, [1.0, 3.0], label_smoothing=0.1)
    assert loss.op.name == "softmax_cross_entropy_loss/value"
    np.testing.assert_allclose(run(loss), (losses * [1, 3]).sum() / 2, rtol=1e-5)


@pytest.mark.parametrize("labels", [[0, 2], [[0], [2]]])
@pytest.mark.parametrize("weights", [1.0, [1.0, 1.0], [[1.0], [1.0]]])
def test_sparse_softmax_takes_columns(labels: Any, weights: Any) -> None:
    logits = R.normal(size=(2, 3)).astype(np.float32)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits, weights)
    assert loss.op.name == "sparse_softmax_cross_entropy_loss/value"
    expected = np.log(np.exp(logits).sum(1)) - logits[[0, 1], [0, 2]]
    np.testing.assert_allclose(run(loss), expected.mean(), rtol=1e-5)


def test_mean_pairwise_squared_error() -> None:
    pairs = ERRORS[:, :, None] - ERRORS[:, None, :]
    each = (pairs**2).sum((1, 2)) / 6
    loss = tf.losses.mean_pairwise_squared_error(LABELS, PREDICTIONS, [2.0, 1.0])
    np.testing.assert_allclose(run(loss), (each * [2, 1]).sum(), rtol=1e-5)
    assert run(tf.losses.mean_pairwise_squared_error(LABELS, PREDICTIONS, 0.0)) == 0


def test_labels_get_no_gradient_from_softmax() -> None:
    labels, logits = tf.constant([[1.0, 0.0]]), tf.constant([[0.5, 0.2]])
    loss = tf.losses.softmax_cross_entropy(labels, logits)
    assert tf.gradients(loss, labels) == [None]
    assert tf.gradients(loss, logits) != [None]


def test_collections_and_totals() -> None:
    with tf.name_scope("a"):
        one = tf.losses.mean_squared_error([1.0], [3.0])
    tf.losses.mean_squared_error([1.0], [2.0], loss_collection=None)
    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, tf.constant(10.0))
    tf.losses.add_loss(tf.constant(100.0))
    assert tf.losses.get_losses("a") == [one]
    totals = [
        tf.losses.get_total_loss(),
        tf.losses.get_total_loss(add_regularization_losses=False),
        tf.losses.get_regularization_loss(),
    ]
    np.testing.assert_allclose(run(totals), [114, 104, 10])
    assert totals[0].op.name == "total_loss"
    assert run(tf.losses.get_regularization_loss("none")) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((LABELS, PREDICTIONS, None), "cannot be None"),
        ((None, PREDICTIONS), "labels must not be None"),
        ((LABELS, PREDICTIONS, np.ones((2, 4))), "can not be broadcast"),
        ((LABELS, PREDICTIONS, np.ones((1, 2, 3))), "can not be broadcast"),
        ((LABELS, PREDICTIONS[:1]), "incompatible"),
    ],
)
def test_bad_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tf.losses.mean_squared_error(*arguments)


def test_unknown_reduction() -> None:
    with pytest.raises(ValueError, match="Invalid Reduction"):
        tf.losses.compute_weighted_loss(LABELS, reduction="all")


def test_unknown_ranks_are_checked_in_the_step() -> None:
    predictions = tf.placeholder(tf.float32)
    loss = tf.losses.mean_squared_error(LABELS, predictions, [[1.0], [2.0], [3.0]])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        run(loss, {predictions: PREDICTIONS})


def test_contrib_order_is_predictions_first() -> None:
    loss = tf.contrib.losses.log_loss(PREDICTIONS, LABELS)
    np.testing.assert_allclose(run(loss), FORMULAS["log_loss"][1].mean(), rtol=1e-5)


def test_pairwise_error_of_unknown_rank() -> None:
    labels, predictions = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    loss = tf.losses.mean_pairwise_squared_error(labels, predictions)
    known = tf.losses.mean_pairwise_squared_error(LABELS, PREDICTIONS)
    with tf.Session() as session:
        feeds = {labels: LABELS, predictions: PREDICTIONS}
        assert session.run(loss, feeds) == session.run(known)
