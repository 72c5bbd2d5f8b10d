"""`tf.test` on protobufs: messages against text, and GraphDefs in any order."""

import re
from typing import Any

import pytest
from google.protobuf import text_format

import thalweg as tf


class Case(tf.test.TestCase):
    def runTest(self) -> None:
        """Nothing: the tests call the assertions themselves."""


def graph_def(text: str) -> Any:
    return text_format.Parse(text, tf.GraphDef())


A, B = "node { name: 'a' op: 'NoOp' }", "node { name: 'b' op: 'NoOp' input: '^a' input: '^c' }"
C = "node { name: 'c' op: 'NoOp' }"


def test_a_message_equals_its_text():
    Case().assertProtoEquals("name: 'a' op: 'NoOp'", tf.NodeDef(name="a", op="NoOp"))
    Case().assertProtoEquals(tf.NodeDef(name="a"), tf.NodeDef(name="a"))
    with pytest.raises(AssertionError, match="NoOp"):
        Case().assertProtoEquals("name: 'a'", tf.NodeDef(name="a", op="NoOp"))
    with pytest.raises(AssertionError, match="Can't compare"):
        Case().assertProtoEquals(tf.GraphDef(), tf.NodeDef())


def test_versions_are_added():
    with tf.Graph().as_default() as graph:
        tf.no_op(name="a")
        Case().assertProtoEqualsVersion(A, graph.as_graph_def())


def test_the_order_of_nodes_and_control_inputs_does_not_matter():
    swapped = B.replace("'^a'", "'^d'").replace("'^c'", "'^a'").replace("'^d'", "'^c'")
    tf.test.assert_equal_graph_def(graph_def(A + B + C), graph_def(C + swapped + A))


@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        (A, "", "unexpected node 'a'"),
        ("", A, "Did not find expected node 'a'"),
        (A, A.replace("NoOp", "Other"), "Node named 'a' differs"),
    ],
)
def test_differences_are_named(actual: str, expected: str, text: str):
    with pytest.raises(AssertionError, match=re.escape(text)):
        tf.test.assert_equal_graph_def(graph_def(actual), graph_def(expected))


def test_only_graph_defs_are_compared():
    with pytest.raises(TypeError, match=r"Expected tf\.GraphDef for actual"):
        tf.test.assert_equal_graph_def(tf.NodeDef(), tf.GraphDef())


def test_ops_in_a_graph():
    with tf.Graph().as_default() as graph:
        tf.no_op(name="a")
        actual = tf.test.assert_ops_in_graph({"a": "NoOp"}, graph)
        assert actual["a"].op == "NoOp"
        with pytest.raises(ValueError, match="'b'"):
            tf.test.assert_ops_in_graph({"b": "NoOp"}, graph)
        with pytest.raises(ValueError, match="different"):
            tf.test.assert_ops_in_graph({"a": "Const"}, graph)


def test_a_plain_literal_means_bytes_in_a_bytes_field() -> None:
    message = tf.make_tensor_proto([20.0, 20.0])
    text = 'dtype: DT_FLOAT tensor_shape { dim { size: 2 } } tensor_content: "\0\0\240A\0\0\240A"'
    message.tensor_content = b"\0\0\xa0A" * 2
    Case().assertProtoEquals(text, message)
    message.tensor_content = b"\0\0\xa1A" * 2
    with pytest.raises(AssertionError):
        Case().assertProtoEquals(text, message)


def test_characters_of_a_string_field_stay() -> None:
    Case().assertProtoEquals('name: "\u00e9"', tf.NodeDef(name="\u00e9"))
