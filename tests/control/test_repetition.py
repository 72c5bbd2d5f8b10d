"""Loops whose iteration is a few small kernels: native code repeats them in one call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import thalweg as tf
from thalweg.codegen.llvm.compile import optimised
from thalweg.codegen.loops.kernel import Iteration
from thalweg.codegen.machine import host
from thalweg.device.cpu import control_loading
from thalweg.device.cuda.discovery import find_driver


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use the CPU: a GPU runs loops differently."""
    monkeypatch.setenv("THALWEG_CUDA", "0")
    find_driver.cache_clear()
    yield
    find_driver.cache_clear()


@pytest.fixture
def iterations(monkeypatch: pytest.MonkeyPatch) -> list[Iteration]:
    """Those that are made meanwhile, which run three times at most in one call."""
    result: list[Iteration] = []
    request = control_loading.iteration_request

    def noted(iteration, target):
        result.append(replace(iteration, max_iterations=3))
        return request(result[-1], target)

    monkeypatch.setattr(control_loading, "iteration_request", noted)
    return result


def test_a_counter_counts(iterations: list[Iteration]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        limit = tf.placeholder(tf.int32, [])
        count = tf.while_loop(lambda i: i < limit, lambda i: i + 1, [tf.constant(0)])
        result = [int(session.run(count, {limit: n})) for n in (-5, 0, 1, 2, 3, 4, 7, 1000)]
    assert result == [0, 0, 1, 2, 3, 4, 7, 1000]
    assert iterations


def test_a_vector_is_carried_from_call_to_call(iterations: list[Iteration]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float64, [5])
        _, y = tf.while_loop(
            lambda i, y: i < 10,
            lambda i, y: (i + 1, 0.5 * y + x),
            [tf.constant(0), tf.zeros_like(x)],
        )
        fed = np.arange(5.0)
        result = session.run(y, {x: fed})
    np.testing.assert_allclose(result, fed * (2 - 0.5**9))


def test_an_iteration_of_several_kernels_is_one_function(iterations: list[Iteration]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        rows = tf.placeholder(tf.float64, [None, 6])
        factor = tf.placeholder(tf.float64, [6])
        states = tf.scan(lambda h, row: tf.tanh(factor * h + row), rows, tf.zeros_like(factor))
        slope = tf.gradients(tf.reduce_sum(tf.square(states)), [factor])[0]
        rng = np.random.default_rng(0)
        x, w = rng.standard_normal((20, 6)), rng.random(6)
        result, slopes = session.run([states, slope], {rows: x, factor: w})
    expected, state = [], np.zeros(6)
    for row in x:
        state = np.tanh(w * state + row)
        expected.append(state)
    np.testing.assert_allclose(result, expected)
    backward, total = np.zeros(6), np.zeros(6)
    for iteration in reversed(range(20)):
        inner = (backward + 2 * expected[iteration]) * (1 - expected[iteration] ** 2)
        total += inner * (expected[iteration - 1] if iteration else 0)
        backward = inner * w
    np.testing.assert_allclose(slopes, total)
    assert [len(iteration.kernels) > 1 for iteration in iterations] == [True] * len(iterations)
    assert len(iterations) >= 2


@pytest.mark.parametrize("wrong", [0, 1, 4, 5])
def test_a_wrong_index_in_the_middle_of_an_iteration_is_an_error_of_the_step(
    iterations, wrong: int
) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        table, places = tf.placeholder(tf.float32, [4, 3]), tf.placeholder(tf.int32, [6])

        def body(i, total, last):
            row = tf.gather(table, places[i])
            return i + 1, total + row, tf.reduce_sum(row) + tf.reduce_max(last * total)

        loop = tf.while_loop(
            lambda i, *_: i < 6, body, [tf.constant(0), tf.zeros([3]), tf.constant(0.0)]
        )
        fed = np.array([0, 1, 2, 3, 2, 1], np.int32)
        fine = session.run(loop[1], {table: np.ones((4, 3)), places: fed})
        fed[wrong] = 4
        with pytest.raises(tf.errors.InvalidArgumentError, match="4"):
            session.run(loop, {table: np.ones((4, 3)), places: fed})
    np.testing.assert_array_equal(fine, [6, 6, 6])
    assert iterations


def test_a_division_by_zero_is_an_error_of_the_step() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        start = tf.placeholder(tf.int32, [])
        _, y = tf.while_loop(
            lambda i, y: i < 5, lambda i, y: (i + 1, 100 // (i - 3)), [tf.constant(0), start]
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="zero"):
            session.run(y, {start: 1})
        assert session.run(start + 1, {start: 1}) == 2


def _after(dtype, start, holds, body):
    """The result of a loop over one number, in native code."""
    with tf.Graph().as_default(), tf.Session() as session:
        first = tf.placeholder(dtype, [])
        return session.run(tf.while_loop(holds, body, [first]), {first: start})


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.int64])
@pytest.mark.parametrize("start", [0, 1, 57])
def test_counting_past_the_largest_number_wraps_as_in_numpy(dtype, start) -> None:
    start = dtype(np.iinfo(dtype).max - start)
    expected, iterations = start, 0
    with np.errstate(over="ignore"):
        while expected > 5:
            expected, iterations = dtype(expected + dtype(1)), iterations + 1
    assert iterations < 100
    assert _after(dtype, start, lambda i: i > 5, lambda i: i + 1) == expected


@pytest.mark.parametrize("step", [1, 2, 3, 7, -1, -4])
@pytest.mark.parametrize("start", [-100_003, 0, 99_990, 100_000])
def test_steps_of_any_size_end_where_they_should(step, start) -> None:
    if step > 0:
        expected = start if start >= 100_000 else start + -(-(100_000 - start) // step) * step
        result = _after(np.int32, start, lambda i: i < 100_000, lambda i: i + step)
    else:
        expected = start if start < -100_000 else start - ((start + 100_000) // -step + 1) * -step
        result = _after(np.int32, start, lambda i: i >= -100_000, lambda i: i + step)
    assert result == expected


def test_a_loop_that_only_counts_is_no_loop_in_machine_code(monkeypatch) -> None:
    requests = []
    request = control_loading.iteration_request

    def noted(*arguments):
        requests.append(request(*arguments))
        return requests[-1]

    monkeypatch.setattr(control_loading, "iteration_request", noted)
    assert _after(np.int32, 3, lambda i: i < 1_000_000, lambda i: i + 1) == 1_000_000
    (module,) = [one.make() for one in requests]
    text = optimised(module.text, host(), module.passes)
    assert "phi" not in text.partition("@iterations")[2].partition("}")[0]
