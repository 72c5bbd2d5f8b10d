"""Steps of eager code and traced functions that an earlier process has stored."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.runtime.processes import Processes, assert_equal
from thalweg.functions import steps
from thalweg.runtime import compiled, engine, step_cache
from thalweg.runtime.plan import plan

pytestmark = pytest.mark.skipif(
    not engine.COMPILES or tf.test.is_gpu_available(), reason="steps of one CPU are stored"
)
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class EagerProcesses(Processes):
    """Processes of eager code in which planned steps are counted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch, compiled)
        self.planned = 0

        def noted(*arguments: Any, **options: Any) -> Any:
            self.planned += 1
            return plan(*arguments, **options)

        monkeypatch.setattr(steps, "plan", noted)

    def result(self, function: Callable[[], Any]) -> Any:
        """What a function gives in a new process."""
        self.planned, results = 0, list[Any]()
        steps._steps.clear()

        def run() -> None:  # on a thread of its own, which has traced nothing yet
            with tf.eager_mode():
                results.append(function())

        with self.next():
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        return results[0]


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EagerProcesses:
    monkeypatch.setattr(step_cache, "ENABLED", True)
    return EagerProcesses(tmp_path, monkeypatch)


def train() -> list[Any]:
    w = tf.Variable(np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2))
    optimizer = tf.train.GradientDescentOptimizer(0.5)
    losses: list[Any] = []
    for _ in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(X, w)) - 0.5))
        (gradient,) = tape.gradient(loss, [w])
        optimizer.apply_gradients([(gradient, w)])
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    return [*losses, w.numpy()]


def traced() -> list[Any]:
    w = tf.Variable([1.0, 2.0, 3.0, 4.0])

    @tf.function
    def step(x: Any) -> Any:
        y = tf.tanh(x) * w
        w.assign_add(tf.reduce_sum(y, 0))
        return y, y, tf.reduce_max(x)

    return [value.numpy() for _ in range(3) for value in step(tf.constant(X))] + [w.numpy()]


@pytest.mark.parametrize("function", [train, traced])
def test_a_second_process_plans_nothing(
    processes: EagerProcesses, function: Callable[[], list[Any]]
) -> None:
    first = processes.result(function)
    assert processes.planned
    second = processes.result(function)
    assert processes.planned == processes.lowered == 0
    assert_equal(first, second)


def test_other_shapes_are_planned(processes: EagerProcesses) -> None:
    def doubled() -> list[Any]:
        double = tf.function(
            lambda x: x * 2 + 1, input_signature=[tf.TensorSpec([None], tf.float32)]
        )
        sizes = (3, 5, 3, 7, 3)
        return [double(tf.constant(np.arange(size, dtype=np.float32))).numpy() for size in sizes]

    first = processes.result(doubled)
    second = processes.result(doubled)
    assert (processes.planned, processes.lowered) == (1, 0)
    assert_equal(first, second)
    for each in second:
        np.testing.assert_array_equal(each, np.arange(each.size) * 2 + 1)


def test_random_streams_go_on_in_the_plan(processes: EagerProcesses) -> None:
    def drawn() -> list[Any]:
        tf.set_random_seed(7)
        draw = tf.function(
            lambda x: tf.random_uniform([4], seed=3) + tf.reduce_sum(x),
            input_signature=[tf.TensorSpec([None], tf.float32)],
        )
        return [draw(tf.zeros([size])).numpy() for size in (2, 2, 5, 2)]

    first = processes.result(drawn)
    second = processes.result(drawn)
    assert_equal(first, second)
    assert len({each.tobytes() for each in second}) == 4


@pytest.mark.parametrize("is_traced", [False, True])
def test_what_the_reference_kernels_decide(processes: EagerProcesses, is_traced: bool) -> None:
    def picked() -> str:
        v = tf.Variable([1.0, 2.0])

        def pick(place: Any) -> Any:
            return tf.gather(v, place) * 2

        call = tf.function(pick) if is_traced else pick
        assert call(tf.constant([1])).numpy() == [4.0]
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            call(tf.constant([2])).numpy()
        assert call(tf.constant([0])).numpy() == [2.0]
        return str(caught.value)

    first = processes.result(picked)
    assert Path(__file__).name in first
    assert processes.result(picked) == first
    assert processes.planned == 1


def test_values_that_are_one_stay_one(processes: EagerProcesses) -> None:
    """A tape distinguishes values by identity, however the step of a call was made."""

    def slopes() -> list[Any]:
        both = tf.function(lambda x: (x * 3, x * 3))
        x = tf.constant([1.0, 2.0])
        both(x)  # without a tape
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y, z = both(x)
            total = tf.reduce_sum(y * z)
        return [tape.gradient(total, each).numpy() for each in (x, y, z)]

    first = processes.result(slopes)
    assert_equal(first, processes.result(slopes))
    np.testing.assert_array_equal(first[0], [18, 36])


def test_variables_of_another_shape(processes: EagerProcesses) -> None:
    def doubled(value: list[float]) -> Callable[[], Any]:
        return lambda: tf.function(tf.Variable(value).read_value)().numpy() * 2

    for value in ([1.0, 2.0], [1.0, 2.0, 3.0]):
        np.testing.assert_array_equal(processes.result(doubled(value)), np.multiply(value, 2))


def test_several_threads_fall_back_at_once(processes: EagerProcesses) -> None:
    def run() -> None:
        double = tf.function(lambda x: x * 2, input_signature=[tf.TensorSpec([None], tf.float32)])
        actual = [double(tf.ones([3])).numpy()]
        start = threading.Barrier(4)

        def call(size: int) -> None:
            start.wait()
            with tf.eager_mode():
                actual.extend(double(np.ones(size, np.float32)).numpy() for _ in range(20))

        threads = [threading.Thread(target=call, args=[size]) for size in (3, 4, 5, 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(actual) == 81 and all((each == 2).all() for each in actual)

    for _ in range(2):
        processes.result(run)


def test_steps_with_host_ops_are_planned(processes: EagerProcesses) -> None:
    def words() -> Any:
        return tf.function(lambda x: tf.strings.as_string(x + 1))(tf.constant([1, 2])).numpy()

    for _ in range(2):
        assert [*processes.result(words)] == [b"2", b"3"]
        assert processes.planned == 1
