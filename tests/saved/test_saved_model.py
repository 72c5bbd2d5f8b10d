"""Saved models, frozen graphs, and the command that shows them."""

import numpy as np
import pytest

import thalweg as tf
from thalweg.saved.freeze import freeze_graph


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def model():
    x = tf.placeholder(tf.float32, [None, 2], name="x")
    w = tf.Variable([[1.0], [2.0]], name="w")
    return x, tf.matmul(x, w, name="y")


def saved(path, **arguments):
    x, y = model()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        tf.saved_model.simple_save(session, path, {"x": x}, {"y": y}, **arguments)
    return path


def test_lookup_tables_and_their_files_go_with_a_model(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")
    table = tf.contrib.lookup.index_table_from_file(str(words))
    counts = tf.contrib.lookup.MutableHashTable(tf.string, tf.int64, -1)
    x = tf.placeholder(tf.string, [None], name="x")
    y, z = (tf.identity(t.lookup(x), name=n) for t, n in ((table, "y"), (counts, "z")))
    start = tf.tables_initializer()
    with tf.Session() as session:
        session.run([start, counts.insert(tf.constant(["b"]), tf.constant([5], tf.int64))])
        tf.saved_model.simple_save(
            session, str(tmp_path / "model"), {"x": x}, {"y": y, "z": z}, legacy_init_op=start
        )
    words.unlink()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.saved_model.loader.load(session, ["serve"], str(tmp_path / "model"))
        found = session.run(["y:0", "z:0"], {"x:0": ["b", "q", "a"]})
    assert [column.tolist() for column in found] == [[1, -1, 0], [5, -1, -1]]


def test_a_model_comes_back(tmp_path):
    path = saved(str(tmp_path / "model"))
    assert tf.saved_model.loader.maybe_saved_model_directory(path)
    assert not tf.saved_model.contains_saved_model(str(tmp_path))
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.loader.load(session, [tf.saved_model.tag_constants.SERVING], path)
        signature = loaded.signature_def["serving_default"]
        assert tf.saved_model.is_valid_signature(signature)
        x = tf.saved_model.get_tensor_from_tensor_info(signature.inputs["x"])
        y = tf.saved_model.get_tensor_from_tensor_info(signature.outputs["y"])
        assert x.shape.as_list() == [None, 2]
        np.testing.assert_array_equal(session.run(y, {x: [[1, 1]]}), [[3]])


def test_into_a_scope(tmp_path):
    path = saved(str(tmp_path / "model"))
    with tf.Graph().as_default(), tf.Session() as session:
        tf.saved_model.load(session, ["serve"], path, import_scope="inner")
        np.testing.assert_array_equal(session.run("inner/y:0", {"inner/x:0": [[1, 0]]}), [[1]])


def test_several_graphs_share_variables(tmp_path):
    builder = tf.saved_model.builder.SavedModelBuilder(str(tmp_path / "model"))
    v = tf.Variable(42, name="v")
    with tf.Session() as session:
        session.run(v.initializer)
        builder.add_meta_graph_and_variables(session, ["train"])
    with tf.Graph().as_default():
        tf.Variable(0, name="v")
        builder.add_meta_graph(["serve", "small"])
    builder.save(as_text=True)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.saved_model.load(session, {"small", "serve"}, str(tmp_path / "model"))
        assert session.run("v:0") == 42
        with pytest.raises(RuntimeError, match="could not be found"):
            tf.saved_model.load(session, ["serve"], str(tmp_path / "model"))


def test_files_go_with_a_model(tmp_path):
    (tmp_path / "words.txt").write_text("words")
    asset = tf.constant(str(tmp_path / "words.txt"), name="asset")
    read = tf.Variable("", name="read", collections=[])
    tf.Variable(0)
    tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, asset)
    init = tf.group(read.assign(tf.read_file(asset)), name="init")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        builder = tf.saved_model.Builder(str(tmp_path / "model"))
        builder.add_meta_graph_and_variables(
            session, ["serve"], assets_collection=[asset], main_op=init
        )
        builder.save()
    (tmp_path / "words.txt").unlink()
    (tmp_path / "model").rename(tmp_path / "moved")
    with tf.Graph().as_default(), tf.Session() as session:
        tf.saved_model.load(session, ["serve"], str(tmp_path / "moved"))
        assert session.run("read:0") == b"words"


def test_order_and_arguments_are_checked(tmp_path):
    builder = tf.saved_model.Builder(str(tmp_path / "model"))
    tf.Variable(0)
    with pytest.raises(AssertionError, match="has not been saved yet"):
        builder.add_meta_graph(["serve"])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for bad in ("text", tf.identity("text"), tf.constant(1), tf.constant(["a", "b"])):
            with pytest.raises(TypeError, match="Asset path tensor"):
                builder.add_meta_graph_and_variables(session, ["serve"], assets_collection=[bad])
        with pytest.raises(TypeError, match="needs to be an Operation"):
            builder.add_meta_graph_and_variables(session, ["serve"], main_op="no")
        builder.add_meta_graph_and_variables(session, ["serve"])
        with pytest.raises(AssertionError, match="already been saved"):
            builder.add_meta_graph_and_variables(session, ["serve"])
    builder.save()
    with pytest.raises(AssertionError, match="isn't empty"):
        tf.saved_model.Builder(str(tmp_path / "model"))
    with pytest.raises(OSError, match="does not exist"):
        tf.saved_model.load(None, ["serve"], str(tmp_path / "nothing"))


def test_signatures():
    text, numbers = tf.constant("a"), tf.constant([1.0])
    regression = tf.saved_model.regression_signature_def(text, numbers)
    assert regression.method_name == tf.saved_model.REGRESS_METHOD_NAME
    classes = tf.saved_model.classification_signature_def(text, text, numbers)
    assert set(classes.outputs) == {"classes", "scores"}
    assert tf.saved_model.is_valid_signature(regression)
    assert tf.saved_model.is_valid_signature(classes)
    assert not tf.saved_model.is_valid_signature(tf.saved_model.build_signature_def())
    with pytest.raises(ValueError, match="cannot both be None"):
        tf.saved_model.classification_signature_def(text, None, None)
    with pytest.raises(ValueError, match="Prediction inputs"):
        tf.saved_model.predict_signature_def({}, {"y": numbers})


def test_sparse_tensors_in_signatures():
    sparse = tf.SparseTensor([[0, 1]], [2.0], [2, 2])
    info = tf.saved_model.build_tensor_info(sparse)
    actual = tf.saved_model.get_tensor_from_tensor_info(info)
    assert actual.values is sparse.values


# Frozen graphs


def run_frozen(frozen):
    assert not any(node.op.startswith("Variable") for node in frozen.node)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(frozen, name="")
        return session.run("y:0", {"x:0": [[1, 1]]})


def test_a_saved_model_is_frozen(tmp_path):
    path = saved(str(tmp_path / "model"))
    frozen = tf.graph_util.freeze(path, ["y"], output_graph=str(tmp_path / "frozen.pb"))
    assert run_frozen(frozen) == [[3]]
    assert (tmp_path / "frozen.pb").read_bytes() == frozen.SerializeToString()


def test_a_checkpoint_is_frozen(tmp_path):
    model()
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "m"))
        tf.train.write_graph(session.graph, str(tmp_path), "graph.pbtxt")
        tf.train.write_graph(saver.as_saver_def(), str(tmp_path), "saver.pbtxt")
    assert run_frozen(tf.graph_util.freeze(path, ["y"])) == [[3]]
    for saver_file in ("", str(tmp_path / "saver.pbtxt")):
        graph_file, output = str(tmp_path / "graph.pbtxt"), str(tmp_path / "frozen.pb")
        frozen = freeze_graph(
            graph_file, saver_file, False, path, "y", None, None, output, True, ""
        )
        assert run_frozen(frozen) == [[3]]
