"""The counters of tasks, asked for from outside, and rates made of them."""

from __future__ import annotations

import threading

import thalweg as tf
from thalweg.cluster.launch.task import Task
from thalweg.cluster.launch.watch import Rates, Sample, Watch, rates
from thalweg.cluster.traffic import Statistics


def test_rates_are_of_one_process():
    before, after = Sample(10.0, Statistics(4, 100, 50)), Sample(12.0, Statistics(10, 300, 50))
    assert rates(before, after) == Rates(3.0, 100.0, 0.0)
    assert rates(after, after) is None
    assert rates(before, Sample(12.0, Statistics(1, 0, 0))) is None  # it was started again


def test_a_server_answers_a_watch(monkeypatch):
    server = tf.train.Server.create_local_server()
    task = Task("localhost", 0)
    watch = Watch({task: server.target.removeprefix("thalweg://")})
    answered, answers = threading.Event(), watch._on_reply

    def on_reply(task):
        done = answers(task)
        return lambda *given: (done(*given), answered.set())

    monkeypatch.setattr(watch, "_on_reply", on_reply)
    try:
        assert watch.statistics(task) is None
        watch.poll()
        assert answered.wait(10)
        assert watch.statistics(task) == Statistics(0, 0, 0)
        assert watch.rates(task) is None
    finally:
        watch.close()
        server.stop()
