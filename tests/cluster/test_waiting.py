"""Steps that wait for a queue or an accumulator of another task: none of its threads blocks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.cluster.server import server_at
from thalweg.ops.state.queue_ops import QueueDequeue
from thalweg.ops.state.queue_state import Queue

pytest.importorskip("zmq")

PS = "/job:ps/task:0"
LONG = 30  # seconds: longer than any operation here takes
MANY = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, str]]:
    workers, servers = tf.test.create_local_cluster(1, 1)
    yield workers[0].target, servers[0].target
    for each in [*workers, *servers]:
        each.stop()


@pytest.fixture
def session(cluster: tuple[str, str]) -> Iterator[tf.Session]:
    tf.Session.reset(cluster[0])
    with tf.Session(cluster[0]) as opened:
        yield opened


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(MANY) as made:
        yield made


@pytest.fixture
def queue() -> tf.FIFOQueue:
    with tf.device(PS):
        return tf.FIFOQueue(MANY, tf.float32, shapes=[()], shared_name="q")


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released whenever a request is appended to the pending ones of a queue."""
    semaphore, original = threading.Semaphore(0), Queue._advance_or_append

    def advance_or_append(self: Queue, *args: Any) -> bool:
        is_appended = original(self, *args)
        if is_appended:
            semaphore.release()
        return is_appended

    monkeypatch.setattr(Queue, "_advance_or_append", advance_or_append)
    return semaphore


def test_many_steps_wait_without_threads_and_complete_in_order(
    session: tf.Session, queue: tf.FIFOQueue, pool: ThreadPoolExecutor, waiting: threading.Semaphore
) -> None:
    with tf.device(PS):
        taken = queue.dequeue()
        given = queue.enqueue_many([np.arange(MANY, dtype=np.float32)])
    session.run(given)
    assert [session.run(taken) for _ in range(MANY)] == list(range(MANY))
    found = list[Future[Any]]()
    for _ in range(MANY):
        found.append(pool.submit(session.run, taken))
        assert waiting.acquire(timeout=LONG)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("thalweg-worker") < MANY
    session.run(given)
    assert [each.result(LONG) for each in found] == list(range(MANY))


def test_a_cancelled_step_takes_nothing(
    session: tf.Session, queue: tf.FIFOQueue, pool: ThreadPoolExecutor, waiting: threading.Semaphore
) -> None:
    with tf.device(PS):
        taken, given = queue.dequeue(), queue.enqueue(7.0)
    late = tf.RunOptions(timeout_in_ms=1)
    with pytest.raises(tf.errors.DeadlineExceededError):
        session.run(taken, options=late)
    after = pool.submit(session.run, taken)
    session.run(given)
    assert after.result(LONG) == 7.0


def test_an_error_names_the_node(session: tf.Session, queue: tf.FIFOQueue) -> None:
    with tf.device(PS):
        given, close = queue.enqueue(7.0, name="too_late"), queue.close()
    session.run(close)
    with pytest.raises(tf.errors.CancelledError, match="is closed") as caught:
        session.run(given)
    assert caught.value.op.name == "too_late"


def test_a_dequeue_with_a_timeout_runs_on_a_thread(
    session: tf.Session, queue: tf.FIFOQueue
) -> None:
    with tf.device(PS):
        dequeue = QueueDequeue(component_types=(tf.float32,), timeout_ms=1)
        taken = dequeue(queue.queue_ref)
    with pytest.raises(tf.errors.DeadlineExceededError, match="timed out"):
        session.run(taken)


@pytest.mark.parametrize("size", [3, 1 << 19], ids=["small", "large"])
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_gradients_are_applied_awaited_and_taken(
    session: tf.Session, pool: ThreadPoolExecutor, size: int, is_sparse: bool
) -> None:
    gradient, step = tf.placeholder(tf.float32, [size]), tf.placeholder(tf.int64, [])
    with tf.device(PS):
        if is_sparse:
            rows: Any = tf.SparseConditionalAccumulator(tf.float32, [size], shared_name="rows")
            push = rows.apply_grad(tf.range(size, dtype=tf.int64), gradient, local_step=step)
            enough, taken = rows.await_grads(2), rows.take_grad(2).values
        else:
            whole: Any = tf.ConditionalAccumulator(tf.float32, [size], shared_name="whole")
            push, enough, taken = (
                whole.apply_grad(gradient, step),
                whole.await_grads(2),
                whole.take_grad(2),
            )
    for number in range(2):  # by the second run it is known which kernels are short
        waits = pool.submit(session.run, enough)
        for value in (1.0, 3.0):
            session.run(push, {gradient: np.full(size, value, np.float32), step: number})
        waits.result(LONG)
        np.testing.assert_array_equal(session.run(taken), np.full(size, 2.0, np.float32))


def test_closing_the_session_cancels_its_waiting_steps(
    cluster: tuple[str, str],
    queue: tf.FIFOQueue,
    pool: ThreadPoolExecutor,
    waiting: threading.Semaphore,
) -> None:
    with tf.device(PS):
        taken = queue.dequeue()
    session = tf.Session(cluster[0])
    found = pool.submit(session.run, taken)
    assert waiting.acquire(timeout=LONG)
    session.close()
    with pytest.raises(tf.errors.CancelledError):
        found.result(LONG)
    server = server_at(cluster[1].removeprefix("thalweg://"))
    assert server is not None and not server._worker._steps
