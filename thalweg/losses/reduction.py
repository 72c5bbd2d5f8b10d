"""From a tensor of losses and one of weights to the number that is minimised."""

from __future__ import annotations

from thalweg.graph.collections import GraphKeys
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import float32
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.losses.collection import add_loss
from thalweg.losses.matching import align_weights, broadcast_weights
from thalweg.ops.core import casting, filling, shaping
from thalweg.ops.math import compare, division, reduce
from thalweg.public import public


@public("losses.Reduction")
class Reduction:
    """How weighted losses become one number.

    NONE keeps them; SUM adds them up; MEAN divides by the sum of the weights, SUM_OVER_BATCH_SIZE
    by the number of losses, SUM_BY_NONZERO_WEIGHTS by the number of weights that are not 0.

    Example:
        >>> none = tf.losses.Reduction.NONE
        >>> sess.run(tf.losses.mean_squared_error([1.0, 2.0], [1.0, 4.0], reduction=none))
        array([0., 4.], dtype=float32)
    """

    NONE = "none"
    SUM = "weighted_sum"
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"
    MEAN = "weighted_mean"
    SUM_BY_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"
    SUM_OVER_NONZERO_WEIGHTS = SUM_BY_NONZERO_WEIGHTS

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """The values that a `reduction` may take."""
        return (
            cls.NONE,
            cls.SUM,
            cls.MEAN,
            cls.SUM_OVER_BATCH_SIZE,
            cls.SUM_OVER_NONZERO_WEIGHTS,
            cls.SUM_BY_NONZERO_WEIGHTS,
        )

    @classmethod
    def validate(cls, key: str) -> None:
        """Raise unless `key` is one of `all()`."""
        if key not in cls.all():
            known = ", ".join(dict.fromkeys(cls.all()))
            raise ValueError(f"Invalid Reduction Key {key}: it must be one of {known}.")


@public("losses.compute_weighted_loss", "contrib.losses.compute_weighted_loss")
def compute_weighted_loss(
    losses: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:
    """Weigh losses, reduce them as `reduction` says, and add the result to the collection."""
    Reduction.validate(reduction)
    with name_scope(scope, "weighted_loss", [losses, weights]):
        given = convert_to_tensor(losses)
        values = casting.cast(given, float32)
        loss = _reduced(values, align_weights(weights, values, float32), reduction)
        loss = casting.cast(loss, given.dtype.base_dtype)
        add_loss(loss, loss_collection)
        return loss


def _reduced(losses: Tensor, weights: Tensor, reduction: str) -> Tensor:
    if losses.shape.rank is None or weights.shape.rank is None:
        weights = broadcast_weights(weights, losses)  # only the step can tell that they fit
    weighted = losses * weights
    if reduction == Reduction.NONE:
        return weighted
    total = reduce.reduce_sum(weighted)
    if reduction == Reduction.SUM:
        return total
    return division.div_no_nan(total, _divisor(losses, weights, reduction), name="value")


def _divisor(losses: Tensor, weights: Tensor, reduction: str) -> Tensor:
    if reduction == Reduction.SUM_OVER_BATCH_SIZE:
        return casting.cast(shaping.size(losses), losses.dtype)
    if reduction == Reduction.MEAN:
        return reduce.reduce_sum(broadcast_weights(weights, losses))
    return num_present(losses, weights)


def num_present(losses: Tensor, weights: Tensor, per_batch: bool = False) -> Tensor:
    """How many losses have a non-zero weight, in all or (keeping dimensions) in each example."""
    with name_scope(None, "num_present", [losses, weights]):
        present = casting.cast(compare.not_equal(weights, 0), losses.dtype)
        present = broadcast_weights(present, losses)
        if not per_batch:
            return reduce.reduce_sum(present)
        return sum_per_example(present)


def sum_per_example(values: Tensor) -> Tensor:
    """The sum over all dimensions but the first, which are kept with size 1."""
    rank = values.shape.rank
    rest = filling.range(1, shaping.rank(values)) if rank is None else list(range(1, rank))
    return reduce.reduce_sum(values, rest, keepdims=True)
