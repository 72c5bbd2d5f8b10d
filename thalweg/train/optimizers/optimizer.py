"""`Optimizer`: from a loss to a node that changes the variables it depends on.

Subclasses say how one gradient changes one variable (`_apply_dense`, `_apply_sparse`, or `_step`
for both), with slots for what they remember between steps; here are gradients, slots, gating and
the training op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, ValuesView
from typing import Any, cast

from thalweg.autodiff.gradients import gradients
from thalweg.functions.tape import GradientTape
from thalweg.functions.variables import update
from thalweg.graph import dtypes
from thalweg.graph.build import graph_of
from thalweg.graph.collections import GraphKeys
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import Structure, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import root
from thalweg.ops.core import basic, filling
from thalweg.ops.state import state
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.train.optimizers import slots
from thalweg.train.optimizers.duplicates import deduplicate
from thalweg.train.optimizers.parts import Part, Rows
from thalweg.variables.collections import trainable_variables
from thalweg.variables.initializers import Constant
from thalweg.variables.partitioned import PartitionedVariable
from thalweg.variables.variable import Variable

Loss = Tensor | Variable | Callable[[], TensorLike]
Gradient = Tensor | IndexedSlices
GradientAndVariable = tuple[Gradient | None, Any]


@public("train.Optimizer")
class Optimizer:
    """The base of all optimizers: `minimize` is `compute_gradients` then `apply_gradients`.

    Args:
        use_locking: taken for old programs; updates are always whole.
        name: the name of the update and of the slots.

    Example:
        >>> class SignDescent(tf.train.Optimizer):
        ...     def __init__(self, step):
        ...         super().__init__(False, "SignDescent")
        ...         self.step = step
        ...     def _apply_dense(self, grad, var):
        ...         return tf.assign_sub(var, self.step * tf.sign(grad))
        >>> w = tf.Variable(3.0)
        >>> train = SignDescent(0.5).minimize(tf.square(w))
        >>> sess.run(w.initializer)
        >>> sess.run(train), sess.run(w)
        (None, np.float32(2.5))
    """

    GATE_NONE = 0  # gradients in any order
    GATE_OP = 1  # all gradients of one op before any of them is used
    GATE_GRAPH = 2  # all gradients before any of them is used

    def __init__(self, use_locking: bool, name: str) -> None:
        if not name:
            raise ValueError("Must specify the optimizer name")
        self._use_locking = use_locking
        self._name = name
        self._slots: dict[str, dict[Any, Variable]] = {}
        self._non_slots: dict[tuple[str, Graph], Variable] = {}

    def __repr__(self) -> str:
        own = vars(self)
        return described(self, self._name, learning_rate=own.get("_learning_rate", own.get("_lr")))

    def get_name(self) -> str:
        """The name given when it was made."""
        return self._name

    # What a program calls

    def minimize(
        self,
        loss: Loss,
        global_step: Variable | None = None,
        var_list: Structure = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: TensorLike | None = None,
    ) -> Node:
        """A node that takes one step down the gradient of a loss.

        Args:
            loss: a scalar tensor; in eager code a function that returns it.
            global_step: a variable to count the step in.
            var_list: the variables to change; all trainable ones if None.
            gate_gradients: `GATE_NONE`, `GATE_OP` or `GATE_GRAPH`: what waits for which gradients.
            aggregation_method: taken for old programs.
            colocate_gradients_with_ops: put gradients on the devices of their nodes.
            name: the name of the node.
            grad_loss: what flows into the loss; 1 if None.

        Returns:
            A node to run.

        Raises:
            ValueError: where the loss depends on none of the variables.

        Example:
            >>> w, step = tf.Variable(1.0), tf.train.create_global_step()
            >>> optimizer = tf.train.GradientDescentOptimizer(0.25)
            >>> train = optimizer.minimize(tf.square(w), global_step=step)
            >>> sess.run(tf.global_variables_initializer())
            >>> sess.run(train), sess.run([w, step])
            (None, [np.float32(0.5), np.int64(1)])
        """
        pairs = self.compute_gradients(
            loss,
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        if all(gradient is None for gradient, _ in pairs):
            names = [str(variable) for _, variable in pairs]
            raise ValueError(
                "No gradients provided for any variable, check your graph for ops that do not "
                f"support gradients, between variables {names} and loss {loss}."
            )
        return self.apply_gradients(pairs, global_step=global_step, name=name)

    def compute_gradients(
        self,
        loss: Loss,
        var_list: Structure = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: TensorLike | None = None,
    ) -> list[GradientAndVariable]:
        """The gradients of a loss: the first half of `minimize`.

        Args:
            loss, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops,
                grad_loss: as for `minimize`.

        Returns:
            (gradient, variable) pairs; the gradient is None where the loss does not depend on it.

        Example:
            >>> w = tf.Variable(3.0)
            >>> optimizer = tf.train.GradientDescentOptimizer(1.0)
            >>> pairs = optimizer.compute_gradients(tf.square(w))
            >>> clipped = [(tf.clip_by_value(g, -1.0, 1.0), v) for g, v in pairs]
            >>> train = optimizer.apply_gradients(clipped)
            >>> sess.run(tf.global_variables_initializer())
            >>> sess.run(train), sess.run(w)
            (None, np.float32(2.0))
        """
        if gate_gradients not in (self.GATE_NONE, self.GATE_OP, self.GATE_GRAPH):
            raise ValueError(
                "gate_gradients must be one of: Optimizer.GATE_NONE, Optimizer.GATE_OP, "
                f"Optimizer.GATE_GRAPH. Not {gate_gradients}"
            )
        if get_default_graph().is_eager:
            return self._compute_eagerly(loss, var_list, grad_loss)
        value = loss() if callable(loss) else loss
        self._check_dtypes([value])
        if grad_loss is not None:
            self._check_dtypes([grad_loss])
        variables = trainable_variables() if var_list is None else _flat(var_list)
        if not variables:
            raise ValueError("No variables to optimize: make one, or pass var_list.")
        found = gradients(
            value,
            [_gradient_target(variable) for variable in variables],
            grad_ys=grad_loss,
            gate_gradients=gate_gradients == self.GATE_OP,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
        )
        if gate_gradients == self.GATE_GRAPH:
            found = basic.tuple_(found)
        pairs = list(zip(found, variables, strict=True))
        self._check_dtypes([variable for gradient, variable in pairs if gradient is not None])
        return pairs

    def _compute_eagerly(
        self, loss: Loss, var_list: Structure, grad_loss: TensorLike | None
    ) -> list[GradientAndVariable]:
        """As `compute_gradients`, of a function: by default for the variables that it reads."""
        if not callable(loss):
            raise RuntimeError(
                "`loss` passed to Optimizer.compute_gradients should be a function when eager "
                "execution is enabled: gradients are of what is computed while it is called."
            )
        with GradientTape() as tape:
            if var_list is not None:
                tape.watch([_gradient_target(v) for v in _flat(var_list)])
            value: Any = loss()
        variables = list(tape.watched_variables()) if var_list is None else _flat(var_list)
        if not variables:
            raise ValueError("No variables to optimize: the loss reads none, or pass var_list.")
        self._check_dtypes([value])
        found = tape.gradient(value, variables, None if grad_loss is None else [grad_loss])
        pairs = list(zip(found, variables, strict=True))
        self._check_dtypes([variable for gradient, variable in pairs if gradient is not None])
        return pairs

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Node:
        """A node that changes variables by their gradients: the second half of `minimize`.

        Args:
            grads_and_vars: (gradient, variable) pairs; None as a gradient leaves the variable.
            global_step: a variable to count the step in.
            name: the name of the node.

        Returns:
            A node to run.
        """
        pairs = [(_as_gradient(g), _checked(v)) for g, v in _pairs(grads_and_vars)]
        if not pairs:
            raise ValueError("No variables provided.")
        present = [(g, v) for g, v in pairs if g is not None]
        if not present:
            names = [str(variable) for _, variable in pairs]
            raise ValueError(f"No gradients provided for any variable: {names}.")
        variables = [variable for _, variable in present]
        graph: Graph = variables[0].graph
        if graph.is_eager:
            self._create_slots(variables)
            kept = [*self._kept(variables), *([] if global_step is None else [global_step])]
            return update(self, present, kept, lambda: self._apply(present, global_step, name))
        with graph.as_default(), graph.control_dependencies(None):
            self._create_slots(variables)
        return self._apply(present, global_step, name)

    def _apply(self, present: Sequence[Any], global_step: Any, name: str | None) -> Node:
        graph = graph_of([present[0][1]])  # in a branch of `cond`, updates are part of the branch
        with graph.as_default(), name_scope(name, self._name) as scope:
            self._prepare()
            updates = [self._update(graph, g, v) for g, v in present]
            trained = self._counted(graph, updates, global_step, scope)
        train_ops = graph.get_collection_ref(GraphKeys.TRAIN_OP)
        if trained not in train_ops:
            train_ops.append(trained)
        return trained

    def _kept(self, variables: Sequence[Any]) -> list[Variable]:
        """What an update of some variables changes besides them: slots, and what has no slot."""
        keys = [_key(variable) for variable in variables]
        slots_of = [named[key] for named in self._slots.values() for key in keys if key in named]
        return [*slots_of, *self._non_slots.values()]

    def _update(self, graph: Graph, gradient: Gradient, variable: Variable) -> Any:
        with graph.name_scope(f"update_{variable.op.name}"), graph.colocate_with(variable.op):
            if isinstance(gradient, IndexedSlices):
                if variable.constraint is not None:
                    raise RuntimeError("Cannot use a constraint function on a sparse variable.")
                return self._apply_sparse_duplicate_indices(gradient, variable)
            update = self._apply_dense(gradient, variable)
            if variable.constraint is None:
                return update
            with graph.control_dependencies([update]):
                return variable.assign(variable.constraint(variable.read_value()))

    def _counted(self, graph: Graph, updates: list[Any], global_step: Any, scope: str) -> Node:
        if global_step is None:
            return self._finish(updates, scope)
        if not isinstance(global_step, Variable | Tensor):
            raise TypeError(f"global_step must be a tf.Variable, not {global_step!r}")
        with graph.device(global_step.device):  # not by way of the worker
            done = self._finish(updates, "update")
        with graph.control_dependencies([done]), graph.colocate_with(global_step.op):
            return state.assign_add(global_step, 1, name=scope).op

    # Slots

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """The slot of a variable, if it was made."""
        return self._slots.get(name, {}).get(_key(var))

    def get_slot_names(self) -> list[str]:
        """The names of all kinds of slots, in order."""
        return sorted(self._slots)

    def variables(self) -> list[Variable]:
        """All variables this optimizer made in the default graph, by name."""
        graph = root(get_default_graph())
        others = [v for (_, owner), v in self._non_slots.items() if owner is graph]
        made = [s for named in self._slots.values() for s in named.values() if s.graph is graph]
        return sorted(made + others, key=lambda variable: variable.name)

    def _get_or_make_slot(self, var: Any, val: Any, slot_name: str, op_name: str) -> Variable:
        """The slot of a variable, which starts as the tensor `val`."""
        named = self._slots.setdefault(slot_name, {})
        if _key(var) not in named:
            named[_key(var)] = slots.create_slot(var, val, op_name)
        return named[_key(var)]

    def _get_or_make_slot_with_initializer(
        self,
        var: Any,
        initializer: Any,
        shape: TensorShape,
        dtype: DType,
        slot_name: str,
        op_name: str,
    ) -> Variable:
        """The slot of a variable, which starts as an initializer says."""
        named = self._slots.setdefault(slot_name, {})
        if _key(var) not in named:
            named[_key(var)] = slots.create_slot_with_initializer(
                var, initializer, shape, dtype, op_name
            )
        return named[_key(var)]

    def _zeros_slot(self, var: Any, slot_name: str, op_name: str) -> Variable:
        """The slot of a variable, which starts as zeros."""
        named = self._slots.setdefault(slot_name, {})
        if _key(var) not in named:
            named[_key(var)] = slots.create_zeros_slot(var, op_name)
        return named[_key(var)]

    def _constant_slot(self, var: Any, value: float, slot_name: str, op_name: str) -> Variable:
        """The slot of a variable, which starts with every element `value`."""
        shape, kind = var.get_shape(), var.dtype.base_dtype
        if shape.is_fully_defined():
            initial = Constant(value, kind)
            return self._get_or_make_slot_with_initializer(
                var, initial, shape, kind, slot_name, op_name
            )
        like = filling.ones_like(var.initialized_value(), kind) * value
        return self._get_or_make_slot(var, like, slot_name, op_name)

    def _slot(self, var: Any, name: str) -> Variable:
        """The slot of a variable, which `_create_slots` made."""
        return self._slots[name][_key(var)]

    def _create_non_slot_variable(
        self, initial_value: Any, name: str, colocate_with: Any
    ) -> Variable:
        """One variable for the whole optimizer (in one graph)."""
        graph: Graph = colocate_with.graph
        key = (name, root(graph))
        if key not in self._non_slots:
            with graph.colocate_with(colocate_with.op):
                self._non_slots[key] = Variable(initial_value, name=name, trainable=False)
        return self._non_slots[key]

    def _get_non_slot_variable(self, name: str, graph: Graph | None = None) -> Variable:
        """The variable of the whole optimizer under this name."""
        return self._non_slots[name, root(graph or get_default_graph())]

    # What subclasses define

    def _valid_dtypes(self) -> set[DType]:
        return set(dtypes.FLOATING)

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        """Make the slots of some variables."""

    def _prepare(self) -> None:
        """Make the tensors of the hyperparameters."""

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        """A node or tensor that changes `var` by a gradient of its shape."""
        return self._resource_apply_dense(grad, var)

    def _resource_apply_dense(self, grad: Tensor, var: Any) -> Any:
        """TensorFlow's other name for `_apply_dense`."""
        return self._apply_part(grad, Part(var, self._use_locking))

    def _apply_sparse_duplicate_indices(self, grad: IndexedSlices, var: Any) -> Any:
        """As `_apply_sparse`, for indices that may repeat: rows of one index are summed first."""
        return self._apply_sparse(deduplicate(grad), var)

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        """A node or tensor that changes rows of `var`; no index repeats."""
        return self._resource_apply_sparse(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad: Tensor, var: Any, indices: Tensor) -> Any:
        """TensorFlow's other form of `_apply_sparse`."""
        return self._apply_part(grad, Rows(var, indices, self._use_locking))

    def _apply_part(self, grad: Tensor, part: Part) -> Any:
        self._step(grad, part)
        return part.finish()

    def _step(self, grad: Tensor, part: Part) -> None:
        """Change `part.var` and its slots by a gradient, where each element depends on its own
        gradient and slots alone: one formula for dense and sparse gradients."""
        if isinstance(part, Rows):
            missing = "_apply_sparse(self, grad, var) to train variables that are gathered from"
        else:
            missing = "_apply_dense(self, grad, var)"
        raise TypeError(f"{type(self).__name__} must define {missing}")

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Node:
        """A node that is done when all updates are, and after whatever comes last."""
        return basic.group(*update_ops, name=name_scope)

    # What subclasses use

    def _call_if_callable(self, parameter: Any) -> Any:
        """A hyperparameter, or what it returns when it is a function."""
        return parameter() if callable(parameter) else parameter

    def _hyper(self, parameter: Any, name: str) -> Tensor:
        """A hyperparameter (a number, tensor or function of nothing) as a tensor."""
        tensor = convert_to_tensor(self._call_if_callable(parameter), name=name)
        if tensor.shape.rank not in (None, 0):
            raise ValueError(f"{name} of {self._name} must be a scalar, not {tensor.shape}")
        return tensor

    def _check_dtypes(self, values: Sequence[Any]) -> None:
        valid = self._valid_dtypes()
        for value in values:
            kind = _dtype(value)
            if kind not in valid:
                names = sorted(dtype.name for dtype in valid)
                raise ValueError(
                    f"Invalid type {kind!r} for {getattr(value, 'name', value)}, expected: {names}."
                )


def _dtype(value: Any) -> DType:
    given = value if hasattr(value, "dtype") else convert_to_tensor(value)
    return dtypes.as_dtype(given.dtype).base_dtype


def _flat(var_list: Any) -> list[Any]:
    if isinstance(var_list, list | tuple | set | ValuesView | PartitionedVariable):
        return [v for part in cast("Sequence[Any]", var_list) for v in _flat(part)]
    if callable(var_list):
        return _flat(var_list())
    return [var_list]


def _gradient_target(variable: Any) -> Any:
    if not isinstance(variable, Variable | Tensor):
        raise TypeError(f"Argument is not a tf.Variable: {variable!r}")
    return variable


def _pairs(grads_and_vars: Any) -> list[Any]:
    try:
        pairs = [tuple(pair) for pair in grads_and_vars]
    except TypeError:
        pairs = None
    if pairs is None or any(len(pair) != 2 for pair in pairs):
        raise TypeError(
            f"grads_and_vars must be pairs of a gradient and its variable, not {grads_and_vars!r}"
        )
    return pairs


def _checked(variable: Any) -> Any:
    if not isinstance(variable, Variable):
        raise TypeError(f"Variable must be a tf.Variable: {variable!r}")
    return variable


def _as_gradient(gradient: Any) -> Gradient | None:
    if gradient is None or isinstance(gradient, IndexedSlices | Tensor):
        return gradient
    try:
        return convert_to_tensor(gradient)
    except TypeError as error:
        raise TypeError(
            f"Gradient must be convertible to a Tensor or IndexedSlices, or None: {gradient!r}"
        ) from error


def _key(var: Any) -> Any:
    """What stands for a variable among slots; keys of one graph can be sorted, as programs do."""
    node = var.op
    return node if node.graph.is_eager else (node.graph, node.name)
