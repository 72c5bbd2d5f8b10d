"""Values that travel with the start of a step's part, and with its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from copy import copy
from typing import Any
from unittest import mock

import numpy as np
import pytest

import thalweg as tf
from thalweg.cluster import master
from thalweg.cluster.server import TaskServer
from thalweg.cluster.wire import Kind, Message
from thalweg.cluster.worker import Worker, session_of
from thalweg.ops.core.basic import Const
from thalweg.partition.rendezvous import Key

pytest.importorskip("zmq")

WORKER, PS0, PS1 = "/job:worker/task:0", "/job:ps/task:0", "/job:ps/task:1"
TABLE = np.arange(32, dtype=np.float32).reshape(8, 4)


KINDS: list[Kind] = []  # of the messages that tasks were sent; answers are none of these


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[Any]]:
    received = TaskServer.received

    def noted(self: TaskServer, peer: Any, message: Message) -> None:
        KINDS.append(message.kind)
        received(self, peer, message)

    with mock.patch.object(TaskServer, "received", noted):  # which connections keep
        workers, servers = tf.test.create_local_cluster(1, 2)
        yield [*workers, *servers]
        for each in [*workers, *servers]:
            each.stop()


@pytest.fixture
def target(cluster: list[Any]) -> Iterator[str]:
    """A cluster that knows no variables."""
    tf.Session.reset(cluster[0].target)
    with tf.Graph().as_default():
        yield cluster[0].target


def lookup(on_table: str = PS0, on_result: str = WORKER) -> tuple[Any, Any, Any]:
    """Indices that the worker sends, the table, and its rows elsewhere."""
    given = tf.placeholder(tf.int32, [None])
    with tf.device(on_table):
        table = tf.Variable(TABLE)
    with tf.device(WORKER):
        indices = tf.abs(given)
    with tf.device(on_table):
        rows = tf.gather(table, indices, name="rows")
    with tf.device(on_result):
        return given, table, tf.reduce_sum(rows, 1)


def test_a_lookup_is_one_message_and_its_answer(target: str) -> None:
    given, table, sums = lookup()
    with tf.Session(target) as session:
        session.run(table.initializer)
        for size in (3, 3, 0, 1, 5):
            indices = np.arange(size) % 8
            KINDS.clear()
            actual = session.run(sums, {given: indices})
            np.testing.assert_array_equal(actual, TABLE[indices].sum(1))
        assert [Kind.RUN] == KINDS


def sampled(given: Any) -> Any:
    """Rows of a table on a server for classes that the worker samples: a call of some length."""
    with tf.device(PS0):
        table = tf.Variable(TABLE)
    with tf.device(WORKER):
        classes, _, _ = tf.nn.uniform_candidate_sampler(given, 1, 8, True, 8, name="classes")
        ids = tf.concat([tf.reshape(given, [-1]), classes], 0)
    with tf.device(PS0):
        rows = tf.gather(table, ids)
    with tf.device(WORKER):
        return tf.reduce_sum(rows)


@pytest.mark.parametrize(("limit", "kinds"), [(60.0, ["RUN"]), (0.0, ["RUN", "TENSOR", "TENSOR"])])
def test_values_of_a_first_call_that_is_brief(limit: float, kinds: list[str], target: str) -> None:
    given = tf.placeholder(tf.int64, [None, 1])
    total = sampled(given)
    with mock.patch.object(master, "_MAX_HOLD", limit), tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            KINDS.clear()
            assert session.run(total, {given: [[2], [1]]}) == TABLE[[2, 1]].sum() + TABLE.sum()
        assert [kind.name for kind in KINDS] == kinds


def test_a_function_of_the_user_may_wait_for_another_task(target: str) -> None:
    """The server's part starts although the worker's function has not returned."""
    has_run = threading.Event()

    def note(x: Any) -> Any:
        has_run.set()
        return x

    def wait(x: Any) -> Any:
        assert has_run.wait(30)
        return x

    with tf.device(PS0):
        noted = tf.py_func(note, [tf.constant(1.0)], tf.float32)
    with tf.device(WORKER):
        waited = tf.py_func(wait, [tf.constant(2.0)], tf.float32)
    with tf.device(PS0):
        total = waited * 2.0
    with tf.Session(target) as session:
        for _ in range(3):
            has_run.clear()
            assert session.run([noted, total]) == [1.0, 4.0]


def test_what_comes_later_is_done_once(target: str, cluster: list[Any]) -> None:
    given, table, sums = lookup()
    with tf.device(PS0):
        count = tf.Variable(0.0)
    with tf.device(WORKER):
        change = tf.reduce_max(sums) * 0 + 1
    with tf.device(PS0):
        counted = count.assign_add(change, use_locking=True)
    with tf.Session(target) as session:
        session.run([table.initializer, count.initializer])
        for _ in range(20):
            session.run(counted.op, {given: [1, 2, 3]})
        assert session.run(count) == 20.0
    assert not any(server._task._worker._steps for server in cluster)


def test_values_for_other_tasks_go_to_them(target: str) -> None:
    given, table, sums = lookup(PS0, PS1)
    with tf.Session(target) as session:
        session.run(table.initializer)
        for indices in ([1, 2], [3, 0], [7, 7, 7]):
            actual = session.run(sums, {given: indices})
            np.testing.assert_array_equal(actual, TABLE[indices].sum(1))


def test_several_values_come_in_any_order(target: str) -> None:
    given = tf.placeholder(tf.float32, [None])
    with tf.device(PS0):
        scale = tf.Variable(2.0)
    with tf.device(WORKER):
        values = [given + number for number in range(4)]
    with tf.device(PS0):
        mixed = (values[3] - values[0]) * scale + values[2] * values[1]
    with tf.device(WORKER):
        y = tf.abs(mixed)
    with tf.Session(target) as session:
        session.run(scale.initializer)
        for x in (1.0, 2.0, 3.0):
            assert session.run(y, {given: [x]}) == 3 * 2 + (x + 2) * (x + 1)


def test_an_error_at_once_names_op_task_and_line(target: str, cluster: list[Any]) -> None:
    given, table, sums = lookup()
    with tf.Session(target) as session:
        session.run(table.initializer)
        for _ in range(3):
            session.run(sums, {given: [1]})
            with pytest.raises(tf.errors.InvalidArgumentError, match="'rows'") as caught:
                session.run(sums, {given: [8]})
            assert "/job:ps/replica:0/task:0" in str(caught.value)
            assert "test_prologues.py" in str(caught.value)
        np.testing.assert_array_equal(session.run(sums, {given: [2]}), TABLE[[2]].sum(1))
    assert not any(server._task._worker._steps for server in cluster)


def test_a_step_that_was_stopped_is_not_begun(target: str, cluster: list[Any]) -> None:
    given, table, sums = lookup()
    worker = cluster[1]._task._worker
    with tf.Session(target) as session:
        session.run(table.initializer)
        for _ in range(2):  # the first one finds out what is short
            session.run(sums, {given: [1]})
        engine = session._engine
        assert any(fields["keys"] and part.prologue for fields, part in worker.prologues.values())
        number = engine._number | next(copy(engine._counter))
        worker.abort(number, tf.errors.CancelledError(None, None, "stopped before it began"))
        with pytest.raises(tf.errors.CancelledError, match="stopped before it began"):
            session.run(sums, {given: [1]})
        np.testing.assert_array_equal(session.run(sums, {given: [2]}), TABLE[[2]].sum(1))
        worker.close_session(engine._session, tf.errors.CancelledError(None, None, "closed"))
        with pytest.raises(tf.errors.AbortedError, match="does not know this session"):
            session.run(sums, {given: [2]})


def test_large_values_have_messages_of_their_own(target: str) -> None:
    given, table, sums = lookup()
    indices = np.arange(20_000) % 8
    with tf.Session(target) as session:
        session.run(table.initializer)
        for _ in range(2):
            KINDS.clear()
            actual = session.run(sums, {given: indices})
        np.testing.assert_array_equal(actual, TABLE[indices].sum(1))
    assert KINDS.count(Kind.TENSOR) == 2


def test_constants_are_put_in_place_once(target: str) -> None:
    given = tf.placeholder(tf.int64, [None, 1])
    with tf.device(WORKER):
        # A sampler is no part of a region, and neither are the constants that it is given.
        classes, _, _ = tf.nn.uniform_candidate_sampler(tf.constant([[2]], tf.int64), 1, 8, True, 8)
        with tf.control_dependencies([tf.abs(given)]):
            total = tf.reduce_sum(classes)
    with tf.device(PS0):
        result = total * 2
    calls = list[Const]()

    def value(self: Const) -> Any:
        calls.append(self)
        return self.value

    with mock.patch.object(Const, "numpy", value), tf.Session(target) as session:
        for _ in range(2):
            session.run(result, {given: [[1]]})
        assert calls
        calls.clear()
        assert session.run(result, {given: [[1]]}) == 2 * sum(range(8))
    assert not calls


def there_and_back(function: Any) -> tuple[Any, Any]:
    """A counter on a server, and an op that adds to it what a function of a value there gives."""
    with tf.device(PS0):
        value, count = tf.Variable(3.0), tf.Variable(0.0)
    with tf.device(WORKER):
        change = function(value)
    with tf.device(PS0):
        return count, count.assign_add(change).op


def test_the_last_calls_of_a_part_need_no_run(target: str, cluster: list[Any]) -> None:
    count, add = there_and_back(lambda value: value - 2.0)
    waits = mock.patch.object(Worker, "wait", autospec=True, side_effect=Worker.wait)
    with tf.Session(target) as session, waits as waited:
        session.run(tf.global_variables_initializer())
        for _ in range(20):
            session.run(add)
        assert session.run(count) == 20.0
        assert waited.call_count > 10  # all but the first ones, which find out what is short
    assert not any(server._task._worker._steps for server in cluster)


def test_a_part_that_waits_ends_with_the_step(target: str, cluster: list[Any]) -> None:
    fails = False

    def change(value: Any) -> Any:
        if fails:
            raise ValueError("no good")
        return value - np.float32(2.0)

    count, add = there_and_back(lambda value: tf.py_func(change, [value], tf.float32))
    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(10):
            session.run(add)
        fails = True
        for _ in range(3):
            with pytest.raises(tf.errors.InvalidArgumentError, match="no good"):
                session.run(add)
        fails = False
        session.run(add)
        assert session.run(count) == 11.0
    assert not any(server._task._worker._steps for server in cluster)


def test_a_part_that_waits_ends_with_its_session(target: str, cluster: list[Any]) -> None:
    is_running, may_end = threading.Event(), threading.Event()

    def change(value: Any) -> Any:
        is_running.set()
        assert may_end.wait(30)
        return value - np.float32(2.0)

    _, add = there_and_back(lambda value: tf.py_func(change, [value], tf.float32))
    worker = cluster[1]._task._worker
    errors = list[Exception]()

    def run(session: tf.Session) -> None:
        try:
            session.run(add)
        except tf.errors.OpError as error:
            errors.append(error)

    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        may_end.set()
        for _ in range(10):
            session.run(add)
        may_end.clear()
        is_running.clear()
        thread = threading.Thread(target=run, args=[session])
        thread.start()
        assert is_running.wait(30)
        worker.reset(None)
        may_end.set()
        thread.join()
    assert isinstance(errors[0], tf.errors.AbortedError)
    assert not worker._steps


def test_a_step_that_waits_is_not_started_again(cluster: list[Any]) -> None:
    worker = cluster[1]._task._worker
    session, ended = "5e55", list[Any]()
    task_session = worker.open_session(session)
    task_session.plans[1] = ()
    key = Key("x:0", "/job:worker/task:0", PS0)
    worker.wait(session, 7, [key], lambda values, error: ended.append((values, error)))
    with pytest.raises(tf.errors.InternalError, match="Step 7 runs already"):
        worker.start(session, 1, 7, {}, lambda call: call(), lambda *_: None)
    worker.deliver(7, Key("other:0", "", ""), 1)
    worker.deliver(7, key, 2)
    worker.abort(7, tf.errors.CancelledError(None, None, "too late"))
    assert ended == [([2], None)] and not worker.has_step(7)
    worker.close_session(session, tf.errors.CancelledError(None, None, "closed"))


STOPPED = tf.errors.CancelledError(None, None, "stopped")


def test_late_messages_of_a_closed_session_leave_no_step(target: str, cluster: list[Any]) -> None:
    """They may come from other tasks, or from another thread of the master than its CLOSE."""
    given, table, sums = lookup()
    workers = [server._task._worker for server in cluster]
    with tf.Session(target) as session:
        session.run(table.initializer)
        session.run(sums, {given: [1]})
        number = session._engine._number | 1000
    assert session_of(number) == session._engine._session
    session._engine._member.endpoint.loop.flush()
    for worker in workers:
        worker.close_session(session_of(number), STOPPED)  # if CLOSE is still under way
        worker.abort(number, STOPPED)
        worker.deliver(number + 1, Key("x:0", WORKER, PS0), np.float32(1))
        assert not worker._steps


def test_steps_that_never_start_end_when_a_task_is_reset(target: str, cluster: list[Any]) -> None:
    worker = cluster[1]._task._worker
    with tf.Session(target) as session:
        session.run(tf.constant(1.0))
        number = session._engine._number | 1000
        worker.abort(number, STOPPED)
        worker.deliver(number + 1, Key("x:0", WORKER, PS0), np.float32(1))
        assert len(worker._steps) == 2
        worker.reset(None)
        assert not worker._steps


def test_failed_steps_leave_nothing_on_a_task_without_a_part(
    target: str, cluster: list[Any]
) -> None:
    with tf.device(PS0):
        given = tf.placeholder(tf.int32, [])
        checked = tf.Assert(given > 0, [given])
    with tf.Session(target) as session:
        for _ in range(3):
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(checked, {given: 0})
        session.run(checked, {given: 1})  # after the messages that ended the others
        assert not any(server._task._worker._steps for server in cluster)


def test_a_step_that_a_task_refuses_leaves_nothing_there(target: str, cluster: list[Any]) -> None:
    given, table, sums = lookup()
    worker = cluster[1]._task._worker
    with tf.Session(target) as session:
        session.run(table.initializer)
        session.run(sums, {given: [1]})
        plans = worker.session(session._engine._session).plans
        kept = dict(plans)
        plans.clear()
        worker.prologues.clear()
        with pytest.raises(tf.errors.OpError):
            session.run(sums, {given: [1]})
        plans.update(kept)
        session.run(sums, {given: [1]})  # after the message that ended the other
        assert not any(server._task._worker._steps for server in cluster)


def test_a_step_whose_queue_is_of_another_type_leaves_nothing_there(
    target: str, cluster: list[Any]
) -> None:
    """The session looks queues up before it runs anything, here before calls that may wait."""

    def size(dtype: tf.DType) -> tf.Tensor:
        with tf.device(PS0):
            queued = tf.FIFOQueue(3, dtype, [()], shared_name="queued").size()
            both = [tf.py_func(np.copy, [queued], tf.int32) for _ in range(2)]
        with tf.device(WORKER):
            return tf.add_n(both)

    first, other = size(tf.float32), size(tf.int32)
    with tf.Session(target) as session:
        assert session.run(first) == 0
        with pytest.raises(tf.errors.InvalidArgumentError, match="component types float32"):
            session.run(other)
        assert session.run(first) == 0  # after the message that ended the other
        assert not any(server._task._worker._steps for server in cluster)
