"""The summary functions of TensorFlow before 1.0, whose tags are given apart from the names.

They make the same nodes as `tf.summary`, but several nodes may share one tag.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.collections import GraphKeys, add_to_collection, get_collection
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import MaybeNone
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.io import summaries
from thalweg.public import public
from thalweg.summary.constructors import collect, tag_tensor

Collections = Iterable[Any] | None


@public("scalar_summary", "contrib.deprecated.scalar_summary")
def scalar_summary(
    tags: Any, values: Any, collections: Collections = None, name: str | None = None
) -> Tensor:
    """A summary of a number for each tag; `tf.summary.scalar` is the newer name.

    Args:
        tags: a string, or a tensor of strings.
        values: real numbers of the shape of `tags`.
        collections: graph collections to join; None means `SUMMARIES`.
        name: the name of the node.

    Returns:
        A string scalar: a serialized Summary.

    Example:
        >>> text = sess.run(tf.scalar_summary(["a", "b"], [1.0, 2.0]))
        >>> [(value.tag, value.simple_value) for value in tf.Summary.FromString(text).value]
        [('a', 1.0), ('b', 2.0)]
    """
    with name_scope(name, "ScalarSummary", [tags, values]) as scope:
        return collect(
            summaries.ScalarSummary()(tag_tensor(tags, "tags"), values, name=scope), collections
        )


@public("histogram_summary", "contrib.deprecated.histogram_summary")
def histogram_summary(
    tag: Any, values: Any, collections: Collections = None, name: str | None = None
) -> Tensor:
    """A summary of how elements are distributed; `tf.summary.histogram` is the newer name.

    Args:
        tag: the tag.
        values: a real tensor, every element finite.
        collections: graph collections to join; None means `SUMMARIES`.
        name: the name of the node.

    Returns:
        A string scalar: a serialized Summary.

    Example:
        >>> text = sess.run(tf.histogram_summary("weights", [1.0, 2.0]))
        >>> tf.Summary.FromString(text).value[0].histo.sum
        3.0
    """
    with name_scope(name, "HistogramSummary", [tag, values]) as scope:
        return collect(
            summaries.HistogramSummary()(tag_tensor(tag), values, name=scope), collections
        )


@public("image_summary", "contrib.deprecated.image_summary")
def image_summary(
    tag: Any,
    tensor: Any,
    max_images: int = 3,
    collections: Collections = None,
    name: str | None = None,
) -> Tensor:
    """A summary of the first pictures of a batch; `tf.summary.image` is the newer name.

    Args:
        tag: the tag.
        tensor: [batch, height, width, 1, 3 or 4].
        max_images: how many pictures are kept.
        collections: graph collections to join; None means `SUMMARIES`.
        name: the name of the node.

    Returns:
        A string scalar: a serialized Summary.

    Example:
        >>> text = sess.run(tf.image_summary("input", tf.zeros([1, 8, 8, 1])))
        >>> tf.Summary.FromString(text).value[0].image.height
        8
    """
    op = summaries.ImageSummary(max_images=max_images)
    with name_scope(name, "ImageSummary", [tag, tensor]) as scope:
        return collect(op(tag_tensor(tag), tensor, name=scope), collections)


@public("audio_summary", "contrib.deprecated.audio_summary")
def audio_summary(
    tag: Any,
    tensor: Any,
    sample_rate: Any,
    max_outputs: int = 3,
    collections: Collections = None,
    name: str | None = None,
) -> Tensor:
    """A summary of the first sounds of a batch."""
    op = summaries.AudioSummaryV2(max_outputs=max_outputs)
    with name_scope(name, "AudioSummary", [tag, tensor]) as scope:
        rate = convert_to_tensor(sample_rate, dtypes.float32, name="sample_rate")
        return collect(op(tag_tensor(tag), tensor, rate, name=scope), collections)


@public("merge_summary", "contrib.deprecated.merge_summary")
def merge_summary(
    inputs: Sequence[Any], collections: Collections = None, name: str | None = None
) -> Tensor:
    """One summary with all values of several.

    Args:
        inputs: a list of summaries.
        collections: collections to join.
        name: the name of the node.

    Returns:
        A string scalar, a serialised Summary.

    Example:
        >>> merged = tf.merge_summary([tf.scalar_summary("a", 1.0), tf.scalar_summary("b", 2.0)])
        >>> [value.tag for value in tf.Summary.FromString(sess.run(merged)).value]
        ['a', 'b']
    """
    with name_scope(name, "MergeSummary", inputs):
        merged = summaries.MergeSummary()(list(inputs), name=name)
        return collect(merged, () if collections is None else collections)


@public("merge_all_summaries", "contrib.deprecated.merge_all_summaries")
def merge_all_summaries(key: Hashable = GraphKeys.SUMMARIES) -> Tensor | MaybeNone:
    """One summary with all values of those collected; `tf.summary.merge_all` is the newer name.

    Args:
        key: the collection to merge.

    Returns:
        A string scalar, or None if there are none.

    Example:
        >>> loss = tf.scalar_summary("loss", 0.5)
        >>> text = sess.run(tf.merge_all_summaries())
        >>> tf.Summary.FromString(text).value[0].tag
        'loss'
    """
    collected = get_collection(key)
    return merge_summary(collected) if collected else None


def get_summary_op() -> Tensor | None:
    """The summary op of the default graph: the one in its collection, or all summaries merged."""
    kept = get_collection(GraphKeys.SUMMARY_OP)
    if kept:
        return kept[0]
    merged = merge_all_summaries()
    if merged is not None:
        add_to_collection(GraphKeys.SUMMARY_OP, merged)
    return merged
