"""`tf.summary.scalar` and its kin: nodes that summarise a tensor, named and collected as in TF 1.

The name of a node is the tag of its summary, so name scopes group the charts of TensorBoard. A
`family` groups them by another word.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Generator, Hashable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

from thalweg import protos
from thalweg.graph import dtypes
from thalweg.graph.collections import GraphKeys, add_to_collection, get_collection
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import MaybeNone
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.io import summaries
from thalweg.platform import tf_logging
from thalweg.platform.compat import as_bytes, as_str_any
from thalweg.platform.files.wire import bytes_field
from thalweg.public import public

_NOT_IN_A_TAG = re.compile(r"[^-/\w.]", re.ASCII)


def clean_tag(name: str | None) -> str | None:
    """A name with `_` for each character that a node's name cannot have."""
    if name is None:
        return None
    clean = _NOT_IN_A_TAG.sub("_", name).lstrip("/")
    if clean != name:
        tf_logging.info("Summary name %s is illegal; using %s instead.", name, clean)
    return clean


def collect(summary: Tensor, collections: Iterable[Any] | None) -> Tensor:
    """Add a summary to the given collections, to that of all summaries if none are given."""
    for key in (GraphKeys.SUMMARIES,) if collections is None else collections:
        add_to_collection(key, summary)
    return summary


@contextmanager
def summary_scope(
    name: str,
    family: str | None = None,
    default_name: str | None = None,
    values: Sequence[Any] | None = None,
) -> Generator[tuple[str, str]]:
    """The tag of a summary and the name of its node, inside the scope of that name."""
    clean, group = clean_tag(name), clean_tag(family)
    with name_scope(clean if group is None else f"{group}/{clean}", default_name, values) as scope:
        place = scope.rstrip("/")
        yield (place if group is None else f"{group}/{place}"), scope


def tag_tensor(tag: Any, name: str = "tag") -> Tensor:
    """A tag as a tensor, with the name that graphs of TensorFlow have for it."""
    return convert_to_tensor(tag, dtypes.string, name=name)


@public("summary.scalar")
def scalar(
    name: str, tensor: Any, collections: Iterable[Any] | None = None, family: str | None = None
) -> Tensor:
    """A summary of one number, such as a loss.

    Args:
        name: the tag; scopes prefix it, and TensorBoard groups charts by the prefix.
        tensor: a real tensor of one element.
        collections: graph collections to join; None means `SUMMARIES`.
        family: a word to group by instead of the scope.

    Returns:
        A string scalar: a serialized Summary, for `FileWriter.add_summary`.

    Example:
        >>> text = sess.run(tf.summary.scalar("loss", 0.5))
        >>> tf.Summary.FromString(text).value[0].simple_value
        0.5
    """
    with summary_scope(name, family, values=[tensor]) as (tag, scope):
        return collect(
            summaries.ScalarSummary()(tag_tensor(tag, "tags"), tensor, name=scope), collections
        )


@public("summary.histogram")
def histogram(
    name: str, values: Any, collections: Iterable[Any] | None = None, family: str | None = None
) -> Tensor:
    """A summary of how the elements of a tensor are distributed.

    Args:
        name: the tag; scopes prefix it.
        values: a real tensor of any shape, every element finite.
        collections: graph collections to join; None means `SUMMARIES`.
        family: a word to group by instead of the scope.

    Returns:
        A string scalar: a serialized Summary.

    Raises:
        InvalidArgumentError: where an element is NaN or infinite.

    Example:
        >>> text = sess.run(tf.summary.histogram("weights", [1.0, 2.0, 2.0]))
        >>> tf.Summary.FromString(text).value[0].histo.num
        3.0
    """
    with summary_scope(name, family, "HistogramSummary", [values]) as (tag, scope):
        return collect(
            summaries.HistogramSummary()(tag_tensor(tag), values, name=scope), collections
        )


@public("summary.image")
def image(
    name: str,
    tensor: Any,
    max_outputs: int = 3,
    collections: Iterable[Any] | None = None,
    family: str | None = None,
) -> Tensor:
    """A summary of the first pictures of a batch.

    Args:
        name: the tag; scopes prefix it, and the number of the picture follows.
        tensor: [batch, height, width, channels], uint8 or floating, with 1 (grey), 3 (RGB) or 4
            (RGBA) channels; floats are scaled so that they use the range of uint8.
        max_outputs: how many pictures are kept.
        collections: graph collections to join; None means `SUMMARIES`.
        family: a word to group by instead of the scope.

    Returns:
        A string scalar: a serialized Summary.

    Example:
        >>> text = sess.run(tf.summary.image("input", tf.zeros([5, 8, 8, 3]), max_outputs=2))
        >>> [value.tag for value in tf.Summary.FromString(text).value]
        ['input/image/0', 'input/image/1']
    """
    op = summaries.ImageSummary(max_images=max_outputs)
    with summary_scope(name, family, values=[tensor]) as (tag, scope):
        return collect(op(tag_tensor(tag), tensor, name=scope), collections)


@public("summary.audio")
def audio(
    name: str,
    tensor: Any,
    sample_rate: Any,
    max_outputs: int = 3,
    collections: Iterable[Any] | None = None,
    family: str | None = None,
) -> Tensor:
    """A summary of the first sounds of a batch.

    Args:
        name: the tag; scopes prefix it, and the number of the sound follows.
        tensor: [batch, frames] or [batch, frames, channels], in [-1, 1].
        sample_rate: frames per second.
        max_outputs: how many sounds are kept.
        collections: graph collections to join; None means `SUMMARIES`.
        family: a word to group by instead of the scope.

    Returns:
        A string scalar: a serialized Summary.

    Example:
        >>> text = sess.run(tf.summary.audio("beep", tf.zeros([1, 100]), 8000.0))
        >>> tf.Summary.FromString(text).value[0].audio.sample_rate
        8000.0
    """
    op = summaries.AudioSummaryV2(max_outputs=max_outputs)
    with summary_scope(name, family, values=[tensor]) as (tag, scope):
        rate = convert_to_tensor(sample_rate, dtypes.float32, name="sample_rate")
        return collect(op(tag_tensor(tag), tensor, rate, name=scope), collections)


@public("summary.text")
def text(name: str, tensor: Any, collections: Iterable[Any] | None = None) -> Tensor:
    """A summary of strings, which TensorBoard shows as Markdown.

    Args:
        name: the tag; scopes prefix it.
        tensor: strings of any shape.
        collections: graph collections to join; None means `SUMMARIES`.

    Returns:
        A string scalar: a serialized Summary.

    Example:
        >>> text = sess.run(tf.summary.text("note", tf.constant("**hello**")))
        >>> tf.Summary.FromString(text).value[0].tag
        'note'
    """
    strings = convert_to_tensor(tensor)
    if strings.dtype.base_dtype is not dtypes.string:
        raise ValueError(
            f"Expected tensor {strings.name} to have dtype string, got {strings.dtype.name}"
        )
    plugin = bytes_field(1, bytes_field(1, b"text"))
    return _tensor_summary(name, strings, plugin, collections, None)


@public("summary.tensor_summary")
def tensor_summary(
    name: str,
    tensor: Any,
    summary_description: protos.SummaryDescription | None = None,
    collections: Iterable[Any] | None = None,
    summary_metadata: protos.SummaryMetadata | None = None,
    family: str | None = None,
    display_name: str | None = None,
) -> Tensor:
    """A summary that holds a whole tensor; `summary_metadata` says which plugin shows it."""
    if summary_description is not None and not isinstance(summary_description, str | bytes):
        return _described(name, tensor, summary_description, collections, family)
    written = b"" if summary_metadata is None else summary_metadata.SerializeToString()
    # Of a field that occurs twice the last one counts.
    if display_name is not None:
        written += bytes_field(2, as_bytes(display_name))
    if summary_description is not None:
        written += bytes_field(3, as_bytes(summary_description))
    return _tensor_summary(name, tensor, written, collections, family)


def _tensor_summary(
    name: str,
    tensor: Any,
    metadata: bytes,
    collections: Iterable[Any] | None,
    family: str | None,
) -> Tensor:
    op = summaries.TensorSummaryV2()
    with summary_scope(name, family, values=[tensor]) as (tag, scope):
        written = convert_to_tensor(metadata, dtypes.string, name="serialized_summary_metadata")
        return collect(op(tag_tensor(tag), tensor, written, name=scope), collections)


def _described(
    name: str,
    tensor: Any,
    description: Any,
    collections: Iterable[Any] | None,
    family: str | None,
) -> Tensor:
    """The older form: a SummaryDescription message is kept with the node."""
    op = summaries.TensorSummary(description=_json_format().MessageToJson(description))
    with summary_scope(name, family, values=[tensor]) as (_, scope):
        return collect(op(tensor, name=scope), collections)


def _json_format() -> Any:
    return importlib.import_module("google.protobuf.json_format")


@public("summary.get_summary_description")
def get_summary_description(node_def: protos.NodeDef) -> protos.SummaryDescription:
    """The SummaryDescription that the NodeDef of a TensorSummary holds."""
    if node_def.op != "TensorSummary":
        raise ValueError(f"Can't get_summary_description on {node_def.op}")
    description = as_str_any(node_def.attr["description"].s) or "{}"
    return _json_format().Parse(description, protos.SummaryDescription())


@public("summary.merge")
def merge(
    inputs: Sequence[Any], collections: Iterable[Any] | None = None, name: str | None = None
) -> Tensor:
    """One summary with all values of several.

    Args:
        inputs: serialized summaries, as string tensors.
        collections: graph collections to join; None means none.
        name: the name of the node.

    Returns:
        A string scalar: a serialized Summary.

    Raises:
        InvalidArgumentError: where two of them have the same tag.

    Example:
        >>> both = tf.summary.merge([tf.summary.scalar("a", 1.0), tf.summary.scalar("b", 2.0)])
        >>> [value.tag for value in tf.Summary.FromString(sess.run(both)).value]
        ['a', 'b']
    """
    clean = clean_tag(name)
    with name_scope(clean, "Merge", inputs):
        merged = summaries.MergeSummary()(list(inputs), name=clean)
        return collect(merged, () if collections is None else collections)


@public("summary.merge_all")
def merge_all(
    key: Hashable = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None
) -> Tensor | MaybeNone:
    """One summary with all values of those collected in the default graph.

    Args:
        key: the collection to merge.
        scope: a regular expression; only summaries whose names it matches are merged.
        name: the name of the node.

    Returns:
        A string scalar, or None if there are none.

    Example:
        >>> loss, rate = tf.summary.scalar("loss", 0.5), tf.summary.scalar("rate", 0.1)
        >>> text = sess.run(tf.summary.merge_all())
        >>> {value.tag for value in tf.Summary.FromString(text).value} == {"loss", "rate"}
        True
    """
    collected = get_collection(key, scope)
    return merge(collected, name=name) if collected else None
