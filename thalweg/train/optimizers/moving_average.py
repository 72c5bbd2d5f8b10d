"""An optimizer that averages the variables it trains, and saves the averages in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from thalweg.graph.likes import NodeLike, TensorLike
from thalweg.graph.node import Node
from thalweg.graph.scopes import control_dependencies
from thalweg.ops.core import basic
from thalweg.public import public
from thalweg.saved.saver import Saver
from thalweg.train.averages import ExponentialMovingAverage
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.variables.collections import global_variables


@public("contrib.opt.MovingAverageOptimizer")
class MovingAverageOptimizer(Optimizer):
    """Trains with another optimizer, and keeps a moving average of each variable.

    Args:
        opt: the optimizer that trains.
        average_decay: how much of the old average stays in each step.
        num_updates: counts the steps; while there are few, averages follow faster.
        sequential_update: whether averages are updated after the variables, else at any time.

    Example:
        >>> w = tf.Variable(1.0)
        >>> inner = tf.train.GradientDescentOptimizer(0.25)
        >>> optimizer = tf.contrib.opt.MovingAverageOptimizer(inner, average_decay=0.5)
        >>> train = optimizer.minimize(tf.square(w))
        >>> saver = optimizer.swapping_saver()
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run([train]) and sess.run(w)
        np.float32(0.5)
    """

    def __init__(
        self,
        opt: Optimizer,
        average_decay: float = 0.9999,
        num_updates: TensorLike | None = None,
        sequential_update: bool = True,
    ) -> None:
        super().__init__(False, type(opt).__name__)
        self._optimizer = opt
        self._ema = ExponentialMovingAverage(average_decay, num_updates=num_updates)
        self._sequential_update = sequential_update
        self._swapped: dict[str, str] | None = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The gradients of the optimizer inside."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
    ) -> Node:
        """Train, and update the averages."""
        pairs = list(grads_and_vars)
        train = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        trained = [variable for gradient, variable in pairs if gradient is not None]
        first: list[NodeLike] = [train] if self._sequential_update else []
        with control_dependencies(first):
            averaged = self._ema.apply(trained)
        averages: list[Any] = [self._ema.average(variable) for variable in trained]
        pairs_of_names = zip(trained, averages, strict=True)
        names = {variable.op.name: average.op.name for variable, average in pairs_of_names}
        self._swapped = names | {average: name for name, average in names.items()}
        return basic.group(train, averaged, name="train_with_avg")

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> Saver:
        """A saver that writes averages under the names of variables, and the other way round.

        Args:
            var_list: the variables to save, a list or names -> variables; all if None.
            name: the name of the nodes.
            kwargs: what `tf.train.Saver` takes.
        """
        if self._swapped is None:
            raise RuntimeError(
                "Must call apply_gradients or minimize before creating the swapping_saver"
            )
        listed: Any = global_variables() if var_list is None else var_list
        if not isinstance(listed, Mapping):
            listed = {variable.op.name: variable for variable in listed}
        named: dict[str, Any] = {**listed}
        missing = [n for n in named if n in self._swapped and self._swapped[n] not in named]
        if missing:
            raise ValueError(
                f"Variable to swap {self._swapped[missing[0]]} is not part of variables to save. "
                "This breaks MovingAverageOptimizer."
            )
        found = {name: named[self._swapped.get(name, name)] for name in named}
        return Saver(found, name=name, **kwargs)
