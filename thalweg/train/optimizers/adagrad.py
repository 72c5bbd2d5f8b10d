"""Adagrad: each element's rate falls with the squares of its gradients so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.ops.math.transcendental import sqrt
from thalweg.public import public
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.train.optimizers.parts import Part


@public("train.AdagradOptimizer")
class AdagradOptimizer(Optimizer):
    """Adagrad: steps divided by the root of the sum of squared gradients so far.

    a ← a + g²;  w ← w − learning_rate·g / √a

    Args:
        learning_rate: a number, a scalar tensor or a function that gives one.
        initial_accumulator_value: what `a` begins with, above 0.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the update and of the slots.

    Example:
        >>> w = tf.Variable(1.0)
        >>> train = tf.train.AdagradOptimizer(0.5).minimize(tf.square(w))
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(train)
        >>> sess.run(w) < 1.0
        np.True_
    """

    def __init__(
        self,
        learning_rate: TensorLike | Callable[[], TensorLike],
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        if initial_accumulator_value <= 0.0:
            raise ValueError(
                f"initial_accumulator_value must be positive: {initial_accumulator_value}"
            )
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._initial = initial_accumulator_value

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        for var in var_list:
            self._constant_slot(var, self._initial, "accumulator", self._name)

    def _prepare(self) -> None:
        self._learning_rate_tensor = self._hyper(self._learning_rate, "learning_rate")

    def _step(self, grad: Tensor, part: Part) -> None:
        total = part.add(self._slot(part.var, "accumulator"), grad * grad)
        part.subtract(part.var, part.cast(self._learning_rate_tensor) * grad / sqrt(total))
