"""Loops and conditionals that an earlier process compiled, restored; what their keys contain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.runtime.processes import Processes, assert_equal, with_layout
from thalweg.codegen import cache
from thalweg.codegen.cache import Kernels
from thalweg.codegen.contraction import tune as tuned
from thalweg.codegen.contraction.tune import Winners
from thalweg.codegen.machine import named
from thalweg.control.lists import ListValue
from thalweg.control.traces import LoopCount, LoopTrace
from thalweg.device import tuning
from thalweg.device.control_inputs import buffer_text, input_buffer
from thalweg.device.cpu.device import CpuDevice
from thalweg.device.cpu.pool import Pool
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.lower import lowering
from thalweg.lower.control import builder
from thalweg.lower.control.program import Capacity
from thalweg.lower.fingerprint import control_fingerprint, op_text
from thalweg.lower.specialise import ControlRegion
from thalweg.ops.core.context import VariableCell
from thalweg.platform.disk_cache import Disk
from thalweg.runtime import engine, native_control, program_cache
from thalweg.runtime.dataflow.control_region import ControlCall
from thalweg.runtime.native_control import NativeControl
from thalweg.runtime.plan import Step

pytestmark = pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")


class Loops(Processes):
    """Processes in which lowered control nodes are counted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch, lowering)
        lower_control = builder.lower_control
        self.controls = 0

        def noted(*arguments: Any) -> Any:
            self.controls += 1
            return lower_control(*arguments)

        monkeypatch.setattr(builder, "lower_control", noted)

    def result(self, steps: Callable[[Any], Any], lowered: int) -> Any:
        """What steps give in a new process, which lowers so many control nodes."""
        self.controls = 0
        with self.next() as session:
            found = steps(session)
        assert self.controls == lowered
        return found


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loops:
    monkeypatch.setattr(native_control, "RESTORES", True)
    return Loops(tmp_path, monkeypatch)


# Restored programs


def loop(session: Any, count: int = 3, size: int = 5) -> list[Any]:
    """A loop and its gradient, which reads traces."""
    x = tf.placeholder(tf.float32, [None])
    _, y = tf.while_loop(lambda i, y: i < count, lambda i, y: (i + 1, tf.sin(y) * 2), [0, x])
    return session.run([y, tf.gradients(y, x)[0]], {x: np.linspace(0, 1, size)})


def branches(session: Any) -> list[Any]:
    x = tf.placeholder(tf.float32, [4])
    y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.exp(x), lambda: x * x)
    z = tf.case([(x[0] > 1, lambda: x + 1), (x[1] > 1, lambda: x + 2)], lambda: x + 3)
    fetches = [y, z, tf.gradients(y, x)[0]]
    signs = np.float32([[1, 1, 1, 1], [-1, 2, -1, -1], [2, 0, 0, 0]])
    return [each for sign in signs for each in session.run(fetches, {x: sign})]


def scanned(session: Any) -> list[Any]:
    """Lists that come in, go out and are kept for the gradient."""
    x = tf.placeholder(tf.float32, [None, 3])
    w = tf.Variable(0.5)
    y = tf.scan(lambda h, row: tf.tanh(w * h + row), x, tf.zeros([3]))
    update = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.square(y)))
    session.run(w.initializer)
    rows = np.linspace(-1, 1, 21, dtype=np.float32).reshape(7, 3)
    return [each for _ in range(3) for each in session.run([y, update, w], {x: rows})[::2]]


def updating(session: Any) -> list[Any]:
    """A loop that writes a variable, with locking."""
    v = tf.Variable(np.arange(4, dtype=np.float32))
    session.run(v.initializer)

    def body(i: Any) -> Any:
        with tf.control_dependencies([tf.assign_add(v, v * 0.5, use_locking=True)]):
            return i + 1

    return [session.run([tf.while_loop(lambda i: i < 3, body, [0]), v])[1], session.run(v)]


def drawing(session: Any) -> list[Any]:
    """Random numbers inside a loop: a stream that goes on from run to run."""
    y = tf.while_loop(
        lambda i, y: i < 3,
        lambda i, y: (i + 1, y + tf.random_uniform([3], seed=4)),
        [0, tf.zeros([3])],
    )[1]
    return [session.run(y) for _ in range(3)]


def narrow(session: Any) -> list[Any]:
    x = tf.placeholder(tf.float32, [5])
    y = tf.while_loop(
        lambda i, y: i < 3,
        lambda i, y: (i + 1, tf.cast(tf.cast(y, tf.bfloat16), tf.float32) * 2 + np.arange(5.0)),
        [0, x],
    )[1]
    return [session.run(y, {x: np.ones(5)})]


@pytest.mark.parametrize("steps", [loop, branches, scanned, updating, drawing, narrow])
def test_a_second_process_lowers_no_control_node(processes: Loops, steps: Any) -> None:
    with processes.next() as session:
        first = steps(session)
    assert processes.controls
    second = processes.result(steps, lowered=0)
    assert_equal(first, second)
    if steps is drawing:
        assert len({each.tobytes() for each in first}) == 3


def test_tests_lower_all_their_control_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = Loops(tmp_path, monkeypatch)
    for _ in range(2):
        processes.result(loop, lowered=2)


def test_capacity_that_was_exceeded(processes: Loops) -> None:
    """Programs of every capacity are found: the first ones give up again."""
    first = processes.result(lambda session: loop(session, 300), lowered=4)
    assert_equal(first, processes.result(lambda session: loop(session, 300), lowered=0))


def test_sizes_that_vary(processes: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that restore the first programs need the same kernels as one that restores none."""

    def sized(*sizes: int) -> Callable[[Any], Any]:
        def run(session: Any) -> Any:
            x = tf.placeholder(tf.float32, [None])
            y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), [0, x])[1]
            return [session.run(y, {x: np.ones(size)}) for size in sizes]

        return run

    with monkeypatch.context() as patch:
        patch.setattr(native_control, "RESTORES", False)
        processes.result(sized(5, 7, 9), lowered=3)
    kernels = {path.name for path in processes.kernels()}
    processes.folder = processes.folder / "other"
    processes.result(sized(5), lowered=1)
    processes.result(sized(5, 7), lowered=1)
    actual = processes.result(sized(5, 7, 9), lowered=1)
    assert {path.name for path in processes.kernels()} <= kernels
    assert_equal(actual, [np.full(size, 8) for size in (5, 7, 9)])
    processes.result(sized(5, 7, 9), lowered=0)


def test_errors_name_the_op_and_the_line(processes: Loops) -> None:
    def picked(session: Any) -> str:
        places = tf.placeholder(tf.int32, [None])
        table = tf.Variable([1.0, 2.0])
        session.run(table.initializer)

        def body(i: Any, y: Any) -> Any:
            with tf.control_dependencies([tf.assign_add(table, [1.0, 1.0])]):
                return i + 1, y + tf.gather(table, places[i], name="pick")

        y = tf.while_loop(lambda i, y: i < 3, body, [0, 0.0])[1]
        assert session.run(y, {places: [0, 1, 1]}) == 2 + 4 + 5
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(y, {places: [0, 1, 2]})
        return str(caught.value)

    first = processes.result(picked, lowered=1)
    assert "pick" in first and Path(__file__).name in first
    assert processes.result(picked, lowered=0) == first


@pytest.mark.parametrize("damage", ["cut", "garbage", "kernels"])
def test_a_damaged_entry_is_made_again(processes: Loops, damage: str) -> None:
    first = processes.result(loop, lowered=2)
    kernels = processes.kernels()
    for path in kernels if damage == "kernels" else {*processes.files()} - kernels:
        if damage == "garbage":
            processes.forge(path, b"not a pickle")
        elif damage == "cut":
            path.write_bytes(path.read_bytes()[:-1])
        else:
            path.unlink()
    assert_equal(first, processes.result(loop, lowered=2))
    assert_equal(first, processes.result(loop, lowered=0))


@pytest.mark.parametrize("change", ["scratch", "phases"])
def test_kernels_of_another_layout_do_not_serve(
    processes: Loops, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first = processes.result(loop, lowered=2)
    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "_find_named", with_layout(change))
        assert_equal(first, processes.result(loop, lowered=2))


def test_nothing_is_restored_while_schedules_are_tuned(
    processes: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.result(loop, lowered=2)
    monkeypatch.setattr(tuning, "TUNES", True)
    processes.result(loop, lowered=2)


# Keys: the content of a control node


def units(fetches: Any, *feeds: Any) -> list[ControlRegion]:
    """The control nodes of a step, optimised and pruned."""
    with tf.Session() as session:
        plan = session._engine.plan(Step(tuple(fetches), (), feeds))
    return [i.call.unit for i in plan.instructions if isinstance(i.call, ControlCall)]


def build(
    factor: Any = 2.0,
    large: int = 0,
    length: Any = None,
    swapped: bool = False,
    after: bool = False,
    name: str = "noise",
    seed: int = 1,
    dtype: Any = tf.float32,
    size: Any = None,
    condition: int = 3,
    traced: bool = False,
    fetch: int = 1,
    unused: bool = False,
    parallel: int = 10,
) -> ControlRegion:
    """The unit of a loop, any part of it varied."""
    with tf.Graph().as_default():
        x = tf.placeholder(dtype, [size])
        values = np.arange(100, dtype=np.float32)
        values[50] += large

        def body(i: Any, y: Any, z: Any) -> Any:
            first, second = (y, z)[:: -1 if swapped else 1]
            shaped = tf.reshape(first, tf.shape(first) + 0)
            shaped.set_shape([length])
            noise = tf.random_uniform([], seed=seed, name=name)
            with tf.control_dependencies([noise] if after else []):
                product = tf.sin(shaped) * tf.cos(second) * tf.cast(factor, dtype)
            total = tf.cast(noise + tf.reduce_sum(values * noise), dtype)
            return i + 1, product + second, z * 2 + total

        shapes = [tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([None])]
        results = tf.while_loop(
            lambda i, y, z: i < condition,
            body,
            [0, x, x * 3],
            shape_invariants=shapes,
            parallel_iterations=parallel,
        )
        fetches = [results[fetch]] if not unused else [results[1], results[2]]
        if traced:
            fetches += tf.gradients(fetches[0], x)
        return units(fetches, x)[0]


CHANGES: dict[str, dict[str, Any]] = {
    "the value of a constant": {"factor": 3.0},
    "the sign of a zero": {"factor": -0.0},
    "an element of a large constant": {"large": 1},
    "a static shape that the user has set": {"length": 3},
    "the wiring": {"swapped": True},
    "a control input": {"after": True},
    "the name of a stateful node": {"name": "other"},
    "a seed": {"seed": 2},
    "a dtype": {"dtype": tf.float64},
    "the condition": {"condition": 4},
    "traces": {"traced": True},
    "the outputs": {"fetch": 2},
    "more outputs": {"unused": True},
    "an attribute of the loop": {"parallel": 5},
}


def test_equal_loops_have_one_fingerprint() -> None:
    assert control_fingerprint(build()) == control_fingerprint(build()) is not None


def test_no_two_changes_have_one_fingerprint() -> None:
    found = [control_fingerprint(build(**change)) for change in ({}, *CHANGES.values())]
    assert None not in found
    assert len({*found}) == len(CHANGES) + 1


def test_which_traces_come_in_which_order() -> None:
    unit = build(traced=True)
    node, *traces = unit.nodes
    lists = [trace for trace in traces if isinstance(trace.op, LoopTrace)]
    counts = [trace for trace in traces if isinstance(trace.op, LoopCount)]
    assert len(lists) > 1 and len(counts) == 1 and len(lists) + 1 == len(traces)
    results = unit.outputs[: -len(traces)]

    def ordered(*order: Any) -> ControlRegion:
        outputs = (*results, *(trace.outputs[0] for trace in order))
        return replace(unit, nodes=(node, *order), outputs=outputs)

    orders = [(*lists, *counts), (*lists[::-1], *counts), (*counts, *lists), lists]
    found = [control_fingerprint(ordered(*order)) for order in orders]
    found.append(control_fingerprint(replace(unit, outputs=unit.outputs[::-1])))
    assert None not in found and len({*found}) == len(found)


def test_branches_and_their_traces() -> None:
    def unit(first: float, traced: bool) -> ControlRegion:
        with tf.Graph().as_default():
            x = tf.placeholder(tf.float32, [3])
            y = tf.cond(x[0] > 0, lambda: tf.exp(x) * first, lambda: tf.sin(x) * 3)
            return units([y, *(tf.gradients(y, x) if traced else ())], x)[0]

    kinds = [(2.0, False), (4.0, False), (2.0, True), (4.0, True)]
    found = [control_fingerprint(unit(*kind)) for kind in kinds]
    assert None not in found and len({*found}) == len(kinds)


def test_the_text_of_conditionals_in_conditionals_does_not_grow_with_their_depth() -> None:
    def text(count: int) -> str:
        with tf.Graph().as_default():
            x = tf.placeholder(tf.int32, [])
            cases = [(tf.equal(x, k), lambda k=k: tf.constant(k)) for k in range(count)]
            return op_text(tf.case(cases, lambda: tf.constant(-1)).op.op)

    assert len(text(12)) <= len(text(6))


def test_what_only_this_process_knows_has_no_fingerprint() -> None:
    class Odd(Op, name="OddInALoopOfATest"):
        signature = "x: float32 -> y: float32"
        elementwise = True

        def shape(self, x: Any) -> TensorShape:
            return x.shape

        def numpy(self, x: Any) -> Any:
            return x

        def element(self, x: Any) -> Any:
            return x

    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [3])
        y = tf.while_loop(lambda y: tf.reduce_sum(y) < 3, lambda y: Odd()(y) * 2, [x])
        (unit,) = units([y], x)
    assert control_fingerprint(unit) is None


# Keys: inputs and surroundings


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The names of entries of one loop."""
    monkeypatch.setitem(cache._process, "kernels", Kernels(Disk(tmp_path)))
    monkeypatch.setitem(tuned._process, "winners", Winners(Disk(tmp_path)))
    unit = build()
    monkeypatch.setattr(native_control, "RESTORES", True)

    def name(values: Any = (), capacity: Any = None, device: Any = None) -> str:
        control = NativeControl(unit, device or CpuDevice())
        buffers: Any = [input_buffer(number, value) for number, value in enumerate(values)]
        control._restore(buffers, capacity or Capacity(64, 64))
        assert control._cache._name is not None
        return control._cache._name

    return name


def _list(rows: Any, dtype: Any = tf.float32, **options: Any) -> ListValue:
    result = ListValue(dtype).take_over(np.asarray(rows, dtype.as_numpy_dtype))
    for option, value in options.items():
        setattr(result, option, value)
    return result


def _cell(value: Any) -> VariableCell:
    cell = VariableCell("v", as_dtype(np.asarray(value).dtype), TensorShape([None]))
    cell.assign(np.asarray(value))
    return cell


def test_every_property_of_an_input_counts() -> None:
    rows, one, broadcast = np.ones([3, 2]), np.float32(1), np.broadcast_to
    values = [
        *(np.ones(3, np.float32), np.ones(4, np.float32), np.ones(3, np.float64)),
        *(np.ones([3, 1], np.float32), np.float32(1), _cell(np.ones(3, np.float32))),
        *(_list(rows), _list(rows, tf.int32), _list(np.ones([4, 2])), _list(np.ones([3, 3]))),
        *(_list(broadcast(one, [3, 2])), _list(broadcast(2 * one, [3, 2]))),
        _list(rows, accumulates=not _list(rows).accumulates),
        _list(rows, clear_after_read=not _list(rows).clear_after_read),
    ]
    buffers = [input_buffer(0, value) for value in values]
    assert None not in buffers
    texts = [buffer_text(buffer) for buffer in buffers if buffer is not None]
    assert len({*texts}) == len(values)
    assert texts == [buffer_text(made) for made in buffers if made is not None]
    assert buffer_text(input_buffer(1, values[0]) or pytest.fail()) != texts[0]


def test_inputs_and_capacity_count(native: Callable[..., str]) -> None:
    given = [np.float32(1), np.ones(3, np.float32)]
    names = [
        *(native(given), native(given[::-1]), native(given[:1])),
        *(native(given, Capacity(64, 128)), native(given, Capacity(128, 64))),
        native(given, Capacity(64, 64, ((0, 256),))),
    ]
    assert native(given) == names[0]
    assert len({*names}) == len(names)


@pytest.mark.parametrize("what", ["target", "caches", "threads", "schedules", "code"])
def test_what_of_a_process_counts(
    native: Callable[..., str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    name, device = native(), None
    if what == "schedules":
        tuned.winners()._state = "others"
    elif what == "code":
        monkeypatch.setattr(program_cache, "environment_key", lambda: "other code")
    elif what == "threads":
        device = CpuDevice(threads=CpuDevice().threads + 1)
    elif what == "target":
        device = CpuDevice(pool=Pool(target=named("x86-64")))
    else:
        device = CpuDevice(pool=Pool(target=replace(named("native"), l2=123 << 10)))
    assert native(device=device) != name
