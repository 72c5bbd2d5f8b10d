"""Partitions as text: transfers, order and copied constants."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import thalweg as tf
from thalweg.device.local import local_devices
from thalweg.graph.analysis.order import step_order
from thalweg.graph.op import Op
from thalweg.partition import transfers
from thalweg.partition.cut import Partition, partition
from thalweg.place.placer import Placer
from thalweg.runtime.plan import prune

_PREFIX = "/job:localhost/replica:0/task:0/device:"


def names(count: int) -> list[str]:
    """The names of `count` CPU devices."""
    return [device.name for device in local_devices({"CPU": count})]


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def cut(fetches: Sequence[Any], feeds: Sequence[tf.Tensor] = (), count: int = 2) -> list[Partition]:
    """The partitions of a step."""
    tensors = [each for each in fetches if isinstance(each, tf.Tensor)]
    targets = [each for each in fetches if isinstance(each, tf.Operation)]
    nodes = prune(tensors, targets, feeds)
    placement = Placer(names(count)).place(nodes)
    return partition(nodes, tensors, targets, feeds, placement, step_order(nodes, feeds))


def text(*fetches: Any, feeds: Sequence[tf.Tensor] = (), count: int = 2) -> str:
    """The partitions of a step as text, devices by their short names."""
    parts = "\n".join(map(described, cut(fetches, feeds, count))).replace(_PREFIX, "")
    return "\n" + parts + "\n"


def described(part: Partition) -> str:
    """A partition as text: a line for each node with its inputs, and where transfers go."""
    lines = [f"{part.device}:"]
    for node in part.nodes:
        inputs = [tensor.name for tensor in node.inputs]
        after = sorted(f"^{each.name}" for each in part.order[node] - {t.op for t in node.inputs})
        outputs = ", ".join(tensor.name for tensor in node.outputs) or f"^{node.name}"
        lines.append(f"  {outputs} = {node.type}({', '.join([*inputs, *after])}){route(node.op)}")
    return "\n".join(lines)


def route(op: Op) -> str:
    """The other end of a transfer, as text."""
    if isinstance(op, transfers.Receiving):
        return f" <- {op.tensor_name} from {op.send_device}"
    return f" -> {op.tensor_name} to {op.recv_device}" if isinstance(op, transfers.Sending) else ""


def test_a_tensor_is_sent_once_to_each_device_that_reads_it():
    x = tf.placeholder(tf.float32, [2], name="x")
    a = tf.square(x, name="a")
    with tf.device("/cpu:1"):
        b = tf.negative(a, name="b")
        c = tf.add(a, b, name="c")
    with tf.device("/cpu:2"):
        d = tf.negative(a, name="d")
    assert (
        text(c, d, feeds=[x], count=3)
        == """
CPU:0:
  a:0 = Square(x/Argument:0)
  ^a/_Send = _Send(a:0) -> a:0 to CPU:1
  ^a/_Send_1 = _Send(a:0) -> a:0 to CPU:2
CPU:1:
  a/_Recv:0 = _Recv() <- a:0 from CPU:0
  b:0 = Neg(a/_Recv:0)
  c:0 = Add(a/_Recv:0, b:0)
CPU:2:
  a/_Recv:0 = _Recv() <- a:0 from CPU:0
  d:0 = Neg(a/_Recv:0)
"""
    )


def test_a_control_edge_becomes_a_token():
    a = tf.no_op(name="a")
    with tf.device("/cpu:1"), tf.control_dependencies([a]):
        b = tf.no_op(name="b")
        c = tf.no_op(name="c")
    assert (
        text(b, c)
        == """
CPU:0:
  ^a = NoOp()
  ^a/_SendToken = _SendToken(^a) -> ^a to CPU:1
CPU:1:
  ^a/_RecvToken = _RecvToken() <- ^a from CPU:0
  ^b = NoOp(^a/_RecvToken)
  ^c = NoOp(^a/_RecvToken)
"""
    )


def test_a_value_that_arrived_stands_for_the_end_of_its_node():
    a = tf.square(tf.placeholder(tf.float32, name="x"), name="a")
    with tf.device("/cpu:1"):
        b = tf.negative(a, name="b")
        with tf.control_dependencies([a]):
            c = tf.no_op(name="c")
    assert "^c = NoOp(^a/_Recv)" in text(b, c, feeds=[a.op.inputs[0]])


def test_constants_are_copied_and_feeds_go_everywhere():
    x = tf.placeholder(tf.float32, name="x")
    one = tf.constant(1.0, name="one")
    a = tf.add(x, one, name="a")
    with tf.device("/cpu:1"):
        b = tf.multiply(x, one, name="b")
    assert (
        text(a, b, feeds=[x])
        == """
CPU:0:
  one:0 = Const()
  a:0 = Add(x/Argument:0, one:0)
CPU:1:
  one:0 = Const()
  b:0 = Mul(x/Argument:0, one:0)
"""
    )


def test_an_output_that_is_fed_is_not_sent():
    a = tf.square(tf.placeholder(tf.float32, name="x"), name="a")
    with tf.device("/cpu:1"):
        b = tf.negative(a, name="b")
    assert (
        text(b, a, feeds=[a])
        == """
CPU:1:
  b:0 = Neg(a/Argument:0)
"""
    )


def test_a_variable_is_read_on_its_device_once_for_each_reader():
    with tf.device("/cpu:1"):
        v = tf.Variable(1.0, name="v")._ref()
    before = tf.square(v, name="before")
    one = tf.constant(1.0, name="one")
    with tf.control_dependencies([before]):
        update = tf.assign_add(v, one, name="update")
    with tf.control_dependencies([update]):
        after = tf.square(v, name="after")
    assert (
        text(before, after)
        == """
CPU:0:
  v/_Recv:0 = _Recv() <- v:0>before from CPU:1
  before:0 = Square(v/_Recv:0)
  ^before/_SendToken = _SendToken(^before) -> ^before to CPU:1
  v/_Recv_1:0 = _Recv() <- v:0>after from CPU:1
  ^update/_RecvToken = _RecvToken() <- ^update from CPU:1
  after:0 = Square(v/_Recv_1:0, ^update/_RecvToken)
CPU:1:
  v:0 = VariableV2()
  ^v/_Send = _Send(v:0) -> v:0>before to CPU:0
  one:0 = Const()
  ^before/_RecvToken = _RecvToken() <- ^before from CPU:0
  update:0 = AssignAdd(v:0, one:0, ^before/_RecvToken)
  ^v/_Send_1 = _Send(v:0, ^update) -> v:0>after to CPU:0
  ^update/_SendToken = _SendToken(^update) -> ^update to CPU:0
"""
    )


def test_effects_on_the_host_keep_their_order_across_devices():
    x = tf.placeholder(tf.float32, name="x")
    first = tf.Print(x, [x], name="first")
    with tf.device("/cpu:1"):
        second = tf.Print(x, [x], name="second")
    assert "^first/_RecvToken" in text(first, second, feeds=[x])


def test_a_loop_on_one_device_is_one_node():
    with tf.device("/cpu:1"):
        y = tf.while_loop(lambda x: x < 3.0, lambda x: x + 1.0, [0.0], name="loop")
    parts = cut([tf.square(y, name="z")])
    assert [[node.type for node in part.nodes] for part in parts] == [
        ["_Recv", "Square"],
        ["Const", "While", "_Send"],
    ]


def test_what_comes_after_a_loop_asks_for_none_of_its_values():
    x, z = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [2])
    _, y, _ = tf.while_loop(
        lambda i, *_: i < 2,
        lambda i, h, spare: (i + 1, tf.Print(h, [i], "inside") * 2, spare + h),
        [0, x, tf.exp(z, name="spare")],
    )
    with tf.device("/cpu:1"):
        after = tf.Print(x, [x], "after")
    assert "spare" not in text(y, after, feeds=[x])
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        assert session.run([y, after], {x: [1, 2]})[0].tolist() == [4, 8]


def test_a_variable_itself_goes_to_a_loop_on_several_devices():
    with tf.device("/cpu:1"):
        v = tf.Variable(1.0, name="v")
    w = tf.Variable(1.0, name="w")
    y = tf.while_loop(
        lambda x: x < 3.0,
        lambda x: tf.tuple([x + 1.0], control_inputs=[v.assign_add(1.0), w.assign_add(1.0)])[0],
        [0.0],
    )
    assert "_SendRef(v:0) -> v:0 to CPU:0" in text(y)


def test_a_variable_is_sent_once_to_a_node_that_reads_it_twice():
    v = tf.Variable([1.0], name="v")
    with tf.device("/cpu:1"):
        y = tf.add(v.op.outputs[0], v.op.outputs[0], name="y")
    assert (
        text(y)
        == """
CPU:0:
  v:0 = VariableV2()
  ^v/_Send = _Send(v:0) -> v:0>y to CPU:1
CPU:1:
  v/_Recv:0 = _Recv() <- v:0>y from CPU:0
  y:0 = Add(v/_Recv:0, v/_Recv:0)
"""
    )


def test_fetches_and_feeds_know_their_places():
    x, y = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    with tf.device("/cpu:1"):
        a = tf.add(x, y)
    b = tf.square(y)
    first, second = cut([a, b, x, a], [x, y])
    assert [slot.place for slot in first.feeds] == [1]
    assert [slot.place for slot in first.fetches] == [1]
    assert [slot.place for slot in second.feeds] == [0, 1]
    assert [slot.place for slot in second.fetches] == [0, 2, 3]


def test_what_static_shapes_tell_is_a_constant_that_comes_after_its_node():
    x = tf.placeholder(tf.float32, [2, 3], name="x")
    with tf.control_dependencies([tf.Print(x, [x], name="effect")]):
        guarded = tf.identity(x, name="guarded")
    size = tf.shape(guarded, name="size")
    flat = tf.reshape(tf.ones([6]), size, name="flat")
    with tf.device("/cpu:1"):
        other = tf.fill(size, 1.0, name="other")
    found = text(flat, other, feeds=[x])
    assert "size/Const:0 = Const()" in found
    assert "flat:0 = Reshape(ones:0, size/Const:0, ^size)" in found
    assert "other:0 = Fill(size/Const:0, other/value:0, ^size/_RecvToken)" in found
    assert "_Send(size:0)" not in found
