"""Adadelta: steps in the units of the weights, from running averages of gradients and steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.ops.math.transcendental import sqrt
from thalweg.public import public
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.train.optimizers.parts import Part


@public("train.AdadeltaOptimizer")
class AdadeltaOptimizer(Optimizer):
    """Adadelta: steps scaled by running means of squared gradients and of squared steps.

    a ← ρ·a + (1−ρ)·g²;  u = √((d+ε) / (a+ε))·g;  d ← ρ·d + (1−ρ)·u²;  w ← w − α·u

    Args:
        learning_rate: α; a number, a scalar tensor or a function that gives one.
        rho: ρ, the decay of the means.
        epsilon: ε, which gets the steps going.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the update and of the slots.

    Example:
        >>> w = tf.Variable(1.0)
        >>> train = tf.train.AdadeltaOptimizer(1.0).minimize(tf.square(w))
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(train)
        >>> sess.run(w) < 1.0
        np.True_
    """

    def __init__(
        self,
        learning_rate: TensorLike | Callable[[], TensorLike] = 0.001,
        rho: TensorLike | Callable[[], TensorLike] = 0.95,
        epsilon: TensorLike | Callable[[], TensorLike] = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(use_locking, name)
        self._lr = learning_rate
        self._rho = rho
        self._epsilon = epsilon

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        for var in var_list:
            self._zeros_slot(var, "accum", self._name)
            self._zeros_slot(var, "accum_update", self._name)

    def _prepare(self) -> None:
        self._lr_t = self._hyper(self._lr, "lr")
        self._rho_t = self._hyper(self._rho, "rho")
        self._epsilon_t = self._hyper(self._epsilon, "epsilon")

    def _step(self, grad: Tensor, part: Part) -> None:
        rate, rho, tiny = map(part.cast, (self._lr_t, self._rho_t, self._epsilon_t))
        gradients = self._slot(part.var, "accum")
        updates = self._slot(part.var, "accum_update")
        squares = part.set(gradients, part.read(gradients) * rho + grad * grad * (1 - rho))
        update = sqrt(part.read(updates) + tiny) / sqrt(squares + tiny) * grad
        part.set(updates, part.read(updates) * rho + update * update * (1 - rho))
        part.subtract(part.var, update * rate)
