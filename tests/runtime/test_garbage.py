"""No step leaves reference cycles: what it made is freed when it ends."""

import numpy as np
import pytest

import thalweg as tf
from tests.garbage import cycles_left_by


def _model():
    x = tf.placeholder(tf.float32, [None, 3])
    y = tf.tanh(tf.matmul(x, tf.get_variable("w", [3, 2])))
    return x, y, tf.reduce_sum(y * y)


def _identity(array):
    return array


def _fetch():
    x, y, _ = _model()
    return y, x


def _train():
    x, _, loss = _model()
    return [loss, tf.train.AdamOptimizer().minimize(loss)], x


def _two_devices():
    x, y, _ = _model()
    with tf.device("/cpu:1"):
        there = tf.exp(y)
    with tf.device("/cpu:0"):
        return there + y, x


def _queue():
    """The dequeue may come first, and wait."""
    x, _, loss = _model()
    queue = tf.FIFOQueue(10, tf.float32)
    return [queue.dequeue(), queue.enqueue(loss)], x


def _branch():
    x, _, loss = _model()
    return tf.cond(loss > 0, lambda: loss * 2, lambda: loss), x


def _loop_of_host_calls():
    x, _, loss = _model()

    def body(i, total):
        return i + 1, total + tf.reshape(tf.py_func(_identity, [total], tf.float32), [])

    return tf.while_loop(lambda i, _: i < 3, body, [0, loss]), x


PROGRAMS = [_fetch, _train, _two_devices, _queue, _branch, _loop_of_host_calls]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.strip("_"))
def test_a_step_leaves_no_cycles(program):
    with tf.Graph().as_default():
        fetches, x = program()
        config = tf.ConfigProto(device_count={"CPU": 2})
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            feeds = {x: np.ones([4, 3], np.float32)}
            assert not cycles_left_by(lambda: session.run(fetches, feeds))
