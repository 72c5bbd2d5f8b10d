"""Steps whose program an earlier process made: not planned, unless that program does not do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.runtime.processes import Processes
from thalweg.codegen import cache
from thalweg.runtime import compiled, engine, step_cache
from thalweg.runtime.plan import plan

pytestmark = pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")

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
    return Planned(tmp_path, monkeypatch)


def train(session: Any) -> list[Any]:
    x = tf.placeholder(tf.float32, [None, 4])
    w = tf.Variable(np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2))
    noise = tf.random_normal([2], seed=5)
    kept = tf.nn.dropout(x, 0.5)  # of which every process draws others
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
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_a_disk_every_step_is_planned(
    processes: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(session: Any) -> None:
        monkeypatch.setitem(cache._process, "kernels", cache.Kernels(None))
        session.run(tf.exp(tf.zeros([3])))

    processes.result(twice, planned=1)
    processes.result(twice, planned=1)


def test_other_shapes_are_planned(processes: Planned) -> None:
    def doubled(session: Any) -> list[Any]:
        x = tf.placeholder(tf.float32, [None])
        step = session.make_callable(x * 2 + 1, [x])
        return [step(np.arange(size, dtype=np.float32)) for size in (3, 5, 3, 7, 3)]

    first = processes.result(doubled, planned=1)
    second = processes.result(doubled, planned=1)
    assert processes.lowered == 0
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, np.arange(one.size) * 2 + 1)


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
    second = processes.result(fetched, planned=0)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(first[0], [4, 6])
    np.testing.assert_array_equal(first[3], [5, 8])


def test_steps_without_a_region_are_planned(processes: Planned) -> None:
    def fed(session: Any) -> Any:
        x, v = tf.placeholder(tf.float32, []), tf.Variable(3.0)
        session.run(v.initializer)
        return session.run([x, v, v + x], {x: 1})

    for planned in (2, 1):
        assert processes.result(fed, planned) == [1, 3, 4]


def entry_name(build: Callable[[], tuple[Any, Any]], **options: Any) -> str | None:
    """The name of the entry of a step that a function gives the fetch and the feed of."""
    with tf.Graph().as_default(), tf.Session(**options) as session:
        fetch, feed = build()
        found = session._engine.entry(step_cache.Step((fetch,), (), (feed,)))
        return None if found is None else found._name


def scaled(
    factor: float = 2.0,
    size: Any = None,
    told: Any = None,
    name: str = "v",
    after: bool = False,
) -> tuple[Any, Any]:
    x = tf.placeholder(tf.float32, [size])
    y = tf.boolean_mask(x, x > 0)
    y.set_shape([told])
    with tf.control_dependencies([tf.no_op()] if after else []):
        return y * factor * tf.Variable(1.0, name=name), x


def test_what_the_name_of_an_entry_depends_on() -> None:
    name = entry_name(scaled)
    assert name is not None and name == entry_name(scaled)
    off = tf.ConfigProto()
    off.graph_options.rewrite_options.constant_folding = 2
    others = [
        entry_name(lambda: scaled(3.0)),
        entry_name(lambda: scaled(size=5)),
        entry_name(lambda: scaled(told=3)),
        entry_name(lambda: scaled(name="w")),
        entry_name(lambda: scaled(after=True)),
        entry_name(scaled, config=off),
        entry_name(scaled, config=tf.ConfigProto(intra_op_parallelism_threads=1)),
    ]
    assert None not in others
    assert len({name, *others}) == 1 + len(others)


def test_steps_that_are_not_one_program_are_not_kept() -> None:
    def loop() -> tuple[Any, Any]:
        x = tf.placeholder(tf.float32, [])
        return tf.while_loop(lambda y: y < 3, lambda y: y + x, [x]), x

    def called() -> tuple[Any, Any]:
        x = tf.placeholder(tf.float32, [])
        return tf.py_func(lambda y: y, [x], tf.float32), x

    assert entry_name(loop) is None
    assert entry_name(called) is None


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
    monkeypatch.setattr(step_cache, "write_entry", refused)
    for _ in range(2):
        found = processes.result(folded, planned=1)
        np.testing.assert_allclose(found, np.sqrt(own) + own + 1, rtol=1e-6)


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
