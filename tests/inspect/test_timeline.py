"""Timelines: the events of a traced step, its arrows, and the memory it held."""

import importlib
import json
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg import protos as messages
from thalweg.inspect.timeline import Timeline


def traced(devices: int = 1) -> Any:
    """The metadata of a step of four nodes, spread over devices."""
    config = tf.ConfigProto(device_count={"CPU": devices})
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # which would fold it all
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        a = tf.constant([1.0, 2.0], name="a")
        with tf.device(f"/cpu:{devices - 1}"):
            b = tf.constant([3.0, 4.0], name="b")
            total = tf.add(a, b, name="total")
        session.run(tf.negative(total, name="result"), options=options, run_metadata=metadata)
    return metadata


def events(trace: str, phase: str) -> list[Any]:
    return [event for event in json.loads(trace)["traceEvents"] if event["ph"] == phase]


def test_a_step_that_is_not_traced_has_no_stats():
    assert not tf.RunMetadata().HasField("step_stats")
    assert traced().HasField("step_stats")


def test_every_node_is_an_event_that_names_its_line():
    trace = Timeline(traced().step_stats).generate_chrome_trace_format()
    ran = {event["args"]["name"]: event for event in events(trace, "X")}
    assert ran.keys() == {"a", "b", "total", "result"}
    assert ran["total"]["name"] == "Add"
    assert ran["total"]["args"]["input1"] == "b"
    assert all(__file__ in event["args"]["line"] for event in ran.values())


def test_devices_are_rows():
    trace = Timeline(traced(devices=2).step_stats).generate_chrome_trace_format()
    rows = [event["args"]["name"] for event in events(trace, "M")]
    for index in range(2):
        assert f"/job:localhost/replica:0/task:0/device:CPU:{index} Compute" in rows


def test_arrows_go_from_device_to_device():
    stats = traced(devices=2).step_stats
    trace = Timeline(stats).generate_chrome_trace_format()
    starts, ends = events(trace, "s"), events(trace, "t")
    assert {event["name"] for event in starts} == {"total"}  # a constant is where it is read
    assert [event["id"] for event in starts] == [event["id"] for event in ends]
    plain = Timeline(stats).generate_chrome_trace_format(show_dataflow=False)
    assert not events(plain, "s")


def test_memory():
    analysis = Timeline(traced().step_stats).analyze_step_stats()
    most = analysis.allocator_maximums["cpu"]
    assert {"a", "b", "total"} <= most.tensors
    assert most.num_bytes == 8 * len(most.tensors)
    assert most.timestamp > 0
    trace = analysis.chrome_trace.format_to_string()
    assert len(events(trace, "N")) == len(events(trace, "D")) == 4
    assert events(trace, "C")


def test_nodes_that_overlap_get_lanes_of_their_own():
    stats = messages.StepStats()
    device = stats.dev_stats.add(device="/cpu:0")
    for start in (0, 5, 10):
        device.node_stats.add(
            node_name="n", timeline_label="n = Op()", all_start_micros=start, all_end_rel_micros=8
        )
    trace = Timeline(stats).generate_chrome_trace_format()
    assert [event["tid"] for event in events(trace, "X")] == [0, 1, 0]


@pytest.mark.parametrize(
    ("name", "label", "op"), [("RecvTensor", "from a to b", "RecvTensor"), ("x", "?", "unknown")]
)
def test_labels_of_other_forms(name: str, label: str, op: str):
    stats = messages.StepStats()
    stats.dev_stats.add(device="/cpu:0").node_stats.add(node_name=name, timeline_label=label)
    (event,) = events(Timeline(stats).generate_chrome_trace_format(), "X")
    assert event["name"] == op


def test_the_messages_of_tensorflow_work_too():
    stats = importlib.import_module("tensorboard.compat.proto.step_stats_pb2").StepStats()
    node = stats.dev_stats.add(device="/cpu:0").node_stats.add(node_name="a")
    node.timeline_label = "a = Const()"
    (event,) = events(Timeline(stats).generate_chrome_trace_format(), "X")
    assert event["name"] == "Const"


def test_metadata_as_bytes():
    protos = importlib.import_module("tensorboard.compat.proto.config_pb2")
    read = protos.RunMetadata.FromString(traced().SerializeToString())
    (device,) = read.step_stats.dev_stats
    (a,) = [node for node in device.node_stats if node.node_name == "a"]
    assert a.all_end_rel_micros > 0
    assert [dim.size for dim in a.output[0].tensor_description.shape.dim] == [2]
    assert a.output[0].tensor_description.allocation_description.requested_bytes == 8


def test_a_message_copies_another():
    metadata = traced()
    other = tf.RunMetadata()
    other.CopyFrom(metadata)
    assert other == metadata
    other.step_stats.dev_stats[0].node_stats.add(node_name="more")
    assert other != metadata


def test_a_program_that_sends_a_value_while_it_runs_is_traced_kernel_by_kernel():
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        x = tf.placeholder(tf.float32, [200, 200])
        early = tf.matmul(x, x, name="early")
        late = tf.matmul(tf.matmul(early, x, name="middle"), x, name="late")
        with tf.device("/cpu:1"):
            there = tf.tanh(early, name="there")
        feeds = {x: np.full((200, 200), 0.01, np.float32)}
        session.run([late, there], feeds, options=options, run_metadata=metadata)
        plan = session.plan([late, there], feeds)
        assert "sends    early:0 after kernel 1 of 3" in str(plan)
        assert all(row.best > 0 for row in plan.profile(2).rows)
    nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    start = {node.node_name: node.all_start_micros for node in nodes}
    assert start["early"] <= start["middle"] <= start["late"]


@pytest.mark.parametrize("wanted", [[0], [1], [0, 1]])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_control_nodes_with_outputs_that_nobody_reads_are_traced(
    wanted: list[int], is_compiled: bool
) -> None:
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [2])
        y = x if is_compiled else tf.string_to_number(tf.as_string(x))
        branches = tf.cond(y[0] > 0, lambda: (y * 2, y * 3), lambda: (y, x), name="branches")
        loop = tf.while_loop(
            lambda i, *_: i < 2, lambda i, a, b: (i + 1, a * y, b + x), [0, y, x], name="loop"
        )
        fetches = [[branches[place], loop[1 + place]] for place in wanted]
        fetches.append(tf.gradients([fetch[0] for fetch in fetches], x))
        plain = session.run(fetches, {x: [1.0, 2.0]})
        traced = session.run(fetches, {x: [1.0, 2.0]}, options=options, run_metadata=metadata)
    np.testing.assert_equal(traced, plain)
    labels = [n.timeline_label for d in metadata.step_stats.dev_stats for n in d.node_stats]
    assert sum(" = If(" in label and "branches" in label.partition(" = ")[0] for label in labels)
    assert sum(" = While(" in label for label in labels) == 1
