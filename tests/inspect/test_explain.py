"""Plans and profiles: what they tell of a step, and that neither changes anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.codegen.machine import host
from thalweg.device.compiled_kernel import short_name, snake_case
from thalweg.device.cpu.peaks import arithmetic_peak, copy_peak
from thalweg.lower.flops_bytes import flops_bytes
from thalweg.platform.amounts import amount, size
from thalweg.runtime import engine

pytestmark = pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


class Perceptron:
    """A training step on a small perceptron."""

    def __init__(self) -> None:
        self.x = tf.placeholder(tf.float32, [None, 20], name="x")
        self.labels = tf.placeholder(tf.int32, [None], name="labels")
        hidden = tf.Variable(np.full((20, 30), 0.1, np.float32), name="hidden")
        bias = tf.Variable(np.zeros(30, np.float32), name="bias")
        last = tf.Variable(np.full((30, 5), 0.1, np.float32), name="last")
        y = tf.nn.relu(tf.nn.bias_add(tf.matmul(self.x, hidden), bias))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=self.labels, logits=tf.matmul(y, last)
        )
        self.loss = tf.reduce_mean(losses)
        self.train = tf.train.GradientDescentOptimizer(0.1).minimize(self.loss)
        self.variables = [hidden, bias, last]
        self.unused = tf.exp(self.x, name="unused")

    @property
    def fetches(self) -> list[Any]:
        return [self.train, self.loss]

    def feeds(self, batch: int) -> dict[Any, Any]:
        values = np.linspace(-1, 1, batch * 20, dtype=np.float32).reshape(batch, 20)
        return {self.x: values, self.labels: np.arange(batch, dtype=np.int32) % 5}


@pytest.fixture
def model() -> Perceptron:
    return Perceptron()


@pytest.fixture
def session(model: Perceptron):
    with tf.Session() as made:
        made.run(tf.global_variables_initializer())
        yield made


def test_a_printed_plan_shows_every_stage(model: Perceptron, session: Any):
    plan = session.plan(model.fetches, model.feeds(8))
    text = str(plan)
    assert repr(plan) == text
    for part in ("pruned", "1 region", "loop nests into", "barrier", "arena", "in place"):
        assert part in text
    assert "x:0 float32[8, 20]" in text
    assert "matmul+bias_add+relu" in text
    assert "8×30×20" in text
    assert "… and" in plan.text(most=2)


def test_kernels_name_their_ops_lines_and_code(model: Perceptron, session: Any):
    kernels = session.plan(model.fetches, model.feeds(8)).kernels
    kernel = next(k for k in kernels if k.name == "matmul+bias_add+relu")
    assert {"MatMul", "BiasAdd", "Relu"} <= set(kernel.ops)
    assert all(__file__ in line for line in kernel.lines)
    assert kernel.kind == "contraction"
    assert kernel.flops == 2 * 8 * 30 * 20 + 2 * 8 * 30
    assert kernel.bytes == 4 * (8 * 20 + 20 * 30 + 30 + 8 * 30)
    for function in kernel.emitted.functions:
        assert function in kernel.llvm
        assert function in kernel.asm
    assert kernel.main.name == "MatMul"
    assert "for rows i < 8, columns j < 30, reduced r < 20:" in kernel.text


def test_neither_plan_nor_profile_changes_state(model: Perceptron, session: Any):
    before = session.run(model.variables)
    plan = session.plan(model.fetches, model.feeds(8))
    plan.profile(2)
    for old, new in zip(before, session.run(model.variables), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_planned_step_runs_as_ever(model: Perceptron, session: Any):
    session.plan(model.fetches, model.feeds(8))
    _, first = session.run(model.fetches, model.feeds(8))
    _, second = session.run(model.fetches, model.feeds(8))
    assert second < first


def test_a_plan_needs_no_initial_values_but_a_profile_does(model: Perceptron):
    with tf.Session() as session:
        plan = session.plan(model.fetches, model.feeds(8))
        assert plan.kernels
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized"):
            plan.profile(1)


def test_a_new_shape_is_named_as_the_cause(model: Perceptron, session: Any):
    session.plan(model.fetches, model.feeds(8))
    text = str(session.plan(model.fetches, model.feeds(6)))
    assert "x:0 (8, 20) → (6, 20), labels:0 (8,) → (6,)" in text
    assert "before, in this session" in str(session.plan(model.fetches, model.feeds(6)))


def test_a_profile_has_a_row_for_every_kernel(model: Perceptron, session: Any):
    plan = session.plan(model.fetches, model.feeds(8))
    profile = plan.profile(3)
    assert len(profile.runs) == 3
    assert sorted(row.number for row in profile.rows) == list(range(1, len(plan.kernels) + 1))
    for row in profile.rows:
        assert row.name == plan.kernels[row.number - 1].name
        assert row.ops == plan.kernels[row.number - 1].ops
    medians = [row.median for row in profile.rows]
    assert medians == sorted(medians, reverse=True)
    assert sum(row.share for row in profile.rows) + profile.waiting == pytest.approx(1)
    assert "of peak" in str(profile)
    assert len(profile.groups) < len(profile.rows)
    assert "all kernels of the same ops" in profile.text(most=2)
    with pytest.raises(ValueError, match="one run or more"):
        plan.profile(0)


def test_a_chrome_trace_names_kernels_ops_and_lines(
    model: Perceptron, session: Any, tmp_path: Path
):
    plan = session.plan(model.fetches, model.feeds(8))
    plan.profile(1).chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ran = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in ran} == {kernel.name for kernel in plan.kernels}
    event = next(e for e in ran if e["name"] == "matmul+bias_add+relu")
    assert "MatMul" in event["args"]["ops"]
    assert any(__file__ in line for line in event["args"]["lines"])
    assert any(e["ph"] == "M" and e["args"]["name"] == "thread 0" for e in events)


def test_host_ops_are_listed_with_a_reason_and_not_run():
    calls: list[int] = []

    def noted(x: Any) -> Any:
        calls.append(1)
        return x + 1

    x = tf.placeholder(tf.float32, [3])
    given = tf.py_func(noted, [x * 2.0], tf.float32)
    given.set_shape([3])
    with tf.Session() as session:
        plan = session.plan(given * 3.0, {x: np.ones(3, np.float32)})
        (host_op,) = plan.host_ops
        assert host_op.node.type in str(plan)
        assert host_op.reason in str(plan)
        assert len(plan.regions) == 2
        assert len(plan.kernels) == 2
        plan.profile(1)
        assert not calls


def test_a_region_of_unknown_shapes_waits_for_the_step():
    x = tf.placeholder(tf.float32, [3])
    y = tf.py_func(lambda x: x[:2], [x], tf.float32) * 3.0
    feeds = {x: np.ones(3, np.float32)}
    with tf.Session() as session:
        assert "compiled when the step runs" in str(session.plan(y, feeds))
        session.run(y, feeds)
        assert "[2]" in str(session.plan(y, feeds))


def test_a_region_with_a_node_that_cannot_be_compiled_runs_in_parts():
    x, sizes = tf.placeholder(tf.float32, [4]), tf.placeholder(tf.int32, [2])
    y = tf.reshape(x + 1.0, tf.maximum(sizes, 1), name="formed") * 2.0
    feeds = {x: np.ones(4, np.float32), sizes: np.array([2, 2])}
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    with tf.Session() as session:
        plan = session.plan(y, feeds)
        (host_op,) = plan.host_ops
        assert host_op.node.name == "formed"
        assert "known only when it ran" in host_op.reason
        assert len(plan.regions) == 2
        assert [row.ops for row in plan.profile(1).rows if row.kind == "host"] == [("formed",)]
        session.run(y, feeds, options=options, run_metadata=metadata)
    (device,) = metadata.step_stats.dev_stats
    assert {"add", "formed", "mul"} <= {node.node_name for node in device.node_stats}


def test_pure_host_ops_are_measured_too():
    x = tf.placeholder(tf.float32, [2, 2])
    y = tf.matrix_inverse(x + 1.0) * 2.0
    feeds = {x: np.eye(2, dtype=np.float32)}
    with tf.Session() as session:
        rows = session.plan(y, feeds).profile(2).rows
    assert [row.ops for row in rows if row.kind == "host"] == [("MatrixInverse",)]


def test_random_numbers_of_a_session_go_on_as_if_nothing_had_been_measured():
    tf.set_random_seed(3)
    x = tf.random_uniform([5]) + 1.0
    with tf.Session() as session:
        expected = [session.run(x) for _ in range(2)]
    with tf.Session() as session:
        first = session.run(x)
        session.plan(x).profile(2)
        np.testing.assert_array_equal([first, session.run(x)], expected)


def test_a_traced_step_tells_each_kernel_with_the_nodes_in_it(model: Perceptron, session: Any):
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    plain = session.run(model.loss, model.feeds(8))
    traced = session.run(model.loss, model.feeds(8), options=options, run_metadata=metadata)
    assert traced == plain
    (device,) = metadata.step_stats.dev_stats
    nodes = {node.node_name: node for node in device.node_stats}
    assert {"hidden", "MatMul", "BiasAdd", "Relu", model.loss.op.name} <= nodes.keys()
    assert "with" in nodes["MatMul"].timeline_label
    assert "Relu" in nodes["MatMul"].timeline_label
    assert f"@ {__file__}:" in nodes["MatMul"].timeline_label
    shape = nodes["Relu"].output[0].tensor_description.shape
    assert [dim.size for dim in shape.dim] == [8, 30]


def test_only_a_loop_on_the_executor_has_a_reason_to_be_there():
    x = tf.placeholder(tf.string, [])
    counted = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.strings.length(x)])
    joined = tf.while_loop(lambda y: tf.strings.length(y) < 3, lambda y: y + "x", [x])
    with tf.Session() as session:
        controls = session.plan([counted, joined], {x: "a"}).controls
        assert [(control.was_native, control.reason) for control in controls] == [(None, "")] * 2
        session.run([counted, joined], {x: "a"})
        native, other = sorted(controls, key=lambda control: not control.was_native)
    assert native.was_native and not native.reason
    assert other.was_native is False and other.reason


def test_arithmetic_that_does_not_change_in_a_loop_counts_once():
    x = tf.placeholder(tf.float32, [7, 11])
    total = tf.reduce_sum(x, 1, keep_dims=True)
    with tf.Session() as session:
        plan = session.plan(x / total, {x: np.ones((7, 11), np.float32)})
    counted = sum(flops_bytes(kernel.kernel).operations for kernel in plan.kernels)
    assert counted == 7 * 11 + 7 * 11


def test_what_is_moved_is_what_is_touched():
    table, rows = tf.placeholder(tf.float32, [1000, 8]), tf.placeholder(tf.int32, [3])
    feeds = {table: np.ones((1000, 8), np.float32), rows: np.zeros(3, np.int32)}
    with tf.Session() as session:
        plan = session.plan(tf.gather(table, rows) + 1.0, feeds)
    kernel = next(k.kernel for k in plan.kernels if k.kind == "loops")
    assert flops_bytes(kernel).moved == 4 * (3 * 8 + 3 + 3 * 8)


def test_what_is_read_and_written_is_moved_twice():
    x, y = tf.Variable(tf.ones([5, 7])), tf.Variable(tf.ones([5, 7]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        plan = session.plan(x.assign_add(y).op)
    assert plan.kernels[0].bytes == 4 * 3 * 5 * 7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_peaks(dtype: Any):
    assert host().vector_bytes
    assert arithmetic_peak(1, dtype) > 0
    assert copy_peak(1 << 14, 1) > 0


def test_names():
    assert snake_case("Conv2DBackpropFilter") == "conv2d_backprop_filter"
    assert snake_case("SparseSoftmaxCrossEntropyWithLogits").endswith("with_logits")
    assert short_name(["Const", "MatMul", "Identity", "Mul", "Mul"]) == "matmul+mul×2"
    assert short_name(["Identity"]) == "identity"
    assert short_name("ABCDEFG") == "a+b+c+d+e+2 more"


def test_amounts():
    assert (amount(5), amount(1500), amount(2e9)) == ("5", "1.5 k", "2 G")
    assert (size(5), size(580e3)) == ("5 B", "580 kB")
