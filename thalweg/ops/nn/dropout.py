"""Dropout: sets random elements to zero, and scales the others to preserve the mean."""

from __future__ import annotations

import numbers
from typing import Any, cast

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value
from thalweg.graph.likes import ShapeLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import casting, shaping
from thalweg.ops.random import random
from thalweg.public import public


@public("nn.dropout")
def dropout(
    x: TensorLike,
    keep_prob: TensorLike | None = None,
    noise_shape: ShapeLike | TensorLike | None = None,
    seed: int | None = None,
    name: str | None = None,
    rate: TensorLike | None = None,
) -> Tensor:
    """Each element kept, and divided by `keep_prob`, with probability `keep_prob`; else 0.

    Args:
        x: a floating tensor.
        keep_prob: the probability to keep an element; a number or a scalar tensor.
        noise_shape: a shape that broadcasts to that of `x`: elements along an axis with a 1 are
            kept or dropped together.
        seed: a number that, with the graph's seed, fixes the sequence of values.
        name: the name of the node.
        rate: 1 - `keep_prob`; give one of the two.

    Returns:
        A tensor of the shape and dtype of `x`.

    Example:
        >>> y = sess.run(tf.nn.dropout(tf.ones([1000]), rate=0.5, seed=1))
        >>> sorted(set(y.tolist())), 0.8 < y.mean() < 1.2
        ([0.0, 2.0], np.True_)
    """
    with name_scope(name, "dropout", [x]):
        tensor = convert_to_tensor(x, name="x")
        if not tensor.dtype.is_floating:
            raise ValueError(
                "x has to be a floating point tensor since it's going to be scaled. Got a "
                f"{tensor.dtype.name} tensor instead."
            )
        dropped = _rate(keep_prob, rate, tensor)
        if constant_value(dropped) == 0:
            return tensor
        kind = tensor.dtype.base_dtype
        noise = random.random_uniform(_noise_shape(tensor, noise_shape), seed=seed, dtype=kind)
        # The upper part of the noise is kept: seeds drop the same elements as in TensorFlow.
        result = tensor * (1 / (1 - dropped)) * casting.cast(noise >= dropped, kind)
        result.set_shape(tensor.shape)
        return result


def _rate(keep_prob: Any, rate: Any, x: Tensor) -> Tensor:
    """The probability to drop an element, checked if it is known."""
    if (keep_prob is None) == (rate is None):
        raise ValueError("dropout takes either keep_prob or rate")
    if isinstance(keep_prob, numbers.Real) and not 0 < float(keep_prob) <= 1:
        raise ValueError(
            "keep_prob must be a scalar tensor or a float in the range (0, 1], got "
            f"{float(keep_prob):g}"
        )
    if isinstance(rate, numbers.Real) and not 0 <= float(rate) < 1:
        raise ValueError(
            f"rate must be a scalar tensor or a float in the range [0, 1), got {float(rate):g}"
        )
    kind = x.dtype.base_dtype
    if rate is None:
        is_number = isinstance(keep_prob, numbers.Real)
        kept: Any = keep_prob if is_number else convert_to_tensor(keep_prob, kind)
        rate = 1 - kept
    value = convert_to_tensor(cast("Any", rate), kind, name="rate")
    value.shape.assert_is_compatible_with(())
    return value


def _noise_shape(x: Tensor, noise_shape: Any) -> Any:
    """The shape of the noise; None is the size of `x`."""
    if noise_shape is None:
        return shaping.shape(x)
    if isinstance(noise_shape, Tensor) or x.shape.rank is None:
        return noise_shape
    given = list(noise_shape)
    if len(given) != x.shape.rank:
        return noise_shape
    pairs = zip(given, x.shape.as_list(), strict=True)
    return [mine if size is None else size for size, mine in pairs]


@public("nn.dropout_v2")
def dropout_v2(
    x: TensorLike,
    rate: TensorLike,
    noise_shape: ShapeLike | TensorLike | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`x` with each element dropped with probability `rate`, the others scaled up to match."""
    return dropout(x, None, noise_shape, seed, name, rate)
