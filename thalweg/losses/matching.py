"""How labels, predictions and weights are made to fit each other.

Losses and metrics take labels and predictions whose ranks differ by a last dimension of size 1,
and weights that broadcast to the values they weigh; here they become tensors of matching shapes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core import broadcast, casting, shaping
from thalweg.ops.math import compare
from thalweg.public import public


@public("contrib.metrics.remove_squeezable_dimensions")
def remove_squeezable_dimensions(
    labels: TensorLike,
    predictions: TensorLike,
    expected_rank_diff: int = 0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Squeeze the last dimension of the one whose rank is one higher than it should be."""
    with name_scope(name, "remove_squeezable_dimensions", [labels, predictions]):
        predictions, labels = convert_to_tensor(predictions), convert_to_tensor(labels)
        squeezed = squeeze_last_if_above(predictions, labels, expected_rank_diff + 1)
        return squeeze_last_if_above(labels, predictions, 1 - expected_rank_diff), squeezed


def squeeze_last_if_above(tensor: Tensor, other: Tensor, difference: int) -> Tensor:
    """`tensor` without its last dimension of size 1 if its rank is `difference` above `other`'s."""
    sizes, other_rank = tensor.shape.sizes, other.shape.rank
    if sizes is not None and other_rank is not None:
        excess = len(sizes) - other_rank == difference
        return shaping.squeeze(tensor, [-1]) if excess else tensor
    if sizes is not None and (not sizes or sizes[-1] not in (1, None)):
        return tensor
    return _squeeze_in_step(tensor, other, difference)


def _squeeze_in_step(tensor: Tensor, other: Tensor, difference: int) -> Tensor:
    """The same for ranks that only the step knows: a reshape to all sizes or all but the last."""
    rank = shaping.rank(tensor)
    excess = compare.equal(rank - shaping.rank(other), difference)
    kept = rank - casting.cast(excess, rank.dtype)
    return shaping.reshape(tensor, shaping.shape(tensor)[:kept])


def predictions_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """The old contrib form of a loss or metric: predictions (or logits) come before labels."""
    signature = inspect.signature(function)
    labels, predictions, *rest = signature.parameters
    order = predictions, labels, *rest

    def swapped(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(order):
            raise TypeError(f"{function.__name__} takes {len(order)} arguments, got {len(args)}")
        return function(**dict(zip(order, args, strict=False)), **kwargs)

    swapped.__name__ = swapped.__qualname__ = function.__name__
    swapped.__module__ = function.__module__  # where the names in annotations are known
    _, _, rest_of_doc = (function.__doc__ or "").partition("\n")
    about = f"`{function.__name__}`, with {predictions} before {labels}."
    swapped.__doc__ = f"{about}\n{rest_of_doc}" if rest_of_doc else about
    taken = [signature.parameters[name] for name in order]
    swapped.__signature__ = signature.replace(parameters=taken)  # pyright: ignore[reportFunctionMemberAccess] - what inspect reads
    return swapped


def match(
    labels: TensorLike, predictions: TensorLike, weights: TensorLike | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Labels, predictions and (if given) weights, each squeezed where the others ask for it."""
    labels, predictions = remove_squeezable_dimensions(labels, predictions)
    predictions.shape.assert_is_compatible_with(labels.shape)
    if weights is None:
        return labels, predictions, None
    return labels, predictions, squeeze_last_if_above(convert_to_tensor(weights), predictions, 1)


def assert_broadcastable(weights: TensorShape, values: TensorShape) -> None:
    """Raise ValueError where static shapes show that weights do not broadcast to values."""
    wide, full = weights.sizes, values.sizes
    if not wide or full is None:
        return
    fits = len(wide) <= len(full) and all(
        w in (1, None) or v is None or w == v for w, v in zip(wide, full, strict=False)
    )
    if not fits:
        raise ValueError(
            f"weights can not be broadcast to values: weights have shape {weights}, values "
            f"{values}. Weights must be a scalar, or have sizes that are 1 or those of the values"
        )


def align_weights(weights: TensorLike | None, values: Tensor, dtype: DTypeLike) -> Tensor:
    """Weights of `dtype` that broadcast to `values`; fewer dimensions weigh the leading ones."""
    if weights is None:
        raise ValueError("`weights` cannot be None: use 1.0 to weigh all values equally")
    aligned = casting.cast(weights, dtype)
    assert_broadcastable(aligned.shape, values.shape)
    missing = (values.shape.rank or 0) - (aligned.shape.rank or 0)
    if not aligned.shape.rank or missing == 0:
        return aligned
    for _ in range(missing):
        aligned = shaping.expand_dims(aligned, -1)
    return aligned


def broadcast_weights(weights: Tensor, values: Tensor) -> Tensor:
    """Weights of the shape of `values`; raises in the step if they do not broadcast to it."""
    static = weights.shape, values.shape
    if static[0].is_fully_defined() and static[0].sizes == static[1].sizes:
        return weights
    with name_scope(None, "broadcast_weights", [weights, values]):
        return broadcast.BroadcastTo()(weights, shaping.shape(values))
