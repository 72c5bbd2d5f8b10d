"""What some names meant in TensorFlow 0.12, where the same call means something else in 1.15.

`alias.install(version="0.12")` and `thalweg run --tensorflow 0.12` put these in the place of what
the public names are bound to otherwise. All of it is graph code on public functions; what 0.12
only spelt otherwise (`tf.pack`, `tf.mul`, the axis before the values of `tf.concat`) is found
without asking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from thalweg.alias import names
from thalweg.graph import composite
from thalweg.losses import functions as losses
from thalweg.losses.matching import predictions_first
from thalweg.metrics import confusion
from thalweg.metrics.local import published
from thalweg.train import averages

tf = names.root()

Meaning = TypeVar("Meaning")

#: public name -> what it was bound to in 0.12
MEANINGS: dict[str, Any] = {}
_replaced: dict[str, Any] = {}


def install() -> None:
    """Bind public names to what they meant in 0.12."""
    for name, value in MEANINGS.items():
        path, _, leaf = name.rpartition(".")
        module = names.namespace(path)
        _replaced.setdefault(name, getattr(module, leaf))
        setattr(module, leaf, value)


def uninstall() -> None:
    """Undo `install`."""
    while _replaced:
        name, value = _replaced.popitem()
        path, _, leaf = name.rpartition(".")
        setattr(names.namespace(path), leaf, value)


def meaning(*public_names: str) -> Callable[[Meaning], Meaning]:
    """Register what names were bound to."""

    def register(value: Meaning) -> Meaning:
        MEANINGS.update(dict.fromkeys(public_names, value))
        return value

    return register


@meaning("SparseTensorValue")
class SparseTensorValue(composite.SparseTensorValue):
    """A value of a SparseTensor, whose `dense_shape` may be called `shape`."""

    def __new__(
        cls, indices: Any, values: Any, dense_shape: Any = None, shape: Any = None
    ) -> SparseTensorValue:
        return super().__new__(cls, indices, values, shape if dense_shape is None else dense_shape)


# Losses and metrics


@meaning("losses.mean_pairwise_squared_error")
def mean_pairwise_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = "losses",
) -> Any:
    """Means over n² pairs, those of an element with itself among them; 1.15 leaves these out."""
    return losses.mean_over_pairs(
        labels, predictions, weights, scope, loss_collection, with_itself=True
    )


@meaning("metrics.mean_iou")
def mean_iou(
    labels: Any,
    predictions: Any,
    num_classes: int,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Any:
    """The rows of the matrix are predictions, and a class that never occurs counts as missed."""
    with tf.variable_scope(name, "mean_iou", [predictions, labels, weights]):
        matrix, update = confusion.streaming_confusion_matrix(
            labels, predictions, num_classes, weights
        )
        ratios, _ = confusion.intersections_over_unions(matrix)
        mean, matrix = tf.reduce_mean(ratios, name="mean_iou"), tf.transpose(update)
    return published(mean, matrix, metrics_collections, updates_collections)


MEANINGS["contrib.metrics.streaming_mean_iou"] = predictions_first(mean_iou)


# Segments: every number from 0 on had to occur


def _without_gaps(segment_ids: Any) -> Any:
    """Segment ids, of which none from 0 on is left out. That they are sorted the op checks."""
    ids = tf.convert_to_tensor(segment_ids)
    checks = [
        tf.Assert(tf.reduce_all(ids[:1] <= 0), ["segment ids do not start at 0"]),
        tf.Assert(tf.reduce_all(ids[1:] - ids[:-1] <= 1), ["segment ids are not increasing by 1"]),
    ]
    with tf.control_dependencies(checks):
        return tf.identity(ids)


def _sorted_segments(current: str) -> Callable[..., Any]:
    def reduce_segments(data: Any, segment_ids: Any, name: str | None = None) -> Any:
        return _replaced[current](data, _without_gaps(segment_ids), name=name)

    return reduce_segments


def _sparse_segments(current: str) -> Callable[..., Any]:
    def reduce_segments(data: Any, indices: Any, segment_ids: Any, name: str | None = None) -> Any:
        return _replaced[current](data, indices, _without_gaps(segment_ids), name=name)

    return reduce_segments


for _kind in ("sum", "mean", "prod", "min", "max"):
    MEANINGS[f"segment_{_kind}"] = _sorted_segments(f"segment_{_kind}")
for _kind in ("sum", "mean", "sqrt_n"):
    MEANINGS[f"sparse_segment_{_kind}"] = _sparse_segments(f"sparse_segment_{_kind}")


@meaning("unsorted_segment_sum")
def unsorted_segment_sum(
    data: Any, segment_ids: Any, num_segments: Any, name: str | None = None
) -> Any:
    """A negative segment id is an error, not left out."""
    ids = tf.convert_to_tensor(segment_ids)
    low = tf.cast(tf.where(ids < 0), tf.int32)
    first = low[:1]
    wrong = tf.reduce_join(tf.as_string(first), -1, separator=",")
    text = tf.string_join(
        ["segment_ids[", wrong, "] = ", tf.as_string(tf.gather_nd(ids, first)), " is out of range "]
    )
    range_text = tf.string_join(["[0, ", tf.as_string(num_segments), ")"])
    check = tf.Assert(tf.equal(tf.shape(low)[0], 0), [tf.string_join([text, range_text])])
    with tf.control_dependencies([check]):
        ids = tf.identity(ids)
    return _replaced["unsorted_segment_sum"](data, ids, num_segments, name=name)


# Arguments that were out of range


@meaning("substr")
def substr(input: Any, pos: Any, len: Any, name: str | None = None) -> Any:
    """A position must be inside the string, counted from its beginning."""
    result = _replaced["substr"](input, pos, len, name=name)  # what does not fit is found first
    pos = tf.convert_to_tensor(pos)
    inside = (pos >= 0) & (pos < tf.cast(tf.strings.length(input), pos.dtype))
    with tf.control_dependencies([tf.Assert(tf.reduce_all(inside), ["pos out of range", pos])]):
        return tf.identity(result)


@meaning("nn.in_top_k")
def in_top_k(predictions: Any, targets: Any, k: Any, name: str | None = None) -> Any:
    """A target that is no class is an error, not simply not among the best."""
    predictions, targets = tf.convert_to_tensor(predictions), tf.convert_to_tensor(targets)
    classes = tf.cast(tf.shape(predictions)[1], targets.dtype)
    inside = tf.reduce_all((targets >= 0) & (targets < classes))
    with tf.control_dependencies([tf.Assert(inside, ["a target is out of range", targets])]):
        targets = tf.identity(targets)
    return _replaced["nn.in_top_k"](predictions, targets, k, name=name)


@meaning("image.decode_image")
def decode_image(contents: Any, channels: int | None = None, name: str | None = None) -> Any:
    """There was no fourth channel."""
    if channels not in (None, 0, 1, 3):
        raise ValueError("channels must be in (None, 0, 1, 3)")
    return _replaced["image.decode_image"](contents, channels, name=name)


@meaning("lbeta")
def lbeta(x: Any, name: str = "lbeta") -> Any:
    """Of an empty tensor, the tensor without its first axis; a vector must not be empty."""
    current = _replaced["lbeta"]
    with tf.name_scope(name, "lbeta", [x]):
        x = tf.convert_to_tensor(x, name="x")
        count = x.shape.num_elements()
        if count is not None:
            return current(x) if count else _without_first_axis(x)
        return tf.cond(tf.equal(tf.size(x), 0), lambda: _without_first_axis(x), lambda: current(x))


def _without_first_axis(x: Any) -> Any:
    with tf.control_dependencies([tf.assert_rank_at_least(x, 2)]):
        return tf.reshape(x, tf.shape(x)[1:])


# Numbers that came out otherwise


@meaning("image.adjust_gamma")
def adjust_gamma(image: Any, gamma: float = 1, gain: float = 1) -> Any:
    """Floats over the range of the image's dtype: nothing is rounded."""
    if gamma < 0:
        raise ValueError("Gamma should be a non-negative real number")
    image = tf.convert_to_tensor(image, name="image")
    low, high = image.dtype.limits
    return (tf.cast(image, tf.float32) / (high - low)) ** gamma * (high - low) * gain


@meaning("train.assign_moving_average")
def assign_moving_average(
    variable: Any, value: Any, decay: Any, zero_debias: bool = True, name: str | None = None
) -> Any:
    """The steps by which an average is debiased are counted from 1."""
    return averages.moved(variable, value, decay, zero_debias, name, steps_before=1)


@meaning("train.ExponentialMovingAverage")
class ExponentialMovingAverage(averages.ExponentialMovingAverage):
    """The steps by which an average is debiased are counted from 1."""

    _steps_before = 1
