"""Loops and conditionals as CUDA graphs: values, device memory, faults and cancellation."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.device.cuda import device as devices
from thalweg.device.cuda.emulated import EmulatedContext, EmulatedGraph
from thalweg.device.cuda.memory import Memory
from thalweg.runtime.dataflow.control_region import ControlCall


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as made:
        yield made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[ControlCall]:
    """The control nodes that sessions have planned."""
    result: list[ControlCall] = []
    real = ControlCall.__init__

    def init(self: ControlCall, *given: Any, **options: Any) -> None:
        real(self, *given, **options)
        result.append(self)

    monkeypatch.setattr(ControlCall, "__init__", init)
    return result


def on_both(fetches: Any, feeds: Any = None, steps: int = 2) -> list[Any]:
    """The values of steps on the CPU and on the GPU."""
    result: list[Any] = []
    for count in (0, 1):
        with tf.Session(config=tf.ConfigProto(device_count={"GPU": count})) as session:
            session.run(tf.global_variables_initializer())
            result.append([session.run(fetches, feeds) for _ in range(steps)])
    return result


def agree(fetches: Any, calls: list[ControlCall], feeds: Any = None) -> None:
    cpu, gpu = on_both(fetches, feeds)
    for one, other in zip(cpu, gpu, strict=True):
        for expected, value in zip(one, other, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
    native = [c for c in calls if c.native is not None and not c._backend.device.is_host]
    assert native and all(call.was_native for call in native), [c.reason for c in native]


def test_a_loop_that_decides_on_the_device(calls: list[ControlCall]) -> None:
    x = tf.placeholder(tf.float32, [600])
    count, y = tf.while_loop(
        lambda n, a: tf.reduce_max(a) > 2.0, lambda n, a: (n + 1, a * 0.5), [0, x]
    )
    never = tf.while_loop(lambda a: tf.reduce_sum(a) < 0.0, lambda a: a + 1.0, [x])
    agree([count, y, never], calls, {x: np.arange(600, dtype=np.float32)})


def test_loops_in_loops_and_branches(calls: list[ControlCall]) -> None:
    x = tf.placeholder(tf.float32, [500])

    def inner(i: Any, a: Any) -> Any:
        _, found = tf.while_loop(lambda j, _: j < i, lambda j, b: (j + 1, b + 1.0), [0, a])
        return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: found * 2.0, lambda: found - 1.0)

    _, y = tf.while_loop(lambda i, _: i < 4, inner, [0, x])
    chosen = tf.case(
        [(x[0] > 100.0, lambda: y + 1.0), (x[1] > 0.5, lambda: y * 3.0)], default=lambda: y - 7.0
    )
    agree([y, chosen], calls, {x: np.arange(500, dtype=np.float32)})


def recurrent(steps: int, x: Any, w: Any) -> tuple[Any, Any]:
    rows = tf.TensorArray(tf.float32, steps).unstack(x)
    outputs = tf.TensorArray(tf.float32, steps)

    def body(i: Any, h: Any, held: Any) -> Any:
        h = tf.tanh(tf.matmul(h, w) + rows.read(i))
        return i + 1, h, held.write(i, h)

    _, last, held = tf.while_loop(lambda i, *_: i < steps, body, [0, tf.zeros([20, 30]), outputs])
    return last, held.stack()


def test_gradients_go_back_through_lists_and_traces(calls: list[ControlCall]) -> None:
    x = tf.placeholder(tf.float32, [5, 20, 30])
    w = tf.Variable(np.full((30, 30), 0.02, np.float32))
    last, outputs = recurrent(5, x, w)
    loss = tf.reduce_sum(last) + tf.reduce_sum(outputs * outputs)
    value = np.random.default_rng(0).standard_normal((5, 20, 30))
    agree([last, outputs, *tf.gradients(loss, [w, x])], calls, {x: value})


def test_capacity_of_traces_grows_with_iterations(calls: list[ControlCall]) -> None:
    x = tf.placeholder(tf.float32, [300])
    count = tf.placeholder(tf.int32, [])
    _, y = tf.while_loop(lambda i, _: i < count, lambda i, a: (i + 1, tf.sin(a) * a), [0, x])
    feeds = {x: np.full(300, 1.1, np.float32), count: 100}
    agree([y, *tf.gradients(y, [x])], calls, feeds)


def test_random_numbers_and_variables_in_loops(calls: list[ControlCall]) -> None:
    v = tf.Variable(tf.ones([300]))

    def body(i: Any, a: Any) -> Any:
        with tf.control_dependencies([tf.assign_add(v, a)]):
            return i + 1, a + tf.random_uniform([300], seed=3)

    _, y = tf.while_loop(lambda i, _: i < 3, body, [0, tf.zeros([300])])
    with tf.control_dependencies([y]):
        read = tf.identity(v)
    agree([y, read], calls)


def test_values_of_a_loop_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tf.placeholder(tf.float32, [5, 20, 30])
    w = tf.Variable(np.full((30, 30), 0.02, np.float32))
    last, outputs = recurrent(5, tf.sin(x), w)
    (dw,) = tf.gradients(tf.reduce_sum(last) + tf.reduce_sum(outputs), [w])
    train = tf.assign_sub(w, dw)
    sizes: list[int] = []
    real = Memory.download

    def download(self: Memory, address: int, shape: Any, dtype: Any) -> Any:
        sizes.append(int(np.prod(shape)))
        return real(self, address, shape, dtype)

    monkeypatch.setattr(Memory, "download", download)
    with tf.Session() as session:
        session.run(w.initializer)
        for _ in range(2):
            session.run(train.op, {x: np.ones((5, 20, 30))})
        assert not sizes


def test_a_fault_in_a_loop_restores_variables() -> None:
    v = tf.Variable(tf.zeros([300]))
    table = tf.Variable(tf.ones([4, 300]))
    limit = tf.placeholder(tf.int32, [])

    def body(i: Any) -> Any:
        with tf.control_dependencies([tf.assign_add(v, tf.gather(table, i))]):
            return i + 1

    y = tf.while_loop(lambda i: i < limit, body, [0])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(y, {limit: 4})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"4 is not in \[0, 4\)"):
            session.run(y, {limit: 6})
        session.run(y, {limit: 2})
        assert session.run(v)[0] in (6.0, 10.0)  # the reference kernels ran up to the fault


def test_a_signal_cancels_an_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tf.placeholder(tf.float32, [300])
    y = tf.while_loop(lambda a: tf.reduce_sum(a) > -1.0, lambda a: tf.abs(tf.sin(a)), [x])
    launches = [0]
    real: Callable[..., None] = EmulatedContext.run

    def run(self: EmulatedContext, kernel: Any, words: int) -> None:
        real(self, kernel, words)
        launches[0] += 1
        if launches[0] == 40:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(EmulatedContext, "run", run)
    ones = np.ones(300, np.float32)
    with tf.Session() as session:
        with pytest.raises(KeyboardInterrupt):
            session.run(y, {x: ones})
        assert session.run(x * 2, {x: ones})[0] == 2


def test_the_executor_runs_loops_without_conditional_graphs(
    monkeypatch: pytest.MonkeyPatch, calls: list[ControlCall]
) -> None:
    monkeypatch.setattr(EmulatedContext, "has_conditionals", False)
    monkeypatch.delattr(EmulatedGraph, "add_conditional")
    devices.reset_devices()
    x = tf.placeholder(tf.float32, [5, 20, 30])
    w = tf.Variable(np.full((30, 30), 0.02, np.float32))
    last, outputs = recurrent(5, x, w)
    cpu, gpu = on_both(
        [last, *tf.gradients(tf.reduce_sum(outputs), [w])], {x: np.ones((5, 20, 30))}
    )
    for expected, value in zip(cpu[1], gpu[1], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4)
    assert "its device runs regions, not loops" in {call.reason for call in calls}


@pytest.mark.parametrize("updates", [True, False])
def test_results_of_earlier_calls_keep_their_values(
    monkeypatch: pytest.MonkeyPatch, updates: bool
) -> None:
    def refuse(self: EmulatedGraph, node: int, kernel: Any) -> None:
        raise tf.errors.InternalError(None, None, "not inside conditional graphs")

    if not updates:
        monkeypatch.setattr(EmulatedGraph, "update", refuse)
    x = tf.placeholder(tf.float32, [400])
    y = tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a + 1.0), [0, tf.identity(x)])[1]
    held: list[Any] = []
    with tf.Session() as session:
        handles = tf.get_session_handle(y)
        for number in range(3):
            held.append(session.run(handles, {x: np.full(400, number)}))
        placed, value = tf.get_session_tensor(held[0].handle, tf.float32)
        actual = [session.run(value, {placed: each.handle})[0] for each in held]
    assert actual == [3, 4, 5]


@pytest.mark.parametrize("inner", ["loop", "conditional", "update"])
@pytest.mark.parametrize("is_fetched", [False, True])
def test_a_branch_on_the_host_writes_variables_of_the_gpu(inner: str, is_fetched: bool) -> None:
    with tf.device("/gpu:0"):
        v = tf.Variable([0.3, -0.2, 0.5])
    x = tf.placeholder(tf.float32, [3])

    def update(i: Any, a: Any) -> Any:
        with tf.control_dependencies([tf.assign_add(v, tf.ones([3]))]):
            return i + 1, a * 0.5

    makers: dict[str, Callable[[], Any]] = {
        "loop": lambda: tf.while_loop(lambda i, _: i < 2, update, [0, x])[1],
        "conditional": lambda: tf.cond(x[0] > 0, lambda: update(0, x)[1], lambda: x),
        "update": lambda: update(0, x)[1],
    }

    def branch() -> Any:
        with tf.device("/gpu:0"):
            result = makers[inner]()
        with tf.device("/cpu:0"), tf.control_dependencies([result]):
            return tf.identity(result if is_fetched else x)

    with tf.device("/cpu:0"):
        chosen = tf.cond(x[0] > 0, branch, lambda: x)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(chosen, {x: [1, 2, 3]})
        added = 2 if inner == "loop" else 1
        np.testing.assert_allclose(session.run(v), np.float32([0.3, -0.2, 0.5]) + added)
