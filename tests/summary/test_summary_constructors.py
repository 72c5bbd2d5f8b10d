"""`tf.summary.scalar` and its kin: names, tags, families and collections."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.summary import constructors, old_names

Summary: Any = tf.Summary


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def values(tensor: Any) -> Any:
    with tf.Session() as session:
        return Summary.FromString(session.run(tensor)).value


PICTURES = np.zeros((2, 2, 2, 3), np.uint8)
SOUNDS = np.zeros((2, 4), np.float32)
MAKERS = {
    "scalar": lambda **o: tf.summary.scalar("x", 1.0, **o),
    "histogram": lambda **o: tf.summary.histogram("x", [1.0], **o),
    "image": lambda **o: tf.summary.image("x", PICTURES, max_outputs=1, **o),
    "audio": lambda **o: tf.summary.audio("x", SOUNDS, 8000, max_outputs=1, **o),
    "tensor_summary": lambda **o: tf.summary.tensor_summary("x", [1], **o),
}
ENDINGS = {"image": "/image", "audio": "/audio"}
every_kind = pytest.mark.parametrize("kind", MAKERS)


@every_kind
def test_the_tag_is_the_name_of_the_node_in_its_scope(kind: str) -> None:
    with tf.name_scope("outer"):
        first, second = MAKERS[kind](), MAKERS[kind]()
    assert (first.op.name, second.op.name) == ("outer/x", "outer/x_1")
    ending = ENDINGS.get(kind, "")
    assert [values(s)[0].tag for s in (first, second)] == [f"outer/x{ending}", f"outer/x_1{ending}"]


@every_kind
def test_a_family_comes_before_the_scope_of_its_tag(kind: str) -> None:
    with tf.name_scope("outer"):
        summary = MAKERS[kind](family="my family")
    assert summary.op.name == "outer/my_family/x"
    assert values(summary)[0].tag == f"my_family/outer/my_family/x{ENDINGS.get(kind, '')}"


@every_kind
def test_collections(kind: str) -> None:
    first, second = MAKERS[kind](), MAKERS[kind](collections=["mine", "yours"])
    assert tf.get_collection(tf.GraphKeys.SUMMARIES) == [first]
    assert tf.get_collection("mine") == tf.get_collection("yours") == [second]


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("name with spaces", "name_with_spaces"),
        ("many $#illegal^: characters!", "many___illegal___characters_"),
        ("/leading/slash", "leading/slash"),
        ("a.b-c", "a.b-c"),
        ("größe", "gr__e"),
    ],
)
def test_names_are_cleaned(name: str, clean: str) -> None:
    assert tf.summary.scalar(name, 1.0).op.name == clean


def test_inputs_are_named_as_in_tensorflow(graph: Any) -> None:
    tf.summary.scalar("s", tf.constant(1.0))
    tf.summary.audio("a", SOUNDS, 8000)
    names = {node.name for node in graph.get_operations()}
    assert {"s/tags", "a/tag", "a/sample_rate"} <= names


def test_variables_are_summarised() -> None:
    variable = tf.Variable(42.0)
    summary = tf.summary.scalar("v", variable)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        (value,) = Summary.FromString(session.run(summary)).value
    assert value.simple_value == 42


def test_text() -> None:
    (value,) = values(tf.summary.text("t", tf.constant(["**a**", "b"])))
    assert value.tag == "t"
    assert value.metadata.plugin_data.plugin_name == "text"
    assert tf.make_ndarray(value.tensor).tolist() == [b"**a**", b"b"]


def test_text_is_of_strings() -> None:
    with pytest.raises(ValueError, match="to have dtype string, got int32"):
        tf.summary.text("t", tf.constant(1))


def test_metadata_of_tensors() -> None:
    metadata: Any = tf.SummaryMetadata(display_name="first")
    summary = tf.summary.tensor_summary("t", [1], "text", None, metadata, None, "second")
    (value,) = values(summary)
    assert (value.metadata.display_name, value.metadata.summary_description) == ("second", "text")
    assert metadata.display_name == "first"


def test_descriptions_of_tensors() -> None:
    description: Any = tf.summary.SummaryDescription(type_hint="histogram")
    summary = tf.summary.tensor_summary("t", [1], description)
    assert summary.op.type == "TensorSummary"
    assert tf.summary.get_summary_description(summary.op.node_def) == description
    assert values(summary)[0].node_name == "t"


def test_only_tensor_summaries_are_described() -> None:
    summary = tf.summary.scalar("s", 1.0)
    with pytest.raises(ValueError, match="Can't get_summary_description on ScalarSummary"):
        tf.summary.get_summary_description(summary.op.node_def)


def test_merge() -> None:
    merged = tf.summary.merge([tf.summary.scalar("a", 1.0), tf.summary.scalar("b", 2.0)])
    assert merged.op.name == "Merge/MergeSummary"
    assert [value.tag for value in values(merged)] == ["a", "b"]
    assert merged not in tf.get_collection(tf.GraphKeys.SUMMARIES)


def test_merge_has_a_name_and_collections() -> None:
    merged = tf.summary.merge([tf.summary.scalar("a", 1.0)], ["mine"], name="all of it")
    assert merged.op.name == "all_of_it/all_of_it"
    assert tf.get_collection("mine") == [merged]


def test_merge_all() -> None:
    assert tf.summary.merge_all() is None
    with tf.name_scope("in"):
        inner = tf.summary.scalar("a", 1.0)
    outer = tf.summary.scalar("b", 1.0)
    other = tf.summary.scalar("c", 1.0, collections=["mine"])
    assert list(tf.summary.merge_all().op.inputs) == [inner, outer]
    assert list(tf.summary.merge_all("mine").op.inputs) == [other]
    assert list(tf.summary.merge_all(scope="in", name="named").op.inputs) == [inner]


def test_old_names() -> None:
    scalar = tf.scalar_summary(["c1", "c2"], [10.0, 20.0])
    histogram = tf.histogram_summary("h h", [1.0], name="mine")
    tf.image_summary("i", PICTURES, 1)
    tf.audio_summary("s", SOUNDS, 8000.0, 1)
    merged = tf.merge_all_summaries()
    assert (scalar.op.name, histogram.op.name) == ("ScalarSummary", "mine")
    assert merged.op.name == "MergeSummary/MergeSummary"
    tags = [value.tag for value in values(merged)]
    assert tags == ["c1", "c2", "h h", "i/image", "s/audio"]


def test_old_merging() -> None:
    assert tf.merge_all_summaries() is None
    merged = tf.merge_summary([tf.scalar_summary("a", 1.0)], ["mine"], "named")
    assert merged.op.name == "named/named"
    assert tf.get_collection("mine") == [merged]


def test_the_summary_op_is_made_once() -> None:
    assert old_names.get_summary_op() is None
    tf.summary.scalar("a", 1.0)
    made = old_names.get_summary_op()
    assert old_names.get_summary_op() is made
    assert tf.get_collection(tf.GraphKeys.SUMMARY_OP) == [made]


def test_the_names_of_messages() -> None:
    assert tf.summary.Summary is tf.Summary
    assert tf.summary.Event is tf.Event
    assert tf.summary.SessionLog is tf.SessionLog
    assert tf.summary.TaggedRunMetadata(tag="t").tag == "t"
    assert tf.HistogramProto().num == 0
    assert constructors.clean_tag(None) is None
