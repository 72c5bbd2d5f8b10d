"""Wide and deep graphs: kernels stay small, and recursion stays shallow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import lowered
from tests.soak import rounds
from thalweg.codegen.machine import host
from thalweg.ir.expr import Const
from thalweg.ir.kernel import Contraction
from thalweg.ir.rewrite import postorder

MANY = 20_000
MAX_EXPRESSIONS, MAX_STREAMS = host().max_expressions, host().max_streams


def _kernels(fetch: Any) -> list[Any]:
    found = [launch.kernel for launch in lowered(fetch).launches]
    return [kernel for kernel in found if not isinstance(kernel, Contraction)]


def _size(value: Any) -> int:
    return sum(not isinstance(part, Const) for part in postorder([value]))


def _run(fetch: Any, feeds: dict[Any, Any]) -> Any:
    with tf.Session() as session:
        return session.run(fetch, feeds)


def test_a_sum_of_many_computed_terms_is_several_kernels() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [4])
        kernels = _kernels(tf.add_n([tf.tanh(x * float(n)) for n in range(500)]))
    assert len(kernels) > 3
    assert all(_size(store.value) <= MAX_EXPRESSIONS for k in kernels for store in k.stores)


def test_a_sum_of_many_tensors_reads_some_at_a_time() -> None:
    with tf.Graph().as_default():
        fed = [tf.placeholder(tf.float32, [4]) for _ in range(100)]
        total = tf.add_n([tf.sqrt(x) for x in fed])
        assert all(len(k.arguments) <= MAX_STREAMS for k in _kernels(total))
        values = np.random.default_rng(0).random((100, 4), np.float32)
        actual = _run(total, dict(zip(fed, values, strict=True)))
    np.testing.assert_allclose(actual, np.sqrt(values).sum(0), rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_concatenation_of_many_is_written_in_pieces(axis: int) -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [3, 2])
        joined = tf.concat([x * float(n) + x for n in range(200)], axis)
        kernels = _kernels(joined)
        assert len(kernels) > 1
        assert all(_size(store.value) <= MAX_EXPRESSIONS for k in kernels for store in k.stores)
        value = np.arange(6, dtype=np.float32).reshape(3, 2)
        actual = _run(joined, {x: value})
    np.testing.assert_array_equal(
        actual, np.concatenate([value * n + value for n in range(200)], axis)
    )


def test_many_terms() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [3])
        total = tf.add_n([x] * MANY)
        (slope,) = tf.gradients(total, x)
        actual = _run([total, slope], {x: np.ones(3, np.float32)})
    np.testing.assert_array_equal(actual, [[MANY] * 3, [MANY] * 3])


def test_deep_chains() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [3])
        y = x
        for _ in range(rounds(4_000, MANY)):
            y = -y
        actual = session.run([y, *tf.gradients(y, x)], {x: np.ones(3, np.float32)})
        assert "neg" in str(session.plan(y, {x: np.ones(3, np.float32)}))
    np.testing.assert_array_equal(actual, np.ones((2, 3)))


def test_moves_behind_one_another() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [4, 6])
        y, expected = x, np.arange(24, dtype=np.float32).reshape(4, 6)
        feeds = {x: expected}
        for _ in range(300):
            y = tf.transpose(tf.reshape(y, [6, 4]))
            expected = expected.reshape(6, 4).T
        actual = _run(y, feeds)
    np.testing.assert_array_equal(actual, expected)


def test_deep_bodies_of_loops() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [3])

        def body(i: Any, y: Any) -> tuple[Any, Any]:
            for _ in range(1_000):
                y = tf.negative(y) * x
            return i + 1, y

        y = tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]
        actual = _run(y, {x: np.ones(3, np.float32)})
    np.testing.assert_array_equal(actual, np.ones(3))
