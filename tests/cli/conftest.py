"""A folder with a file of each kind that `thalweg inspect` knows, made once; and the command."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import thalweg as tf
from thalweg import protos
from thalweg.cli.main import main


class Answer(NamedTuple):
    """What the command did."""

    status: int
    out: str
    err: str


@pytest.fixture
def thalweg(capsys):
    """Runs the command in this process."""

    def run(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Answer(status, *capsys.readouterr())

    return run


@pytest.fixture
def fails(thalweg):
    """Runs the command, which must fail with one line that names something."""

    def run(name, *arguments):
        answer = thalweg(*arguments)
        assert answer.status == 1, answer
        assert answer.err.count("\n") == 1 and answer.err.endswith("\n"), answer.err
        assert answer.err.startswith(f"thalweg {arguments[0]}: "), answer.err
        assert str(name) in answer.err
        assert "Traceback" not in answer.err
        return answer.err

    return run


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """All kinds of files. Read only: tests damage copies."""
    folder = tmp_path_factory.mktemp("files")
    with tf.Graph().as_default() as graph, tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 2], name="x")
        w = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="w")
        y = tf.add(tf.matmul(x, w), tf.constant([7.0, 8.0], name="bias"), name="y")
        session.run(tf.global_variables_initializer())
        prefix = tf.train.Saver().save(session, str(folder / "run" / "model"), global_step=3)
        tf.train.write_graph(graph, str(folder), "graph.pb", as_text=False)
        tf.train.write_graph(graph, str(folder), "graph.pbtxt", as_text=True)
        tf.saved_model.simple_save(session, str(folder / "saved"), {"x": x}, {"y": y})
    tf.train.export_tensorflow_checkpoint(prefix, str(folder / "tf" / "model"))
    (data,) = (folder / "run").glob("*.safetensors")
    (folder / "plain.safetensors").write_bytes(data.read_bytes())
    write_saved_model_of_objects(folder / "objects")
    write_records(folder)
    write_events(folder)
    return folder


def write_saved_model_of_objects(folder):
    """A saved model as TensorFlow 2 writes it: a graph of objects beside the graph of nodes."""
    model = protos.SavedModel(saved_model_schema_version=1)
    meta = model.meta_graphs.add()
    meta.meta_info_def.tags.append("serve")
    meta.graph_def.node.add(name="init", op="NoOp")
    body = meta.graph_def.library.function.add()
    constant = body.node_def.add(name="inner", op="Const")
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([5.0, 6.0]))
    objects = meta.object_graph_def.nodes
    objects.add().variable.name = "kernel"
    objects.add().user_object.identifier = "signature_map"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(model.SerializeToString())


def write_records(folder):
    """Examples, compressed in each way."""
    kinds = {"plain": "", "gzip": "GZIP", "zlib": "ZLIB"}
    for name, compression in kinds.items():
        options = tf.python_io.TFRecordOptions(compression)
        with tf.python_io.TFRecordWriter(str(folder / f"{name}.tfrecord"), options) as writer:
            for number in range(5):
                writer.write(example(number).SerializeToString())


def example(number):
    made = tf.train.Example()
    features = made.features.feature
    features["label"].int64_list.value.append(number)
    features["pixels"].float_list.value.extend([0.5] * (number + 1))
    features["name"].bytes_list.value.append(b"cat")
    return made


def write_events(folder):
    """Scalars, a histogram, a tensor and a picture."""
    with tf.summary.FileWriter(str(folder / "logs")) as writer:
        for step in range(3):
            writer.add_summary(summary(step), step)


def summary(step):
    result = protos.Summary()
    result.value.add(tag="loss", simple_value=1.0 / (step + 1))
    histogram = result.value.add(tag="weights").histo
    histogram.bucket_limit.extend([1.0, 2.0])
    histogram.bucket.extend([3.0, 4.0])
    result.value.add(tag="matrix").tensor.CopyFrom(tf.make_tensor_proto(np.eye(2) * step))
    result.value.add(tag="picture").image.height = 1
    return result
