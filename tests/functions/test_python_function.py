"""`tf.py_function`: eager code inside a step, its gradients, its errors."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def run(value: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        return session.run(value, feeds)


def test_values_and_gradients() -> None:
    x, n = tf.placeholder(tf.float64, [2]), tf.constant(3)

    def power(x: Any, n: Any) -> Any:
        assert tf.executing_eagerly() and x.numpy().shape == (2,)
        return (x if x.numpy()[0] < 0 else x ** float(n.numpy())), tf.reduce_sum(x)

    y, total = tf.py_function(power, [x, n], [tf.float64, tf.float64])
    slope = tf.gradients(tf.reduce_sum(y) + 10 * total, x)[0]
    assert slope.shape.as_list() == [2]
    np.testing.assert_allclose(run(slope, {x: [2.0, 3.0]}), [22, 37])
    np.testing.assert_allclose(run(slope, {x: [-2.0, 3.0]}), [11, 11])
    np.testing.assert_allclose(run(tf.gradients(y, x)[0], {x: [2.0, 3.0]}), [12, 27])
    assert tf.gradients(y, n) == [None]


def test_the_function_runs_once_for_value_and_gradient() -> None:
    calls: list[float] = []

    def noisy(x: Any) -> Any:
        calls.append(float(x.numpy()))
        return x * tf.constant(np.float32(len(calls)))

    x = tf.constant(2.0)
    y = tf.py_function(noisy, [x], tf.float32)
    value, slope = run([y, tf.gradients(y, x)[0]])
    assert calls == [2.0] and (value, slope) == (2.0, 1.0)


def test_gradients_inside_a_loop() -> None:
    x = tf.constant(1.5, tf.float64)

    def body(i: Any, y: Any) -> Any:
        made = tf.py_function(lambda y, i: y * y if i.numpy() % 2 else 3 * y, [y, i], tf.float64)
        made.set_shape([])
        return i + 1, made

    _, y = tf.while_loop(lambda i, y: i < 4, body, [tf.constant(0), x])
    # ((3x)² · 3)²
    np.testing.assert_allclose(
        run([y, tf.gradients(y, x)[0]]), [(27 * 1.5**2) ** 2, 4 * 729 * 1.5**3]
    )


def test_effects_alone() -> None:
    seen: list[int] = []
    node = tf.py_function(lambda x: seen.append(int(x.numpy())), [7], [])
    run(node)
    assert seen == [7]


def test_in_eager_code() -> None:
    with tf.eager_mode():
        x = tf.constant(3.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.py_function(lambda x: x * x, [x], tf.float32)
        assert float(tape.gradient(y, x)) == 6.0


def test_in_a_dataset() -> None:
    numbers = tf.data.Dataset.range(3).map(
        lambda x: tf.py_function(lambda x: tf.cast(x * x, tf.int32), [x], tf.int32)
    )
    item = numbers.make_one_shot_iterator().get_next()
    with tf.Session() as session:
        assert [int(session.run(item)) for _ in range(3)] == [0, 1, 4]


def test_errors() -> None:
    def wrong(x: Any) -> Any:
        raise ValueError("not today")

    with pytest.raises(tf.errors.InvalidArgumentError, match="not today"):
        run(tf.py_function(wrong, [1.0], tf.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="2 results returned 1"):
        run(tf.py_function(lambda x: [x], [1.0], [tf.float32, tf.float32]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="float64"):
        run(tf.py_function(lambda x: x, [1.0], tf.float64))
