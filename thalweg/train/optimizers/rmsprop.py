"""RMSProp: gradients divided by a running average of their size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.ops.math.transcendental import sqrt
from thalweg.public import public
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.train.optimizers.parts import Part


@public("train.RMSPropOptimizer")
class RMSPropOptimizer(Optimizer):
    """RMSProp: steps divided by the root of a running mean of squared gradients.

    r ← δ·r + (1−δ)·g²;  m ← μ·m + α·g / √(r + ε);  w ← w − m

    Centred: c ← δ·c + (1−δ)·g, and r − c² (the variance) stands for r under the root.

    Args:
        learning_rate: α; a number, a scalar tensor or a function that gives one.
        decay: δ, of the mean of squares.
        momentum: μ.
        epsilon: ε, which keeps the quotient finite.
        use_locking: taken for old programs; updates are always whole.
        centered: divide by the root of the variance instead.
        name: the name of the update and of the slots.

    Example:
        >>> w = tf.Variable(5.0)
        >>> train = tf.train.RMSPropOptimizer(0.1).minimize(tf.square(w))
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(train)
        >>> sess.run(w) < 5.0
        np.True_
    """

    def __init__(
        self,
        learning_rate: TensorLike | Callable[[], TensorLike],
        decay: TensorLike | Callable[[], TensorLike] = 0.9,
        momentum: TensorLike | Callable[[], TensorLike] = 0.0,
        epsilon: TensorLike | Callable[[], TensorLike] = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._decay = decay
        self._momentum = momentum
        self._epsilon = epsilon
        self._centered = centered

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        for var in var_list:
            self._constant_slot(var, 1.0, "rms", self._name)
            if self._centered:
                self._zeros_slot(var, "mg", self._name)
            self._zeros_slot(var, "momentum", self._name)

    def _prepare(self) -> None:
        self._learning_rate_tensor = self._hyper(self._learning_rate, "learning_rate")
        self._decay_tensor = self._hyper(self._decay, "decay")
        self._momentum_tensor = self._hyper(self._momentum, "momentum")
        self._epsilon_tensor = self._hyper(self._epsilon, "epsilon")

    def _step(self, grad: Tensor, part: Part) -> None:
        rate, momentum = part.cast(self._learning_rate_tensor), part.cast(self._momentum_tensor)
        decay = part.cast(self._decay_tensor)
        size = self._average(part, "rms", grad * grad, decay)
        if self._centered:
            mean = self._average(part, "mg", grad, decay)
            size = size - mean * mean
        scale = sqrt(size + part.cast(self._epsilon_tensor))
        slot = self._slot(part.var, "momentum")
        velocity = part.set(slot, part.read(slot) * momentum + rate * grad / scale)
        part.subtract(part.var, velocity)

    def _average(self, part: Part, name: str, value: Tensor, decay: Tensor) -> Tensor:
        slot = self._slot(part.var, name)
        return part.add(slot, (value - part.read(slot)) * (1 - decay))
