"""Placement: requests, colocation, nodes that follow others, and infeasible requests."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.device.local import local_devices
from thalweg.place.placer import Placer


def names(count: int) -> list[str]:
    """The names of `count` CPU devices."""
    return [device.name for device in local_devices({"CPU": count})]


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def indices(*tensors: Any, count: int = 3, soft: bool = False) -> list[int]:
    """The devices of nodes by their index."""
    nodes = [tensor if isinstance(tensor, tf.Operation) else tensor.op for tensor in tensors]
    placement = Placer(names(count), soft).place(nodes)
    return [int(placement[node][-1]) for node in nodes]


def test_requests_are_obeyed_and_the_default_is_the_first_device():
    with tf.device("/cpu:2"):
        a = tf.square(tf.placeholder(tf.float32))
    with tf.device("/job:localhost"), tf.device("/cpu:1"):
        b = tf.square(a)
    assert indices(a, b, tf.square(b)) == [2, 1, 0]


def test_device_functions_see_the_node():
    with tf.device(lambda node: "/cpu:1" if node.type == "Square" else "/cpu:2"):
        a = tf.square(tf.placeholder(tf.float32))
        b = tf.negative(a)
    assert indices(a, b) == [1, 2]


def test_partial_names_of_colocated_nodes_are_merged():
    with tf.device("/job:localhost/task:0"):
        a = tf.square(tf.placeholder(tf.float32), name="a")
    with tf.get_default_graph().attr_scope({"_class": [b"loc:@a"]}), tf.device("/cpu:2"):
        b = tf.negative(a)
    assert indices(a, b) == [2, 2]


def test_colocated_nodes_share_a_device():
    a = tf.square(tf.placeholder(tf.float32))
    with tf.device("/cpu:1"):
        b = tf.square(a)
    with tf.colocate_with(b):
        c = tf.negative(a)
        with tf.colocate_with(c):
            d = tf.negative(c)
    assert indices(a, b, c, d) == [0, 1, 1, 1]


def test_what_writes_a_variable_is_where_the_variable_is():
    with tf.device("/cpu:1"):
        v = tf.Variable([1.0])
    w = tf.Variable([1.0])
    update = tf.scatter_update(v, [0], [2.0])
    assert indices(v, v.initializer, v.value(), update, tf.square(v), w) == [1, 1, 1, 1, 0, 0]


def test_what_takes_a_resource_is_where_the_resource_is():
    with tf.device("/cpu:2"):
        queue = tf.FIFOQueue(3, [tf.float32], [[]])
    put, taken = queue.enqueue(1.0), queue.dequeue()
    assert indices(queue.queue_ref, put, taken, queue.size()) == [2, 2, 2, 2]


def test_a_resource_that_comes_back_to_a_merge_stays_on_its_device():
    with tf.device("/cpu:1"):
        start = tf.control.enter(tf.placeholder(tf.resource, []), "frame")
    merged = tf.control.merge([start, start]).output
    _, stays = tf.control.switch(merged, tf.control.loop_cond(tf.constant(False)))
    with tf.device("/cpu:2"):
        back = tf.control.next_iteration(stays)
    merged.op._update_input(1, back)
    assert indices(start, merged, stays, back) == [1, 1, 1, 1]


def test_shapes_follow_their_input_and_sources_their_consumers():
    one, two = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
    with tf.device("/cpu:1"):
        a = tf.square(one)
        b = tf.negative(two)
    with tf.device("/cpu:2"):
        tf.negative(two)
    assert indices(one, a, tf.shape(a), two, b) == [1, 1, 1, 0, 1]


def test_nodes_inside_a_loop_follow_it_and_a_loop_what_is_asked_inside():
    with tf.device("/cpu:1"):
        whole = tf.while_loop(lambda x: x < 3.0, lambda x: x + 1.0, [0.0]).op

    def body(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/cpu:2"):
            return x * 2.0

    inside = tf.while_loop(lambda x: x < 3.0, body, [0.5]).op
    placement = Placer(names(3)).place([whole, inside])
    assert [int(placement[node][-1]) for node in (whole, inside)] == [1, 2]
    assert {int(d[-1]) for d in placement.values()} == {1, 2}
    assert len(placement) > 2 + len(whole.op.bodies)  # those inside are there


def test_a_loop_is_where_the_variable_is_that_it_writes():
    with tf.device("/cpu:1"):
        v = tf.Variable(0.0)
    loop = tf.while_loop(
        lambda i: i < 3,
        lambda i: tf.tuple([i + 1], control_inputs=[tf.assign_add(v, 1.0)])[0],
        [0],
    )
    assert indices(v, loop.op) == [1, 1]


def test_what_was_placed_stays():
    placer = Placer(names(2))
    x = tf.placeholder(tf.float32, name="x")
    assert placer.place([x.op])[x.op].endswith(":0")
    with tf.device("/cpu:1"):
        y = tf.square(x)
    placement = placer.place([x.op, y.op])
    assert [placement[x.op][-1], placement[y.op][-1]] == ["0", "1"]


def test_what_holds_state_overrides_the_device_of_what_uses_it():
    with tf.device("/cpu:1"):
        v = tf.Variable([1.0])
        queue = tf.FIFOQueue(3, tf.float32)
        table = tf.contrib.lookup.MutableHashTable(tf.string, tf.float32, -1.0)
    with tf.device("/cpu:0"):
        uses = v.assign([2.0]), queue.enqueue(1.0), table.insert("a", 1.0), table.size()
    assert indices(*uses) == [1, 1, 1, 1]


def test_a_body_that_grew_is_placed_too():
    placer = Placer(names(2))
    x = tf.placeholder(tf.float32, [])
    with tf.device("/cpu:1"):
        y = tf.while_loop(lambda v: v < 9.0, lambda v: tf.square(v) + x, [x])
    placer.place([x.op, y.op])
    gradient = tf.gradients(y, x)[0]
    placement = placer.place(gradient.graph.get_operations())
    inner = [node for body in y.op.op.bodies for node in body.graph.nodes]
    assert {node for node in inner if node.type != "Argument"} <= placement.keys()


def test_a_conflict_names_both_nodes_and_lines():
    with tf.device("/cpu:0"):
        a = tf.square(tf.placeholder(tf.float32), name="first")
    with tf.get_default_graph().attr_scope({"_class": [b"loc:@first"]}), tf.device("/cpu:1"):
        b = tf.negative(a, name="second")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        indices(a, b)
    message = str(caught.value)
    assert "Cannot colocate" in message
    assert "'first'" in message and "'second'" in message
    assert message.count("test_placer.py:") >= 3  # one for each, and one for the op of the error
    assert indices(a, b, soft=True) == [0, 0]


def test_a_conflict_elsewhere_in_the_graph_is_no_error_of_a_step():
    with tf.device("/cpu:7"):
        missing = tf.square(tf.placeholder(tf.float32), name="missing")
    a = tf.square(tf.placeholder(tf.float32))
    assert indices(a) == [0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="no device matches '/device:CPU:7'"):
        indices(missing)
    assert indices(missing, soft=True) == [0]


def test_earlier_steps_bind_later_groups():
    placer = Placer(names(2))
    a = tf.square(tf.placeholder(tf.float32), name="early")
    with tf.device("/cpu:1"):
        b = tf.square(a, name="late")
    placer.place([a.op, b.op])
    graph = tf.get_default_graph()
    with graph.attr_scope({"_class": [b"loc:@early", b"loc:@late"]}):
        c = tf.negative(b)
    with pytest.raises(tf.errors.InvalidArgumentError, match="earlier steps of the session"):
        placer.place([c.op])


def test_accelerators_of_any_type_are_preferred_for_what_they_run():
    """A type of device that this process has never heard of needs no entry in placement."""
    accelerator = "/job:localhost/replica:0/task:0/device:ACCELERATOR:0"
    x = tf.placeholder(tf.float32, [3])
    with tf.device("/cpu:0"):
        asked = tf.square(x)
    compiled, text = tf.square(x), tf.as_string(x)
    variable = tf.Variable(np.ones(3, np.float32))
    with tf.device("/device:ACCELERATOR:0"):
        there = tf.negative(x)
    placer = Placer([*names(1), accelerator])
    nodes = [t.op for t in (asked, compiled, text, variable, there)]
    placement = placer.place(nodes)
    (cpu,) = names(1)
    assert [placement[node] for node in nodes] == [cpu, accelerator, cpu, accelerator, accelerator]


def test_a_kind_that_is_not_here_falls_back():
    with tf.device("/gpu:1"):
        a = tf.square(tf.placeholder(tf.float32))
    assert indices(a) == [0]


def test_placements_are_logged_as_tensorflow_does(capsys):
    with tf.device("/cpu:1"):
        x = tf.square(tf.constant(2.0), name="x")
    config = tf.ConfigProto(log_device_placement=True, device_count={"CPU": 2})
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # which would fold it all
    with tf.Session(config=config) as session:
        assert session.run(tf.negative(x, name="y")) == -4.0
    lines = capsys.readouterr().err.splitlines()
    assert "x: (Square): /job:localhost/replica:0/task:0/device:CPU:1" in lines
    assert "y: (Neg): /job:localhost/replica:0/task:0/device:CPU:0" in lines


def test_a_session_lists_its_devices():
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        assert session.list_devices() == [
            "/job:localhost/replica:0/task:0/device:CPU:0",
            "/job:localhost/replica:0/task:0/device:CPU:1",
        ]
