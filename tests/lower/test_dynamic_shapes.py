"""Sizes that vary from call to call: the third one compiles nothing, and all results are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import lowered
from thalweg.codegen.cache import statistics
from thalweg.codegen.kernels import request
from thalweg.codegen.machine import host
from thalweg.ir.dynamic import Dynamic, dynamic, times
from thalweg.ir.fingerprint import summary, with_dynamic
from thalweg.lower.dynamic_shapes import Varying, adapted


def classifier(x: Any) -> Any:
    rng = np.random.default_rng(1)
    w = tf.constant(rng.normal(size=(20, 30)).astype(np.float32))
    hidden = tf.nn.relu(tf.matmul(x, w) + 0.5)
    return tf.nn.softmax(tf.matmul(hidden, w, transpose_b=True))


def images(x: Any) -> Any:
    rng = np.random.default_rng(2)
    w = tf.constant(rng.normal(size=(3, 3, 1, 4)).astype(np.float32))
    y = tf.nn.conv2d(tf.reshape(x, [-1, 4, 5, 1]), w, [1, 2, 2, 1], "SAME")
    return tf.reduce_mean(tf.nn.max_pool(y, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"), [1, 2])


def statistics_of_columns(x: Any) -> Any:
    mean, variance = tf.nn.moments(x, [0])
    return (x - mean) * tf.rsqrt(variance + 0.1)


def joined(x: Any) -> Any:
    return tf.concat([tf.cumsum(x, 0), tf.reverse(x, [0]), x[1:]], 0)


def chosen(x: Any) -> Any:
    best = tf.argmax(x, 1)
    return tf.one_hot(best, 20) * x + tf.reduce_max(x)


def slope(x: Any) -> Any:
    w = tf.constant(np.linspace(-1, 1, 400, dtype=np.float32).reshape(20, 20))
    loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, w))))
    return tf.gradients(loss, [x, w])[1]


def quadratic(x: Any) -> Any:
    return tf.matmul(x, x, transpose_b=True)


MODELS: list[Callable[[Any], Any]] = [
    classifier,
    images,
    statistics_of_columns,
    joined,
    chosen,
    slope,
    quadratic,
]


def batch(size: int) -> Any:
    return np.random.default_rng(size).normal(size=(size, 20)).astype(np.float32)


def reference(build: Callable[[Any], Any], array: Any) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(build(tf.constant(array)))


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_the_third_size_compiles_nothing(build: Callable[[Any], Any]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 20])
        y = build(x)
        for size in (32, 48):
            session.run(y, {x: batch(size)})
        before = statistics()
        found = {size: session.run(y, {x: batch(size)}) for size in (64, 33, 100, 21, 50)}
        now = statistics()
    assert (now.misses, now.disk_hits) == (before.misses, before.disk_hits)
    for size, value in found.items():
        np.testing.assert_allclose(value, reference(build, batch(size)), 1e-4, 1e-5)


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_every_size_is_right_in_any_order(build: Callable[[Any], Any]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 20])
        y = build(x)
        for size in (64, 64, 17, 1, 2, 64, 1, 3, 65):
            value = session.run(y, {x: batch(size)})
            np.testing.assert_allclose(value, reference(build, batch(size)), 1e-4, 1e-5)


def test_batches_of_an_epoch_with_a_smaller_last_one() -> None:
    data = batch(100)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 20])
        w = tf.Variable(np.ones((20, 1), np.float32) / 20)
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1))
        train = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
        session.run(tf.global_variables_initializer())
        model = np.ones((20, 1), np.float32) / 20
        for _ in range(2):
            for start in range(0, 100, 32):
                part = data[start : start + 32]
                session.run(train, {x: part})
                model -= 0.05 * 2 * part.T @ (part @ model - 1) / len(part)
        before = statistics()
        session.run(train, {x: data[:11]})
        assert statistics().misses == before.misses
        model -= 0.05 * 2 * data[:11].T @ (data[:11] @ model - 1) / 11
        np.testing.assert_allclose(session.run(w), model, 1e-4, 1e-5)


def test_batches_too_small_to_be_packed_are_a_family_of_their_own() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 20])
        y = classifier(x)
        for size in (32, 48, 2, 3):
            session.run(y, {x: batch(size)})
        before = statistics()
        for size in (64, 2, 100, 3):
            session.run(y, {x: batch(size)})
        assert statistics().misses == before.misses


def test_two_sizes_may_vary() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, None])
        y = tf.nn.softmax(x * 2) + tf.reduce_sum(x, 0)
        for shape in ((8, 20), (9, 20), (9, 33), (5, 7), (40, 3), (1, 5), (5, 1)):
            array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
            powers = np.exp(array * 2 - (array * 2).max(1, keepdims=True))
            expected = powers / powers.sum(1, keepdims=True) + array.sum(0)
            np.testing.assert_allclose(session.run(y, {x: array}), expected, 1e-5, 1e-5)


def test_an_empty_batch_between_others() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 20])
        y, total = classifier(x), tf.reduce_sum(x, 0)
        for size in (4, 0, 6, 0, 9):
            value, sums = session.run([y, total], {x: batch(size)})
            assert value.shape == (size, 20)
            np.testing.assert_allclose(sums, batch(size).sum(0), 1e-5, 1e-5)


# Kernels up to their integers


def kernels_for(size: int, build: Callable[[Any], Any] = classifier) -> Any:
    with tf.Graph().as_default():
        return lowered(build(tf.placeholder(tf.float32, [size, 20]))).launches


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_integers_put_back_give_the_kernel_again(build: Callable[[Any], Any]) -> None:
    for launch in kernels_for(12, build):
        kernel = launch.kernel
        numbers = summary(kernel).integers
        every = with_dynamic(kernel, range(len(numbers)), 5)
        assert tuple(map(int, summary(every).integers)) == numbers
        assert all(isinstance(number, Dynamic) for number in summary(every).integers)
        assert [number.word for number in summary(every).integers] == list(
            range(5, 5 + len(numbers))
        )
        none = with_dynamic(kernel, (), 5)
        assert not any(isinstance(number, Dynamic) for number in summary(none).integers)
        assert summary(none).fingerprint == summary(kernel).fingerprint


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_other_sizes_are_the_same_shape_of_kernel(build: Callable[[Any], Any]) -> None:
    one, other = (
        [summary(n.kernel).fingerprint for n in kernels_for(size, build)] for size in (32, 48)
    )
    assert one == other


def test_a_batch_of_one_is_another_form() -> None:
    one, other = ([summary(n.kernel).fingerprint for n in kernels_for(size)] for size in (1, 48))
    assert one != other


def test_only_what_differs_is_read_at_run_time() -> None:
    varying = Varying()
    first, second, third = (
        adapted(launches, varying.see(launches)) for launches in map(kernels_for, (32, 48, 7))
    )
    assert all(kernel.words == () for kernel in first)
    assert all(kernel.words for kernel in second)
    for before, now in zip(second, third, strict=True):
        assert len(before.words) == len(now.words)
        assert before.words != now.words


def test_a_dynamic_integer_refuses_arithmetic() -> None:
    number = Dynamic(7)
    for compute in (lambda: number + 1, lambda: 2 * number, lambda: number // 2, lambda: -number):
        with pytest.raises(TypeError, match="only at run time"):
            compute()


def test_dynamic_integers_are_equal_by_the_word_that_they_are_read_from() -> None:
    numbers = [7, dynamic(7, 3), dynamic(7, 4), times(dynamic(7, 3), 1)]
    for a in numbers:
        assert [a == b for b in numbers] == [a is b for b in numbers]
        assert [a != b for b in numbers] == [a is not b for b in numbers]
    assert numbers[1] == dynamic(7, 3)


def rows_in_turn(x: Any) -> Any:
    w = tf.constant(np.linspace(-1, 1, 400, dtype=np.float32).reshape(20, 20))
    state = tf.zeros([1, 20])
    for row in range(6):
        state = tf.tanh(tf.matmul(x[row : row + 1] + state, w))
    return state


def test_kernels_that_differ_only_in_where_they_read_are_one() -> None:
    launches = kernels_for(6, rows_in_turn)
    shapes = [summary(launch.kernel).fingerprint for launch in launches]
    repeated = [shape for shape in shapes if shapes.count(shape) > 2]
    assert repeated
    every = adapted(launches, Varying().see(launches))
    keys = {request(made.kernel, host()).key for made in every}
    assert len(keys) == len(set(shapes))
    for launch, made in zip(launches, every, strict=True):
        assert summary(made.kernel).integers == summary(launch.kernel).integers
        assert set(_dynamic(made.kernel)) <= summary(launch.kernel).starts


def _dynamic(kernel: Any) -> list[int]:
    return [n for n, number in enumerate(summary(kernel).integers) if isinstance(number, Dynamic)]


def test_rows_in_turn_are_right() -> None:
    x = batch(6)
    w = np.linspace(-1, 1, 400, dtype=np.float32).reshape(20, 20)
    expected = np.zeros([1, 20], np.float32)
    for row in range(6):
        expected = np.tanh((x[row : row + 1] + expected) @ w)
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder(tf.float32, [6, 20])
        actual = session.run(rows_in_turn(fed), {fed: x})
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
