"""Restoring into variables: one unit where nothing else looks, and the same values either way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.device.local import local_devices
from thalweg.ops.io import saving
from thalweg.platform.files.durable import BLOCK
from thalweg.runtime import engine
from thalweg.runtime.plan import Step, plan
from thalweg.runtime.restoring import Restoring


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def units(fetches: Any = (), targets: Any = (), feeds: Any = ()) -> list[str]:
    """The types of the nodes of each instruction that restores."""
    made = plan(Step(tuple(fetches), tuple(targets), tuple(feeds)), local_devices({}))
    return [step.node.type for step in made.instructions if len(step.nodes) > 1 and _is(step)]


def _is(step: Any) -> bool:
    return isinstance(getattr(step.call, "__self__", None), Restoring)


def saved(folder: Path, sizes: tuple[int, ...] = (3, 5)) -> tuple[Any, Any, list[Any]]:
    """A saver, a session of variables with ones, and its path."""
    variables = [tf.Variable(tf.ones([size]), name=f"v{n}") for n, size in enumerate(sizes)]
    saver = tf.train.Saver()
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    saver.save(session, str(folder / "m"))
    session.run([tf.assign(v, tf.zeros_like(v)) for v in variables])
    return saver, session, variables


def restored_v0(folder: Path) -> list[Any]:
    return saving.restore_v2(str(folder / "m"), ["v0"], [""], [tf.float32])


def restore_op(saver: Any) -> Any:
    return tf.get_default_graph().get_operation_by_name(saver.saver_def.restore_op_name)


def test_a_saver_restores_in_one_unit(tmp_path: Path) -> None:
    saver, session, variables = saved(tmp_path)
    assert units(targets=[restore_op(saver)]) == ["RestoreV2"]
    saver.restore(session, str(tmp_path / "m"))
    for value in session.run(variables):
        np.testing.assert_array_equal(value, np.ones_like(value))


@pytest.mark.skipif(not engine.COMPILES, reason="nothing is joined")
def test_a_plan_lists_the_assignments_with_the_node_that_restores(tmp_path: Path) -> None:
    saver, session, _ = saved(tmp_path, (3,) * 8)
    prefix = {saver.saver_def.filename_tensor_name: str(tmp_path / "m")}
    planned = session.plan(restore_op(saver), prefix)
    (host_op,) = planned.host_ops
    assert host_op.node.type == "RestoreV2"
    assert [node.type for node in host_op.joined] == ["Assign"] * 8
    first, *_ = host_op.joined
    (line,) = [line for line in str(planned).splitlines() if line.startswith("joined")]
    assert f"joined   {first.name}, " in line and "… 2 more: what is read" in line
    assert "region 1 1 node, nothing to run" in str(planned)


def test_a_trace_tells_of_every_assignment(tmp_path: Path) -> None:
    saver, session, _ = saved(tmp_path, (3,) * 4)
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    metadata = tf.RunMetadata()
    prefix = {saver.saver_def.filename_tensor_name: str(tmp_path / "m")}
    session.run(restore_op(saver), prefix, options, metadata)
    nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    assert sum(" = Assign(" in node.timeline_label for node in nodes) == 4
    (restoring,) = [node for node in nodes if " = RestoreV2(" in node.timeline_label]
    assert ("with save/Assign, " in restoring.timeline_label) == engine.COMPILES


@pytest.mark.skipif(not engine.COMPILES, reason="nothing is joined")
def test_a_profile_restores_nothing(tmp_path: Path) -> None:
    saver, session, variables = saved(tmp_path)
    prefix = {saver.saver_def.filename_tensor_name: str(tmp_path / "m")}
    session.plan(restore_op(saver), prefix).profile(1)
    for value in session.run(variables):
        np.testing.assert_array_equal(value, np.zeros_like(value))


def test_a_first_value_and_a_value_in_use(tmp_path: Path) -> None:
    saver, session, variables = saved(tmp_path)
    before = session.run(variables[0].value())
    saver.restore(session, str(tmp_path / "m"))
    np.testing.assert_array_equal(before, np.zeros(3))
    with tf.Session() as fresh:
        saver.restore(fresh, str(tmp_path / "m"))
        np.testing.assert_array_equal(fresh.run(variables[1]), np.ones(5))
        fresh.run(tf.assign_add(variables[1], tf.ones([5])))
        np.testing.assert_array_equal(fresh.run(variables[1]), np.full(5, 2.0))


def test_the_nodes_run_apart_when_something_else_reads_them(tmp_path: Path) -> None:
    _, session, (variable, _) = saved(tmp_path)
    restored = restored_v0(tmp_path)
    (value,) = restored
    assign = tf.assign(variable, value)
    assert units(targets=[assign.op]) == []  # what a target gives is wanted
    with tf.control_dependencies([assign.op]):
        done = tf.no_op()
    assert units(targets=[done]) == ["RestoreV2"]
    assert units(targets=[done], fetches=restored) == []
    assert units(targets=[done], feeds=restored) == []
    with tf.control_dependencies([assign.op]):
        doubled = assign * 2.0
    assert units(fetches=[doubled]) == []
    np.testing.assert_array_equal(session.run(doubled), np.full(3, 2.0))
    session.run(done, {value: np.full(3, 7.0)})
    np.testing.assert_array_equal(session.run(variable), np.full(3, 7.0))


def test_a_reader_before_the_assignment_sees_the_old_value(tmp_path: Path) -> None:
    _, session, (variable, _) = saved(tmp_path)
    (value,) = restored_v0(tmp_path)
    old = variable.value() * 1.0
    with tf.control_dependencies([old]):
        assign = tf.assign(variable, value)
    with tf.control_dependencies([assign.op]):
        new = variable.read_value()
    before, after = session.run([old, new])
    np.testing.assert_array_equal(before, np.zeros(3))
    np.testing.assert_array_equal(after, np.ones(3))


def test_what_can_be_wrong_is_known_before_a_variable_changes(tmp_path: Path) -> None:
    saved(tmp_path)
    with tf.Graph().as_default(), tf.Session() as session:
        first = tf.Variable(tf.zeros([3]), name="v0")
        second = tf.Variable(tf.zeros([4]), name="v1")
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match="variable v1 has") as raised:
            saver.restore(session, str(tmp_path / "m"))
        assert raised.value.op.type == "Assign"
        np.testing.assert_array_equal(session.run(first), np.zeros(3))
        np.testing.assert_array_equal(session.run(second), np.zeros(4))


def test_damage_leaves_each_variable_with_its_old_or_its_new_value(tmp_path: Path) -> None:
    saver, session, variables = saved(tmp_path, (BLOCK // 4,) * 6)
    (path,) = tmp_path.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(tf.errors.DataLossError, match="bytes are not those that were saved"):
        saver.restore(session, str(tmp_path / "m"))
    for value in session.run(variables):
        assert value.min() == value.max()
    np.testing.assert_array_equal(session.run(variables[-1]), np.zeros(BLOCK // 4))


def test_a_variable_may_begin_as_what_a_checkpoint_has(tmp_path: Path) -> None:
    """The node that restores is older than the variable then."""
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.get_variable("v", [], initializer=tf.constant_initializer(3.0))
        session.run(v.initializer)
        path = tf.train.Saver().save(session, str(tmp_path / "model"))

    def restored(*_: Any, **__: Any) -> Any:
        read = tf.python.ops.io_ops.restore_v2(path, ["v"], [""], [tf.float32])[0]
        read.set_shape([])
        return read

    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.get_variable("w", [], initializer=restored)
        session.run(w.initializer)
        assert session.run(w) == 3
