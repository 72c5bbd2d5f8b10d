"""Steps on several devices: what they give, and how they fail, stop and run beside each other."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.device import workers
from thalweg.runtime.compiled import Executable

_DEVICES = "/job:localhost/replica:0/task:0/device:CPU:{}"


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def session(count: int = 2, **config: Any) -> tf.Session:
    return tf.Session(config=tf.ConfigProto(device_count={"CPU": count}, **config))


def plan_of(opened: Any, *fetches: tf.Tensor) -> Any:
    """The plan of a step without feeds."""
    return opened.plan(list(fetches)).plan


def test_a_region_never_mixes_devices():
    x = tf.Variable([1.0, 2.0])
    for index in (1, 0, 1):
        with tf.device(f"/cpu:{index}"):
            x = tf.tanh(x + 1.0)
    with session() as opened:
        opened.run(tf.global_variables_initializer())
        planned = plan_of(opened, x)
        opened.run(x)
    names = [
        {node.name for node in instruction.nodes if node.type == "Tanh"}
        for part in planned.partitions
        for instruction in part.plan.instructions
        if isinstance(instruction.call, Executable)
    ]
    assert sorted(map(len, filter(None, names))) == [1, 1, 1]


def test_a_step_on_one_device_has_no_partitions():
    with tf.device("/cpu:1"):
        v = tf.Variable([1.0])
        y = tf.square(v + 1.0)
    with session() as opened:
        opened.run(v.initializer)
        assert opened.run(y) == [4.0]
        planned = plan_of(opened, y)
    assert not planned.partitions
    assert planned.device == _DEVICES.format(1)


def test_variables_live_on_their_device():
    with tf.device("/cpu:1"):
        v = tf.Variable([1.0], name="v")
    w = tf.Variable([2.0], name="w")
    with session() as opened:
        opened.run([v.initializer, w.initializer])
        assert opened.run(v + w) == [3.0]
        own = [opened.resources.on(_DEVICES.format(index)) for index in range(2)]
        missing = object()
        assert own[0].get("v", "", lambda: missing) is missing
        assert own[1].get("w", "", lambda: missing) is missing
        cell = own[1].get("v", "", lambda: missing)
        assert cell.read() == [1.0]
        assert cell.buffer.device == _DEVICES.format(1)


def test_savers_work_across_devices(tmp_path):
    with tf.device("/cpu:1"):
        v = tf.Variable([1.0], name="v")
    w = tf.Variable([2.0], name="w")
    saver = tf.train.Saver()
    with session() as opened:
        opened.run(tf.global_variables_initializer())
        path = saver.save(opened, str(tmp_path / "model"))
        opened.run([v.assign([5.0]), w.assign([6.0])])
        saver.restore(opened, path)
        assert opened.run([v, w]) == [[1.0], [2.0]]
    with session(1, allow_soft_placement=True) as alone:
        saver.restore(alone, path)
        assert alone.run([v, w]) == [[1.0], [2.0]]


def test_a_random_stream_is_the_same_in_every_plan():
    with tf.device("/cpu:1"):
        drawn = tf.random_uniform([], seed=5)
    crossed = drawn + 0.0
    with session() as opened:
        found = [opened.run(each) for each in (drawn, crossed, drawn, crossed)]
    with session() as again:
        assert [again.run(drawn) for _ in range(4)] == found


def test_feeds_reach_all_devices_and_fetches_come_from_all():
    x = tf.placeholder(tf.float32, [2])
    ys = []
    for index in range(4):
        with tf.device(f"/cpu:{index}"):
            ys.append(x * float(index))
    with session(4) as opened:
        actual = opened.run({"ys": ys, "x": x, "total": tf.add_n(ys)}, {x: [1.0, 2.0]})
    np.testing.assert_array_equal(actual["ys"], np.outer(range(4), [1.0, 2.0]))
    np.testing.assert_array_equal(actual["total"], [6.0, 12.0])
    np.testing.assert_array_equal(actual["x"], [1.0, 2.0])


def failing() -> tuple[tf.Tensor, tf.Tensor]:
    """An index, and a step in which CPU:0 waits for what a bad index on CPU:1 never gives."""
    at = tf.placeholder(tf.int32, [], name="at")
    with tf.device("/cpu:1"):
        taken = tf.gather(tf.constant([1.0, 2.0]) * 2.0, at, name="taken")
    with tf.device("/cpu:0"):
        return at, tf.negative(taken, name="waits")


def test_an_error_on_one_device_ends_the_step_on_all():
    at, y = failing()
    with session() as opened:
        assert opened.run(y, {at: 1}) == -4.0
        for _ in range(20):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"test_partitions\.py") as e:
                opened.run(y, {at: 9})
            assert e.value.op is y.graph.get_operation_by_name("taken")
        assert opened.run(y, {at: 0}) == -2.0
        assert not [t for t in threading.enumerate() if t.name.startswith("thalweg-step")]


def test_an_error_leaves_variables_as_they_were():
    at, y = failing()
    with tf.device("/cpu:0"):
        v = tf.Variable(1.0)
        with tf.control_dependencies([y]):
            update = v.assign_add(1.0)
    with session() as opened:
        opened.run(v.initializer)
        with pytest.raises(tf.errors.InvalidArgumentError):
            opened.run(update, {at: 9})
        assert opened.run(v) == 1.0


def waiting() -> tuple[Any, tf.Tensor]:
    """A queue on CPU:1, and a step in which CPU:0 waits for its next element."""
    with tf.device("/cpu:1"):
        queue = tf.FIFOQueue(3, [tf.float32], [[]])
        taken = queue.dequeue()
    with tf.device("/cpu:0"):
        return queue, tf.negative(taken)


def test_a_closed_session_wakes_who_receives():
    _, y = waiting()
    opened = session()
    running = threading.Event()
    steps = opened._steps

    class Noted(set):
        def add(self, item: Any) -> None:
            super().add(item)
            running.set()

    opened._steps = Noted(steps)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(opened.run, y)
        assert running.wait(60)
        opened.close()
        with pytest.raises(tf.errors.CancelledError):
            future.result(60)


def test_a_deadline_ends_who_receives():
    _, y = waiting()
    with session() as opened, pytest.raises(tf.errors.DeadlineExceededError):
        opened.run(y, options=tf.RunOptions(timeout_in_ms=20))
    with (
        session(operation_timeout_in_ms=20) as opened,
        pytest.raises(tf.errors.DeadlineExceededError),
    ):
        opened.run(y)


def test_what_blocks_on_one_device_waits_for_another_step():
    queue, y = waiting()
    put = queue.enqueue(3.0)
    with session() as opened, ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(opened.run, y) for _ in range(3)]
        for _ in range(3):
            opened.run(put)
        assert [future.result(60) for future in futures] == [-3.0] * 3


def test_many_threads_run_steps_on_many_devices():
    x = tf.placeholder(tf.float32, [3])
    with tf.device("/cpu:3"):
        count = tf.Variable(0, dtype=tf.int32)
    y = x
    for step in range(6):
        with tf.device(f"/cpu:{step % 4}"):
            y = tf.tanh(y) + 1.0
    with tf.control_dependencies([y]):
        counted = tf.assign_add(count, 1, use_locking=True)
    at, bad = failing()
    with session(4) as opened, ThreadPoolExecutor(8) as pool:
        opened.run(count.initializer)
        inputs = [np.full(3, value, np.float32) for value in range(40)]
        wanted = [opened.run(y, {x: value}) for value in inputs]
        good = [pool.submit(opened.run, [y, counted], {x: value}) for value in inputs]
        failed = [pool.submit(opened.run, bad, {at: 5}) for _ in range(10)]
        for right, future in zip(wanted, good, strict=True):
            np.testing.assert_array_equal(future.result(60)[0], right)
        assert all(
            isinstance(future.exception(60), tf.errors.InvalidArgumentError) for future in failed
        )
        assert opened.run(count) == 40


def test_an_interrupt_stops_all_partitions(monkeypatch):
    _, y = waiting()
    with session() as opened:

        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        with tf.device("/cpu:0"):
            stop = tf.py_func(interrupted, [tf.constant(1.0)], tf.float32)
        with pytest.raises(KeyboardInterrupt):
            opened.run([y, stop])


def test_a_loop_on_several_devices_is_run_by_the_executor():
    with tf.device("/cpu:1"):
        v = tf.Variable(0.0)

    def body(i: tf.Tensor, x: tf.Tensor) -> Any:
        with tf.device("/cpu:1"):
            a = tf.tanh(x) + 1.0
        with tf.device("/cpu:0"), tf.control_dependencies([v.assign_add(1.0)]):
            return i + 1, a * 0.5

    _, y = tf.while_loop(lambda i, _: i < 4, body, [0, tf.constant(0.25)])
    with session() as opened:
        opened.run(v.initializer)
        found = opened.run(y)
        assert opened.run(v) == 4.0
        (control,) = opened.plan(y).controls
    assert control.reason == "its nodes are on several devices"
    with session(1, allow_soft_placement=True) as alone:
        alone.run(v.initializer)
        np.testing.assert_allclose(alone.run(y), found, rtol=1e-6)


def test_a_gradient_may_lack_values_of_the_branch_that_was_not_taken():
    """The conditional runs on the executor, its gradient natively, with a count or with none."""
    x, chooses = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.bool, [])

    def halved() -> Any:
        with tf.device("/cpu:1"):
            _, y = tf.while_loop(lambda i, _: i < 2, lambda i, h: (i + 1, h * 0.5), [0, x])
        return y

    with tf.device("/cpu:0"):
        y = tf.cond(chooses, halved, lambda: 3 * x)
        (dx,) = tf.gradients(y, x)
    with session() as opened:
        for chosen, slope in ((True, 0.25), (False, 3.0), (True, 0.25)):
            value = opened.run(dx, {x: [1.0, 2.0], chooses: chosen})
            assert value.tolist() == [slope, slope]


def test_primitives_run_on_several_devices():
    with tf.device("/cpu:1"):
        v = tf.Variable(2.0)
        passed, _ = tf.control.switch(v * 1.0, tf.placeholder_with_default(False, []))
    y = tf.identity(passed) + 1.0
    with session() as opened:
        opened.run(v.initializer)
        assert opened.run(y) == 3.0
        assert opened.run(v) == 2.0


def test_partial_runs_use_the_state_of_each_device():
    with tf.device("/cpu:1"):
        v = tf.Variable(2.0)
    x = tf.placeholder(tf.float32, [])
    a, b = x + 1.0, x * v
    with session() as opened:
        opened.run(v.initializer)
        handle = opened.partial_run_setup([a, b], [x])
        assert opened.partial_run(handle, a, {x: 3.0}) == 4.0
        assert opened.partial_run(handle, b) == 6.0


def test_partition_graphs_are_reported():
    with tf.device("/cpu:1"):
        x = tf.square(tf.placeholder_with_default(3.0, []), name="x")
    metadata = tf.RunMetadata()
    options = tf.RunOptions(output_partition_graphs=True)
    with session() as opened:
        assert opened.run(tf.negative(x, name="y"), options=options, run_metadata=metadata) == -9.0
    kinds = [[node.op for node in graph.node] for graph in metadata.partition_graphs]
    assert [kind[-1] for kind in kinds] == ["Neg", "_Send"]


def test_callables_run_partitions():
    x = tf.placeholder(tf.float32, [])
    with tf.device("/cpu:1"):
        y = tf.square(x)
    with session() as opened:
        call = opened.make_callable(tf.negative(y), [x])
        assert [call(2.0), call(3.0)] == [-4.0, -9.0]


def programs_of(planned: Any) -> list[Any]:
    """The compiled programs of a plan on several devices."""
    calls = [step.call for part in planned.partitions for step in part.plan.instructions]
    executables = [call for call in calls if isinstance(call, Executable)]
    return [program for executable in executables for program in executable.programs.values()]


def test_a_value_leaves_as_soon_as_it_is_made():
    """Its kernel comes first, though the program says otherwise, and the table signals an event
    between that one and the others."""
    x = tf.placeholder(tf.float32, [200, 200])
    late = tf.matmul(x, x, name="late")
    late = tf.matmul(late, late, name="later")
    early = tf.matmul(x + 1.0, x, name="early")
    with tf.device("/cpu:1"):
        there = tf.reduce_sum(early)
    given = np.full((200, 200), 0.1, np.float32)
    with session() as opened:
        explained = opened.plan([late, there], {x: given})
        assert "sends    early:0 after kernel 2 of 4" in str(explained)
        (program,) = [p for p in programs_of(explained.plan) if len(p.listing.calls) == 4]
        invocation = program._invocation()
        (event,), entries = invocation.early.values(), invocation.table.entries
        assert event.entry in entries[:-1]
        for _ in range(20):
            values = opened.run([late, there], {x: given})
            np.testing.assert_allclose(values[0], np.linalg.matrix_power(given, 4), rtol=1e-4)
            np.testing.assert_allclose(values[1], ((given + 1) @ given).sum(), rtol=1e-4)


def test_what_a_short_program_makes_leaves_at_its_end():
    """To wake a thread that sends it would take longer than the rest of the program."""
    x = tf.placeholder(tf.float32, [100, 100])
    with tf.device("/cpu:1"):
        there = tf.reduce_sum(tf.matmul(x + 1.0, x))
    with tf.device("/cpu:0"):
        early = tf.matmul(x, x)
        late = tf.matmul(early, early)
    with tf.device("/cpu:1"):
        there += tf.reduce_sum(early)
    given = np.full((100, 100), 0.1, np.float32)
    with session() as opened:
        explained = opened.plan([late, there], {x: given})
        invocations = [program._invocation() for program in programs_of(explained.plan)]
        assert invocations and not any(invocation.early for invocation in invocations)
        values = opened.run([late, there], {x: given})
        np.testing.assert_allclose(values[0], np.linalg.matrix_power(given, 4), rtol=1e-4)
        total = ((given + 1) @ given).sum() + (given @ given).sum()
        np.testing.assert_allclose(values[1], total, rtol=1e-4)


def test_what_was_sent_before_a_fault_is_sent_once():
    x = tf.placeholder(tf.float32, [200, 200])
    index = tf.placeholder(tf.int32, [])
    rows = tf.gather(tf.matmul(x, x), index)
    with tf.device("/cpu:1"):
        there = tf.reduce_sum(tf.matmul(x, x + 1.0))
    with tf.device("/cpu:0"):
        here = tf.matmul(x + 2.0, x)
    with tf.device("/cpu:1"):
        there += tf.reduce_sum(here)
    given = np.ones((200, 200), np.float32)
    with session() as opened:
        opened.run([rows, there], {x: given, index: 3})
        for _ in range(5):
            with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
                opened.run([rows, there], {x: given, index: 300})
            total = opened.run([rows, there], {x: given, index: 3})[1]
            np.testing.assert_allclose(total, 200**3 * 5.0, rtol=1e-4)


def test_a_plan_of_partitions_is_explained_and_measured():
    with tf.device("/cpu:1"):
        v = tf.Variable(np.ones(100, np.float32))
        x = tf.square(v, name="x")
    y = tf.tanh(x, name="y")
    with session() as opened:
        opened.run(v.initializer)
        explained = opened.plan(y)
        assert "2 regions" in str(explained)
        assert "sends    x:0 after kernel 1 of 1" in str(explained)
        kernels = {kernel.main.name for kernel in explained.kernels}
        assert kernels == {"x", "y"}
        assert "y" in str(explained.profile(1))


def test_long_calls_of_several_devices_run_at_once():
    meeting = threading.Barrier(2)

    def meet(x: Any) -> Any:
        meeting.wait(60)
        return x

    ys = []
    for index in range(2):
        with tf.device(f"/cpu:{index}"):
            ys.append(tf.py_func(meet, [tf.constant(float(index))], tf.float32))
    with session() as opened:
        assert opened.run(ys) == [0.0, 1.0]
        assert opened.run(ys[0] + ys[1]) == 1.0


def test_small_steps_on_several_devices_need_no_other_thread(monkeypatch):
    x = tf.placeholder(tf.float32, [3])
    y = x
    for step in range(4):
        with tf.device(f"/cpu:{step % 2}"):
            y = y * 2.0 + 1.0
    value = np.ones(3, np.float32)
    with session() as opened:
        first = opened.run(y, {x: value})
        monkeypatch.setattr(workers, "start", None)
        np.testing.assert_array_equal(opened.run(y, {x: value}), first)
