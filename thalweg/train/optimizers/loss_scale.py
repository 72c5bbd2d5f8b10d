"""Loss scaling: gradients in float16 that would be zero are not, since the loss is larger.

The loss is multiplied by a scale before it is differentiated, and gradients are divided by it. A
step whose gradients overflow is left out, and halves the scale; many good steps double it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from thalweg.control.branches import cond
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core import casting
from thalweg.ops.core.basic import constant, group, no_op, with_dependencies
from thalweg.ops.core.choosing import where
from thalweg.ops.math.arithmetic import maximum, minimum
from thalweg.ops.math.compare import is_finite
from thalweg.ops.math.reduce import reduce_all
from thalweg.ops.state.state import assign
from thalweg.public import public
from thalweg.train.optimizers.optimizer import Gradient, GradientAndVariable, Loss, Optimizer
from thalweg.variables.variable import Variable

_INITIAL, _MIN, _MAX = 2.0**15, 1.0, 2.0**24
_PERIOD = 2000  # good steps after which the scale is doubled


@public("train.experimental.MixedPrecisionLossScaleOptimizer")
class MixedPrecisionLossScaleOptimizer(Optimizer):
    """An optimizer of a scaled loss, for steps whose products are computed in float16.

    Args:
        optimizer: the optimizer that changes the variables.
        loss_scale: a number, or "dynamic": halved by a step that overflows, which is left out, and
            doubled after 2,000 steps that do not.

    Example:
        >>> w = tf.Variable(3.0)
        >>> descent = tf.train.GradientDescentOptimizer(0.25)
        >>> scaled = tf.train.experimental.MixedPrecisionLossScaleOptimizer(descent)
        >>> train = scaled.minimize(tf.square(w))
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(train), sess.run(w)
        (None, np.float32(1.5))
    """

    def __init__(self, optimizer: Optimizer, loss_scale: float | str = "dynamic") -> None:
        super().__init__(False, f"LossScale{optimizer.get_name()}")
        if isinstance(loss_scale, str) and loss_scale != "dynamic":
            raise ValueError(f"loss_scale must be a number or 'dynamic', not '{loss_scale}'")
        self._optimizer, self._is_dynamic = optimizer, loss_scale == "dynamic"
        first = _INITIAL if self._is_dynamic else float(loss_scale)
        self._scale = Variable(first, trainable=False, name="current_loss_scale")
        self._good = Variable(0, trainable=False, name="good_steps")

    def compute_gradients(
        self, loss: Loss, *arguments: Any, **options: Any
    ) -> list[GradientAndVariable]:
        """The gradients of a loss, computed from the scaled one.

        Args:
            loss, arguments, options: as for `Optimizer.compute_gradients`.

        Returns:
            (gradient, variable) pairs.
        """
        if get_default_graph().is_eager:
            raise RuntimeError("Mixed precision is a rewrite of graphs: eager code is not scaled")
        value = convert_to_tensor(loss() if callable(loss) else loss)
        scale = cast("Tensor", casting.cast(self._scale, value.dtype))
        pairs = self._optimizer.compute_gradients(value * scale, *arguments, **options)
        return [(None if g is None else _divided(g, self._scale), v) for g, v in pairs]

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Node:
        """A node that applies gradients if they are finite, and changes the scale.

        Args:
            grads_and_vars: (gradient, variable) pairs.
            global_step: a variable to count the step in, unless it is left out.
            name: the name of the node.

        Returns:
            A node to run.
        """
        pairs = list(grads_and_vars)
        values = [_values(gradient) for gradient, _ in pairs if gradient is not None]
        finite = [reduce_all(is_finite(value)) for value in values]
        is_good = reduce_all(finite)
        done = cond(
            is_good,
            lambda: _after(self._optimizer.apply_gradients(pairs, global_step)),
            lambda: _after(no_op()),
        )
        return group(done, *self._rescaled(is_good), name=name or self._name)

    def _rescaled(self, is_good: Tensor) -> list[Any]:
        """What changes the scale after a step."""
        if not self._is_dynamic:
            return []
        before = self._scale.read_value()
        good = where(is_good, self._good.read_value() + 1, 0)
        is_full = good >= _PERIOD
        larger = where(is_full, minimum(before * 2, _MAX), before)
        scale = where(is_good, larger, maximum(before / 2, _MIN))
        return [assign(self._scale, scale), assign(self._good, where(is_full, 0, good))]


def _values(gradient: Gradient) -> Tensor:
    return gradient.values if isinstance(gradient, IndexedSlices) else gradient


def _divided(gradient: Gradient, scale: Variable) -> Gradient:
    values = _values(gradient)
    result = values / casting.cast(scale, values.dtype)
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(result, gradient.indices, gradient.dense_shape)
    return result


def _after(node: Node) -> Tensor:
    """A value to return from a branch that runs a node."""
    return with_dependencies([node], constant(True))
