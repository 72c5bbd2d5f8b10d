"""Dead loop variables, outputs and inputs are pruned from steps."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.control.liveness import needed, prune_loop_vars

pytestmark = pytest.mark.usefixtures("lowering")


def unready() -> Any:
    """A variable that nobody initializes: a step that reads it fails."""
    return tf.Variable(1.0, name="unready")


def test_a_variable_of_a_loop_that_nobody_needs_is_not_computed(sess: tf.Session) -> None:
    v = unready()
    i, x = tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * v), [0, tf.constant(1.0)])
    assert sess.run(i) == 5
    with pytest.raises(tf.errors.FailedPreconditionError):
        sess.run(x)


def test_what_a_dead_variable_starts_from_is_not_computed_either(sess: tf.Session) -> None:
    start = tf.sqrt(unready())
    i, _ = tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x), [0, start])
    assert sess.run(i) == 5


def test_a_variable_that_decides_or_feeds_another_lives(sess: tf.Session) -> None:
    result = tf.while_loop(
        lambda i, *_: i < 4,
        lambda i, a, b, c: (i + 1, a + b, b + c, c + 1),
        [tf.constant(value) for value in (0, 0, 0, 1)],
    )
    assert [sess.run(one) for one in result] == [4, 10, 10, 5]


def test_variables_that_are_swapped_live_together(sess: tf.Session) -> None:
    _, a, _ = tf.while_loop(
        lambda i, a, b: i < 3,
        lambda i, a, b: (i + 1, b, a),
        [0, tf.constant(1.0), tf.constant(2.0)],
    )
    assert sess.run(a) == 2.0


def test_dead_variables_of_loops_inside_loops(sess: tf.Session) -> None:
    v = unready()

    def inner(j: Any, x: Any, y: Any) -> Any:
        return j + 1, x + 1.0, y * v

    def outer(i: Any, x: Any, y: Any) -> Any:
        _, x, y = tf.while_loop(lambda j, *_: j < 2, inner, [0, x, y])
        return i + 1, x, y

    _, x, y = tf.while_loop(lambda i, *_: i < 3, outer, [0, tf.constant(0.0), tf.constant(1.0)])
    assert sess.run(x) == 6.0
    with pytest.raises(tf.errors.FailedPreconditionError):
        sess.run(y)


def test_outputs_of_a_conditional_that_nobody_needs(sess: tf.Session) -> None:
    v, x = unready(), tf.placeholder(tf.float32, [])
    a, b = tf.cond(x > 0, lambda: (x + 1, x * v), lambda: (x - 1, x / v))
    assert [sess.run(a, {x: 2.0}), sess.run(a, {x: -2.0})] == [3.0, -3.0]
    with pytest.raises(tf.errors.FailedPreconditionError):
        sess.run(b, {x: 1.0})


def test_a_dead_array(sess: tf.Session) -> None:
    v = unready()
    i, _ = tf.while_loop(
        lambda i, a: i < 3,
        lambda i, a: (i + 1, a.write(i, v.value())),
        [tf.constant(0), tf.TensorArray(tf.float32, 3)],
    )
    assert sess.run(i) == 3


def test_effects_run_where_something_needed_depends_on_them(sess: tf.Session) -> None:
    v = tf.Variable(0, name="v")

    def body(i: Any, x: Any) -> Any:
        with tf.control_dependencies([tf.assign_add(v, 1)]):
            return i + 1, x * 2.0

    i, x = tf.while_loop(lambda i, x: i < 4, body, [0, tf.constant(1.0)])
    sess.run(v.initializer)
    assert sess.run(i) == 4
    assert sess.run(v) == 4
    assert sess.run(x) == 16.0
    assert sess.run(v) == 8


def test_a_loop_that_is_awaited_runs_whole(sess: tf.Session) -> None:
    v = tf.Variable(0, name="v")
    i, x = tf.while_loop(
        lambda i, x: i < 4, lambda i, x: (i + 1, tf.assign_add(v, 1) + x), [0, tf.constant(0)]
    )
    sess.run(v.initializer)
    with tf.control_dependencies([i]):
        done = tf.constant(7) + 0
    assert sess.run(done) == 7
    assert sess.run(v) == 4
    sess.run(x.op)
    assert sess.run(v) == 8


def test_a_gradient_saves_only_what_it_needs(sess: tf.Session) -> None:
    x = tf.placeholder(tf.float32, [])
    _, a, b = tf.while_loop(
        lambda i, *_: i < 4,
        lambda i, a, b: (i + 1, a * tf.sin(x), b * tf.cos(x) * a),
        [0, tf.constant(1.0), tf.constant(1.0)],
    )
    of_a, of_b = tf.gradients(a, x)[0], tf.gradients(b, x)[0]
    at = 0.7
    np.testing.assert_allclose(sess.run(of_a, {x: at}), 4 * np.sin(at) ** 3 * np.cos(at), rtol=1e-5)
    total, step = np.float64(0), 1e-6
    for sign in (1, -1):
        p, q, turned = 1.0, 1.0, at + sign * step
        for _ in range(4):
            p, q = p * np.sin(turned), q * np.cos(turned) * p
        total += sign * q / (2 * step)
    np.testing.assert_allclose(sess.run(of_b, {x: at}), total, rtol=1e-4)
    assert len(_saved(sess, of_a, x)) < len(_saved(sess, of_b, x))


def _saved(sess: tf.Session, fetch: Any, fed: Any) -> list[str]:
    lines = str(sess.plan(fetch, {fed: np.float32(1.0)})).splitlines()
    return [line for line in lines if "(per iteration)" in line]


def test_a_pruned_loop_keeps_its_name_and_its_line(sess: tf.Session) -> None:
    i, x = tf.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), [0, tf.constant(1.0)])
    node = i.op
    thin = prune_loop_vars(node, {i})
    assert (thin.name, thin.origin, thin.outputs) == (node.name, node.origin, (i,))
    assert prune_loop_vars(node, {i, x}) is node
    assert x.op.inputs[1].op not in needed([i], (), {})
