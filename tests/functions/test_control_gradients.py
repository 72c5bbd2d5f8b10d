"""Gradients of conditionals and loops in functions, whose values eager code has read or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def eager():
    with tf.eager_mode():
        yield


def _higher(f: Any, x: Any, order: int, read: Callable[[int, Any], None]) -> list[Any]:
    """The value and the derivatives up to this order."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = _higher(f, x, order - 1, read) if order else [f(x)]
        read(order, found[-1])
    return [*found, tape.gradient(found[-1], x)]


_FUNCTIONS: dict[str, Any] = {
    "taken": lambda x: tf.cond(x > 0, lambda: x * x * x, lambda: x),
    "other": lambda x: tf.cond(x > 100, lambda: tf.sin(tf.exp(x)), lambda: x * x * x),
    "linear": lambda x: tf.cond(x > 100, lambda: x * x * x, lambda: 2 * x),
    "numbered": lambda x: tf.switch_case(
        tf.cast(x, tf.int32), [lambda: x, lambda: tf.sin(x), lambda: x * x * x, lambda: -x]
    ),
    "loop": lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * x), [0, 1.0])[1],
    "nested": lambda x: tf.while_loop(
        lambda i, _: i < 4,
        lambda i, y: (i + 1, tf.cond(tf.equal(i, 2), lambda: y + 0.0, lambda: y * x)),
        [0, 1.0],
    )[1],
    "list": lambda x: tf.reduce_sum(
        tf.map_fn(lambda e: tf.cond(e > 1, lambda: x * x * x, lambda: x), tf.constant([0.5, 2.0]))
    ),
}
_EXPECTED = {"linear": [4.0, 2.0, 0.0], "list": [10.0, 13.0, 12.0]}


@pytest.mark.parametrize("reads", range(8))
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_derivatives_of_any_order_wherever_a_value_is_read(name: str, reads: int) -> None:
    def read(order: int, value: Any) -> None:
        if reads >> order & 1:
            value.numpy()

    found = _higher(tf.function(_FUNCTIONS[name]), tf.constant(2.0), 2, read)
    expected = [*_EXPECTED.get(name, [8.0, 12.0, 12.0]), 0.0 if name == "linear" else 6.0]
    np.testing.assert_allclose([float(value) for value in found], expected, rtol=1e-5)


def test_effects_happen_once() -> None:
    seen: list[float] = []
    count = tf.Variable(0)

    def body(i: Any, y: Any) -> tuple[Any, Any]:
        tf.py_function(lambda v: seen.append(float(v)), [y], [])
        count.assign_add(1)
        return i + 1, y * y

    @tf.function
    def f(x: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]

    x = tf.constant(1.5)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
        assert float(y) == pytest.approx(1.5**8)
    assert float(tape.gradient(y, x)) == pytest.approx(8 * 1.5**7)
    assert seen == [1.5, 1.5**2, 1.5**4]
    assert int(count) == 3


def test_a_random_branch_is_differentiated_as_it_ran() -> None:
    @tf.function
    def f(x: Any) -> Any:
        return tf.cond(x > 0, lambda: x * tf.random_uniform([5]), lambda: x)

    for _ in range(3):
        x = tf.constant(2.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
            drawn = y.numpy() / 2
        np.testing.assert_allclose(tape.gradient(y, x), drawn.sum(), rtol=1e-5)


@tf.custom_gradient
def _undifferentiable(x: Any) -> Any:
    def gradient(_: Any) -> Any:
        raise ValueError("no gradient here")

    return x * 1.0, gradient


def test_a_gradient_that_raises_concerns_only_who_asks_for_it() -> None:
    @tf.function
    def f(x: Any) -> Any:
        return tf.cond(x > 0, lambda: (x * x * x, _undifferentiable(x)), lambda: (x, x))

    x = tf.constant(2.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y, z = f(x)
        assert (float(y), float(z)) == (8.0, 2.0)
    assert float(tape.gradient(y, x)) == 12.0
    with pytest.raises(ValueError, match="no gradient here"):
        tape.gradient(z, x)


_VARIABLE_GRADIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "variable": lambda variable, pending: variable,
    "pending": lambda variable, pending: pending,
    "both": lambda variable, pending: variable * pending + 1.0,
}


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("name", _VARIABLE_GRADIENTS)
def test_custom_gradients_take_what_eager_code_has(name: str, is_read: bool) -> None:
    variable, pending = tf.Variable(3.0), tf.constant(5.0) * 2.0
    factor = _VARIABLE_GRADIENTS[name]

    @tf.custom_gradient
    def scaled(x: Any) -> Any:
        return x * x, lambda dy: dy * factor(variable, pending)

    @tf.function
    def branch(x: Any) -> Any:
        return tf.cond(x > 0, lambda: scaled(tf.sin(tf.exp(x))), lambda: x)

    @tf.function
    def loop(x: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 1, lambda i, y: (i + 1, branch(y)), [0, x])[1]

    slope = np.cos(np.exp(0.5)) * np.exp(0.5) * factor(3.0, 10.0)
    for function in (branch, loop):
        x = tf.constant(0.5)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            if is_read:
                y.numpy()
        np.testing.assert_allclose(tape.gradient(y, x), slope, rtol=1e-5)


def test_gradients_save_a_shape_of_a_body_once() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None])

        def body(i: Any, y: Any) -> Any:
            return i + 1, y + tf.reduce_sum(tf.square(x * tf.cos(y)))

        y = tf.while_loop(lambda i, _: i < 3, body, [0, 0.0])[1]
        first = tf.gradients(y, x)[0]
        nodes = y.op.op.body.graph.nodes
        count = len(nodes)
        second = tf.gradients(y, x)[0]
        assert len(nodes) == count
        assert [*session.run(first, {x: [1, 2]})] == [*session.run(second, {x: [1, 2]})]


@dataclass
class _Random:
    """Random operands of a result: tensors, a variable, functions of both, and numbers."""

    p: Any
    q: Any
    v: Any
    inner: Any
    other: Any
    bound: float
    count: int

    def masked(self) -> Any:
        some = tf.boolean_mask(self.p, self.p > self.bound)  # of another size in each run
        return self.q + tf.reduce_sum(some * some)

    def branch(self) -> Any:
        first, second = partial(self.inner, self.p, self.v), partial(self.other, self.q, self.v)
        return tf.cond(tf.reduce_sum(self.p) > self.bound, first, second)

    def loop(self) -> Any:
        def body(i: Any, y: Any) -> Any:
            return i + 1, tf.tanh(self.inner(y, self.v)) + self.p

        return tf.while_loop(lambda i, _: i < self.count, body, [0, self.q])[1]

    def mapped(self) -> Any:
        rows = tf.map_fn(lambda e: self.inner(tf.fill([3], e) * self.p, self.v), self.q)
        return tf.reduce_sum(rows, 0)

    def listed(self) -> Any:
        def write(i: Any, entries: Any) -> Any:
            return i + 1, entries.write(i, self.inner(self.p, self.v) * tf.cast(i, tf.float32))

        entries = tf.TensorArray(tf.float32, size=3, clear_after_read=False)
        entries = tf.while_loop(lambda i, _: i < 3, write, [0, entries])[1]
        return tf.reduce_sum(entries.stack(), 0) + entries.read(1)


_PLAIN: list[Callable[[_Random], Any]] = [
    lambda r: tf.sin(r.p) * 1.5,
    lambda r: r.p * r.q,
    lambda r: r.p + tf.exp(-r.q * r.q),
    lambda r: tf.gather(tf.concat([r.p, r.q], 0), [0, 4, 1]),
    _Random.masked,
]
_CONTROL = [_Random.branch, _Random.branch, _Random.loop, _Random.mapped, _Random.listed]


def _random_function(random: Any, depth: int) -> Callable[[Any, Any], Any]:
    """A function of a vector and a variable, of random ops, conditionals and loops."""
    steps: list[Any] = []
    for _ in range(random.randint(2, 5)):
        a, b, op, count = random.randint([100, 100, len(_PLAIN) * (1 + (depth > 0)), 4])
        nested = op >= len(_PLAIN)
        functions = [_random_function(random, depth - 1) if nested else None for _ in range(2)]
        steps.append(((*_PLAIN, *_CONTROL)[op], a, b, *functions, random.uniform(-2, 2), count))

    def run(x: Any, v: Any) -> Any:
        values = [x, x * v]
        for op, a, b, *operands in steps:
            pair = values[a % len(values)], values[b % len(values)]
            values.append(tf.tanh(op(_Random(*pair, v, *operands))))
        return values[-1]

    return run


def _in_eager_code(f: Any, start: Any, reads: int) -> list[Any]:
    """The value, gradients, and gradients of their sum; bits of `reads` say what is read early."""
    v, x, f = tf.Variable(0.8), tf.constant(start), tf.function(f)

    def read(bit: int, value: Any) -> Any:
        if reads >> bit & 1:
            value.numpy()
        return value

    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = read(0, f(x * 1.1, v))
            z = read(1, tf.reduce_sum(y * y))
        gradients = tape.gradient(z, [x, v], unconnected_gradients="zero")
        total = read(3, tf.reduce_sum(read(2, gradients[0])) + gradients[1])
    second = outer.gradient(total, [x, v])
    return [r if r is None else r.numpy() for r in (y, *gradients, *second)]


def _in_a_graph(f: Any, start: Any) -> list[Any]:
    with tf.Graph().as_default(), tf.Session() as session:
        v, x = tf.Variable(0.8), tf.constant(start)
        y = f(x * 1.1, v)
        gradients = tf.gradients(tf.reduce_sum(y * y), [x, v], unconnected_gradients="zero")
        second = tf.gradients(tf.reduce_sum(gradients[0]) + gradients[1], [x, v])
        session.run(tf.global_variables_initializer())
        return [r if r is None else session.run(r) for r in (y, *gradients, *second)]


@pytest.mark.parametrize("seed", range(6))
def test_random_functions_as_in_a_graph(seed: int) -> None:
    random = np.random.RandomState(seed)
    f = _random_function(random, 2)
    start = random.uniform(-1, 1, 3).astype(np.float32)
    expected, unread = _in_a_graph(f, start), _in_eager_code(f, start, 0)
    for reads in (0, *random.randint(1, 16, 3)):
        found = _in_eager_code(f, start, int(reads))
        assert [r is None for r in found] == [r is None for r in unread]
        for result, wanted in zip(found, expected, strict=True):
            if result is not None and wanted is not None:
                np.testing.assert_allclose(result, wanted, rtol=2e-3, atol=2e-4)
