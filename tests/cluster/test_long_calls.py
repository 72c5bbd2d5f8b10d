"""Calls that take long, in steps of tasks: what is sent before them leaves, what comes is taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.cluster import master
from thalweg.ops.nn.samplers import LogUniform

LONG = 30  # seconds: more than anything here takes
WORKER, PS = "/job:worker/task:0", "/job:ps/task:0"


@pytest.fixture
def target() -> Iterator[str]:
    """A cluster of two tasks."""
    (worker,), (ps,) = tf.test.create_local_cluster(1, 1)
    with tf.Graph().as_default():
        yield worker.target
    for server in (worker, ps):
        server.stop()


@pytest.fixture
def event(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What every drawing of samples waits for, which is no call that says that it may block."""
    event, classes = threading.Event(), LogUniform.classes

    def wait(self: LogUniform, numbers: Any) -> Any:
        assert event.wait(LONG)
        return classes(self, numbers)

    monkeypatch.setattr(LogUniform, "classes", wait)
    return event


def sampled(classes: tf.Tensor) -> tf.Tensor:
    """Some samples, drawn for classes of this type."""
    given = tf.reshape(tf.cast(classes, tf.int64), [-1, 1])
    return tf.nn.log_uniform_candidate_sampler(given, 1, 4, True, 10)[0]


def signalling(event: threading.Event):
    """A function that gives what it takes, and has something happen."""

    def signal(value: np.ndarray) -> np.ndarray:
        event.set()
        return value

    return signal


def test_what_was_sent_leaves_before_a_call_that_takes_long(
    target: str, event: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master, "_MAX_HOLD", 0.0)  # however fast the event comes
    with tf.device(WORKER):
        x = tf.placeholder(tf.float32, [3])
        y = tf.exp(x)
        with tf.control_dependencies([y.op]):
            waited = sampled(x)
    with tf.device(PS):
        signalled = tf.py_func(signalling(event), [y], tf.float32)
    with tf.Session(target) as session:
        for _ in range(3):  # the region is compiled in the first, and short from then on
            event.clear()
            samples, sent = session.run([waited, signalled], {x: np.zeros(3, np.float32)})
            assert samples.shape == (4,) and sent.tolist() == [1, 1, 1]


def test_calls_that_take_long_and_wait_for_each_other_run_at_once(target: str) -> None:
    barrier = threading.Barrier(2)

    def meet(value: np.ndarray) -> np.ndarray:
        barrier.wait(LONG)
        return value

    with tf.device(PS):
        x = tf.get_variable("x", initializer=np.float32(1))
    with tf.device(WORKER):
        y = x + 1
        both = [tf.py_func(meet, [y * factor], tf.float32) for factor in (2, 3)]
    with tf.Session(target) as session:
        session.run(x.initializer)
        for _ in range(3):
            assert session.run(both) == [4, 6]


def test_values_that_come_during_a_call_that_takes_long_are_taken_after_it(
    target: str, event: threading.Event
) -> None:
    with tf.device(PS):
        x = tf.get_variable("x", initializer=np.ones(2, np.float32))
        early, late = x + 1, x + 2
        signalled = tf.py_func(signalling(event), [late], tf.float32)
    with tf.device(WORKER):
        total = late + tf.cast(tf.shape(sampled(early))[0], tf.float32)
    with tf.Session(target) as session:
        session.run(x.initializer)
        for _ in range(3):
            event.clear()
            assert session.run([total, signalled])[0].tolist() == [7, 7]


def test_an_error_of_a_call_that_takes_long_ends_the_step(target: str) -> None:
    def fail(_: np.ndarray) -> np.ndarray:
        raise ValueError("no good")

    with tf.device(WORKER):
        failed = tf.py_func(fail, [tf.placeholder_with_default(np.float32(1), [])], tf.float32)
    with tf.device(PS):
        never = tf.identity(failed)
    with tf.Session(target) as session:
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="no good"):
                session.run(never)


def test_a_step_that_fails_takes_no_later_element(target: str) -> None:
    with tf.device(PS):
        queue = tf.FIFOQueue(3, [tf.float32], [[]])
        taken, put = queue.dequeue(), [queue.enqueue(x) for x in (1.0, 2.0)]
        bad = tf.gather([1.0], tf.placeholder_with_default([7], [1]))
    with tf.Session(target) as session:
        for _ in range(3):
            with pytest.raises(tf.errors.InvalidArgumentError, match="7 is not in"):
                session.run([taken, bad])
        for each in put:
            session.run(each)
        assert session.run(taken) == 1.0
