"""Files of models that are cut off, changed or of another kind: one error that says so, nothing of
them runs, and the next model loads.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.graph.graphdef.defs import call, const, function, graph, node, variable
from thalweg import errors

#: What a loader may raise: never an error of Python's about its own code.
CLEAR = (ValueError, TypeError, OSError, RuntimeError, NotImplementedError, errors.OpError)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 2], name="x")
        y = tf.layers.dense(x, 3, name="y")
        session.run(tf.global_variables_initializer())
        tf.saved_model.simple_save(session, str(path), {"x": x}, {"y": y})
    return path


def copied(model: Path, folder: Path, name: str, content: bytes) -> Path:
    """A saved model with other bytes in one of its files."""
    for file in model.rglob("*"):
        target = folder / file.relative_to(model)
        if file.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    (folder / name).write_bytes(content)
    return folder


def load(folder: Path) -> None:
    with tf.Session(graph=tf.Graph()) as session:
        tf.saved_model.load(session, ["serve"], str(folder))
        session.run("y/BiasAdd:0", {"x:0": np.ones([1, 2])})


FILES = ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001")


@pytest.mark.parametrize("name", FILES)
def test_a_saved_model_that_is_cut_off(name: str, model: Path, tmp_path: Path):
    whole = (model / name).read_bytes()
    for part in range(6):
        content = whole[: len(whole) * part // 6]
        with pytest.raises(CLEAR) as caught:
            load(copied(model, tmp_path / str(part), name, content))
        assert str(caught.value)
    load(model)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind(name: str, model: Path, tmp_path: Path):
    for index, content in enumerate((b"\x89PNG\r\n\x1a\n" + bytes(64), b"{}", b"\xff" * 100)):
        with pytest.raises(CLEAR):
            load(copied(model, tmp_path / str(index), name, content))


def test_other_tags_are_listed(model: Path):
    with tf.Session(graph=tf.Graph()) as session, pytest.raises(RuntimeError, match="serve"):
        tf.saved_model.load(session, ["train"], str(model))


def small() -> Any:
    """A graph with a variable, a function, a branch of primitives and constants."""
    f, r = tf.float32, tf.resource
    read = [node("v", "ReadVariableOp", "h", dtype=f), node("m", "Mul", "x", "v:value:0", T=f)]
    twice = function("twice", {"x": f, "h": r}, {"y": (f, "m:z:0")}, read)
    nodes = [
        variable("v", f, [2]),
        const("x", [1.0, 2.0]),
        call("y", "twice", "x", "v"),
        node("s", "Sum", "y", "axes", T=f, Tidx=tf.int32, keep_dims=False),
        const("axes", [0]),
        node("c", "ConcatV2", "y", "x", "zero", T=f, N=2, Tidx=tf.int32),
        const("zero", 0),
    ]
    return graph(nodes, [twice])


def imported(content: bytes) -> None:
    from google.protobuf.message import DecodeError

    try:
        graph_def = tf.GraphDef.FromString(content)
    except DecodeError:
        return
    with tf.Graph().as_default():
        tf.import_graph_def(graph_def, name="")


def test_graphs_with_changed_bytes():
    whole = small().SerializeToString()
    imported(whole)
    random_ = random.Random(7)
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(random_.choice((1, 1, 2, 5))):
            content[random_.randrange(len(content))] = random_.randrange(256)
        try:
            imported(bytes(content))
        except CLEAR as error:
            assert str(error)


@pytest.mark.parametrize("step", [1, 7])
def test_graphs_that_are_cut_off(step: int):
    whole = small().SerializeToString()
    for end in range(0, len(whole), step * 11):
        try:
            imported(whole[:end])
        except CLEAR as error:
            assert str(error)


def test_a_cycle_of_calls_and_a_name_twice():
    loop = function(
        "f", {"x": tf.float32}, {"y": (tf.float32, "y:output:0")}, [call("y", "g", "x")]
    )
    back = function(
        "g", {"x": tf.float32}, {"y": (tf.float32, "y:output:0")}, [call("y", "f", "x")]
    )
    with tf.Graph().as_default(), pytest.raises(ValueError, match="contains itself"):
        tf.import_graph_def(graph([const("x", 1.0), call("y", "f", "x")], [loop, back]), name="")
