"""Conditionals and loops travel in MetaGraphDefs as what they are."""

import numpy as np
import pytest

import thalweg as tf
from thalweg.saved.control_nodes import COLLECTION


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def model():
    """z of x: a loop with a conditional inside, and a conditional of what it gives."""
    x, w = tf.placeholder(tf.float32, [], name="x"), tf.Variable(2.0, name="w")
    _, y = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, a: (i + 1, a * w * tf.cond(a > 0, lambda: x, lambda: x + 1)),
        [0, x],
        name="loop",
    )
    z = tf.cond(x > 0, lambda: y * w, lambda: -y, name="choice")
    return x, w, tf.identity(z, name="z")


def types(graph):
    return {node.type for node in graph.get_operations()}


def values(z, x, w):
    wanted = [z, *tf.gradients(z, [x, w])]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return [session.run(wanted, {x: at}) for at in (1.5, -0.5)]


def imported(proto, **options):
    graph = tf.get_default_graph()
    tf.train.import_meta_graph(proto, **options)
    scope = options.get("import_scope")
    prefix = f"{scope}/" if scope else ""
    x, z = (graph.get_tensor_by_name(f"{prefix}{name}:0") for name in "xz")
    return x, tf.trainable_variables()[0], z


@pytest.mark.parametrize("scope", [None, "inside"])
def test_their_gradients_can_be_asked_for_after_import(scope):
    x, w, z = model()
    proto = tf.train.export_meta_graph()
    expected = values(z, x, w)
    with tf.Graph().as_default() as graph:
        x, w, z = imported(proto, import_scope=scope)
        assert types(graph) >= {"While", "If"} and not types(graph) & {"Switch", "Enter"}
        np.testing.assert_allclose(values(z, x, w), expected)
        assert tf.get_collection(COLLECTION) == []


def test_again_and_again():
    model()
    first = tf.train.export_meta_graph()
    with tf.Graph().as_default():
        tf.train.import_meta_graph(first)
        second = tf.train.export_meta_graph(clear_extraneous_savers=True)
        names = [{node.name for node in proto.graph_def.node} for proto in (first, second)]
        assert names[0] <= names[1]


def test_a_graph_def_is_what_others_read():
    model()
    proto = tf.train.export_meta_graph()
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.import_graph_def(proto.graph_def, name="")
        assert "Switch" in types(graph)
        assert session.run("z:0", {"x:0": -0.5, "w/read:0": 2.0}) == pytest.approx(0.5)


def test_a_training_graph_still_runs():
    x, w, z = model()
    train = tf.train.GradientDescentOptimizer(0.1).minimize(z, name="train")
    proto = tf.train.export_meta_graph()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {x: 0.5})
        expected = session.run(w)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(proto)
        session.run(tf.variables_initializer(tf.global_variables()))
        session.run("train", {"x:0": 0.5})
        assert session.run("w:0") == pytest.approx(expected)


def test_what_is_used_inside_stays_apart():
    model()
    proto = tf.train.export_meta_graph()
    inner = next(n.name for n in proto.graph_def.node if n.op == "Switch" and "choice" in n.name)
    proto.graph_def.node.add(name="other", op="Identity", input=[inner]).attr["T"].type = 1
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(proto)
        assert types(graph) >= {"Switch", "While"} and "If" not in types(graph)


def test_what_was_changed_stays_apart():
    model()
    proto = tf.train.export_meta_graph()
    node = next(n for n in proto.graph_def.node if n.op == "Enter" and "x" in list(n.input))
    node.input[list(node.input).index("x")] = "elsewhere"
    copied = proto.graph_def.node.add()
    copied.CopyFrom(next(n for n in proto.graph_def.node if n.name == "x"))
    copied.name = "elsewhere"
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(proto)
        assert types(graph) >= {"Enter", "If"} and "While" not in types(graph)


@pytest.mark.parametrize("content", [b"", b"\xff\xff rubbish"])
def test_what_cannot_be_read_is_not_needed(content):
    model()
    proto = tf.train.export_meta_graph()
    proto.collection_def[COLLECTION].bytes_list.value[:] = [content]
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(proto)
        assert "Switch" in types(graph) and "While" not in types(graph)


def test_devices_are_cleared_inside_too():
    with tf.device("/job:ps/task:3/cpu:0"):
        model()
    tf.data.Dataset.range(3).map(lambda x: x + 1).make_initializable_iterator()
    proto = tf.train.export_meta_graph()
    with tf.Graph().as_default():
        x, w, z = imported(proto, clear_devices=True)
        values(z, x, w)


def test_constants_in_loops_wait_for_something_in_their_frame(graph):
    def body(i, a):
        return i + 1, tf.switch_case(i, [lambda: a + 1.0, lambda: a * 3.0, lambda: a - 5.0])

    tf.while_loop(lambda i, _: i < 3, body, [0, tf.placeholder(tf.float32, [])], name="loop")
    nodes = graph.as_graph_def().node
    entered = {name for node in nodes if node.op == "Enter" for name in node.input}
    constants = [n for n in nodes if n.op == "Const" and n.name not in entered]
    assert len(constants) > 3
    assert all(node.input for node in constants)
