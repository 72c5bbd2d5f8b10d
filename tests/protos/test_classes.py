"""Message classes: made when asked for, alone in their pool, and whole after a pickle."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, json_format, text_format
from tensorboard.compat.proto import graph_pb2

import thalweg as tf
from thalweg import protos
from thalweg.protos.classes import declared_names
from thalweg.protos.parser import parse

SOURCES = Path(tf.__file__).parent


def a_graph() -> Any:
    graph = protos.GraphDef()
    graph.node.add(name="a", op="Const", input=["b"]).attr["x"].list.i.extend([1, 2])
    return graph


def test_every_message_that_is_named_is_declared() -> None:
    named = {
        name
        for file in SOURCES.rglob("*.py")
        for name in re.findall(r"\bprotos\.([A-Z]\w+)", file.read_text())
    }
    assert named - set(declared_names()) == set()


def test_a_program_that_needs_no_message_imports_no_protobuf():
    program = (
        "import sys, thalweg as tf\n"
        "with tf.Session() as session: session.run(tf.constant(1.0) + 1.0)\n"
        "print([name for name in sys.modules if name.startswith('google')])\n"
        "tf.GraphDef(), print(any(name.startswith('tensorboard') for name in sys.modules))"
    )
    environment = {**os.environ, "THALWEG_COMPILE": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["[]", "False"]


def test_protobuf_written_in_python_will_do():
    program = (
        "from thalweg import protos as p\n"
        "info = p.MetaGraphDef.MetaInfoDef(tags=['a'], stripped_op_list=p.OpList())\n"
        "print(p.MetaGraphDef(meta_info_def=info).SerializeToString())"
    )
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == repr(b'\n\x05\x12\x00"\x01a')


def test_the_default_pool_does_not_know_them():
    protos.SavedModel()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("tensorflow.SavedModel")


def test_a_public_name_is_the_class():
    assert tf.GraphDef is protos.GraphDef
    assert tf.train.Example is protos.Example


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no protocol buffer 'GrafDef'"):
        protos.GrafDef


@pytest.mark.parametrize(
    "message",
    [
        a_graph(),
        a_graph().node[0],
        protos.OpDef.ArgDef(name="x"),
        protos.TrackableObjectGraph.TrackableObject.ObjectReference(node_id=3),
    ],
    ids=lambda message: type(message).__qualname__,
)
def test_pickles_and_copies_are_equal(message: Any):
    for copied in (pickle.loads(pickle.dumps(message)), copy.deepcopy(message)):
        assert copied == message
        assert type(copied) is type(message)


def test_text_and_json():
    graph = a_graph()
    assert text_format.Parse(text_format.MessageToString(graph), tf.GraphDef()) == graph
    assert json_format.Parse(json_format.MessageToJson(graph), tf.GraphDef()) == graph


def test_a_message_in_an_any_goes_by_the_name_of_tensorflow():
    holder = protos.CollectionDef()
    holder.any_list.value.add().Pack(a_graph())
    assert holder.any_list.value[0].TypeName() == "tensorflow.GraphDef"
    read = protos.GraphDef()
    assert holder.any_list.value[0].Unpack(read)
    assert read == a_graph()


def test_messages_of_another_package_are_taken():
    theirs = graph_pb2.GraphDef.FromString(a_graph().SerializeToString())
    assert protos.is_message(theirs, protos.GraphDef)
    assert protos.as_message(theirs, protos.GraphDef) == a_graph()
    mine = a_graph()
    assert protos.as_message(mine, protos.GraphDef) is mine


@pytest.mark.parametrize("value", [None, 3, protos.NodeDef(), b""], ids=lambda v: type(v).__name__)
def test_other_values_are_no_such_messages(value: Any):
    assert not protos.is_message(value, protos.GraphDef)
    with pytest.raises(TypeError, match="a GraphDef is needed"):
        protos.as_message(value, protos.GraphDef)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("message A {", "ends too early"),
        ("message A { int32 x 1; }", "'=' is missing before '1'"),
        ("service A {}", "cannot have 'service'"),
        ('syntax = "proto3"', "ends too early"),
    ],
)
def test_a_file_that_cannot_be_read(text: str, message: str):
    with pytest.raises(SyntaxError, match=message):
        parse("a.proto", text)
