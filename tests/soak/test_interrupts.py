"""Training that is interrupted at any time: what was done is done whole, and it can go on."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

import thalweg as tf
from tests.runtime.pausing import impatient
from tests.soak import resident, rounds

pytestmark = pytest.mark.timeout(1200)

LAYERS = 6
BATCH = 1024
WIDTH = 128
TURNS = 1000  # of a loop in a step


class Interrupts:
    """Presses Ctrl-C at a random time after it was asked to, once."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._wanted = threading.Semaphore(0)
        self._longest = 0.0
        self._armed = False
        self._heard = threading.Event()
        threading.Thread(target=self._press, daemon=True).start()

    def _press(self) -> None:
        while True:
            self._wanted.acquire()
            time.sleep(self._random.random() * self._longest)
            os.kill(os.getpid(), signal.SIGINT)

    def _handle(self, *_: object) -> None:
        self._heard.set()
        if self._armed:
            raise KeyboardInterrupt

    @contextmanager
    def installed(self) -> Generator[None]:
        before = signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def during(self, step: Callable[[], object], duration: float) -> bool:
        """Run a step of some seconds and press Ctrl-C meanwhile; whether it was stopped."""
        self._heard.clear()
        self._longest = duration
        self._armed = True
        self._wanted.release()
        try:
            step()
        except KeyboardInterrupt:
            return True
        finally:
            self._armed = False
            # It may come after the step, and just before a wait that it then would not wake.
            while not self._heard.wait(0.01):
                pass
        return False


def _duration(step: Callable[[], object]) -> float:
    """The seconds that a step takes that was run before."""
    step()
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


@pytest.mark.parametrize("hasty", [False, True])
def test_training_with_interrupts(hasty: bool) -> None:
    """Each layer counts its updates, in all elements of a variable."""
    interrupts, stopped = Interrupts(0), 0
    with tf.Graph().as_default(), tf.Session() as session, interrupts.installed():
        x = tf.placeholder(tf.float32, [BATCH, WIDTH])
        weights = [tf.Variable(tf.zeros([WIDTH, WIDTH])) for _ in range(LAYERS)]
        y = x
        for weight in weights:
            y = tf.matmul(y, weight) + x
        # The gradient of each weight is that of its sum: every element grows by one in a step.
        loss = -tf.add_n([tf.reduce_sum(weight) for weight in weights]) + 0 * tf.reduce_sum(y)
        train = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
        count = tf.Variable(np.int64(0))
        loop = _counting(count)
        session.run(tf.global_variables_initializer())
        feed = {x: np.ones((BATCH, WIDTH), np.float32)}
        steps = [lambda: session.run(loop), lambda: session.run([train, y], feed)]
        durations = [_duration(step) for step in steps]
        counts, begun = np.full(LAYERS, 2.0), 2 * TURNS
        for number in range(rounds(60, 2000)):
            trains = number % 3 > 0
            with impatient() if hasty else nullcontext():
                was_stopped = interrupts.during(steps[trains], durations[trains])
            stopped += was_stopped
            values = session.run(weights)
            assert all(np.all(value == value[0, 0]) for value in values), "an update is half done"
            now = np.array([value[0, 0] for value in values])
            iterations = session.run(count)
            if trains:
                assert set(now - counts) <= ({0.0, 1.0} if was_stopped else {1.0})
                assert iterations == begun
            else:
                assert np.all(now == counts)
                assert 0 <= iterations - begun <= TURNS
                assert was_stopped or iterations - begun == TURNS
            counts, begun = now, iterations
        assert stopped, f"none of the steps of {durations} seconds"
        for step in steps:
            step()
        np.testing.assert_array_equal([v[0, 0] for v in session.run(weights)], counts + 1)
        assert session.run(count) == begun + TURNS


def _counting(count: tf.Variable) -> list[tf.Tensor]:
    matrix = tf.constant(np.eye(32, dtype=np.float32))

    def body(i: tf.Tensor, product: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        product = tf.matmul(product, matrix)
        with tf.control_dependencies([count.assign_add(1)]):
            return i + 1, product

    return tf.while_loop(lambda i, _: i < TURNS, body, [0, matrix])


def test_stopped_steps_leave_no_memory_behind() -> None:
    interrupts = Interrupts(1)
    with tf.Graph().as_default(), tf.Session() as session, interrupts.installed(), impatient():
        x = tf.placeholder(tf.float32, [512, 512])
        y = x
        for _ in range(8):
            y = tf.tanh(tf.matmul(y, x))
        feed = {x: np.zeros((512, 512), np.float32)}
        duration = _duration(lambda: session.run(y, feed))
        for _ in range(20):
            interrupts.during(lambda: session.run(y, feed), duration)
        before = resident()
        for _ in range(rounds(30, 2000)):
            interrupts.during(lambda: session.run(y, feed), duration)
        assert resident() - before < 100 << 20
