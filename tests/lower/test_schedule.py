"""On how many threads steps run."""

from __future__ import annotations

from typing import Any

import numpy as np

import thalweg as tf
from tests.lower.programs import native
from thalweg.lower.schedule import threads_for

_CACHE = 2 << 20


def threads_of(*fetches: Any) -> int:
    return threads_for(native(*fetches).lowered.launches, 2, _CACHE)


def training(batch: int, inputs: int) -> Any:
    x = tf.placeholder(tf.float32, [batch, inputs])
    w = tf.Variable(np.zeros((inputs, 100), np.float32))
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w)))
    return tf.train.GradientDescentOptimizer(0.1).minimize(loss)


def test_a_tiny_step_is_one_threads() -> None:
    with tf.Graph().as_default():
        assert threads_of(tf.placeholder(tf.float32, [10]) + 1) == 1


def test_what_is_done_before_others_have_joined_in_is_one_threads() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [1, 784])
        w = tf.Variable(np.zeros((784, 100), np.float32))
        assert threads_of(tf.matmul(x, w)) == 1


def test_weights_that_change_in_every_step_stay_in_one_cores_cache() -> None:
    with tf.Graph().as_default():
        assert threads_of(training(1, 784)) == 1


def test_work_that_is_worth_it_is_shared() -> None:
    with tf.Graph().as_default():
        assert threads_of(training(512, 784)) == 2


def test_what_no_cache_holds_is_shared() -> None:
    with tf.Graph().as_default():
        assert threads_of(training(1, 78_400)) == 2


def test_weights_that_are_only_read_are_shared() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [1, 784])
        w = tf.Variable(np.zeros((784, 500), np.float32))
        assert threads_of(tf.matmul(x, w)) == 2
