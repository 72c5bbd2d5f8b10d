"""The message classes of examples."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

import thalweg as tf

NAMES = [
    *("Example", "Features", "Feature", "BytesList", "FloatList", "Int64List"),
    *("FeatureList", "FeatureLists", "SequenceExample"),
]


@pytest.mark.parametrize("name", NAMES)
def test_all_classes_are_public_and_named_as_in_tensorflow(name: str) -> None:
    message = getattr(tf.train, name)
    assert message.DESCRIPTOR.full_name == f"tensorflow.{name}"
    assert getattr(tf.train, name) is message


def test_an_example_has_the_bytes_that_tensorflow_writes() -> None:
    train = tf.train
    example = train.Example(
        features=train.Features(
            feature={"a": train.Feature(int64_list=train.Int64List(value=[1, -1]))}
        )
    )
    written = bytes.fromhex("0a160a140a0161120f1a0d0a0b01ffffffffffffffffff01")
    assert example.SerializeToString() == written
    assert train.Example.FromString(example.SerializeToString()) == example


def test_a_feature_holds_one_kind_of_list() -> None:
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1.5]))
    assert feature.WhichOneof("kind") == "float_list"
    feature.bytes_list.value.append(b"x")
    assert feature.WhichOneof("kind") == "bytes_list"


def test_feature_lists_are_maps() -> None:
    example = tf.train.SequenceExample()
    example.feature_lists.feature_list["words"].feature.add().bytes_list.value.append(b"hi")
    example.context.feature["n"].int64_list.value.append(3)
    again = json_format.Parse(json_format.MessageToJson(example), tf.train.SequenceExample())
    assert again == example
