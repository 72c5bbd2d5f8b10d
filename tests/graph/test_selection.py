"""Operations chosen by name and by kin, and copies of them with other inputs."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf

ge = tf.contrib.graph_editor


class Net:
    """x -> a -> b -> c, with a side input, and one operation after `a` by control alone."""

    def __init__(self) -> None:
        self.x = tf.placeholder(tf.float32, [2], name="x")
        with tf.name_scope("net"):
            self.a = tf.square(self.x, name="a")
            self.b = tf.multiply(self.a, tf.constant(3.0, name="three"), name="b")
            self.c = tf.reduce_sum(self.b, 0, name="c")
        with tf.control_dependencies([self.a]):
            self.late = tf.no_op(name="late")


@pytest.fixture
def net() -> Any:
    with tf.Graph().as_default():
        yield Net()


def names(ops: Any) -> list[str]:
    return [op.name for op in ops]


def test_walks(net: Net) -> None:
    assert names(ge.get_backward_walk_ops(net.b.op)) == ["net/b", "net/a", "net/three", "x"]
    assert names(ge.get_backward_walk_ops([net.b], inclusive=False, stop_at_ts=[net.a])) == [
        "net/three"
    ]
    assert names(ge.get_forward_walk_ops(net.a.op)) == ["net/a", "net/b", "net/c"]
    assert "late" in names(ge.get_forward_walk_ops(net.a.op, control_outputs=True))
    assert names(ge.get_backward_walk_ops(net.late, control_inputs=True)) == ["late", "net/a", "x"]
    assert names(ge.get_walks_intersection_ops(net.a, net.b)) == ["net/a", "net/b"]
    union = names(ge.get_walks_union_ops(net.b, net.a))
    assert sorted(union) == ["net/a", "net/b", "net/c", "x"]
    within = ge.get_backward_walk_ops(net.c, within_ops=[net.c.op, net.b.op])
    assert names(within) == ["net/c", "net/b"]
    short = ge.get_backward_walk_ops(net.c, within_ops_fn=lambda op: op.type != "Square")
    assert "x" not in names(short)


def test_selections(net: Net) -> None:
    graph = net.x.graph
    assert names(ge.select_ops("^net/[ab]$", graph=graph)) == ["net/a", "net/b"]
    assert names(ge.select_ops(net.a.op, [net.b.op, net.a.op])) == ["net/a", "net/b"]
    assert names(ge.select_ts("^net/a", graph=graph)) == ["net/a:0"]
    assert names(ge.filter_ops_from_regex(graph, "^net/a")) == ["net/a"]
    assert ge.filter_ts_from_regex(graph, "^net/a") == [net.a]
    assert names(ge.get_name_scope_ops(graph, "net/")) == names(ge.select_ops("^net/", graph=graph))
    assert ge.get_generating_ops([net.a, net.b]) == [net.a.op, net.b.op]
    assert ge.get_consuming_ops(net.a) == [net.b.op]
    assert net.b in ge.get_tensors(graph) and ge.make_list_of_t(graph) == ge.get_tensors(graph)
    ops, ts = ge.select_ops_and_ts(net.a.op, "(?#ts)^net/b", graph=graph)
    assert ops == [net.a.op] and ts == [net.b]
    view = ge.sgv([net.a.op, net.b.op])
    assert view.inputs[0] is net.x and view.outputs == [net.b]
    assert names(ge.sgv_scope("net", graph).ops) == names(ge.get_name_scope_ops(graph, "net"))


def test_replacements(net: Net) -> None:
    other = tf.constant([1.0, 2.0])
    replaced, same = ge.graph_replace([net.c, net.x], {net.a: other}, dst_scope="new")
    assert replaced.op.name == "new/net/c" and same is net.x
    with tf.Session() as session:
        assert session.run(replaced) == 9.0
        assert session.run(net.c, {net.x: [1.0, 1.0]}) == 6.0
        slope = tf.gradients(replaced, other)[0]
        np.testing.assert_array_equal(session.run(slope), [3, 3])
    with pytest.raises(ValueError, match="not connected"):
        ge.graph_replace(net.a, {net.b: other})


def test_copies(net: Net) -> None:
    view, info = ge.copy_with_input_replacements([net.a.op, net.b.op], {net.x: tf.ones([2])})
    made = info.transformed(net.b)
    assert info.original(made) is net.b and made.op in view.ops
    assert info.transformed(net.c, lambda t: "none") == "none"
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(made), [3, 3])


def test_loops_are_copied_whole() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(2.0)
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * x), [0, x])
        other = ge.graph_replace(y, {x: tf.constant(3.0)})
        assert session.run([y, other]) == [16.0, 81.0]


def test_mistakes(net: Net) -> None:
    with pytest.raises(ValueError, match="graph"):
        ge.select_ops("^a")
    with pytest.raises(TypeError, match="Expected Nodes"):
        ge.make_list_of_op([1])
    with pytest.raises(ValueError, match="keywords"):
        ge.select_ops(net.a.op, wrong=1)
    with pytest.raises(TypeError, match="not at a graph"):
        ge.get_backward_walk_ops(net.x.graph)
    with tf.Graph().as_default():
        far = tf.constant(1.0)
    with pytest.raises(ValueError, match="same graph"):
        ge.make_list_of_t([net.a, far])
    with pytest.raises(AttributeError, match="graph_replace"):
        ge.reroute_ts([far], [far])
