"""Rows of the op table: softmax and cross entropies."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(0)
X = R.normal(size=(3, 4))
CUBE = R.normal(size=(2, 3, 2))


def softmax(x, axis=-1):
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


LABELS = softmax(R.normal(size=(3, 4)))
CUBE_LABELS = softmax(R.normal(size=(2, 3, 2)), 1)


def cross_entropy(x, labels, axis=-1):
    return -(labels * np.log(softmax(x, axis))).sum(axis)


ROWS = {
    "softmax": (tf.nn.softmax, [X], softmax),
    "softmax of a vector": (tf.nn.softmax, [X[0]], softmax),
    "softmax along the first axis": (
        lambda x: tf.nn.softmax(x, axis=0),
        [CUBE],
        lambda x: softmax(x, 0),
    ),
    "softmax along the middle, from behind": (
        lambda x: tf.nn.softmax(x, dim=-2),
        [CUBE],
        lambda x: softmax(x, 1),
    ),
    "log_softmax": (tf.nn.log_softmax, [X], lambda x: np.log(softmax(x))),
    "log_softmax along an axis": (
        lambda x: tf.nn.log_softmax(x, 1),
        [CUBE],
        lambda x: np.log(softmax(x, 1)),
    ),
    "l2_loss": (tf.nn.l2_loss, [X], lambda x: (x**2).sum() / 2),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)


def test_cross_entropy() -> None:
    build = tf.nn.softmax_cross_entropy_with_logits_v2
    check(lambda x, y: build(y, x), X, LABELS, expect=cross_entropy, gradient=[0])
    check(
        lambda x, y: build(y, x, axis=1),
        CUBE,
        CUBE_LABELS,
        expect=lambda x, y: cross_entropy(x, y, 1),
        gradient=[0],
    )


def test_labels_have_a_gradient_in_the_second_version_only() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x, y = tf.constant(X), tf.constant(LABELS)
        first = tf.nn.softmax_cross_entropy_with_logits(logits=x, labels=y)
        second = tf.nn.softmax_cross_entropy_with_logits_v2(logits=x, labels=y)
        assert tf.gradients(first, y) == [None]
        (dy,) = tf.gradients(second, y)
        np.testing.assert_allclose(session.run(dy), -np.log(softmax(X)))


def test_arguments_without_names_are_logits_then_labels() -> None:
    check(tf.nn.softmax_cross_entropy_with_logits, X, LABELS, expect=cross_entropy, gradient=False)
    numbers = np.array([1, 3, 0], np.int32)
    check(
        tf.nn.sparse_softmax_cross_entropy_with_logits,
        X,
        numbers,
        expect=lambda x, y: -np.log(softmax(x))[np.arange(3), y],
        gradient=False,
    )


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_sparse_cross_entropy(dtype: type) -> None:
    numbers = np.array([[0, 1, 1], [1, 0, 0]], dtype)

    def build(x, y):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(logits=x, labels=y)

    def expect(x, y):
        return -np.take_along_axis(np.log(softmax(x)), y[..., None], -1)[..., 0]

    check(build, CUBE, numbers, expect=expect, second=False)


def test_short_floats_are_summed_wide() -> None:
    x = (R.normal(size=(2, 3000)) * 3).astype(np.float16)
    check(tf.nn.softmax, x, expect=lambda x: softmax(x.astype(float)), gradient=False, rtol=1e-2)
    ones = np.ones(5000, np.float16)
    check(tf.nn.l2_loss, ones, expect=np.float16(2500), gradient=False)


def test_large_logits_do_not_overflow() -> None:
    x = np.array([[1e30, 0.0, -1e30]], np.float32)
    check(tf.nn.softmax, x, expect=np.array([[1.0, 0, 0]]), gradient=False)
    check(tf.nn.log_softmax, x, expect=np.array([[0.0, -1e30, -2e30]]), gradient=False)


def test_empty_batch() -> None:
    check(tf.nn.softmax, np.zeros((0, 3)), expect=np.zeros((0, 3)), gradient=False)


@pytest.mark.parametrize("label", [-1, 4])
def test_label_out_of_range(label: int) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[0, label, 1], logits=X)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"label value of {label}"):
            session.run(loss)


def test_second_derivative_of_the_sparse_loss_is_refused() -> None:
    with tf.Graph().as_default():
        x = tf.constant(X)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[0, 1, 1], logits=x)
        (dx,) = tf.gradients(loss, x)
        with pytest.raises(LookupError):
            tf.gradients(dx, x)


def test_bad_arguments() -> None:
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="both"):
            tf.nn.softmax(X, axis=0, dim=0)
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be in the range"):
            tf.nn.softmax(X, axis=2)
        with pytest.raises(ValueError, match="Rank mismatch"):
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[[1]], logits=X)
        with pytest.raises(ValueError, match="cannot be scalars"):
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=1, logits=1.0)
        with pytest.raises(ValueError, match="must be provided"):
            tf.nn.softmax_cross_entropy_with_logits(labels=LABELS)


@pytest.mark.parametrize("axis", [0, -1, 1])
def test_softmax_of_unknown_rank(axis: int) -> None:
    values = np.arange(6.0).reshape(2, 3) if axis == 1 else np.arange(3.0)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float64)
        powers = np.exp(values)
        expected = powers / powers.sum(axis, keepdims=True)
        np.testing.assert_allclose(session.run(tf.nn.softmax(x, axis), {x: values}), expected)


@pytest.mark.parametrize("function", [tf.nn.softmax, tf.nn.log_softmax])
@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0,)])
def test_no_classes_or_no_rows_give_an_empty_result(function: Any, shape: tuple[int, ...]) -> None:
    check(function, np.zeros(shape), expect=np.zeros(shape), gradient=False)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.zeros(shape)
        assert session.run(tf.gradients(function(x), [x])[0]).shape == shape


@pytest.mark.parametrize("labels", [(3, 4), (1, 4), (3, 1), (1, 1), (4,)])
def test_labels_broadcast_to_logits(labels) -> None:
    """The cross entropy by its formula; what flows to labels is summed over what they stand for."""
    rng = np.random.default_rng(8)
    p, x = rng.uniform(size=labels), rng.normal(size=(3, 4))
    p /= p.sum(-1, keepdims=True) * 4 / labels[-1]  # distributions, once they are broadcast
    logs = x - np.log(np.exp(x).sum(-1, keepdims=True))
    loss = tf.nn.softmax_cross_entropy_with_logits_v2
    check(loss, p, x, expect=-(p * logs).sum(-1), gradient=[0], second=False)
    check(lambda logits: loss(p, logits), x)


def test_logits_do_not_broadcast_to_labels() -> None:
    with pytest.raises(ValueError, match="not compatible"):
        tf.nn.softmax_cross_entropy_with_logits_v2(np.ones((3, 4)), np.ones((1, 4)))
    labels, logits = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    loss = tf.nn.softmax_cross_entropy_with_logits_v2(labels, logits)
    feeds = {labels: np.ones((3, 4)), logits: np.ones((1, 4))}
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError):
        session.run(loss, feeds)


def test_sparse_labels_have_an_axis_less_also_where_only_the_step_tells() -> None:
    labels, logits = tf.placeholder(tf.int32), tf.placeholder(tf.float32)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Rank mismatch"):
            session.run(loss, {labels: np.zeros((3, 1)), logits: np.zeros((3, 4))})
        actual = session.run(loss, {labels: np.zeros(3), logits: np.zeros((3, 4))})
    np.testing.assert_allclose(actual, [np.log(4)] * 3, rtol=1e-6)
