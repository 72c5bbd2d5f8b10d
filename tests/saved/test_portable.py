"""Meta graphs for TensorFlow: no op in them that it lacks, and none lost for this library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg import protos
from thalweg.graph.op import REGISTRY
from thalweg.platform.files.tf_bundle import is_bundle


def private(graph_def: Any) -> set[str]:
    return {n.op for n in graph_def.node if n.op in REGISTRY and REGISTRY[n.op].private}


def saved(tmp_path: Path, build: Any, trains: bool) -> tuple[Path, Any, Any]:
    path = tmp_path / "model"
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 4, 3], name="x")
        y = tf.identity(build(x), name="y")
        if trains:
            tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(y * y))
        session.run(tf.global_variables_initializer())
        value = np.linspace(-1, 1, 24).reshape(2, 4, 3)
        wanted = session.run(y, {x: value})
        tf.saved_model.simple_save(session, str(path), {"x": x}, {"y": y})
    return path, value, wanted


def rnn(x: Any) -> Any:
    outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(5), x, dtype=tf.float32)
    return tf.reduce_sum(outputs, [1, 2])


@pytest.mark.parametrize("trains", [False, True])
def test_a_recurrent_model(trains: bool, tmp_path: Path):
    path, value, expected = saved(tmp_path, rnn, trains)
    model = protos.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    assert not private(model.meta_graphs[0].graph_def)
    assert is_bundle(str(path / "variables" / "variables.index"))
    assert sorted(each.name for each in (path / "variables").iterdir()) == [
        "variables.data-00000-of-00001",
        "variables.index",
    ]
    with tf.Session(graph=tf.Graph()) as session:
        tf.saved_model.load(session, ["serve"], str(path))
        np.testing.assert_allclose(
            session.run("y:0", {"x:0": value}), expected, rtol=1e-5, atol=1e-6
        )
        if trains:
            (train, *_) = session.graph.get_collection("train_op")
            session.run(train, {"x:0": value})
            assert (session.run("y:0", {"x:0": value}) != expected).any()


def test_what_only_tensorflow_would_see_gives_the_same_numbers(tmp_path: Path):
    path, value, expected = saved(tmp_path, rnn, False)
    model = protos.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    meta = model.meta_graphs[0]
    for key in [key for key in meta.collection_def if key.startswith("thalweg")]:
        del meta.collection_def[key]
    (path / "saved_model.pb").write_bytes(model.SerializeToString())
    with tf.Session(graph=tf.Graph()) as session:
        tf.saved_model.load(session, ["serve"], str(path))
        np.testing.assert_allclose(
            session.run("y:0", {"x:0": value}), expected, rtol=1e-5, atol=1e-6
        )


def test_a_frozen_graph():
    with tf.Graph().as_default() as graph:
        tf.map_fn(lambda row: row * 2.0, tf.ones([3, 2]), name="m")
        graph_def = tf.graph_util.portable(graph.as_graph_def())
    assert not private(graph_def)


def test_a_gradient_of_the_users_own(tmp_path: Path):
    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        return 2 * x, lambda dy: tf.clip_by_norm(dy, 1.0)

    path, value, expected = saved(tmp_path, lambda x: tf.reduce_sum(clipped(x), [1, 2]), False)
    model = protos.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    graph_def = model.meta_graphs[0].graph_def
    assert not private(graph_def)
    assert "IdentityN" in {node.op for node in graph_def.node}
    with tf.Session(graph=tf.Graph()) as session:
        tf.saved_model.load(session, ["serve"], str(path))
        np.testing.assert_allclose(
            session.run("y:0", {"x:0": value}), expected, rtol=1e-5, atol=1e-6
        )


def test_an_op_that_cannot_be_written_is_named():
    with tf.Graph().as_default() as graph:
        tf.nn.gelu(tf.ones([2]), name="odd")
        with pytest.raises(ValueError, match=r"odd \(Gelu\)"):
            tf.graph_util.portable(graph.as_graph_def())


def test_a_model_of_another_schema(tmp_path: Path):
    path, _, _ = saved(tmp_path, rnn, False)
    model = protos.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    model.saved_model_schema_version = 9
    (path / "saved_model.pb").write_bytes(model.SerializeToString())
    with tf.Session(graph=tf.Graph()) as session, pytest.raises(ValueError, match="schema version"):
        tf.saved_model.load(session, ["serve"], str(path))


def test_an_asset_outside_of_the_model(tmp_path: Path):
    path, _, _ = saved(tmp_path, rnn, False)
    model = protos.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    meta = model.meta_graphs[0]
    asset = meta.asset_file_def.add(filename="../../secret")
    asset.tensor_info.name = "x:0"
    meta.signature_def["__saved_model_init_op"].outputs["__saved_model_init_op"].name = "y"
    (path / "saved_model.pb").write_bytes(model.SerializeToString())
    with tf.Session(graph=tf.Graph()) as session, pytest.raises(ValueError, match="outside of the"):
        tf.saved_model.load(session, ["serve"], str(path))
