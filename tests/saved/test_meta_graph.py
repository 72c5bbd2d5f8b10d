"""Graphs as MetaGraphDefs, to and from, whole and below scopes."""

import os

import numpy as np
import pytest

import thalweg as tf
from thalweg.saved import meta_graph
from thalweg.saved.collection_protos import register_proto_function


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def model():
    x = tf.placeholder(tf.float32, [None, 2], name="x")
    with tf.name_scope("layer"):
        w = tf.Variable([[1.0], [2.0]], name="w")
        y = tf.matmul(x, w, name="y")
    tf.add_to_collection("outputs", y)
    tf.add_to_collection("sizes", 3)
    tf.add_to_collection("rates", 0.5)
    tf.add_to_collection("words", "hello")
    return y


def test_a_graph_comes_back(tmp_path):
    model()
    saver = tf.train.Saver()
    path = str(tmp_path / "graph.meta")
    exported = saver.export_meta_graph(path)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saved = saver.save(session, str(tmp_path / "m"))
    with tf.Graph().as_default(), tf.Session() as session:
        restored = tf.train.import_meta_graph(path)
        restored.restore(session, saved)
        (y,) = tf.get_collection("outputs")
        np.testing.assert_array_equal(session.run(y, {"x:0": [[1, 1]]}), [[3]])
        assert tf.get_collection("sizes") == [3]
        assert tf.get_collection("rates") == [0.5]
        assert tf.get_collection("words") == [b"hello"]
        assert [v.name for v in tf.trainable_variables()] == ["layer/w:0"]
        assert restored.export_meta_graph() == exported


def test_text_files(tmp_path):
    model()
    path = tmp_path / "graph.pbtxt"
    exported = tf.train.export_meta_graph(str(path), as_text=True)
    assert path.read_text().startswith("meta_info_def")
    assert meta_graph.read_meta_graph_file(str(path)) == exported


def test_into_a_scope(tmp_path):
    model()
    exported = tf.train.export_meta_graph()
    with tf.Graph().as_default(), tf.Session() as session:
        saver = tf.train.import_meta_graph(exported, import_scope="inner")
        assert [v.name for v in tf.global_variables()] == ["inner/layer/w:0"]
        session.run(tf.global_variables_initializer())
        saver.save(session, str(tmp_path / "m"))
        assert tf.train.list_variables(str(tmp_path / "m")) == [("inner/layer/w", [2, 1])]


def test_a_part_needs_its_inputs():
    model()
    exported, variables = meta_graph.export_scoped_meta_graph(export_scope="layer")
    assert list(variables) == ["w:0"]
    assert {node.name for node in exported.graph_def.node} >= {"w", "y"}
    with tf.Graph().as_default(), tf.Session() as session:
        with pytest.raises(ValueError, match="unbound inputs"):
            meta_graph.import_scoped_meta_graph(exported)
        x = tf.constant([[1.0, 0.0]])
        meta_graph.import_scoped_meta_graph(
            exported, import_scope="new", input_map={"$unbound_inputs_x": x}
        )
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run("new/y:0"), [[1]])


def test_a_scope_is_no_prefix_of_a_name():
    with tf.name_scope("layer"):
        tf.constant(1, name="a")
    with tf.name_scope("layer10"):
        tf.constant(1, name="b")
    exported, _ = meta_graph.export_scoped_meta_graph(export_scope="layer")
    assert [node.name for node in exported.graph_def.node] == ["a"]


def test_copies(graph):
    with tf.name_scope("first"):
        tf.Variable(1.0, name="v")
    copied = meta_graph.copy_scoped_meta_graph("first", "second")
    assert [v.name for v in copied.values()] == ["second/v:0"]
    assert graph.get_operation_by_name("second/v/Assign").get_attr("_class") == [b"loc:@second/v"]


def test_devices_may_be_cleared():
    with tf.device("/cpu:0"):
        tf.constant(1, name="a")
    assert tf.train.export_meta_graph(clear_devices=True).graph_def.node[0].device == ""
    exported = tf.train.export_meta_graph()
    assert exported.graph_def.node[0].device == "/device:CPU:0"
    with tf.Graph().as_default() as other:
        tf.train.import_meta_graph(exported, clear_devices=True)
        assert other.get_operation_by_name("a").device == ""


def test_default_attributes_may_be_stripped():
    tf.matmul([[1.0]], [[1.0]], name="m")
    plain = tf.train.export_meta_graph()
    stripped = tf.train.export_meta_graph(strip_default_attrs=True)
    assert "transpose_a" in plain.graph_def.node[-1].attr
    assert "transpose_a" not in stripped.graph_def.node[-1].attr
    assert stripped.meta_info_def.stripped_default_attrs
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(stripped)
        assert session.run("m:0") == [[1]]


def test_other_savers_may_be_cleared():
    model()
    for name in ("one", "two"):
        tf.add_to_collection("savers", tf.train.Saver(name=name))
    one, _ = tf.get_collection("savers")
    names = {n.name for n in one.export_meta_graph(clear_extraneous_savers=True).graph_def.node}
    assert "one/SaveV2" in names
    assert "two/SaveV2" not in names


def test_savers_are_a_collection(tmp_path):
    v = tf.Variable(1.0, name="v")
    tf.add_to_collection("savers", tf.train.Saver({"v": v}, name="mine"))
    exported = tf.train.export_meta_graph()
    with tf.Graph().as_default():
        tf.train.import_meta_graph(exported)
        (saver,) = tf.get_collection("savers")
        assert saver.as_saver_def().restore_op_name == "mine/restore_all"


def test_where_nodes_were_made(tmp_path):
    tf.constant(1, name="a")
    path = str(tmp_path / "graph.meta")
    tf.train.export_meta_graph(path, save_debug_info=True)
    assert os.path.exists(tmp_path / "debug/graph.meta.debug")


def test_collections_of_no_one_kind_are_left_out():
    tf.constant(1)
    tf.add_to_collection("mixed", 1)
    tf.add_to_collection("mixed", "text")
    assert "mixed" not in tf.train.export_meta_graph().collection_def


def test_a_damaged_collection():
    tf.Variable(1.0)
    proto = tf.train.export_meta_graph()
    proto.collection_def["variables"].bytes_list.value[:] = [b"\xff\xff"]
    with tf.Graph().as_default(), pytest.raises(ValueError, match="The collection variables of"):
        tf.train.import_meta_graph(proto)


def test_registered_twice_is_an_error():
    with pytest.raises(KeyError):
        register_proto_function("variables")


def test_arguments_are_checked(tmp_path):
    with pytest.raises(TypeError, match="graph_def must be"):
        meta_graph.create_meta_graph_def(graph_def="no")
    with pytest.raises(OSError, match="does not exist"):
        tf.train.import_meta_graph(str(tmp_path / "nothing"))
    (tmp_path / "bad").write_bytes(b"\xff\xff")
    with pytest.raises(OSError, match="Cannot parse"):
        tf.train.import_meta_graph(str(tmp_path / "bad"))
    with pytest.raises(ValueError, match="not registered"):
        graph_def = tf.GraphDef()
        graph_def.node.add(op="Nonsense")
        meta_graph.stripped_op_list_for_graph(graph_def)


def test_an_attribute_may_name_no_function():
    graph_def = tf.GraphDef()
    node = graph_def.node.add(name="x", op="NoOp")
    node.attr["none"].func.name = ""
    node.attr["nones"].list.func.add(name="")
    tf.import_graph_def(graph_def, name="")
    assert meta_graph.ops_used_by_graph_def(graph_def) == ["NoOp"]
    assert tf.train.export_meta_graph().graph_def.node[0].attr["none"].func.name == ""


def test_a_graph_without_variables_has_no_saver():
    tf.constant(1)
    exported = tf.train.export_meta_graph()
    with tf.Graph().as_default():
        assert tf.train.import_meta_graph(exported) is None
