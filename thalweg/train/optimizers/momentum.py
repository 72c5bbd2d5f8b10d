"""Momentum: gradients accumulate in a velocity that decays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.public import public
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.train.optimizers.parts import Part


@public("train.MomentumOptimizer")
class MomentumOptimizer(Optimizer):
    """Gradient descent along a running sum of gradients.

    a ← momentum·a + g;  w ← w − learning_rate·a  (Nesterov: − learning_rate·(g + momentum·a))

    Args:
        learning_rate: a number, a scalar tensor or a function that gives one.
        momentum: the share of the sum that stays in each step.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the update and of the slots.
        use_nesterov: whether the gradient is taken ahead of the step.

    Example:
        >>> w = tf.Variable(1.0)
        >>> train = tf.train.MomentumOptimizer(0.25, momentum=0.5).minimize(tf.square(w))
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(train), sess.run(train), sess.run(w)
        (None, None, np.float32(0.0))
    """

    def __init__(
        self,
        learning_rate: TensorLike | Callable[[], TensorLike],
        momentum: TensorLike | Callable[[], TensorLike],
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._use_nesterov = use_nesterov

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        for var in var_list:
            self._zeros_slot(var, "momentum", self._name)

    def _prepare(self) -> None:
        self._learning_rate_tensor = self._hyper(self._learning_rate, "learning_rate")
        self._momentum_tensor = self._hyper(self._momentum, "momentum")

    def _step(self, grad: Tensor, part: Part) -> None:
        rate, momentum = part.cast(self._learning_rate_tensor), part.cast(self._momentum_tensor)
        slot = self._slot(part.var, "momentum")
        velocity = part.set(slot, part.read(slot) * momentum + grad)
        if self._use_nesterov:
            part.subtract(part.var, grad * rate + velocity * momentum * rate)
        else:
            part.subtract(part.var, velocity * rate)
