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
WIDTH = 128
MAX_DELAY = 0.01  # seconds from the start of a step to the interrupt: most steps are in it


class Interrupts:
    """Presses Ctrl-C at a random time after it was asked to, once."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._wanted = threading.Semaphore(0)
        self._armed = False
        self._heard = threading.Event()
        threading.Thread(target=self._press, daemon=True).start()

    def _press(self) -> None:
        while True:
            self._wanted.acquire()
            time.sleep(self._random.random() * MAX_DELAY)
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

    def during(self, step: Callable[[], object]) -> bool:
        """Run a step and press Ctrl-C meanwhile; whether it was stopped."""
        self._heard.clear()
        self._armed = True
        self._wanted.release()
        try:
            step()
        except KeyboardInterrupt:
            return True
        finally:
            self._armed = False
            self._heard.wait()  # it may come after the step
        return False


@pytest.mark.parametrize("hasty", [False, True])
def test_training_with_interrupts(hasty: bool) -> None:
    """Each layer counts its updates, in all elements of a variable."""
    interrupts, stopped = Interrupts(0), 0
    with tf.Graph().as_default(), tf.Session() as session, interrupts.installed():
        x = tf.placeholder(tf.float32, [64, WIDTH])
        weights = [tf.Variable(tf.zeros([WIDTH, WIDTH])) for _ in range(LAYERS)]
        y = x
        for weight in weights:
            y = tf.matmul(y, weight) + x
        # The gradient of each weight is that of its sum: every element grows by one in a step.
        loss = -tf.add_n([tf.reduce_sum(weight) for weight in weights]) + 0 * tf.reduce_sum(y)
        train = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
        count = tf.Variable(np.int64(0))
        loop = _counting(count, 1000)
        session.run(tf.global_variables_initializer())
        feed = {x: np.ones((64, WIDTH), np.float32)}
        session.run([train, y], feed)
        session.run(loop)
        counts, begun = np.ones(LAYERS), 1000
        for number in range(rounds(60, 2000)):
            step = [train, y] if number % 3 else loop
            with impatient() if hasty else nullcontext():
                was_stopped = interrupts.during(lambda: session.run(step, feed))  # noqa: B023 - called at once
            stopped += was_stopped
            values = session.run(weights)
            assert all(np.all(value == value[0, 0]) for value in values), "an update is half done"
            now = np.array([value[0, 0] for value in values])
            iterations = session.run(count)
            if number % 3:
                assert set(now - counts) <= ({0.0, 1.0} if was_stopped else {1.0})
                assert iterations == begun
            else:
                assert np.all(now == counts)
                assert 0 <= iterations - begun <= 1000
                assert was_stopped or iterations - begun == 1000
            counts, begun = now, iterations
        assert stopped
        session.run([train, y], feed)
        session.run(loop)
        np.testing.assert_array_equal([v[0, 0] for v in session.run(weights)], counts + 1)
        assert session.run(count) == begun + 1000


def _counting(count: tf.Variable, most: int) -> tf.Tensor:
    matrix = tf.constant(np.eye(32, dtype=np.float32))

    def body(i: tf.Tensor, product: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        product = tf.matmul(product, matrix)
        with tf.control_dependencies([count.assign_add(1)]):
            return i + 1, product

    return tf.while_loop(lambda i, _: i < most, body, [0, matrix])[0]


def test_stopped_steps_leave_no_memory_behind() -> None:
    interrupts = Interrupts(1)
    with tf.Graph().as_default(), tf.Session() as session, interrupts.installed(), impatient():
        x = tf.placeholder(tf.float32, [512, 512])
        y = x
        for _ in range(8):
            y = tf.tanh(tf.matmul(y, x))
        feed = {x: np.zeros((512, 512), np.float32)}
        session.run(y, feed)
        for _ in range(20):
            interrupts.during(lambda: session.run(y, feed))
        before = resident()
        for _ in range(rounds(30, 2000)):
            interrupts.during(lambda: session.run(y, feed))
        assert resident() - before < 100 << 20
