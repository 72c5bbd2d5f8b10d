"""Many Python threads on one graph, and forks among them: right results, and an end."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.soak import rounds

pytestmark = pytest.mark.timeout(1200)

THREADS = 8


def test_steps_on_one_graph_at_once_are_right() -> None:
    rng = np.random.default_rng(0)
    with tf.Graph().as_default(), tf.Session() as session, ThreadPoolExecutor(THREADS) as pool:
        x = tf.placeholder(tf.float32, [None, 48])
        w = tf.constant(rng.integers(-3, 4, (48, 32)).astype(np.float32))
        product = tf.matmul(x, w)
        fetches = [product, tf.reduce_sum(product), tf.nn.relu(product) * 2]
        weights = session.run(w)

        def work(seed: int) -> None:
            mine = np.random.default_rng(seed)
            for _ in range(rounds(20, 500)):
                array = mine.integers(-4, 5, (mine.integers(1, 200), 48)).astype(np.float32)
                expected = array @ weights
                actual = session.run(fetches, {x: array})
                np.testing.assert_array_equal(actual[0], expected)
                np.testing.assert_array_equal(actual[1], expected.sum())
                np.testing.assert_array_equal(actual[2], np.maximum(expected, 0) * 2)

        for done in [pool.submit(work, seed) for seed in range(THREADS)]:
            done.result()


def test_reads_of_a_shared_variable_see_whole_values() -> None:
    """A writer sets all elements to one number: no reader may see two."""
    with tf.Graph().as_default(), tf.Session() as session, ThreadPoolExecutor(THREADS) as pool:
        number = tf.placeholder(tf.float32, [])
        variable = tf.Variable(np.zeros(4096, np.float32))
        write = tf.assign(variable, tf.fill([4096], number))
        read = variable.read_value()
        session.run(variable.initializer)

        def writer(first: int) -> None:
            for step in range(rounds(50, 2000)):
                session.run(write.op, {number: float(first + step)})

        def reader() -> None:
            for _ in range(rounds(50, 2000)):
                actual = session.run(read)
                assert actual.shape == (4096,)
                assert np.all(actual == np.floor(actual))

        jobs = [pool.submit(writer, 0)] + [pool.submit(reader) for _ in range(THREADS - 1)]
        for done in jobs:
            done.result()


def test_updates_under_a_lock_all_count() -> None:
    """Updates of one variable from many threads, one at a time: none is lost."""
    count = rounds(50, 1000)
    lock = threading.Lock()
    with tf.Graph().as_default(), tf.Session() as session, ThreadPoolExecutor(THREADS) as pool:
        variable = tf.Variable(np.zeros(1000, np.float32))
        more = variable.assign_add(tf.ones(1000))
        other = tf.reduce_sum(tf.exp(tf.fill([64, 64], 0.5)))
        session.run(variable.initializer)

        def work() -> None:
            for _ in range(count):
                with lock:
                    session.run(more.op)
                session.run(other)

        for done in [pool.submit(work) for _ in range(THREADS)]:
            done.result()
        np.testing.assert_array_equal(session.run(variable), count * THREADS)


def test_training_from_many_threads_converges() -> None:
    """Updates without locks may overtake each other, as asynchronous training lets them."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(16, 1)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session, ThreadPoolExecutor(THREADS) as pool:
        x, y = tf.placeholder(tf.float32, [None, 16]), tf.placeholder(tf.float32, [None, 1])
        w = tf.Variable(np.zeros((16, 1), np.float32))
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
        train = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
        session.run(tf.global_variables_initializer())

        def work(seed: int) -> None:
            mine = np.random.default_rng(seed)
            for _ in range(rounds(100, 1000)):
                array = mine.normal(size=(mine.integers(8, 64), 16)).astype(np.float32)
                session.run(train, {x: array, y: array @ truth})

        for done in [pool.submit(work, seed) for seed in range(THREADS)]:
            done.result()
        np.testing.assert_allclose(session.run(w), truth, atol=0.01)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_in_the_middle_goes_on_in_both() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 256])
        y = tf.reduce_sum(tf.matmul(x, x, transpose_b=True), 1)
        running = threading.Event()
        stop = threading.Event()

        def busy() -> None:
            while not stop.is_set():
                check(session, x, y, 64)
                running.set()

        others = [threading.Thread(target=busy) for _ in range(3)]
        for other in others:
            other.start()
        running.wait()
        codes = [forked(session, x, y) for _ in range(rounds(3, 50))]
        stop.set()
        for other in others:
            other.join()
        check(session, x, y, 100)
    assert codes == [0] * len(codes)


def check(session: Any, x: Any, y: Any, size: int) -> None:
    array = np.ones((size, 256), np.float32)
    np.testing.assert_array_equal(session.run(y, {x: array}), np.full(size, 256.0 * size))


def forked(session: Any, x: Any, y: Any) -> int:
    """Steps of a child of this process, of a shape seen before and of a new one; its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check(session, x, y, 64)
            check(session, x, y, 33)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
