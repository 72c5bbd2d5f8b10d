"""Gradient descent: downhill, by the learning rate times the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.graph.composite import IndexedSlices
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.ops.core import casting
from thalweg.ops.state import scatter
from thalweg.public import public
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.train.optimizers.parts import Part


@public("train.GradientDescentOptimizer")
class GradientDescentOptimizer(Optimizer):
    """Gradient descent: w ← w − learning_rate·g

    Args:
        learning_rate: a number, a scalar tensor or a function that gives one.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the update.

    Example:
        >>> w = tf.Variable([3.0, -2.0])
        >>> loss = tf.reduce_sum(tf.square(w))
        >>> train = tf.train.GradientDescentOptimizer(0.25).minimize(loss)
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(train)
        >>> sess.run(w)
        array([ 1.5, -1. ], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: TensorLike | Callable[[], TensorLike],
        use_locking: bool = False,
        name: str = "GradientDescent",
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate

    def _prepare(self) -> None:
        self._learning_rate_tensor = self._hyper(self._learning_rate, "learning_rate")

    def _step(self, grad: Tensor, part: Part) -> None:
        part.subtract(part.var, part.cast(self._learning_rate_tensor) * grad)

    def _apply_sparse_duplicate_indices(self, grad: IndexedSlices, var: Any) -> Any:
        # The update is linear in the gradient: rows of one index need no summing first.
        change = casting.cast(self._learning_rate_tensor, var.dtype.base_dtype) * grad.values
        return scatter.scatter_sub(var, grad.indices, change, use_locking=self._use_locking)
