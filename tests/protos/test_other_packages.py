"""Functions that take messages take those of another package's classes of the same names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from google.protobuf.any_pb2 import Any as AnyMessage
from tensorboard.compat.proto import (
    config_pb2,
    event_pb2,
    graph_pb2,
    meta_graph_pb2,
    saver_pb2,
    summary_pb2,
    tensor_pb2,
)
from tensorboard.plugins.projector import projector_config_pb2

import thalweg as tf


def in_class(kind: Any, message: Any) -> Any:
    """A message of ours, in another class."""
    return kind.FromString(message.SerializeToString())


def test_a_graph_is_imported():
    with tf.Graph().as_default() as graph:
        tf.constant(3, name="a")
    theirs = in_class(graph_pb2.GraphDef, graph.as_graph_def())
    with tf.Graph().as_default():
        (a,) = tf.import_graph_def(theirs, return_elements=["a:0"])
        assert tf.Session().run(a) == 3
    assert tf.graph_util.remove_training_nodes(theirs).node == graph.as_graph_def().node
    assert tf.graph_util.extract_sub_graph(theirs, ["a"]).node == graph.as_graph_def().node


def test_a_tensor_is_read():
    theirs = in_class(tensor_pb2.TensorProto, tf.make_tensor_proto([1.5, 2.5]))
    np.testing.assert_array_equal(tf.make_ndarray(theirs), [1.5, 2.5])
    assert tf.make_tensor_proto(theirs) is theirs


def test_a_saver_is_made_and_a_meta_graph_imported(tmp_path: Path):
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.Variable(2.0, name="v")
        saver = tf.train.Saver()
        same = tf.train.Saver(saver_def=in_class(saver_pb2.SaverDef, saver.as_saver_def()))
        session.run(variable.initializer)
        path = same.save(session, str(tmp_path / "model"))
        exported = in_class(meta_graph_pb2.MetaGraphDef, tf.train.export_meta_graph())
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(exported).restore(session, path)
        assert session.run("v:0") == 2.0


def test_a_signature_is_exported(tmp_path: Path):
    info = meta_graph_pb2.TensorInfo(name="x:0", dtype=1)
    signature = in_class(
        meta_graph_pb2.SignatureDef, tf.saved_model.build_signature_def({"in": info}, {"out": info})
    )
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.Variable(1.0, name="x")
        session.run(x.initializer)
        builder = tf.saved_model.builder.SavedModelBuilder(str(tmp_path / "model"))
        builder.add_meta_graph_and_variables(session, ["serve"], {"same": signature})
        builder.save()
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.loader.load(session, ["serve"], str(tmp_path / "model"))
        assert session.run(loaded.signature_def["same"].outputs["out"].name) == 1.0


def test_parts_of_a_meta_graph_are_merged():
    with tf.Graph().as_default() as graph:
        tf.constant(3, name="a")
    info = meta_graph_pb2.MetaGraphDef.MetaInfoDef(tags=["serve"])
    theirs = in_class(graph_pb2.GraphDef, graph.as_graph_def())
    made = tf.train.export_meta_graph(meta_info_def=info, graph_def=theirs)
    assert list(made.meta_info_def.tags) == ["serve"]
    assert [node.name for node in made.graph_def.node] == ["a"]


def test_a_collection_holds_protobufs_own_any():
    packed = AnyMessage(type_url="type.googleapis.com/tensorflow.Mine", value=b"\x01")
    with tf.Graph().as_default() as graph:
        graph.add_to_collection("things", packed)
        exported = tf.train.export_meta_graph()
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(exported)
        (read,) = graph.get_collection("things")
    assert (read.type_url, read.value) == (packed.type_url, packed.value)


def test_events_are_written(tmp_path: Path):
    value = summary_pb2.Summary.Value(tag="loss", simple_value=0.5)
    with tf.summary.FileWriter(str(tmp_path)) as writer:
        writer.add_summary(summary_pb2.Summary(value=[value]), 3)
        writer.add_event(event_pb2.Event(step=4, file_version="mine"))
        writer.add_meta_graph(meta_graph_pb2.MetaGraphDef())
    (path,) = tmp_path.iterdir()
    _, summary, event, meta_graph = tf.train.summary_iterator(str(path))
    assert summary.summary.value[0].simple_value == 0.5
    assert event.file_version == "mine"
    assert meta_graph.WhichOneof("what") == "meta_graph_def"


def test_the_projector_is_configured(tmp_path: Path):
    projector = tf.contrib.tensorboard.plugins.projector
    config = projector_config_pb2.ProjectorConfig()
    config.embeddings.add(tensor_name="words").sprite.single_image_dim.extend([8, 8])
    with tf.summary.FileWriter(str(tmp_path)) as writer:
        projector.visualize_embeddings(writer, config)
    text = (tmp_path / "projector_config.pbtxt").read_text()
    ours = in_class(projector.ProjectorConfig, config)
    assert text_format.Parse(text, projector.ProjectorConfig()) == ours


@pytest.mark.parametrize("package", [tf, config_pb2])
def test_a_session_is_configured(package: Any, capfd: pytest.CaptureFixture[str]):
    config = package.ConfigProto(log_device_placement=True, device_count={"CPU": 2})
    config.gpu_options.allow_growth = True
    config.graph_options.rewrite_options.constant_folding = 2
    config.graph_options.optimizer_options.global_jit_level = package.OptimizerOptions.OFF
    with tf.Graph().as_default():
        with tf.device("/cpu:1"):
            a = tf.constant(1.0, name="a")
        with tf.Session(config=config) as session:
            session.run(a + 1.0)
    assert "a: (Const): /job:localhost/replica:0/task:0/device:CPU:1" in capfd.readouterr().err


def test_a_step_is_traced_into_a_foreign_message():
    metadata = config_pb2.RunMetadata()
    options = config_pb2.RunOptions(
        trace_level=config_pb2.RunOptions.FULL_TRACE, output_partition_graphs=True
    )
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.constant([1.0, 2.0], name="a") + 1.0, None, options, metadata)
    nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    assert nodes[0].output[0].tensor_description.shape.dim[0].size == 2
    (graph,) = metadata.partition_graphs
    assert "a" in [node.name for node in graph.node]
