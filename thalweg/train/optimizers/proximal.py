"""Proximal optimizers: a gradient step, then the exact minimiser of l1 and l2 penalties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.ops.math.arithmetic import absolute, maximum, sign
from thalweg.ops.math.transcendental import sqrt
from thalweg.public import public
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.train.optimizers.parts import Part


def shrink(value: Tensor, by: Tensor) -> Tensor:
    """`value` moved towards zero by `by`, and no further than zero."""
    return sign(value) * maximum(absolute(value) - by, 0)


@public("train.ProximalGradientDescentOptimizer")
class ProximalGradientDescentOptimizer(Optimizer):
    """w ← shrink(w − α·g, α·l1) / (1 + α·l2)"""

    def __init__(
        self,
        learning_rate: TensorLike | Callable[[], TensorLike],
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._l1 = l1_regularization_strength
        self._l2 = l2_regularization_strength

    def _prepare(self) -> None:
        self._learning_rate_tensor = self._hyper(self._learning_rate, "learning_rate")
        self._l1_tensor = self._hyper(self._l1, "l1_regularization_strength")
        self._l2_tensor = self._hyper(self._l2, "l2_regularization_strength")

    def _step(self, grad: Tensor, part: Part) -> None:
        rate, l1, l2 = map(
            part.cast, (self._learning_rate_tensor, self._l1_tensor, self._l2_tensor)
        )
        moved = part.read(part.var) - rate * grad
        part.set(part.var, shrink(moved, rate * l1) / (1 + rate * l2))


@public("train.ProximalAdagradOptimizer")
class ProximalAdagradOptimizer(Optimizer):
    """a ← a + g²;  β = α / √a;  w ← shrink(w − β·g, β·l1) / (1 + β·l2)

    Args:
        learning_rate: α.
        initial_accumulator_value: what a starts as.
        l1_regularization_strength: l1, which makes weights zero.
        l2_regularization_strength: l2, which makes them small.
        use_locking: whether updates exclude each other.
        name: the name of the nodes.

    Example:
        >>> w = tf.Variable(1.0)
        >>> train = tf.train.ProximalAdagradOptimizer(0.5).minimize(tf.square(w))
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(train), round(float(sess.run(w)), 3)
        (None, 0.506)
    """

    def __init__(
        self,
        learning_rate: TensorLike | Callable[[], TensorLike],
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        if initial_accumulator_value <= 0.0:
            raise ValueError(
                f"initial_accumulator_value must be positive: {initial_accumulator_value}"
            )
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._initial = initial_accumulator_value
        self._l1 = l1_regularization_strength
        self._l2 = l2_regularization_strength

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        for var in var_list:
            self._constant_slot(var, self._initial, "accumulator", self._name)

    def _prepare(self) -> None:
        self._learning_rate_tensor = self._hyper(self._learning_rate, "learning_rate")
        self._l1_tensor = self._hyper(self._l1, "l1_regularization_strength")
        self._l2_tensor = self._hyper(self._l2, "l2_regularization_strength")

    def _step(self, grad: Tensor, part: Part) -> None:
        rate, l1, l2 = map(
            part.cast, (self._learning_rate_tensor, self._l1_tensor, self._l2_tensor)
        )
        total = part.add(self._slot(part.var, "accumulator"), grad * grad)
        rate = rate / sqrt(total)
        moved = part.read(part.var) - rate * grad
        part.set(part.var, shrink(moved, rate * l1) / (1 + rate * l2))
