"""Docstrings of the protocol buffers, whose classes are made on demand and carry none."""

from __future__ import annotations

from typing import Final

from thalweg.public import describe

_TEXTS: Final = {
    "train.Example": """A message with the named features of one example: what TFRecord files hold.

    Args:
        features: a `tf.train.Features`.

    Example:
        >>> age = tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))
        >>> example = tf.train.Example(features=tf.train.Features(feature={"age": age}))
        >>> text = example.SerializeToString()
        >>> tf.train.Example.FromString(text).features.feature["age"].int64_list.value[0]
        7
    """,
    "train.Features": """A message with features by name.

    Args:
        feature: a dict from names to `tf.train.Feature`.

    Example:
        >>> name = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"Ann"]))
        >>> sorted(tf.train.Features(feature={"name": name, "alias": name}).feature)
        ['alias', 'name']
    """,
    "train.Feature": """A message with the values of one feature, of one of three kinds.

    Args:
        bytes_list: a `tf.train.BytesList`: strings.
        float_list: a `tf.train.FloatList`: float32 numbers.
        int64_list: a `tf.train.Int64List`: integers.

    Example:
        >>> feature = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 1.5]))
        >>> feature.WhichOneof("kind"), list(feature.float_list.value)
        ('float_list', [0.5, 1.5])
    """,
    "train.Int64List": """A message with integers, for a `tf.train.Feature`.

    Args:
        value: a list of integers.

    Example:
        >>> list(tf.train.Int64List(value=[1, 2]).value)
        [1, 2]
    """,
    "train.FloatList": """A message with float32 numbers, for a `tf.train.Feature`.

    Args:
        value: a list of numbers.

    Example:
        >>> list(tf.train.FloatList(value=[0.5, 2]).value)
        [0.5, 2.0]
    """,
    "train.BytesList": """A message with strings of bytes, for a `tf.train.Feature`.

    Args:
        value: a list of bytes; text must be encoded.

    Example:
        >>> list(tf.train.BytesList(value=["é".encode()]).value)
        [b'\\xc3\\xa9']
    """,
    "GraphDef": """A graph as a message: what `.pb` files hold.

    Args:
        node: a list of NodeDefs: name, op, inputs, device, attributes.
        versions: the versions of the format that wrote it and can read it.
        version: the old form of that.
        library: functions that nodes call.
        debug_info: where nodes were made; not used here.

    Example:
        >>> x = tf.add(1.0, 2.0, name="x")
        >>> text = tf.get_default_graph().as_graph_def().SerializeToString()
        >>> [node.name for node in tf.GraphDef.FromString(text).node]
        ['x/x', 'x/y', 'x']
    """,
    "Summary": """A message with tagged values, as summary ops make and event files keep them.

    Args:
        value: a list of `tf.Summary.Value`: a tag, and a number, picture, sound or histogram.

    Example:
        >>> value = tf.Summary.Value(tag="accuracy", simple_value=0.5)
        >>> with tf.summary.FileWriter("logs") as writer:
        ...     writer.add_summary(tf.Summary(value=[value]), global_step=1)
    """,
}

for _name, _text in _TEXTS.items():
    describe(_name, _text)
