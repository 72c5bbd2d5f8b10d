"""Moving averages of variables and tensors, as variables of their own.

average ← average − (1 − decay)·(average − value). An average that starts at zero can be freed of
that bias (`zero_debias`) by keeping the biased one and the number of steps beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.collections import GraphKeys
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import Collections, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import basic, casting, filling
from thalweg.ops.math import division
from thalweg.ops.math.arithmetic import minimum
from thalweg.ops.state import state
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.train.optimizers import slots
from thalweg.variables.collections import (
    global_variables,
    is_buffer,
    moving_average_variables,
    trainable_variables,
)
from thalweg.variables.initializers import Constant
from thalweg.variables.scope import VariableScope, get_variable, variable_scope
from thalweg.variables.variable import Variable


@public("train.assign_moving_average")
def assign_moving_average(
    variable: Variable, value: Any, decay: Any, zero_debias: bool = True, name: str | None = None
) -> Tensor:
    """Move an average towards a value; the result reads the new average."""
    return moved(variable, value, decay, zero_debias, name)


def moved(
    variable: Variable,
    value: Any,
    decay: Any,
    zero_debias: bool,
    name: str | None = None,
    steps_before: int = 0,
) -> Tensor:
    """The new average; `steps_before` is what the steps of a debiased one are counted from."""
    with name_scope(name, "AssignMovingAvg", [variable, value, decay]) as scope:
        graph = variable.graph
        with graph.colocate_with(variable.op):
            rate = convert_to_tensor(1.0 - decay, name="decay")
            rate = casting.cast(rate, variable.dtype.base_dtype)
            if zero_debias:
                delta = _debiased_delta(variable, value, rate, steps_before)
            else:
                delta = (variable.value() - value) * rate
            return state.assign_sub(variable, delta, name=scope)


def _debiased_delta(variable: Variable, value: Any, rate: Tensor, steps_before: int) -> Tensor:
    """How far the average is from the debiased one, after this step's change to that."""
    graph = variable.graph
    kind = variable.dtype.base_dtype
    with variable_scope(variable.op.name, values=[variable, value, rate]) as scope:
        with graph.control_dependencies(None):
            zeros = filling.zeros(variable.shape, kind)
        biased = get_variable(_unused("biased", scope), initializer=zeros, trainable=False)
        steps = get_variable(
            _unused("local_step", scope),
            shape=[],
            dtype=kind,
            initializer=Constant(steps_before),
            trainable=False,
        )
        change = state.assign_sub(biased, (biased.value() - value) * rate, name=scope.name)
        with get_default_graph().control_dependencies([change, steps.assign_add(1)]):
            weight = 1 - (1.0 - rate) ** steps.read_value()
            return variable.value() - biased.read_value() / weight


def _unused(name: str, scope: VariableScope) -> str:
    """`name`, or with a number behind it where the scope has such a variable."""
    if scope.reuse:
        return name
    taken = {variable.op.name for variable in scope.global_variables()}
    if f"{scope.name}/{name}" not in taken:
        return name
    number = 1
    while f"{scope.name}/{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


@public("train.weighted_moving_average")
def weighted_moving_average(
    value: Any,
    decay: Any,
    weight: Any,
    truediv: bool = True,
    collections: Collections = None,
    name: str | None = None,
) -> Tensor:
    """The moving average of value·weight over that of weight."""
    keys = [GraphKeys.GLOBAL_VARIABLES] if collections is None else collections
    with variable_scope(name, "WeightedMovingAvg", [value, weight, decay]) as scope:
        value, weight = convert_to_tensor(value), convert_to_tensor(weight)
        numerator, denominator = (
            get_variable(
                part,
                initializer=filling.zeros(value.shape if part == "value_x_weight" else (), kind),
                trainable=False,
                collections=keys,
            )
            for part, kind in (
                ("value_x_weight", value.dtype.base_dtype),
                ("weight", weight.dtype.base_dtype),
            )
        )
        top = assign_moving_average(numerator, value * weight, decay, zero_debias=False)
        bottom = assign_moving_average(denominator, weight, decay, zero_debias=False)
        quotient = division.truediv if truediv else division.div
        return quotient(top, bottom, name=f"{scope.original_name_scope}")


@public("train.ExponentialMovingAverage")
class ExponentialMovingAverage:
    """Keeps a moving average of each of several variables or tensors.

    `apply` gives a node that updates: average ← decay·average + (1 − decay)·value.

    Args:
        decay: how much of an average stays in each update, such as 0.999.
        num_updates: a count n of updates; the decay is then min(decay, (1 + n) / (10 + n)), so that
            early averages move faster.
        zero_debias: correct averages of tensors for having begun at zero.
        name: the end of the averages' names.

    Example:
        >>> v = tf.Variable(1.0)
        >>> ema = tf.train.ExponentialMovingAverage(0.5)
        >>> update = ema.apply([v])
        >>> sess.run(tf.global_variables_initializer())
        >>> with tf.control_dependencies([v.assign(3.0)]):
        ...     moved = tf.identity(v)
        >>> sess.run(moved), sess.run(update), sess.run(ema.average(v))
        (np.float32(3.0), None, np.float32(2.0))
    """

    _steps_before = 0

    def __init__(
        self,
        decay: Any,
        num_updates: TensorLike | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self._decay = decay
        self._num_updates = num_updates
        self._zero_debias = zero_debias
        self._name = name
        self._averages: dict[Any, Variable] = {}

    def __repr__(self) -> str:
        return described(self, self._name, decay=self._decay, averages=len(self._averages))

    @property
    def name(self) -> str:
        """The name given, which names the averages."""
        return self._name

    def apply(self, var_list: Sequence[Any] | None = None) -> Node:
        """A node that moves the averages; makes those that do not exist yet."""
        variables = trainable_variables() if var_list is None else list(var_list)
        debiased = {v for v in variables if v not in self._averages and self._create(v)}
        with name_scope(self._name) as scope:
            decay = self._current_decay()
            updates = [
                moved(
                    self._averages[v],
                    v,
                    decay,
                    zero_debias=self._zero_debias and v in debiased,
                    steps_before=self._steps_before,
                )
                for v in variables
            ]
            return basic.group(*updates, name=scope)

    def _create(self, var: Any) -> bool:
        """Make the average of a variable; whether it starts at zero, not at a value."""
        if not var.dtype.is_floating:
            raise TypeError(f"The variables must be half, float, or double: {var.name}")
        graph = var.graph
        with graph.as_default(), graph.control_dependencies(None):
            if isinstance(var, Variable):
                slot = slots.create_slot(var, var.initialized_value(), self._name)
                graph.add_to_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, var)
            else:
                slot = slots.create_zeros_slot(
                    var, self._name, colocate_with_primary=is_buffer(var.op)
                )
        self._averages[var] = slot
        return not isinstance(var, Variable)

    def _current_decay(self) -> Tensor:
        decay = convert_to_tensor(self._decay, name="decay")
        if self._num_updates is None:
            return decay
        updates = casting.cast(self._num_updates, dtypes.float32, name="num_updates")
        return minimum(decay, (1.0 + updates) / (10.0 + updates))

    def average(self, var: Variable | Tensor) -> Variable | None:
        """The average of a variable, if it was made."""
        return self._averages.get(var)

    def average_name(self, var: Variable | Tensor) -> str:
        """The name of the average of a variable, made or not."""
        if var in self._averages:
            return self._averages[var].op.name
        name = f"{var.op.name}/{self._name}"
        return get_default_graph().unique_name(name, mark_as_used=False)

    def variables_to_restore(
        self, moving_avg_variables: Iterable[Variable] | None = None
    ) -> dict[str, Any]:
        """What a Saver restores to use averages for the variables that have them, by name."""
        if moving_avg_variables is None:
            moving_avg_variables = trainable_variables() + moving_average_variables()
        averaged = dict.fromkeys(moving_avg_variables)
        names = {self.average_name(variable): variable for variable in averaged}
        for variable in global_variables():
            if variable not in averaged and variable.op.name not in names:
                names[variable.op.name] = variable
        return names
