"""Tasks as processes: clients of other processes, tasks that are killed, stopped and come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.cluster.addresses import free_ports

pytest.importorskip("zmq")


class Tasks:
    """The processes of a cluster."""

    def __init__(self, **jobs: int) -> None:
        ports = iter(free_ports(sum(jobs.values())))
        self.cluster = {
            job: [f"localhost:{next(ports)}" for _ in range(count)] for job, count in jobs.items()
        }
        self._running: dict[tuple[str, int], subprocess.Popen[str]] = {}

    def start(self, job: str, index: int) -> None:
        """Start a task."""
        program = (
            "import json, sys, thalweg as tf\n"
            "server = tf.train.Server(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]))\n"
            "print('up', flush=True)\n"
            "server.join()\n"
        )
        command = [sys.executable, "-c", program, json.dumps(self.cluster), job, str(index)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._running[job, index] = process

    def wait(self) -> None:
        """Wait until all tasks are up."""
        for process in self._running.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"

    def signal(self, number: signal.Signals, job: str, index: int) -> None:
        """Send a signal to a task."""
        os.kill(self._running[job, index].pid, number)
        if number is signal.SIGKILL:
            _end(self._running.pop((job, index)))

    def target(self, job: str, index: int) -> str:
        return f"grpc://{self.cluster[job][index]}"

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    with process:
        process.wait()


@pytest.fixture
def tasks() -> Iterator[Tasks]:
    found = Tasks(ps=2)
    for index in range(2):
        found.start("ps", index)
    found.wait()
    yield found
    found.stop()


def model() -> tuple[Any, Any, Any]:
    """Variables on both tasks, and what a step does with them."""
    with tf.device("/job:ps/task:0"):
        a = tf.Variable(np.arange(3.0), name="a")
    with tf.device("/job:ps/task:1"):
        b = tf.Variable(np.ones(3), name="b")
        step = tf.assign_add(b, a)
    return a, b, step


def test_a_task_is_killed_and_comes_back(tasks: Tasks) -> None:
    a, b, step = model()
    session = tf.Session(tasks.target("ps", 0))
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(session.run(step), [1.0, 2.0, 3.0])
    tasks.signal(signal.SIGKILL, "ps", 1)
    with pytest.raises((tf.errors.UnavailableError, tf.errors.AbortedError)):
        while True:
            session.run(step)
    np.testing.assert_array_equal(session.run(a), np.arange(3.0))  # the other one goes on
    tasks.start("ps", 1)
    with pytest.raises((tf.errors.UnavailableError, tf.errors.AbortedError)):
        session.run(step)  # what was registered there is gone
    session.close()
    with tf.Session(tasks.target("ps", 0)) as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="b"):
            session.run(step)
        session.run(b.initializer)
        np.testing.assert_array_equal(session.run(step), [1.0, 2.0, 3.0])


def test_a_paused_task_ends_the_steps_that_wait_for_it(tasks: Tasks) -> None:
    _, _, step = model()
    with tf.Session(tasks.target("ps", 0)) as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        tasks.signal(signal.SIGSTOP, "ps", 1)
        with pytest.raises((tf.errors.UnavailableError, tf.errors.AbortedError)):
            while True:  # a step may be done before the signal is there
                session.run(step)


def test_the_state_of_a_client_that_died_is_let_go(tasks: Tasks) -> None:
    with tf.device("/job:ps/task:0"):
        queue = tf.FIFOQueue(1, [tf.int32], [[]], shared_name="q")
        given, taken = queue.enqueue(1), queue.dequeue()
    client = (
        "import sys, thalweg as tf\n"
        "with tf.device('/job:ps/task:0'):\n"
        "    taken = tf.FIFOQueue(1, [tf.int32], [[]], shared_name='q').dequeue()\n"
        "session = tf.Session(sys.argv[1])\n"
        "print('up', flush=True)\n"
        "session.run(taken)\n"
    )
    command = [sys.executable, "-c", client, tasks.target("ps", 0)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.kill()
    with tf.Session(tasks.target("ps", 0)) as session:
        actual = None
        while actual is None:
            session.run(given)
            with suppress(tf.errors.DeadlineExceededError):  # the dead client's step may take it
                actual = session.run(taken, options=tf.RunOptions(timeout_in_ms=1000))
        assert actual == 1
