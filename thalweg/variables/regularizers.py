"""Regularizers: functions from a variable to a loss, for `get_variable(regularizer=…)`."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.graph.collections import GraphKeys
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import basic
from thalweg.ops.math import arithmetic, reduce
from thalweg.public import public

Regularizer = Callable[[Any], Tensor | None]


def _check_scale(scale: Any) -> None:
    if isinstance(scale, numbers.Integral):
        raise ValueError(f"scale cannot be an integer: {scale}")
    if isinstance(scale, numbers.Real) and scale < 0.0:
        raise ValueError(f"Setting a scale less than 0 on a regularizer: {scale}.")


def _scaled(
    scale: float, norm: Callable[[Any], Tensor], scope: str | None, default_name: str
) -> Regularizer:
    """The regularizer scale·norm(weights); None if the scale is 0."""
    _check_scale(scale)

    def penalty(weights: Any) -> Tensor | None:
        if scale == 0.0:
            return None
        with name_scope(scope, default_name, [weights]) as name:
            size = norm(weights)
            factor = convert_to_tensor(scale, weights.dtype.base_dtype, name="scale")
            return arithmetic.multiply(factor, size, name=name)

    return penalty


@public("contrib.layers.l1_regularizer", "contrib.slim.l1_regularizer")
def l1_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """A regularizer: scale·Σ|w|.

    Args:
        scale: the factor; 0 disables it.
        scope: the name of the nodes' scope.

    Returns:
        A function from weights to a scalar, for layers and `tf.get_variable`.

    Example:
        >>> sess.run(tf.contrib.layers.l1_regularizer(0.5)(tf.constant([3.0, -4.0])))
        np.float32(3.5)
    """

    def norm(weights: Any) -> Tensor:
        return reduce.reduce_sum(arithmetic.absolute(weights))

    return _scaled(scale, norm, scope, "l1_regularizer")


@public("contrib.layers.l2_regularizer", "contrib.slim.l2_regularizer")
def l2_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """A regularizer: scale·Σw² / 2.

    Args:
        scale: the factor; 0 disables it.
        scope: the name of the nodes' scope.

    Returns:
        A function from weights to a scalar, for layers and `tf.get_variable`.

    Example:
        >>> sess.run(tf.contrib.layers.l2_regularizer(0.1)(tf.constant([3.0, 4.0])))
        np.float32(1.25)
    """

    def norm(weights: Any) -> Tensor:
        return reduce.reduce_sum(arithmetic.square(weights)) * 0.5

    return _scaled(scale, norm, scope, "l2_regularizer")


@public("contrib.layers.l1_l2_regularizer", "contrib.slim.l1_l2_regularizer")
def l1_l2_regularizer(
    scale_l1: float = 1.0, scale_l2: float = 1.0, scope: str | None = None
) -> Regularizer:
    """scale_l1·Σ|w| + scale_l2·Σw² / 2"""
    return sum_regularizer([l1_regularizer(scale_l1), l2_regularizer(scale_l2)], scope)


@public("contrib.layers.sum_regularizer")
def sum_regularizer(regularizer_list: Sequence[Any], scope: str | None = None) -> Regularizer:
    """The sum of several regularizers; those that are None are left out."""
    present: list[Regularizer] = [r for r in regularizer_list if r is not None]

    def penalty(weights: Any) -> Tensor | None:
        with name_scope(scope, "sum_regularizer", [weights]):
            terms = [term for term in (r(weights) for r in present) if term is not None]
            return arithmetic.add_n(terms) if terms else None

    return penalty


@public("contrib.layers.apply_regularization")
def apply_regularization(
    regularizer: Regularizer, weights_list: Sequence[Any] | None = None
) -> Tensor:
    """The sum of a regularizer over weights, added to the collection REGULARIZATION_LOSSES.

    Args:
        regularizer: a function from a tensor to a scalar.
        weights_list: the weights; None: those of the collection WEIGHTS.

    Returns:
        A scalar.

    Example:
        >>> l2 = tf.contrib.layers.l2_regularizer(0.5)
        >>> weights = [tf.constant([2.0]), tf.constant([4.0])]
        >>> sess.run(tf.contrib.layers.apply_regularization(l2, weights))
        np.float32(5.0)
    """
    graph = get_default_graph()
    weights = graph.get_collection(GraphKeys.WEIGHTS) if weights_list is None else weights_list
    if not weights:
        raise ValueError("No weights to regularize.")
    with name_scope(None, "get_regularization_penalty", list(weights)):
        terms = [regularizer(w) for w in weights]
        present = [basic.constant(0.0) if term is None else term for term in terms]
        total = arithmetic.add_n(present)
    graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, total)
    return total
