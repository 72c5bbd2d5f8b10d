"""Steps restored from disk: when they are planned all the same, and what their keys contain."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.codegen.cuda import sessions
from tests.codegen.steps import STEPS
from tests.runtime.processes import Processes, assert_equal, with_layout
from thalweg.codegen import cache
from thalweg.codegen.cache import Kernels
from thalweg.codegen.contraction import tune as tuned
from thalweg.codegen.contraction.plan import schedules
from thalweg.codegen.contraction.tune import Winners
from thalweg.codegen.kernels import keep_schedule
from thalweg.codegen.machine import host, named
from thalweg.device import tuning
from thalweg.device.cpu.device import CpuDevice
from thalweg.device.cpu.pool import Pool
from thalweg.optimize.options import OptimizerSwitches
from thalweg.platform.disk_cache import Disk
from thalweg.runtime import compiled, engine, program_cache, step_cache
from thalweg.runtime.plan import plan

pytestmark = pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")

ROOT = Path(__file__).parents[2]
Steps = Callable[[Any], Any]


class Planned(Processes):
    """Processes in which planned steps are counted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch, compiled)
        self.planned = 0

        def noted(*arguments: Any) -> Any:
            self.planned += 1
            return plan(*arguments)

        monkeypatch.setattr(engine, "plan", noted)

    def result(self, steps: Steps, planned: int) -> Any:
        """What steps of a session give in a new process, which plans so many of them."""
        self.planned = 0
        with self.next() as session:
            found = steps(session)
        assert self.planned == planned
        return found


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    monkeypatch.setattr(step_cache, "ENABLED", True)
    return Planned(tmp_path, monkeypatch)


# Restored steps


def train(session: Any) -> list[Any]:
    x = tf.placeholder(tf.float32, [None, 4])
    w = tf.Variable(np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2))
    noise = tf.random_normal([2], seed=5)
    kept = tf.nn.dropout(x, 0.5)  # every process draws other numbers
    loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x + 0 * kept, w)) - noise))
    update = tf.train.AdamOptimizer(0.1).minimize(loss)
    session.run(tf.global_variables_initializer())
    step = session.make_callable([loss, update], [x])
    losses = [step(np.full([3, 4], n, np.float32))[0] for n in range(4)]
    return [*losses, session.run(w * 2)]


def test_a_second_process_plans_nothing(processes: Planned) -> None:
    first = processes.result(train, planned=3)
    second = processes.result(train, planned=0)
    assert processes.lowered == 0
    assert_equal(first, second)


def test_tuning_replaces_a_restored_step(processes: Planned) -> None:
    def steps(session: Any) -> None:
        x = tf.placeholder(tf.float32, [20, 20])
        y, feeds = tf.matmul(x, x), {x: np.eye(20)}
        session.run(y, feeds)
        (kernel,) = (k.kernel for k in session.plan(y, feeds).kernels)
        keep_schedule(kernel, host(), schedules(kernel, host())[processes.planned])
        tf.tune(session, y, feeds, budget_seconds=0)
        session.run(y, feeds)

    for _ in range(2):  # of the second, to inspect it plans the step, and so does what follows
        processes.result(steps, planned=2)


def test_tests_plan_all_their_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else ops would be run, folded and counted in the first run of the suite only."""
    processes = Planned(tmp_path, monkeypatch)
    for _ in range(2):
        processes.result(lambda session: session.run(tf.exp(tf.zeros([3]))), planned=1)


def test_without_a_disk_every_step_is_planned(
    processes: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(session: Any) -> None:
        monkeypatch.setitem(cache._process, "kernels", Kernels(None))
        session.run(tf.exp(tf.zeros([3])))

    processes.result(run, planned=1)
    processes.result(run, planned=1)


def test_other_shapes_are_planned(processes: Planned) -> None:
    def doubled(session: Any) -> list[Any]:
        x = tf.placeholder(tf.float32, [None])
        step = session.make_callable(x * 2 + 1, [x])
        return [step(np.arange(size, dtype=np.float32)) for size in (3, 5, 3, 7, 3)]

    first = processes.result(doubled, planned=1)
    second = processes.result(doubled, planned=1)
    assert processes.lowered == 0
    assert_equal(first, second)
    for each in first:
        np.testing.assert_array_equal(each, np.arange(each.size) * 2 + 1)


def test_shapes_that_another_process_began_with_do_not_count(
    processes: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restored program never ran: no size varies, as in a process that restores no steps."""

    def doubled(size: int) -> Steps:
        def run(session: Any) -> Any:
            x = tf.placeholder(tf.float32, [None])
            return session.run(x * 2 + 1, {x: np.arange(size)})

        return run

    processes.result(doubled(3), planned=1)
    processes.result(doubled(5), planned=1)
    assert processes.lowered == 1
    monkeypatch.setattr(step_cache, "ENABLED", False)
    processes.result(doubled(5), planned=1)
    assert processes.lowered == 0


def test_random_streams_go_on_in_the_plan(processes: Planned) -> None:
    """The state of a random op is one, whether its step is restored or planned."""

    def drawn(session: Any) -> list[Any]:
        x = tf.placeholder(tf.float32, [None])
        step = session.make_callable(tf.random_uniform([4], seed=3) + tf.reduce_sum(x), [x])
        return [step(np.zeros(size, np.float32)) for size in (2, 2, 5, 2)]

    first = processes.result(drawn, planned=1)
    assert_equal(first, processes.result(drawn, planned=1))
    assert len({each.tobytes() for each in first}) == 4


def test_what_the_reference_kernels_decide(processes: Planned) -> None:
    def picked(session: Any) -> str:
        place = tf.placeholder(tf.int32, [1])
        step = session.make_callable(
            tf.gather(tf.Variable([1.0, 2.0]), place, name="pick"), [place]
        )
        with pytest.raises(tf.errors.FailedPreconditionError):
            step([1])
        session.run(tf.global_variables_initializer())
        assert step([1]) == [2.0]
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            step([2])
        assert step([0]) == [1.0]
        return str(caught.value)

    first = processes.result(picked, planned=2)
    assert "pick" in first and Path(__file__).name in first
    assert processes.result(picked, planned=1) == first


def test_fetched_references_and_duplicates(processes: Planned) -> None:
    def fetched(session: Any) -> Any:
        x = tf.placeholder(tf.float32, [2])
        v = tf.Variable([3.0, 4.0])
        session.run(v.initializer)
        y = x + 1
        step = session.make_callable([v.assign_add(x), y, y], [x])
        return [*step([1, 2]), *step([1, 2])]

    first = processes.result(fetched, planned=2)
    assert_equal(first, processes.result(fetched, planned=0))
    np.testing.assert_array_equal(first[0], [4, 6])
    np.testing.assert_array_equal(first[3], [5, 8])


def test_variables_of_another_shape(processes: Planned) -> None:
    """A program reads variables of the shapes that it was compiled for, and no others."""

    def doubled(value: list[float]) -> Steps:
        def run(session: Any) -> Any:
            v = tf.Variable(value, validate_shape=False)
            session.run(v.initializer)
            return session.run(v * 2)

        return run

    processes.result(doubled([1, 2]), planned=2)
    with processes.next() as session:
        np.testing.assert_array_equal(doubled([1, 2, 3])(session), [2, 4, 6])


def test_several_threads_fall_back_at_once(processes: Planned) -> None:
    def run(session: Any) -> Any:
        x = tf.placeholder(tf.float32, [None])
        step = session.make_callable(x * 2, [x])
        actual = [step(np.ones(3, np.float32))]
        start = threading.Barrier(4)

        def call(size: int) -> None:
            start.wait()
            actual.extend(step(np.ones(size, np.float32)) for _ in range(20))

        threads = [threading.Thread(target=call, args=[size]) for size in (3, 4, 5, 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(actual) == 81 and all((each == 2).all() for each in actual)

    for _ in range(2):
        with processes.next() as session:
            run(session)


def test_steps_without_a_region_are_planned(processes: Planned) -> None:
    def fed(session: Any) -> Any:
        x, v = tf.placeholder(tf.float32, []), tf.Variable(3.0)
        session.run(v.initializer)
        return session.run([x, v, v + x], {x: 1})

    for planned in (2, 1):
        assert processes.result(fed, planned) == [1, 3, 4]


def test_devices_are_checked_and_logged(processes: Planned, capsys: Any) -> None:
    def asked(session: Any) -> None:
        with tf.device("/cpu:7"):
            y = tf.exp(tf.zeros([3]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="CPU:7"):
            session.make_callable(y)

    def logged(session: Any) -> None:
        y = tf.exp(tf.placeholder_with_default(0.0, []), name="power")
        with tf.Session(config=tf.ConfigProto(log_device_placement=True)) as logging:
            logging.run(y)
        assert "power: (Exp): " in capsys.readouterr().err

    for _ in range(2):
        processes.result(asked, planned=0)
        processes.result(logged, planned=1)


def test_plans_and_traces_of_restored_steps(processes: Planned) -> None:
    def run(session: Any) -> str:
        x = tf.placeholder(tf.float32, [3])
        y = tf.exp(x, name="power")
        session.run(y, {x: [1, 2, 3]})
        traced = tf.RunMetadata()
        full = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        session.run(y, {x: [1, 2, 3]}, options=full, run_metadata=traced)
        assert any(device.node_stats for device in traced.step_stats.dev_stats)
        return str(session.plan(y, {x: [1, 2, 3]})).splitlines()[0]

    assert processes.result(run, planned=1) == processes.result(run, planned=1)


# What is stored


def test_large_constants_that_passes_made_are_not_written(
    processes: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = step_cache.MAX_BYTES // 4 + 1
    own = np.arange(size, dtype=np.float32)

    def of_the_user(session: Any) -> Any:
        return session.run(tf.constant(own) + tf.placeholder_with_default(1.0, []))

    def folded(session: Any) -> Any:
        made = tf.sqrt(tf.constant(own)) + tf.constant(own)
        return session.run(made + tf.placeholder_with_default(1.0, []))

    def refused(*arguments: Any) -> Any:
        raise AssertionError

    for planned in (1, 0):
        np.testing.assert_array_equal(processes.result(of_the_user, planned), own + 1)
    assert sum(path.stat().st_size for path in processes.files()) < own.nbytes / 4
    monkeypatch.setattr(step_cache, "write_entry", refused)
    for _ in range(2):
        actual = processes.result(folded, planned=1)
        np.testing.assert_allclose(actual, np.sqrt(own) + own + 1, rtol=1e-6)


def power(session: Any) -> Any:
    """A step whose entry tests damage."""
    x = tf.placeholder(tf.float32, [2, 3])
    return session.run(tf.exp(x) * 2, {x: np.ones([2, 3])})


@pytest.fixture
def entry(processes: Planned) -> Path:
    """The file of the step `power`."""
    processes.result(power, planned=1)
    names: list[str] = []
    with pytest.MonkeyPatch.context() as patch, processes.next() as session:
        find = step_cache.StepEntry.find
        patch.setattr(
            step_cache.StepEntry, "find", lambda self: names.append(self.name) or find(self)
        )
        power(session)
    (name,) = names
    (path,) = [path for path in processes.files() if path.parent.name + path.stem == name]
    return path


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "garbage", "kernels"])
def test_a_damaged_entry_is_made_again(processes: Planned, entry: Path, damage: str) -> None:
    content = entry.read_bytes()
    if damage == "garbage":
        processes.forge(entry, b"not a pickle")
    elif damage == "kernels":
        for path in processes.kernels():
            path.unlink()
    else:
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        entry.write_bytes({"cut": content[:-9], "flipped": flipped, "empty": b""}[damage])
    expected = np.full([2, 3], 2 * np.e)
    np.testing.assert_allclose(processes.result(power, planned=1), expected, rtol=1e-6)
    np.testing.assert_allclose(processes.result(power, planned=0), expected, rtol=1e-6)


@pytest.mark.parametrize("change", ["scratch", "phases"])
def test_kernels_of_another_layout_do_not_serve(
    processes: Planned, entry: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The memory of a restored program is laid out for the kernels that it was stored with."""
    assert entry.exists()
    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "_find_named", with_layout(change))
        processes.result(power, planned=1)
        assert processes.lowered == 1
    processes.result(power, planned=0)


_GUARDED = """
import sys
import thalweg as tf
from tests.codegen.guarded import Guarded, Numpy
from tests.codegen.steps import STEPS
from thalweg.device.cpu import invocation, program
for name in sys.argv[1:]:
    with tf.Graph().as_default(), tf.Session() as session:
        fetches, feeds = STEPS[name]()
        program.np = invocation.np = Numpy(Guarded())
        session.run(fetches, feeds)
"""


def test_programs_laid_out_for_other_kernels_are_not_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of an emulated GPU need less scratch than the CPU's kernels of the same names. A step
    stored with them, restored with the CPU's, wrote outside of its arena."""
    names = ["matmul float16", "matmul bfloat16", "matmul transposed"]
    environment = {**os.environ, "THALWEG_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def run(threads: int) -> None:
        command = [sys.executable, "-c", _GUARDED, *names]
        given = environment | {"THALWEG_THREADS": str(threads)}
        subprocess.run(command, env=given, cwd=ROOT, check=True)

    run(threads=2)  # has the kernels compiled, and other keys of steps
    monkeypatch.setattr(step_cache, "ENABLED", True)
    monkeypatch.setitem(cache._process, "kernels", Kernels(Disk(tmp_path)))
    monkeypatch.setitem(tuned._process, "winners", Winners(Disk(tmp_path)))
    before = len(list(tmp_path.glob("??/*")))
    with sessions.emulated_kernels():
        for name in names:
            with tf.Graph().as_default():
                sessions.run(*STEPS[name]())
    assert len(list(tmp_path.glob("??/*"))) > before
    run(threads=1)


# Keys


def entry_name(build: Callable[[], Any], **options: Any) -> str | None:
    """The name of the entry of the step that a function returns."""
    with tf.Graph().as_default(), tf.Session(**options) as session:
        found = session._engine.entry(step_cache.Step(*build()))
        return None if found is None else found.name


@pytest.fixture
def keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(step_cache, "ENABLED", True)
    monkeypatch.setitem(cache._process, "kernels", Kernels(Disk(tmp_path)))
    monkeypatch.setitem(tuned._process, "winners", Winners(Disk(tmp_path)))
    return monkeypatch


def build(
    constant: Any = 2.0,
    large: int = 0,
    size: Any = None,
    length: Any = None,
    name: str = "v",
    shared: str = "",
    after: bool = False,
    axis: int = 0,
    dtype: Any = tf.float32,
    seed: int = 1,
    order: int = 1,
    swapped: bool = False,
    fetch: int = 0,
    target: bool = False,
    feeds: int = 1,
    locking: bool = False,
) -> Any:
    """A step with a constant, a variable, a random stream and an update, any of them varied."""
    x = tf.placeholder(dtype, [size, 3])
    y = x[: tf.shape(x * 2)[0] - 1]
    y.set_shape([length, None])
    values = np.arange(100, dtype=np.float32)
    values[50] += large
    v = tf.Variable(1.0, name=name)
    u = tf.Variable(1.0, name="u")
    if shared:
        v = tf.get_default_graph().get_tensor_by_name("u:0")
    with tf.control_dependencies([tf.no_op()] if after else []):
        z = tf.cast(tf.reduce_sum(y, axis), tf.float32) * constant + tf.reduce_sum(values)
    z += tf.random_normal([], seed=seed)
    one, other = (v, u)[::order]
    updates = [tf.assign_add(one, 1.0, use_locking=locking), tf.assign_sub(other, 1.0)]
    a, b = (z - v, z - u)[:: -1 if swapped else 1]
    found = [a, b, z][fetch:]
    fed = (x, z) if feeds == 2 else (x, x) if feeds == 3 else (x,)
    return tuple(found), tuple(update.op for update in updates[: 1 + target]), fed


CHANGES = {
    "the value of a constant": {"constant": 3.0},
    "the sign of a zero": {"constant": -0.0},
    "a constant of other digits": {"constant": np.nextafter(np.float32(2), np.float32(3))},
    "an element of a large constant": {"large": 1},
    "the static shape of a feed": {"size": 5},
    "the dtype of a feed": {"dtype": tf.float64},
    "another dtype of the same size": {"dtype": tf.int32},
    "a static shape that the user has set": {"length": 3},
    "the name of a variable": {"name": "w"},
    "which variable is updated": {"order": -1},
    "a variable that is shared": {"shared": "u"},
    "a control input": {"after": True},
    "an attribute": {"axis": 1},
    "locking": {"locking": True},
    "a seed": {"seed": 2},
    "the wiring": {"swapped": True},
    "the fetches": {"fetch": 1},
    "the targets": {"target": True},
    "the feeds": {"feeds": 2},
    "a feed that comes twice": {"feeds": 3},
}


def test_equal_steps_have_one_name(keyed: Any) -> None:
    name = entry_name(build)
    assert name is not None
    assert name == entry_name(build)
    assert name == entry_name(lambda: build(constant=np.float32(2)))


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_name_of_an_entry_depends_on(keyed: Any, change: str) -> None:
    name, other = entry_name(build), entry_name(lambda: build(**CHANGES[change]))
    assert None not in (name, other)
    assert name != other


def test_no_two_changes_have_one_name(keyed: Any) -> None:
    names = [entry_name(lambda change=change: build(**change)) for change in CHANGES.values()]
    assert len({*names}) == len(CHANGES)


def test_types_of_feeds_count_where_results_are_alike(keyed: Any) -> None:
    """The size of an array is a constant where its static shape is known."""

    def sized(dtype: Any, shape: Any) -> Any:
        x = tf.placeholder(dtype, shape)
        return (tf.size(x),), (), (x,)

    types = [(tf.float32, [5]), (tf.float32, [6]), (tf.float32, None), (tf.int32, [5])]
    names = [entry_name(lambda each=each: sized(*each)) for each in types]
    assert None not in names and len({*names}) == len(types)


def test_targets_count_where_nodes_are_alike(keyed: Any) -> None:
    def doubled(target: bool) -> Any:
        x = tf.placeholder(tf.float32, [2])
        y = tf.exp(x)
        return (y * 2,), (y.op,) if target else (), (x,)

    names = [entry_name(lambda target=target: doubled(target)) for target in (False, True)]
    assert None not in names and len({*names}) == 2


def test_graph_seeds_count(keyed: Any) -> None:
    def seeded(seed: int) -> Any:
        tf.set_random_seed(seed)
        return build()

    assert entry_name(lambda: seeded(1)) != entry_name(lambda: seeded(2))


def _rewrites(**switches: int) -> Any:
    config = tf.ConfigProto()
    for name, value in switches.items():
        setattr(config.graph_options.rewrite_options, name, value)
    return config


CONFIGS = {
    "a pass that is off": lambda: _rewrites(constant_folding=2),
    "another pass that is off": lambda: _rewrites(arithmetic_optimization=2),
    "a pass that is aggressive": lambda: _rewrites(arithmetic_optimization=3),
    "the number of threads": lambda: tf.ConfigProto(intra_op_parallelism_threads=1),
}


def test_what_of_a_session_counts(keyed: Any) -> None:
    names = [entry_name(build, config=config()) for config in CONFIGS.values()]
    assert None not in names
    assert len({entry_name(build), *names}) == 1 + len(CONFIGS)


def test_every_switch_of_the_optimiser_counts(keyed: Any) -> None:
    """A switch that is added must be added to the key."""
    assert {each.name for each in fields(OptimizerSwitches)} == {"enabled", "toggles", "without"}

    def name(**changes: Any) -> str | None:
        with tf.Graph().as_default(), tf.Session() as session:
            local: Any = session._engine
            local._switches = replace(local._switches, **changes)
            found = local.entry(step_cache.Step(*build()))
            return None if found is None else found.name

    without = {"without": frozenset({"moves", "arithmetic"})}
    assert name(**without) == name(without=frozenset({"arithmetic", "moves"}))
    names = [name(), name(enabled=False), name(**without)]
    assert None not in names and len({*names}) == 3


def _other_target(session: Any) -> None:
    session._engine.devices = [CpuDevice(pool=Pool(target=named("x86-64")))]


def _other_caches(session: Any) -> None:
    target = replace(named("native"), l2=123 << 10)
    session._engine.devices = [CpuDevice(pool=Pool(target=target))]


@pytest.mark.parametrize("what", ["target", "caches", "schedules", "code", "planner"])
def test_what_of_a_process_counts(keyed: pytest.MonkeyPatch, what: str) -> None:
    name = entry_name(build)
    if what == "schedules":
        tuned.winners()._state = "others"
    elif what == "code":
        keyed.setattr(program_cache, "environment_key", lambda: "other code")
    elif what == "planner":
        keyed.setattr(step_cache, "own_digest", lambda folders: f"other {folders}")
    with tf.Graph().as_default(), tf.Session() as session:
        if what in ("target", "caches"):
            {"target": _other_target, "caches": _other_caches}[what](session)
        actual: Any = session._engine.entry(step_cache.Step(*build()))
    assert actual is not None and actual.name != name


def test_the_code_of_every_package_below_counts() -> None:
    """Sessions plan by the code of the packages that the runtime may import from."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = [each for each in settings["contracts"] if each["id"] == "layers"]
    layers = [re.findall(r"\w+", layer) for layer in contract["layers"]]
    (place,) = [place for place, layer in enumerate(layers) if "runtime" in layer]
    below = {name for layer in layers[place:] for name in layer}
    folders = {name for name in below if (ROOT / "thalweg" / name).is_dir()}
    assert folders - {"protos"} <= {*step_cache.FOLDERS, *program_cache.FOLDERS}


# Steps without a key


def _fetched(value: Any, *feeds: Any) -> Any:
    return (value,), (), feeds


def _loop() -> Any:
    x = tf.placeholder(tf.float32, [])
    return _fetched(tf.while_loop(lambda y: y < 3, lambda y: y + x, [x]), x)


def _python() -> Any:
    x = tf.placeholder(tf.float32, [])
    return _fetched(tf.py_func(lambda y: y, [x], tf.float32), x)


def _host_op() -> Any:
    x = tf.placeholder(tf.float32, [3])
    return _fetched(tf.unique(x)[0] * 2, x)


def _queue() -> Any:
    return _fetched(tf.FIFOQueue(3, tf.float32, [[]]).dequeue() * 2)


def _constants() -> Any:
    large = np.ones(step_cache._MAX_CONSTANT_BYTES // 8 + 1)
    return _fetched(tf.constant(large) + tf.placeholder_with_default(np.float64(1), []))


@pytest.mark.parametrize("unkeyed", [_loop, _python, _host_op, _queue, _constants])
def test_steps_that_have_no_entry(keyed: Any, unkeyed: Callable[[], Any]) -> None:
    assert entry_name(unkeyed) is None


def test_sessions_that_have_no_entries(keyed: pytest.MonkeyPatch) -> None:
    assert entry_name(build, config=tf.ConfigProto(device_count={"CPU": 2})) is None
    for module, flag, value in (
        (tuning, "TUNES", True),
        (engine, "COMPILES", False),
        (step_cache, "ENABLED", False),
    ):
        with keyed.context() as patch:
            patch.setattr(module, flag, value)
            assert entry_name(build) is None


def test_rules_of_the_user_are_applied(processes: Planned) -> None:
    def squared(session: Any) -> Any:
        return session.run(tf.square(tf.fill([2], tf.placeholder_with_default(3.0, []))))

    processes.result(squared, planned=1)
    square = tf.optimize.op.Square
    tf.optimize.register_rule("wrong", lambda x: square(x), lambda x: x + 1)
    try:
        np.testing.assert_array_equal(processes.result(squared, planned=1), [4, 4])
    finally:
        tf.optimize.unregister("wrong")
    np.testing.assert_array_equal(processes.result(squared, planned=0), [9, 9])


# Processes


_RESTORED = """
import numpy as np
import thalweg as tf
from thalweg.runtime import engine
from tests.runtime.test_step_cache import train
planned, plan = [0], engine.plan
def noted(*arguments):
    planned[0] += 1
    return plan(*arguments)
engine.plan = noted
with tf.Session() as session:
    found = train(session)
print(planned[0], np.concatenate([np.ravel(x) for x in found]).tobytes().hex())
"""


def test_processes_at_the_same_time(tmp_path: Path) -> None:
    environment = {**os.environ, "THALWEG_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def started() -> Any:
        command = [sys.executable, "-c", _RESTORED]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    together = [process.communicate()[0].split() for process in [started() for _ in range(3)]]
    later = started().communicate()[0].split()
    assert later[0] == "0"
    assert {result for _, result in together} == {later[1]}
