"""Concurrent steps that use the same variables: mutual exclusion, and no lost updates."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.runtime.pausing import impatient
from thalweg import errors
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state.variable_uses import USES, HostUse, Use, Uses
from thalweg.runtime import engine
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.kernels import Context

MODES = {"plain": (False, False), "locking": (True, False), "resource": (False, True)}


def cell(is_resource: bool = False) -> VariableCell:
    variable_cell = VariableCell("v", tf.float32, tf.TensorShape([4]), is_resource)
    variable_cell.assign(np.zeros(4, np.float32))
    return variable_cell


def waits(uses: Uses, first: Use[Any], second: Use[Any]) -> bool:
    """Whether the second use waits for the first to end."""
    uses.begin(first)
    begun = threading.Event()

    def later() -> None:
        uses.begin(second)
        begun.set()
        uses.end(second)

    thread = threading.Thread(target=later)
    thread.start()
    while not begun.is_set() and not uses.waiting:
        pass
    waited = not begun.is_set()
    uses.end(first)
    thread.join()
    assert not uses.uses and not uses.waiting
    return waited


def test_exclusive_writes_exclude_all_uses_of_the_variable() -> None:
    v, other = cell(), cell()
    reads, writes, locks = Use([v]), Use([v], [0]), Use([v], [0], [0])
    pairs = {"read": reads, "write": writes, "lock": locks}
    for name, use in pairs.items():
        for second in pairs:
            another = Use([v], use.written, use.exclusive)
            use.cells, pairs[second].cells = [v], [v]
            first = pairs[second] if pairs[second] is not use else another
            first.cells = [v]
            assert waits(Uses(), first, use) == ("lock" in (name, second)), (second, name)
    assert not waits(Uses(), Use([v], [0], [0]), Use([other], [0], [0]))


def test_writes_of_resource_variables_are_exclusive() -> None:
    v = cell(is_resource=True)
    assert waits(Uses(), Use([v], [0]), Use([v]))
    assert waits(Uses(), Use([v]), Use([v], [0]))
    assert not waits(Uses(), Use([v]), Use([v]))


def test_readers_do_not_starve_a_writer() -> None:
    """A reader that arrives after a waiting writer waits for it."""
    uses, v = Uses(), cell()
    reading, order = Use([v]), []
    uses.begin(reading)
    threads = []
    for name, use in (("writer", Use([v], [0], [0])), ("reader", Use([v]))):

        def run(name: str = name, use: Use[Any] = use) -> None:
            uses.begin(use)
            order.append(name)
            uses.end(use)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        while uses.waiting < len(threads):
            pass
    uses.end(reading)
    for thread in threads:
        thread.join()
    assert order == ["writer", "reader"]


def test_uses_of_a_variable_nest_on_one_thread() -> None:
    v = cell()
    with HostUse([v], writes=True):
        v.assign(v.read() + 1)
    np.testing.assert_array_equal(v.read(), np.ones(4))


@pytest.mark.parametrize("inner", ["the same", "another"])
def test_a_nested_use_overtakes_waiting_uses(inner: str) -> None:
    """Otherwise it would deadlock with a use that waits for the outer one."""
    v, other = cell(), cell()
    cells = [v] if inner == "the same" else [other]
    order: list[str] = []

    def later(name: str, cells: list[VariableCell]) -> threading.Thread:
        def run() -> None:
            with HostUse(cells, writes=True):
                order.append(name)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with HostUse([v], writes=True):
        threads = [later("waits for the outer one", [v, other])]
        while USES.waiting < 1:
            pass
        threads.append(later("waits for the one that waits", [other]))
        while USES.waiting < 2:
            pass
        with HostUse(cells, writes=True):
            order.append("inner")
    for thread in threads:
        thread.join()
    assert order == ["inner", "waits for the outer one", "waits for the one that waits"]


def test_a_nested_use_waits_for_a_running_use() -> None:
    v, other = cell(), cell()
    order: list[str] = []
    begun, release = threading.Event(), threading.Event()

    def run() -> None:
        with HostUse([other], writes=True):
            begun.set()
            release.wait()
            order.append("running")

    thread = threading.Thread(target=run)
    with HostUse([v], writes=True):
        thread.start()
        begun.wait()
        threading.Thread(target=lambda: (_wait_for(1), release.set())).start()
        with HostUse([other], writes=True):
            order.append("nested")
    thread.join()
    assert order == ["running", "nested"]


def _wait_for(count: int) -> None:
    while USES.waiting < count:
        pass


def test_concurrent_increments_are_not_lost() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        counter = tf.Variable(0, trainable=False)
        session.run(counter.initializer)
        count = session.make_callable(counter.count_up_to(400))
        actual: list[int] = []
        at_once(8, lambda: actual.extend(int(count()) for _ in range(50)))
        assert sorted(actual) == list(range(400))


def test_a_waiting_step_can_be_cancelled() -> None:
    uses, v = Uses(), cell()
    first, second = Use([v], [0], [0]), Use([v])
    uses.begin(first)
    cancellation = Cancellation()
    cancellation.cancel(errors.DeadlineExceededError(None, None, "late"))
    with pytest.raises(errors.DeadlineExceededError):
        uses.begin(second, cancellation)
    uses.end(second)
    uses.end(first)
    assert not uses.uses and not uses.waiting


@pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")
def test_a_use_that_is_interrupted_while_it_is_requeued_excludes_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C between the two steps of `requeue`, in a loop that others wait for."""
    with tf.Graph().as_default(), tf.device("/cpu:0"), tf.Session() as session:
        v = tf.get_variable("v", [], initializer=tf.zeros_initializer(), use_resource=True)

        def body(i: Any) -> Any:
            with tf.control_dependencies([v.assign_add(1.0)]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 1_000_000, body, [0])
        session.run(v.initializer)

        def interrupted(self: Uses, use: Use[Any], cancellation: Any) -> None:
            self.uses.append(use)
            raise KeyboardInterrupt

        monkeypatch.setattr(Uses, "is_contended", True)
        monkeypatch.setattr(Uses, "requeue", interrupted)
        with impatient(), pytest.raises(KeyboardInterrupt):
            session.run(loop)
        monkeypatch.undo()
        session.run(v.assign(3.0))  # would wait for ever
        assert session.run(v) == 3.0


def test_host_views_keep_their_value_while_the_buffer_is_updated() -> None:
    v = cell()
    view = v.read()
    with USES.mutex:
        assert v.copy_on_write().address != view.ctypes.data
    del view
    buffer = v.buffer
    with USES.mutex:
        assert v.copy_on_write() is buffer


def test_a_buffer_that_a_step_writes_is_never_replaced() -> None:
    v = cell()
    running = Use([v], [0])
    USES.begin(running)
    try:
        with USES.mutex:
            buffer = v.copy_on_write()
            running.buffers = [buffer]
        leased = buffer.lease()  # briefly, as `read` holds one while it checks for running uses
        with USES.mutex:
            assert v.copy_on_write() is buffer
        del leased
        assert v.read().base is None  # a copy: a view would change
    finally:
        USES.end(running)


# Programs


def at_once(count: int, work: Any) -> None:
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work) for _ in range(count)]:
            done.result()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threads", [2, 8])
def test_no_training_step_is_lost(mode: str, threads: int) -> None:
    locking, resource = MODES[mode]
    steps = 25
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [96, 96])
        w = tf.get_variable("w", [64], initializer=tf.zeros_initializer(), use_resource=resource)
        count = tf.get_variable("c", [], initializer=tf.zeros_initializer(), use_resource=resource)
        y = x
        for _ in range(8):
            y = tf.matmul(y, x)
        loss = tf.reduce_sum(w) + 0 * tf.reduce_sum(y)
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(-1.0, use_locking=locking)
        fetches = [
            optimizer.minimize(loss, global_step=step),
            tf.assign_add(count, 1.0, use_locking=locking),
            loss,
        ]
        session.run(tf.global_variables_initializer())
        array = np.full([96, 96], 0.01, np.float32)
        run = session.make_callable(fetches, [x])

        def work() -> None:
            for _ in range(steps):
                run(array)

        at_once(threads, work)
        total = threads * steps
        assert session.run([step, count]) == [total, total]
        if mode != "plain":  # there, two steps may write one element concurrently
            np.testing.assert_array_equal(session.run(w), np.full(64, total))


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64", "uint8"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_additions_to_counters_are_atomic(dtype: str, shape: tuple[int, ...]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.get_variable("v", shape, dtype, tf.ones_initializer())
        up = tf.assign_add(v, tf.fill(shape, tf.cast(5, dtype)))
        with tf.control_dependencies([up]):
            down = tf.assign_sub(v, tf.fill(shape, tf.cast(2, dtype)))
        session.run(v.initializer)
        np.testing.assert_array_equal(session.run(down), np.full(shape, 4))
        assert all("atomicrmw" in kernel.llvm for kernel in session.plan(down).kernels)


@pytest.mark.parametrize("mode", ["locking", "resource"])
def test_no_read_is_torn(mode: str) -> None:
    locking, resource = MODES[mode]
    size, steps = 200_000, 40
    with tf.Graph().as_default(), tf.Session() as session:
        zeros = tf.zeros_initializer()
        v = tf.get_variable("v", [size], initializer=zeros, use_resource=resource)
        update = tf.assign_add(v, tf.ones([size]), use_locking=locking).op
        reads = [v, v.value(), v * 1, tf.py_func(np.copy, [v], tf.float32)]
        session.run(v.initializer)
        stop = threading.Event()

        def write() -> None:
            for _ in range(steps):
                session.run(update)
            stop.set()

        writer = threading.Thread(target=write)
        writer.start()
        while not stop.is_set():
            for read in reads:
                actual = session.run(read)
                assert actual.min() == actual.max()
        writer.join()
        assert session.run(v)[0] == steps


@pytest.mark.parametrize("mode", MODES)
def test_updates_of_a_loop_are_not_lost_beside_steps(mode: str) -> None:
    locking, resource = MODES[mode]
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.get_variable("v", [], initializer=tf.zeros_initializer(), use_resource=resource)

        def body(i: Any) -> Any:
            with tf.control_dependencies([tf.assign_add(v, 1.0, use_locking=locking)]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 1000, body, [0])
        step = tf.assign_add(v, 1.0, use_locking=locking).op
        session.run(v.initializer)

        def work() -> None:
            session.run(loop)
            for _ in range(100):
                session.run(step)

        at_once(4, work)
        assert session.run(v) == 4 * 1100


@pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")
def test_a_loop_lets_steps_update_between_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    requeue, count = Uses.requeue, [0]

    def counted(self: Uses, use: Use[Any], cancellation: Any) -> None:
        count[0] += 1
        requeue(self, use, cancellation)

    monkeypatch.setattr(Uses, "requeue", counted)
    with tf.Graph().as_default(), tf.device("/cpu:0"), tf.Session() as session, impatient():
        v = tf.Variable(tf.zeros([20_000]))

        def body(i: Any) -> Any:
            with tf.control_dependencies([tf.assign_add(v, tf.ones([20_000]), use_locking=True)]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 200, body, [0])
        step = tf.assign_add(v, tf.ones([20_000]), use_locking=True).op
        session.run(v.initializer)

        def work() -> None:
            session.run(loop)
            for _ in range(20):
                session.run(step)

        at_once(4, work)
        np.testing.assert_array_equal(session.run(v), np.full(20_000, 4 * 220, np.float32))
    assert count[0]
    assert not USES.uses


def test_what_was_read_never_changes_beside_steps_that_write() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.Variable(np.zeros(4096, np.float32), name="w")
        session.run(w.initializer)
        grow = session.make_callable(w.assign_add(tf.ones([4096])).op)
        node = w.op
        device = session.list_devices()[-1]  # a GPU, where there is one
        resources = session.resources.on(device.name)
        held = node.op.kernel(Context(node, resources, Cancellation()))

        def work() -> None:
            kept: list[Any] = []
            for number in range(60):
                grow()
                leased = held.read()
                kept.append((leased[::7], leased[::7].copy()))
                # Without locking, a GPU may update elements during a read.
                assert device.device_type == "GPU" or (leased == leased[0]).all()
                if number % 3:
                    kept.pop(0)
            for view, value in kept:
                np.testing.assert_array_equal(view, value)

        at_once(4, work)
        last = session.run(w)
        assert device.device_type == "GPU" or (last == last[0]).all()
        assert not held.borrow().is_leased
