"""Losses over many classes that look at the true classes and a few sampled ones only.

Weights and biases of all classes, inputs and labels of a batch come in; the logits of the true and
the sampled classes are computed alone, so a step's cost does not grow with the number of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import int64
from thalweg.graph.likes import TensorLike
from thalweg.graph.nest import as_list
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.nn.embedding import embedding_lookup
from thalweg.nn.losses import sigmoid_cross_entropy_with_logits
from thalweg.ops.arrays import joining
from thalweg.ops.core import basic, casting, filling, shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.math import reduce, transcendental
from thalweg.ops.nn import candidate_sampling, softmax
from thalweg.ops.sparse import sparse
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.variables.partitioned import PartitionedVariable


@public("nn.nce_loss")
def nce_loss(
    weights: TensorLike | Sequence[TensorLike] | PartitionedVariable,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Sequence[TensorLike] | None = None,
    remove_accidental_hits: bool = False,
    partition_strategy: str = "mod",
    name: str = "nce_loss",
) -> Tensor:
    """The noise-contrastive loss of each example: true classes against sampled ones.

    Cheap training where classes are many; evaluate with the whole softmax or sigmoid.

    Args:
        weights: [classes, depth], or a list of shards of it.
        biases: [classes].
        labels: int64 [batch, num_true], the true classes.
        inputs: [batch, depth].
        num_sampled: how many classes are drawn for a batch.
        num_classes: how many there are.
        num_true: how many true classes an example has.
        sampled_values: what a candidate sampler gave; log-uniform by default, for classes sorted by
            falling frequency.
        remove_accidental_hits: whether drawn classes that are true ones do not count.
        partition_strategy: how shards are cut, as for `tf.nn.embedding_lookup`.
        name: the name of the nodes.

    Returns:
        A vector [batch].

    Example:
        >>> loss = tf.nn.nce_loss(
        ...     tf.zeros([100, 4]), tf.zeros([100]), [[7]], tf.ones([1, 4]), 10, 100
        ... )
        >>> loss.shape.as_list()
        [1]
    """
    labels, inputs = _in_order(labels, inputs)
    logits, targets = _compute_sampled_logits(
        weights,
        biases,
        labels,
        inputs,
        num_sampled,
        num_classes,
        num_true,
        sampled_values,
        True,
        remove_accidental_hits,
        partition_strategy,
        name,
    )
    losses = sigmoid_cross_entropy_with_logits(labels=targets, logits=logits, name="sampled_losses")
    return reduce.reduce_sum(losses, 1)


@public("nn.sampled_softmax_loss")
def sampled_softmax_loss(
    weights: TensorLike | Sequence[TensorLike] | PartitionedVariable,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Sequence[TensorLike] | None = None,
    remove_accidental_hits: bool = True,
    partition_strategy: str = "mod",
    name: str = "sampled_softmax_loss",
    seed: int | None = None,
) -> Tensor:
    """The softmax loss of each example over its true classes and sampled ones.

    Args:
        weights: [classes, depth], or a list of shards of it.
        biases: [classes].
        labels: int64 [batch, num_true], the true classes.
        inputs: [batch, depth].
        num_sampled: how many classes are drawn for a batch.
        num_classes: how many there are.
        num_true: how many true classes an example has.
        sampled_values: what a candidate sampler gave; log-uniform by default.
        remove_accidental_hits: whether drawn classes that are true ones do not count.
        partition_strategy: how shards are cut, as for `tf.nn.embedding_lookup`.
        name: the name of the nodes.
        seed: a number that fixes what is drawn.

    Returns:
        A vector [batch].

    Example:
        >>> loss = tf.nn.sampled_softmax_loss(
        ...     tf.zeros([100, 4]), tf.zeros([100]), [[7]], tf.ones([1, 4]), 10, 100
        ... )
        >>> loss.shape.as_list()
        [1]
    """
    labels, inputs = _in_order(labels, inputs)
    logits, targets = _compute_sampled_logits(
        weights,
        biases,
        labels,
        inputs,
        num_sampled,
        num_classes,
        num_true,
        sampled_values,
        True,
        remove_accidental_hits,
        partition_strategy,
        name,
        seed,
    )
    targets = basic.stop_gradient(targets, name="labels_stop_gradient")
    return softmax.softmax_cross_entropy_with_logits_v2(labels=targets, logits=logits)


def _in_order(labels: Any, inputs: Any) -> tuple[Tensor, Tensor]:
    """Labels before inputs; once the order was the other, and labels are the integers."""
    labels, inputs = convert_to_tensor(labels), convert_to_tensor(inputs)
    swapped = labels.dtype.is_floating and inputs.dtype.is_integer
    return (inputs, labels) if swapped else (labels, inputs)


def _compute_sampled_logits(
    weights: Any,
    biases: Any,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Sequence[TensorLike] | None = None,
    subtract_log_q: bool = True,
    remove_accidental_hits: bool = False,
    partition_strategy: str = "mod",
    name: str | None = None,
    seed: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Logits [batch, num_true + num_sampled] and their targets (1 / num_true for true classes)."""
    weights = as_list(weights)
    with name_scope(name, "compute_sampled_logits", [*weights, biases, inputs, labels]):
        labels = casting.cast(labels, int64)
        flat_labels = shaping.reshape(labels, [-1])
        chosen = sampled_values or _samples(labels, num_true, num_sampled, num_classes, seed)
        sampled, true_expected, sampled_expected = (basic.stop_gradient(part) for part in chosen)
        sampled = casting.cast(sampled, int64)
        ids = joining.concat([flat_labels, sampled], 0)
        all_weights = embedding_lookup(weights, ids, partition_strategy)
        all_biases = embedding_lookup(biases, ids, partition_strategy)
        count = shaping.size(flat_labels)
        true_logits = _true_logits(all_weights[:count], inputs, num_true)
        true_logits = true_logits + shaping.reshape(all_biases[:count], [-1, num_true])
        sampled_logits = matmul.matmul(inputs, all_weights[count:], transpose_b=True)
        sampled_logits = sampled_logits + all_biases[count:]
        if remove_accidental_hits:
            sampled_logits = _without_hits(labels, sampled, sampled_logits, num_true, num_sampled)
        if subtract_log_q:
            true_logits = true_logits - transcendental.log(true_expected)
            sampled_logits = sampled_logits - transcendental.log(sampled_expected)
        return _with_targets(true_logits, sampled_logits, num_true)


def _samples(
    labels: Tensor, num_true: int, num_sampled: int, num_classes: int, seed: int | None
) -> Any:
    """Classes by a law that favours small numbers, as if they were sorted by frequency."""
    return candidate_sampling.log_uniform_candidate_sampler(
        true_classes=shaping.reshape(labels, [-1, num_true]),
        num_true=num_true,
        num_sampled=num_sampled,
        unique=True,
        range_max=num_classes,
        seed=seed,
    )


def _true_logits(weights: Tensor, inputs: TensorLike, num_true: int) -> Tensor:
    """The products of each input with the weights of its true classes: [batch, num_true]."""
    depth = shaping.shape(weights)[1]
    by_example = shaping.reshape(weights, joining.stack([-1, num_true, depth]))
    return reduce.reduce_sum(shaping.expand_dims(inputs, 1) * by_example, 2)


def _without_hits(
    labels: Tensor, sampled: Tensor, logits: Tensor, num_true: int, num_sampled: int
) -> Tensor:
    """Sampled logits with those of sampled true classes pushed out of any softmax."""
    hits = candidate_sampling.compute_accidental_hits(labels, sampled, num_true=num_true)
    rows, columns, penalties = hits
    places = joining.stack([casting.cast(rows, int64), casting.cast(columns, int64)], 1)
    batch = shaping.shape(labels, out_type=int64)[:1]
    shape = joining.concat([batch, convert_to_tensor([num_sampled], int64)], 0)
    penalties = casting.cast(convert_to_tensor(penalties), logits.dtype)
    return logits + sparse.sparse_to_dense(
        places, shape, penalties, default_value=0.0, validate_indices=False
    )


def _with_targets(
    true_logits: Tensor, sampled_logits: Tensor, num_true: int
) -> tuple[Tensor, Tensor]:
    logits = joining.concat([true_logits, sampled_logits], 1)
    true_targets = filling.ones_like(true_logits) / num_true
    targets = joining.concat([true_targets, filling.zeros_like(sampled_logits)], 1)
    return logits, targets
