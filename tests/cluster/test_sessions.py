"""Sessions on a cluster: values, order, state, errors and their ends.

The tasks are servers of this process; what they do for each other goes through sockets.
"""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from thalweg.cluster.server import TaskServer, server_at
from thalweg.cluster.transport.peer import Peer

pytest.importorskip("zmq")

WORKER, PS0, PS1 = "/job:worker/task:0", "/job:ps/task:0", "/job:ps/task:1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    workers, servers = tf.test.create_local_cluster(1, 2)
    yield workers[0].target
    for each in [*workers, *servers]:
        each.stop()


@pytest.fixture
def target(cluster: str) -> str:
    """A cluster that knows no variables."""
    tf.Session.reset(cluster)
    return cluster


VALUES = [
    np.float32(2.5),
    np.arange(24, dtype=np.int64).reshape(2, 3, 4),
    np.zeros([0, 3]),
    np.array([True, False]),
    np.array(["größer".encode(), b"", b"\x00\xff"], object),
    np.arange(6, dtype=np.float32).reshape(2, 3).T,
    np.arange(5, dtype=np.float32).astype(ml_dtypes.bfloat16),
    np.array([1 + 2j, 3 - 4j], np.complex64),
    np.ones([1 << 18], np.float32),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{v.dtype}{list(v.shape)}")
def test_values_of_all_kinds_travel(target: str, value: Any) -> None:
    dtype = tf.string if value.dtype == object else value.dtype
    x = tf.placeholder(dtype, value.shape)
    with tf.device(PS0):
        there = tf.reshape(x, value.shape)
    with tf.device(PS1):
        further = tf.identity(there)
    with tf.device(WORKER):
        back = tf.identity(further)
    with tf.Session(target) as session:
        for found in session.run([there, further, back], {x: value}):
            assert found.dtype == value.dtype
            np.testing.assert_array_equal(found, value)


def test_order_holds_between_tasks(target: str) -> None:
    with tf.device(PS0):
        a = tf.Variable(1.0, name="a")
    with tf.device(PS1):
        b = tf.Variable(10.0, name="b")
    with tf.device(PS0), tf.control_dependencies([tf.assign_add(b, 1.0)]):
        first = tf.assign(a, a * 2)
    with tf.device(PS1), tf.control_dependencies([first]):
        second = tf.assign_add(b, a)
    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        assert session.run([first, second]) == [2.0, 13.0]
        assert session.run([a, b]) == [2.0, 13.0]


def test_sessions_share_variables_but_not_random_streams(target: str) -> None:
    with tf.device(PS0):
        v = tf.Variable(0.0, name="v")
        drawn = tf.random_uniform([3], seed=7)
        add = tf.assign_add(v, 1.0)
    with tf.Session(target) as one, tf.Session(target) as other:
        one.run(v.initializer)
        one.run(add)
        other.run(add)
        assert one.run(v) == 2.0
        first = [one.run(drawn), one.run([drawn, add])[0]]
        again = [other.run(drawn), other.run([drawn, add])[0]]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])


def test_containers_are_cleared_by_name(target: str) -> None:
    with tf.device(PS0):
        with tf.container("kept"):
            kept = tf.Variable(1.0, name="kept")
        with tf.container("gone"):
            gone = tf.Variable(1.0, name="gone")
    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        tf.Session.reset(target, ["gone"])
        with pytest.raises(tf.errors.AbortedError, match="reset"):
            session.run(kept)
    with tf.Session(target) as session:
        assert session.run(kept) == 1.0
        with pytest.raises(tf.errors.FailedPreconditionError, match="gone"):
            session.run(gone)


def test_an_error_names_the_task_and_the_line(target: str) -> None:
    x = tf.placeholder(tf.int32, [])
    with tf.device(PS1):
        row = tf.gather(tf.constant([1.0, 2.0]), x, name="row")
    with tf.device(WORKER):
        y = row + 1
    with tf.Session(target) as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="row") as caught:
            session.run(y, {x: 5})
        assert "/job:ps/replica:0/task:1" in str(caught.value)
        assert "test_sessions.py" in str(caught.value)
        assert caught.value.op is row.op
        assert session.run(y, {x: 1}) == 3.0


def test_an_error_ends_the_step_on_all_tasks(target: str) -> None:
    with tf.device(PS0):
        queue = tf.FIFOQueue(3, [tf.float32], [[]], name="q")
        taken, given = queue.dequeue(), queue.enqueue(7.0)
    with tf.device(PS1):
        bad = tf.check_numerics(tf.constant(np.inf), "no")
    with tf.Session(target) as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Inf"):
            session.run([taken, bad])  # nobody ever enqueues
        session.run(given)
        assert session.run(taken) == 7.0  # nobody waits for it any more


@pytest.mark.parametrize("device", [WORKER, PS0])
def test_a_deadline_ends_the_step(target: str, device: str) -> None:
    with tf.device(device):
        queue = tf.FIFOQueue(3, [tf.float32], [[]], name="q")
        taken, given = queue.dequeue(), queue.enqueue(7.0)
    with tf.Session(target) as session:
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(taken, options=tf.RunOptions(timeout_in_ms=50))
        session.run(given)
        assert session.run(taken) == 7.0


def test_close_cancels_what_waits_on_another_task(target: str) -> None:
    with tf.device(PS0):
        taken = tf.FIFOQueue(3, [tf.float32], [[]], name="q").dequeue()
    session = tf.Session(target)
    caught: list[Any] = []
    began = threading.Event()

    def wait() -> None:
        began.set()
        try:
            session.run(taken)
        except tf.errors.OpError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    began.wait()
    session.close()
    thread.join(20)
    assert not thread.is_alive()
    assert isinstance(caught[0], tf.errors.CancelledError)
    with pytest.raises(RuntimeError, match="closed"):
        session.run(taken)


def test_steps_at_once_count_exactly(target: str) -> None:
    with tf.device(PS0):
        counts = tf.Variable(0, name="counts", use_resource=True)
        add = tf.assign_add(counts, 1, use_locking=True)
    with tf.device(PS1):
        weights = tf.Variable(np.zeros(50, np.float32), name="w")
    with tf.device(WORKER):
        step = tf.assign_add(weights, tf.ones([50]) * tf.cast(add, tf.float32), use_locking=True)
    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        run = session.make_callable(step.op)
        threads = [threading.Thread(target=lambda: [run() for _ in range(25)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.run(counts) == 100
        np.testing.assert_array_equal(session.run(weights), [np.arange(101).sum()] * 50)


def test_savers_save_all_tasks(target: str, tmp_path: Path) -> None:
    with tf.device(PS0):
        a = tf.Variable([1.0, 2.0], name="a")
    with tf.device(PS1):
        b = tf.Variable(3.0, name="b")
    for sharded in (False, True):
        saver = tf.train.Saver(sharded=sharded)
        with tf.Session(target) as session:
            session.run(tf.global_variables_initializer())
            path = saver.save(session, str(tmp_path / f"model{sharded}"))
            session.run([tf.assign(a, [0.0, 0.0]), tf.assign(b, 0.0)])
            saver.restore(session, path)
            np.testing.assert_array_equal(session.run(a), [1.0, 2.0])
            assert session.run(b) == 3.0


def test_a_plan_tells_what_each_task_does(target: str) -> None:
    with tf.device(PS0):
        a = tf.Variable(tf.ones([4]), name="a")
    with tf.device(WORKER):
        y = tf.tanh(a) * 2
    with tf.Session(target) as session:
        session.run(a.initializer)
        text = str(session.plan(y))
        assert "/job:ps/replica:0/task:0" in text
        assert "tanh" in text
        metadata = tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
        session.run(y, options=options, run_metadata=metadata)
    assert len(metadata.partition_graphs) == 2


def test_devices_are_those_of_all_tasks(target: str) -> None:
    config = tf.ConfigProto(device_filters=["/job:worker", PS1])
    with tf.Session(target, config=config, graph=tf.Graph()) as session:
        assert session.list_devices() == [
            "/job:worker/replica:0/task:0/device:CPU:0",
            "/job:ps/replica:0/task:1/device:CPU:0",
        ]


def test_targets_that_are_none() -> None:
    with pytest.raises(tf.errors.NotFoundError, match="nonsense"):
        tf.Session("nonsense")
    config = tf.ConfigProto(operation_timeout_in_ms=50)
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"the target \(127\.0\.0\.1:1\)"):
        tf.Session("grpc://127.0.0.1:1", config=config)


def test_tasks_forget_plans_that_their_session_forgot(target: str) -> None:
    with tf.device(PS0):
        a = tf.Variable(1.0, name="a")
    with tf.Session(target) as session:
        session._plans.limit = session._calls.limit = 2
        session.run(a.initializer)
        for number in range(6):
            with tf.device(WORKER):
                y = a + number
            assert session.run(y) == 1 + number
        gc.collect()
        assert len(session._engine._own.plans) <= 3


def test_folded_outputs_of_one_node_are_told_apart(target: str) -> None:
    """What the optimiser makes of them has the node's name, each."""
    x = tf.placeholder(tf.float32, [3])
    with tf.device(PS0):
        parts = tf.split(tf.ones_like(x) * [1.0, 2.0, 3.0], [1, 0, 2])
    with tf.device(PS1):
        moved = [tf.identity(part) for part in parts]
    with tf.Session(target) as session:
        for fetches in (parts, moved, parts[::-1], parts[1:2]):
            found = session.run(fetches, {x: [0.0, 0.0, 0.0]})
            assert [v.tolist() for v in found] == [
                {1: [1.0], 0: [], 2: [2.0, 3.0]}[int(t.shape[0])] for t in fetches
            ]


def test_a_task_that_comes_up_late_is_not_taken_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine: attempts to reach it fail before it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        late = f"127.0.0.1:{free.getsockname()[1]}"
    cluster = {"worker": ["127.0.0.1:0"], "ps": [late]}
    first = tf.train.Server(cluster, "worker", 0)
    endpoint = server_at(first.target.partition("//")[2]).endpoint
    attempts, peer_of = SimpleQueue[Peer](), endpoint.peer

    def attempt(address: str) -> Peer:
        attempts.put(peer_of(address))
        return peer_of(address)

    monkeypatch.setattr(endpoint, "peer", attempt)
    with tf.device(PS0):
        there = tf.constant(1.0) + tf.constant(2.0)
    sessions = SimpleQueue[tf.Session]()
    opening = threading.Thread(target=lambda: sessions.put(tf.Session(first.target)))
    opening.start()
    silent = attempts.get()
    error = tf.errors.UnavailableError(None, None, "nobody answered")
    endpoint.loop.call(lambda: silent.mark_lost(error))
    assert attempts.get() is not silent
    second = tf.train.Server({**cluster, "worker": [first.target.partition("//")[2]]}, "ps", 0)
    opening.join()
    with sessions.get() as session:
        assert session.run(there) == 3.0
    second.stop()
    first.stop()


@pytest.mark.parametrize("receiver", [WORKER, PS1])
def test_who_waits_hears_that_values_were_lost(receiver: str) -> None:
    """A task that loses its way to another has lost what it sent there. All other connections may
    be as good as ever, those of the master among them."""
    (worker,), servers = tf.test.create_local_cluster(1, 2)
    with tf.Graph().as_default():
        with tf.device(PS0):
            queue = tf.FIFOQueue(3, [tf.float32], [[]], name="q")
            taken, given = queue.dequeue(), queue.enqueue(7.0)
        with tf.device(receiver):
            y = tf.exp(taken)
        sender, other = servers[0]._task, receiver.replace("/task", "/replica:0/task")
        with tf.Session(worker.target) as session, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(session.run, y)
            while not sender._worker._steps:
                pass
            lost = tf.errors.UnavailableError(None, None, "nobody answered")
            sender.endpoint.loop.call(lambda: sender._peer(other).mark_lost(lost))
            with pytest.raises(tf.errors.UnavailableError, match="/job:ps/replica:0/task:0"):
                waiting.result()
            session.run(given)
            assert session.run(y) == np.exp(np.float32(7))
    for each in (worker, *servers):
        each.stop()


def test_a_session_may_come_before_its_server_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    came, actual = threading.Event(), list[Any]()
    received, update = TaskServer.received, TaskServer.update

    def noticed(self: TaskServer, peer: Any, message: Any) -> None:
        came.set()
        received(self, peer, message)

    def late(self: TaskServer, cluster: Any) -> None:
        def use() -> None:
            with tf.Graph().as_default(), tf.Session(f"thalweg://{address}") as session:
                actual.append(session.run(tf.constant(3) + 4))

        address = self.endpoint.address
        client = threading.Thread(target=use)
        client.start()
        assert came.wait(60)
        update(self, cluster)
        clients.append(client)

    clients: list[threading.Thread] = []
    monkeypatch.setattr(TaskServer, "received", noticed)
    monkeypatch.setattr(TaskServer, "update", late)
    server = tf.train.Server.create_local_server()
    clients[0].join(60)
    server.stop()
    assert actual == [7]
