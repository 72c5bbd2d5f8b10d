"""Rewriting: copies keep what nodes are, and the map leads from old to new."""

import numpy as np
import pytest

import thalweg as tf
from thalweg.graph.rewriter import Rewriter


def rewritten(graph: tf.Graph) -> Rewriter:
    """All nodes of a graph, copied."""
    rewriter = Rewriter(tf.Graph(), replaces=True)
    for node in graph.nodes:
        rewriter.copy(node)
    return rewriter


def test_a_copy_keeps_what_a_node_is():
    with tf.Graph().as_default() as graph:
        with tf.name_scope("scope"), tf.device("/cpu:1"), graph.attr_scope({"_mark": 3}):
            x = tf.placeholder(tf.float32, [None, 2], name="x")
        with tf.control_dependencies([x]):
            y = tf.add_n([x, x], name="y")
    rewriter = rewritten(graph)
    for node in graph.nodes:
        made = rewriter.nodes[node]
        assert made is not node and made.graph is rewriter.graph
        assert (made.name, made.device, made.op) == (node.name, node.device, node.op)
        assert (made.annotations, made.origin) == (node.annotations, node.origin)
        assert made.input_counts() == node.input_counts()
        assert made.controls == tuple(rewriter.nodes[control] for control in node.controls)
        assert made.original is node
    assert rewriter.tensors[y].shape.as_list() == [None, 2]


def test_a_node_that_was_not_rewritten_is_its_own_original():
    assert (node := tf.constant(1.0).op).original is node


def test_the_original_of_a_copy_of_a_copy():
    with tf.Graph().as_default() as graph:
        x = tf.constant(1.0)
    once = rewritten(graph)
    twice = rewritten(once.graph)
    assert twice.nodes[once.nodes[x.op]].original is x.op


def test_a_node_of_a_body_may_have_an_original():
    def loop() -> tf.Operation:
        with tf.Graph().as_default() as graph:
            tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0])
        return next(node for node in graph.nodes if node.op.bodies)

    pairs = list(zip(*(loop().op.bodies[1].graph.nodes for _ in range(2)), strict=True))
    for first, second in pairs:
        second.original = first
    assert pairs and all(second.original is first for first, second in pairs)


def test_a_copy_that_replaces_nothing_is_its_own_original():
    with tf.Graph().as_default() as graph:
        x = tf.constant(1.0)
    made = Rewriter(tf.Graph()).copy(x.op)
    assert made.original is made and graph.nodes == [x.op]


def test_tensors_and_controls_can_be_replaced():
    with tf.Graph().as_default():
        x, before = tf.constant([1.0]), tf.no_op()
        with tf.control_dependencies([before]):
            y = tf.negative(x)
    graph = tf.Graph()
    with graph.as_default():
        other, after = tf.constant([2.0]), tf.no_op()
    rewriter = Rewriter(graph, {x: other})
    made = rewriter.copy(y.op, controls=[after])
    assert made.inputs == (other,)
    assert made.controls == (after,)  # the copy has nothing for the control input it had
    with tf.Session(graph=graph) as session:
        np.testing.assert_array_equal(session.run(rewriter.tensors[y]), [-2.0])


def test_a_rewritten_loop_and_its_gradient_run():
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [])
        y = tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v * x), [0, x])[1]
        (gradient,) = tf.gradients(y, x)
    rewriter = rewritten(graph)
    loop = next(node for node in graph.nodes if node.op.bodies)
    assert rewriter.nodes[loop].op.bodies == loop.op.bodies
    with tf.Session(graph=rewriter.graph) as session:
        feeds = {rewriter.tensors[x]: 2.0}
        assert session.run([rewriter.tensors[y], rewriter.tensors[gradient]], feeds) == [16.0, 32.0]


def test_an_error_in_a_copy_is_the_originals():
    with tf.Graph().as_default() as graph:
        y = tf.gather(tf.constant([1.0]), tf.placeholder(tf.int32, [], name="at"), name="taken")
    rewriter = rewritten(graph)
    at = rewriter.tensors[graph.get_tensor_by_name("at:0")]
    with (
        tf.Session(graph=rewriter.graph) as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"test_rewriter\.py") as caught,
    ):
        session.run(rewriter.tensors[y], {at: 7})
    assert caught.value.op is y.op
