"""Adagrad dual averaging: every step solves for the weights from the sum of all gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.ops.core import basic
from thalweg.ops.math.transcendental import sqrt
from thalweg.public import public
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.train.optimizers.parts import Part
from thalweg.train.optimizers.proximal import shrink


@public("train.AdagradDAOptimizer")
class AdagradDAOptimizer(Optimizer):
    """s ← s + g;  q ← q + g²;  w ← −α·shrink(s, l1·t) / (l2·t·α + √q), where t counts steps"""

    def __init__(
        self,
        learning_rate: TensorLike | Callable[[], TensorLike],
        global_step: Any,
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "AdagradDA",
    ) -> None:
        if initial_gradient_squared_accumulator_value <= 0.0:
            raise ValueError(
                "initial_gradient_squared_accumulator_value must be positive: "
                f"{initial_gradient_squared_accumulator_value}"
            )
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._global_step = global_step
        self._initial = initial_gradient_squared_accumulator_value
        self._l1 = l1_regularization_strength
        self._l2 = l2_regularization_strength

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        for var in var_list:
            self._zeros_slot(var, "gradient_accumulator", self._name)
            self._constant_slot(var, self._initial, "gradient_squared_accumulator", self._name)

    def _prepare(self) -> None:
        self._learning_rate_tensor = self._hyper(self._learning_rate, "learning_rate")
        self._steps = basic.identity(self._global_step) + 1

    def _step(self, grad: Tensor, part: Part) -> None:
        rate, steps = part.cast(self._learning_rate_tensor), part.cast(self._steps)
        total = part.add(self._slot(part.var, "gradient_accumulator"), grad)
        squares = part.add(self._slot(part.var, "gradient_squared_accumulator"), grad * grad)
        numerator = shrink(total, part.cast(self._l1) * steps) * -rate
        part.set(part.var, numerator / (part.cast(self._l2) * steps * rate + sqrt(squares)))
