"""Comparisons of graphs and messages: GraphDefs in any order, protobufs with their text."""

from __future__ import annotations

import re
import unittest
from collections.abc import Mapping
from typing import Any

from thalweg import protos
from thalweg.graph.graph import Graph
from thalweg.graph.graphdef.versions import GRAPH_DEF_VERSION, GRAPH_DEF_VERSION_MIN_CONSUMER
from thalweg.public import public


class GraphAssertions(unittest.TestCase):
    """Assertions about protobufs."""

    def assertProtoEquals(
        self, expected_message_maybe_ascii: Any, message: Any, msg: str | None = None
    ) -> None:
        """A message equals another, or the one that a text in protobuf's format describes."""
        expected: Any = expected_message_maybe_ascii
        if isinstance(expected, str | bytes):
            expected = _parsed(expected, message)
        if type(expected) is not type(message):
            self.fail(f"Can't compare protos of type {type(expected)} and {type(message)}")
        if _rounded(expected) != _rounded(message):
            self.assertMultiLineEqual(str(expected), str(message), msg)
            self.fail(msg or "the messages differ where their text does not: a NaN")

    def assertProtoEqualsVersion(
        self,
        expected: str,
        actual: Any,
        producer: int = GRAPH_DEF_VERSION,
        min_consumer: int = GRAPH_DEF_VERSION_MIN_CONSUMER,
        msg: str | None = None,
    ) -> None:
        """A GraphDef equals a text, with the versions of this library added to it."""
        versions = f"versions {{ producer: {producer} min_consumer: {min_consumer} }};"
        self.assertProtoEquals(f"{versions}\n{expected}", actual, msg)


def _rounded(message: Any) -> Any:
    """A copy whose floats have the few decimals that comparisons of TensorFlow look at."""
    copy = type(message)()
    copy.CopyFrom(message)
    _round_fields(copy)
    return copy


def _round_fields(message: Any) -> None:
    for field, value in message.ListFields():
        digits = {field.TYPE_FLOAT: 6, field.TYPE_DOUBLE: 7}.get(field.type)
        repeated = field.is_repeated
        if digits is not None and repeated:
            value[:] = [round(x, digits) for x in value]
        elif digits is not None:
            setattr(message, field.name, round(value, digits))
        elif field.message_type is not None:
            is_map = field.message_type.GetOptions().map_entry
            inner = value.values() if is_map else value if repeated else [value]
            for item in inner:
                if hasattr(item, "ListFields"):
                    _round_fields(item)


def _parsed(text: str | bytes, like: Any) -> Any:
    """The message that a text describes.

    Where the text is a plain literal with escapes such as "\\240", a bytes field has characters
    that stand for single bytes; `like` tells which reading is meant.
    """
    from google.protobuf import text_format

    message = text_format.Parse(text, type(like)())
    if message == like or isinstance(text, bytes):
        return message
    by_byte = re.sub("[\x80-\xff]", lambda found: f"\\{ord(found[0]):03o}", text)
    try:
        other = text_format.Parse(by_byte, type(like)())
    except text_format.ParseError:  # a string field: these are characters
        return message
    return other if other == like else message


@public("test.assert_equal_graph_def")
def assert_equal_graph_def(
    actual: protos.GraphDef,
    expected: protos.GraphDef,
    checkpoint_v2: bool = False,
    hash_table_shared_name: bool = False,
) -> None:
    """Two GraphDefs have the same nodes; the order of nodes and control inputs does not matter."""
    for given, role in ((actual, "actual"), (expected, "expected")):
        if not hasattr(given, "node") or not hasattr(given, "library"):
            raise TypeError(f"Expected tf.GraphDef for {role}, got {type(given).__name__}")
    found, wanted = _canonical(actual), _canonical(expected)
    for name in sorted(found.keys() | wanted.keys()):
        if name not in wanted:
            raise AssertionError(f"Found unexpected node '{name}': {found[name]}")
        if name not in found:
            raise AssertionError(f"Did not find expected node '{name}': {wanted[name]}")
        if found[name] != wanted[name]:
            raise AssertionError(
                f"Node named '{name}' differs:\n{found[name]}\nexpected:\n{wanted[name]}"
            )


def _canonical(graph_def: Any) -> dict[str, Any]:
    """The nodes by name, their control inputs sorted."""
    nodes: dict[str, Any] = {}
    for node in graph_def.node:
        copy = type(node)()
        copy.CopyFrom(node)
        data = [name for name in node.input if not name.startswith("^")]
        control = sorted(name for name in node.input if name.startswith("^"))
        copy.input[:] = data + control
        nodes[node.name] = copy
    return nodes


@public("test.assert_ops_in_graph")
def assert_ops_in_graph(expected_ops: Mapping[str, str], graph: Graph) -> dict[str, Any]:
    """The graph has these nodes with these op types; returns their NodeDefs by name."""
    result = {node.name: node for node in graph.as_graph_def().node if node.name in expected_ops}
    missing = sorted(expected_ops.keys() - result.keys())
    if missing:
        raise ValueError(f"Not all expected ops are present: {missing} are missing")
    for name, node in result.items():
        if node.op != expected_ops[name]:
            raise ValueError(
                f"Expected op for node {name} is different. {node.op} vs {expected_ops[name]}"
            )
    return result
