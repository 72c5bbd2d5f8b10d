"""Thousands of steps of mixed shapes: memory stays flat, and so does the cache."""

from __future__ import annotations

import gc
import sys
from typing import Any
from unittest import mock

import numpy as np
import pytest

import thalweg as tf
from tests.soak import resident, rounds
from thalweg.codegen.cache import statistics
from thalweg.platform.caches import caches
from thalweg.runtime import compiled

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

MIB = 1 << 20


def model(x: Any, w: Any) -> tuple[Any, Any]:
    """A loss over images of any number and size, and its update."""
    hidden = tf.nn.relu(tf.nn.conv2d(x, w, [1, 2, 2, 1], "SAME"))
    loss = tf.reduce_mean(tf.square(hidden)) + tf.reduce_mean(tf.nn.softmax(x))
    return loss, tf.train.AdamOptimizer(1e-3).minimize(loss)


def test_memory_is_flat_over_steps_of_mixed_shapes() -> None:
    count = rounds(80, 10_000)
    rng = np.random.default_rng(0)
    kept = mock.patch.object(compiled, "_MAX_PROGRAMS", rounds(16, compiled._MAX_PROGRAMS))
    with kept, tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, None, None, 2])
        w = tf.Variable(rng.normal(size=(3, 3, 2, 4)).astype(np.float32))
        loss, train = model(x, w)
        session.run(tf.global_variables_initializer())

        def steps(number: int) -> None:
            for _ in range(number):
                shape = (*rng.integers(1, 17, 3), 2)
                found, _ = session.run([loss, train], {x: rng.random(shape, np.float32)})
                assert np.isfinite(found)

        steps(count // 2)
        gc.collect()
        before, code = resident(), statistics().code_bytes
        steps(count // 2)
        gc.collect()
        assert resident() - before < 24 * MIB
        assert statistics().code_bytes - code < 4 * MIB


def test_sessions_that_come_and_go_leave_nothing() -> None:
    def once() -> None:
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.float32, [None, 64])
            w = tf.Variable(np.ones((64, 64), np.float32))
            y = tf.nn.softmax(tf.matmul(x, w))
            session.run(w.initializer)
            for size in (256, 512):
                session.run(y, {x: np.ones((size, 64), np.float32)})

    for _ in range(rounds(20, 100)):
        once()
    gc.collect()
    before = resident()
    for _ in range(rounds(40, 1000)):
        once()
    gc.collect()
    assert resident() - before < 16 * MIB


def test_results_and_feeds_of_every_size_are_let_go() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None])
        y = tf.exp(x) + tf.reduce_sum(x)
        session.run(y, {x: np.ones(1 << 20, np.float32)})
        before = resident()
        for step in range(rounds(60, 3000)):
            session.run(y, {x: np.ones((1 << 20) - step % 7, np.float32)})
        gc.collect()
        assert resident() - before < 64 * MIB


def test_memory_is_flat_over_batch_sizes() -> None:
    """Each size is met once: nothing that is kept of it may stay for ever."""
    last = rounds(200, 5_000)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 4])
        w = tf.Variable(np.ones((4, 4), np.float32))
        loss = tf.reduce_sum(tf.tanh(tf.matmul(x, w)))
        train = tf.train.GradientDescentOptimizer(1e-3).minimize(loss)
        session.run(tf.global_variables_initializer())

        def steps(first: int, last: int) -> None:
            for size in range(first, last):
                session.run([loss, train], {x: np.ones((size, 4), np.float32)})

        steps(1, last // 2)
        gc.collect()
        before = resident()
        steps(last // 2, last)
        gc.collect()
        assert resident() - before < 16 * MIB
    assert not [cache for cache in caches() if cache.size > cache.limit]
