"""FTRL-proximal: follow the regularised leader, with weights that become exactly zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.ops.math.arithmetic import power
from thalweg.ops.math.transcendental import sqrt
from thalweg.public import public
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.train.optimizers.parts import Part
from thalweg.train.optimizers.proximal import shrink


@public("train.FtrlOptimizer")
class FtrlOptimizer(Optimizer):
    """b = a + g²;  z ← z + g − (bᵖ − aᵖ) / α·w;  w ← −shrink(z, l1) / (bᵖ / α + 2·l2);  a ← b

    p is −learning_rate_power. Shrinkage adds 2·l2_shrinkage·w to the g of z.

    Args:
        learning_rate: α.
        learning_rate_power: -p, at most 0.
        initial_accumulator_value: what a starts as.
        l1_regularization_strength: l1, which makes weights zero.
        l2_regularization_strength: l2, which makes them small.
        use_locking: whether updates exclude each other.
        name: the name of the nodes.
        accum_name, linear_name: the names of the slots a and z.
        l2_shrinkage_regularization_strength: how strongly the gradient itself is moved towards
            zero.

    Example:
        >>> w = tf.Variable(1.0)
        >>> train = tf.train.FtrlOptimizer(0.5).minimize(tf.square(w))
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(train), round(float(sess.run(w)), 3)
        (None, 0.35)
    """

    def __init__(
        self,
        learning_rate: TensorLike | Callable[[], TensorLike],
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,
        linear_name: str | None = None,
        l2_shrinkage_regularization_strength: float = 0.0,
    ) -> None:
        super().__init__(use_locking, name)
        not_negative = {
            "initial_accumulator_value": initial_accumulator_value,
            "l1_regularization_strength": l1_regularization_strength,
            "l2_regularization_strength": l2_regularization_strength,
            "l2_shrinkage_regularization_strength": l2_shrinkage_regularization_strength,
        }
        for parameter, value in not_negative.items():
            if value < 0.0:
                raise ValueError(f"{parameter} {value:f} needs to be positive or zero")
        if learning_rate_power > 0.0:
            raise ValueError(
                f"learning_rate_power {learning_rate_power:f} needs to be negative or zero"
            )
        self._learning_rate = learning_rate
        self._power = -learning_rate_power
        self._initial = initial_accumulator_value
        self._l1 = l1_regularization_strength
        self._l2 = l2_regularization_strength
        self._shrinkage = l2_shrinkage_regularization_strength
        self._accum_name = accum_name or name
        self._linear_name = linear_name or name

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        for var in var_list:
            self._constant_slot(var, self._initial, "accum", self._accum_name)
            self._zeros_slot(var, "linear", self._linear_name)

    def _prepare(self) -> None:
        self._learning_rate_tensor = self._hyper(self._learning_rate, "learning_rate")
        self._l1_tensor = self._hyper(self._l1, "l1_regularization_strength")
        self._l2_tensor = self._hyper(self._l2, "l2_regularization_strength")

    def _step(self, grad: Tensor, part: Part) -> None:
        rate, l1, l2 = map(
            part.cast, (self._learning_rate_tensor, self._l1_tensor, self._l2_tensor)
        )
        accum, linear = self._slot(part.var, "accum"), self._slot(part.var, "linear")
        before, weight = part.read(accum), part.read(part.var)
        old, new = self._root(before), self._root(before + grad * grad)
        part.set(accum, before + grad * grad)
        if self._shrinkage:
            grad = grad + 2 * part.cast(self._shrinkage) * weight
        leader = part.add(linear, grad - (new - old) / rate * weight)
        part.set(part.var, -shrink(leader, l1) / (new / rate + 2 * l2))

    def _root(self, squares: Tensor) -> Tensor:
        return sqrt(squares) if self._power == 0.5 else power(squares, self._power)
