"""The collections in which a graph keeps its losses, and their totals."""

from __future__ import annotations

from typing import Any

from thalweg.graph.collections import GraphKeys, add_to_collection, get_collection
from thalweg.graph.node import Tensor
from thalweg.ops.core import basic
from thalweg.ops.math import arithmetic
from thalweg.public import public


@public("losses.add_loss", "contrib.losses.add_loss")
def add_loss(loss: Tensor, loss_collection: str | None = GraphKeys.LOSSES) -> None:
    """Add a loss to a collection of losses.

    Args:
        loss: a tensor.
        loss_collection: the collection; None for none.

    Example:
        >>> tf.losses.add_loss(tf.constant(0.5))
        >>> len(tf.losses.get_losses())
        1
    """
    if loss_collection:
        add_to_collection(loss_collection, loss)


@public("losses.get_losses", "contrib.losses.get_losses")
def get_losses(scope: str | None = None, loss_collection: str = GraphKeys.LOSSES) -> list[Any]:
    """The losses collected so far.

    Args:
        scope: a regular expression; only losses whose names it matches.
        loss_collection: the collection.

    Returns:
        A list of tensors.

    Example:
        >>> loss = tf.losses.mean_squared_error([1.0], [2.0])
        >>> tf.losses.get_losses() == [loss]
        True
    """
    return get_collection(loss_collection, scope)


@public("losses.get_regularization_losses", "contrib.losses.get_regularization_losses")
def get_regularization_losses(scope: str | None = None) -> list[Any]:
    """The regularization losses collected so far.

    Args:
        scope: a regular expression; only losses whose names it matches.

    Returns:
        A list of tensors.

    Example:
        >>> l2 = tf.contrib.layers.l2_regularizer(0.1)
        >>> y = tf.layers.dense(tf.ones([1, 2]), 3, kernel_regularizer=l2)
        >>> len(tf.losses.get_regularization_losses())
        1
    """
    return get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


@public("losses.get_regularization_loss")
def get_regularization_loss(
    scope: str | None = None, name: str = "total_regularization_loss"
) -> Tensor:
    """The sum of the regularization losses; 0 if there are none."""
    losses = get_regularization_losses(scope)
    return arithmetic.add_n(losses, name=name) if losses else basic.constant(0.0)


@public("losses.get_total_loss", "contrib.losses.get_total_loss")
def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """The sum of all losses collected in the default graph.

    Args:
        add_regularization_losses: whether regularization losses count too.
        name: the name of the node.
        scope: a regular expression; only losses whose names it matches.

    Returns:
        A scalar.

    Example:
        >>> a = tf.losses.mean_squared_error([1.0], [3.0])
        >>> b = tf.losses.absolute_difference([1.0], [3.0])
        >>> sess.run(tf.losses.get_total_loss())
        np.float32(6.0)
    """
    losses = list(get_losses(scope))
    if add_regularization_losses:
        losses += get_regularization_losses(scope)
    return arithmetic.add_n(losses, name=name)
