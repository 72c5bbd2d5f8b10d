"""Servers that hear of tasks that came later, or moved."""

from __future__ import annotations

import thalweg as tf
from thalweg.cluster.addresses import free_ports


def test_a_server_uses_the_tasks_that_it_was_told_of_last():
    ports = free_ports(3)
    worker_at, gone, moved = (f"127.0.0.1:{port}" for port in ports)
    worker = tf.train.Server({"worker": [worker_at], "ps": [gone]}, "worker", 0)
    cluster = {"worker": [worker_at], "ps": [moved]}
    ps = tf.train.Server(cluster, "ps", 0)
    worker.update(cluster)
    assert tf.train.ClusterSpec(worker.server_def.cluster) == tf.train.ClusterSpec(cluster)
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0"):
            v = tf.get_variable("moved", initializer=20)
        with tf.device("/job:worker/task:0"):
            y = v + 1
        with tf.Session(worker.target) as session:
            session.run(v.initializer)
            assert session.run(y) == 21
    for server in (worker, ps):
        server.stop()
