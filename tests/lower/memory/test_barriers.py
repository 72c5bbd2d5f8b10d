"""The number of threads of a step, and where a step can be stopped."""

from __future__ import annotations

from typing import Any

import numpy as np

import thalweg as tf
from tests.lower.programs import native
from thalweg.ir.target import Target
from thalweg.lower.memory.barriers import amid_updates, threads_for

_TARGET = Target(name="test", l2=2 << 20)


def threads_of(*fetches: Any) -> int:
    return threads_for(native(*fetches).listing.lowered.launches, 2, _TARGET)


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


def test_threads_meet_every_few_milliseconds() -> None:
    """Products that do not depend on each other; small ones need not wait."""

    def waits(size: int) -> list[bool]:
        with tf.Graph().as_default():
            x = tf.placeholder(tf.float32, [size, size])
            factors = [tf.placeholder(tf.float32, [size, size]) for _ in range(4)]
            step = native(*[tf.matmul(x, factor) for factor in factors], threads=2)
            return [call.entry.barrier for call in step.listing.calls]

    assert waits(64) == [False] * 4
    assert waits(768) == [False, True, True, True]


def test_between_updates_a_step_can_be_stopped() -> None:
    with tf.Graph().as_default():
        v = tf.Variable(np.zeros(100_000, np.float32))
        first = v.assign_add(tf.ones([100_000]))
        with tf.control_dependencies([first]):
            second = v.assign(tf.reverse(v.read_value(), [0]) * 2)
        launches = native(second).listing.lowered.launches
    assert len(launches) > 1
    assert not any(amid_updates(launches))


def test_within_an_update_it_cannot() -> None:
    with tf.Graph().as_default():
        v, w = (tf.Variable(np.zeros(100_000, np.float32)) for _ in range(2))
        (update,) = native(v.assign_add(tf.ones([100_000]))).listing.lowered.launches
        (other,) = native(w.assign_add(tf.ones([100_000]))).listing.lowered.launches
    assert amid_updates([update, other, update, other]) == [False, True, True, True]
    assert amid_updates([other, update, update]) == [False, False, True]
