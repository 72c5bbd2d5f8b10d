"""Tasks count their steps and the bytes of values that they exchange."""

from __future__ import annotations

import numpy as np

import thalweg as tf
from thalweg.cluster.server import server_at


def statistics(server: tf.train.Server):
    """The counters of a server of this process."""
    return server_at(server.target.removeprefix("thalweg://")).worker.traffic.snapshot()


def test_values_that_cross_are_counted_on_both_sides() -> None:
    (worker,), (ps,) = tf.test.create_local_cluster(1, 1)
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0"):
            v = tf.get_variable("counted", initializer=np.ones(1000, np.float32))
        with tf.device("/job:worker/task:0"):
            total = tf.reduce_sum(v)
        with tf.Session(worker.target) as session:
            session.run(v.initializer)
            before = statistics(worker), statistics(ps)
            for _ in range(3):
                assert session.run(total) == 1000
            after = statistics(worker), statistics(ps)
    (w0, p0), (w1, p1) = before, after
    assert (w1.steps - w0.steps, p1.steps - p0.steps) == (3, 3)
    assert p1.bytes_sent - p0.bytes_sent == w1.bytes_received - w0.bytes_received == 12_000
    assert p1.bytes_received == p0.bytes_received
    for server in (worker, ps):
        server.stop()
