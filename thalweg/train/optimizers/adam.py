"""Adam: momentum over a running average of squares, both corrected for their start at zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from thalweg.graph.build import graph_of
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.dtypes import DType
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.ops.arrays import indexing
from thalweg.ops.core import basic
from thalweg.ops.math.transcendental import sqrt
from thalweg.ops.state import scatter, state
from thalweg.public import public
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.train.optimizers.parts import Part


class _Numbers(NamedTuple):
    """What the updates of all variables of a dtype share."""

    rate: Tensor  # corrected for the averages' start at zero
    beta1: Tensor
    beta2: Tensor
    rest1: Tensor  # 1 - β₁
    rest2: Tensor
    epsilon: Tensor


@public("train.AdamOptimizer")
class AdamOptimizer(Optimizer):
    """Adam: steps scaled by running means of the gradient and of its square.

    m ← β₁·m + (1−β₁)·g;  v ← β₂·v + (1−β₂)·g²;  w ← w − αₜ·m / (√v + ε)

    αₜ = α·√(1−β₂ᵗ) / (1−β₁ᵗ), where t counts the steps, this one included.

    Args:
        learning_rate: α; a number, a scalar tensor or a function that gives one.
        beta1: β₁, the decay of the mean of gradients.
        beta2: β₂, the decay of the mean of their squares.
        epsilon: ε, which keeps the quotient finite.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the update and of the slots.

    Example:
        >>> w = tf.Variable(5.0)
        >>> train = tf.train.AdamOptimizer(0.1).minimize(tf.square(w))
        >>> sess.run(tf.global_variables_initializer())
        >>> for _ in range(100):
        ...     sess.run(train)
        >>> abs(sess.run(w)) < 0.5
        np.True_
    """

    def __init__(
        self,
        learning_rate: TensorLike | Callable[[], TensorLike] = 0.001,
        beta1: TensorLike | Callable[[], TensorLike] = 0.9,
        beta2: TensorLike | Callable[[], TensorLike] = 0.999,
        epsilon: TensorLike | Callable[[], TensorLike] = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(use_locking, name)
        self._lr = learning_rate
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon
        self._numbers: dict[DType, _Numbers] = {}

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        # Where the powers live must not depend on the order the variables come in.
        first = min(var_list, key=lambda variable: variable.name)
        self._create_non_slot_variable(
            self._call_if_callable(self._beta1), "beta1_power", colocate_with=first
        )
        self._create_non_slot_variable(
            self._call_if_callable(self._beta2), "beta2_power", colocate_with=first
        )
        for var in var_list:
            self._zeros_slot(var, "m", self._name)
            self._zeros_slot(var, "v", self._name)

    def _get_beta_accumulators(self) -> tuple[Any, Any]:
        return self._get_non_slot_variable("beta1_power"), self._get_non_slot_variable(
            "beta2_power"
        )

    def _prepare(self) -> None:
        self._lr_t = self._hyper(self._lr, "learning_rate")
        self._beta1_t = self._hyper(self._beta1, "beta1")
        self._beta2_t = self._hyper(self._beta2, "beta2")
        self._epsilon_t = self._hyper(self._epsilon, "epsilon")
        self._numbers = {}

    def _numbers_for(self, part: Part) -> _Numbers:
        """Made once for the updates of a step: a large model has hundreds of variables."""
        kind = part.var.dtype.base_dtype
        if kind not in self._numbers:
            power1, power2 = (part.cast(power) for power in self._get_beta_accumulators())
            rate = part.cast(self._lr_t) * sqrt(1 - power2) / (1 - power1)
            beta1, beta2 = part.cast(self._beta1_t), part.cast(self._beta2_t)
            epsilon = part.cast(self._epsilon_t)
            self._numbers[kind] = _Numbers(rate, beta1, beta2, 1 - beta1, 1 - beta2, epsilon)
        return self._numbers[kind]

    def _step(self, grad: Tensor, part: Part) -> None:
        numbers = self._numbers_for(part)
        m, v = self._slot(part.var, "m"), self._slot(part.var, "v")
        mean = part.add(m, (grad - part.read(m)) * numbers.rest1)
        square = part.add(v, (grad * grad - part.read(v)) * numbers.rest2)
        part.subtract(part.var, numbers.rate * mean / (sqrt(square) + numbers.epsilon))

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        """Rows without a gradient decay and move too: their gradient is zero, not unknown."""
        part = Part(var, self._use_locking)
        numbers = self._numbers_for(part)
        rows = grad.values * numbers.rest1
        mean = self._decayed(part, "m", numbers.beta1, rows, grad.indices)
        rows = grad.values * grad.values * numbers.rest2
        square = self._decayed(part, "v", numbers.beta2, rows, grad.indices)
        change = numbers.rate * mean / (sqrt(square) + numbers.epsilon)
        return basic.group(part.subtract(var, change), mean, square)

    def _decayed(
        self, part: Part, name: str, decay: Tensor, rows: Tensor, indices: Tensor
    ) -> Tensor:
        slot = self._slot(part.var, name)
        kept = part.set(slot, part.read(slot) * decay)
        return scatter.scatter_add(kept, indices, rows, self._use_locking)

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Node:
        power1, power2 = self._get_beta_accumulators()
        graph = graph_of([power1])
        with graph.device(power1.device):
            updated = basic.group(*update_ops)
        with graph.control_dependencies([updated]), graph.colocate_with(power1.op):
            powers = [
                state.assign(power1, power1 * self._beta1_t, use_locking=self._use_locking),
                state.assign(power2, power2 * self._beta2_t, use_locking=self._use_locking),
            ]
        return basic.group(*powers, name=name_scope)


@public("contrib.opt.LazyAdamOptimizer")
class LazyAdamOptimizer(AdamOptimizer):
    """Adam that leaves rows without a gradient alone, as a sparse gradient's rows are few.

    Args:
        learning_rate: the step.
        beta1, beta2: how fast the moments are forgotten.
        epsilon: what is added to the divisor.
        use_locking: whether updates exclude each other.
        name: the name of the nodes.

    Example:
        >>> table = tf.Variable(tf.ones([3, 1]))
        >>> loss = tf.reduce_sum(tf.gather(table, [1]))
        >>> train = tf.contrib.opt.LazyAdamOptimizer(0.5).minimize(loss)
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(train), sess.run(table).ravel()
        (None, array([1.       , 0.5000002, 1.       ], dtype=float32))
    """

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        return self._resource_apply_sparse(grad.values, var, grad.indices)


@public("contrib.opt.NadamOptimizer")
class NadamOptimizer(AdamOptimizer):
    """Adam with Nesterov's momentum: the step takes the mean as the next step will have it.

    w ← w − αₜ·(β₁·m + (1−β₁)·g) / (√v + ε), with m and v as in `AdamOptimizer`.

    Args:
        learning_rate: the step.
        beta1, beta2: how fast the moments are forgotten.
        epsilon: what is added to the divisor.
        use_locking: whether updates exclude each other.
        name: the name of the nodes.

    Example:
        >>> w = tf.Variable(5.0)
        >>> train = tf.contrib.opt.NadamOptimizer(0.5).minimize(tf.square(w))
        >>> sess.run(tf.global_variables_initializer())
        >>> for _ in range(50):
        ...     sess.run(train)
        >>> abs(sess.run(w)) < 1.0
        np.True_
    """

    def _step(self, grad: Tensor, part: Part) -> None:
        numbers = self._numbers_for(part)
        m, v = self._slot(part.var, "m"), self._slot(part.var, "v")
        mean = part.add(m, (grad - part.read(m)) * numbers.rest1)
        square = part.add(v, (grad * grad - part.read(v)) * numbers.rest2)
        ahead = mean * numbers.beta1 + grad * numbers.rest1
        part.subtract(part.var, numbers.rate * ahead / (sqrt(square) + numbers.epsilon))

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        """Rows without a gradient decay, but do not move."""
        part = Part(var, self._use_locking)
        numbers = self._numbers_for(part)
        rows = grad.values * numbers.rest1
        mean = self._decayed(part, "m", numbers.beta1, rows, grad.indices)
        squares = grad.values * grad.values * numbers.rest2
        square = self._decayed(part, "v", numbers.beta2, squares, grad.indices)
        ahead = rows + numbers.beta1 * indexing.gather(mean, grad.indices)
        divisor = sqrt(indexing.gather(square, grad.indices)) + numbers.epsilon
        change = numbers.rate * ahead / divisor
        moved = scatter.scatter_sub(var, grad.indices, change, self._use_locking)
        return basic.group(moved, mean, square)
