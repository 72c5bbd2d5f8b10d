"""Variables of eager code: initialized on creation, freed with their last reference.

In eager code `tf.Variable(...)` and `tf.get_variable(...)` make an `EagerVariable`. Its cell is
passed along reference edges like a graph variable's, so every op, layer and optimizer takes it.

If an optimizer's update depends only on the optimizer's hyperparameters, the gradients and the
variables, its nodes are built once for each structure of these and replayed. Otherwise its ops are
recorded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from thalweg.functions.devices import eager_devices
from thalweg.functions.eager import EAGER, component_tensors, requested_device
from thalweg.functions.lazy_trace import LazyTrace, fast_path_disabled
from thalweg.functions.tensors import EagerTensor, known
from thalweg.functions.trace import host_array
from thalweg.graph.convert import convert_to_tensor, stand_ins
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import get_default_graph, graphs
from thalweg.graph.likes import IndexLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.graph.subgraph import root
from thalweg.ops.core import basic
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state import state
from thalweg.platform.arrays import Array
from thalweg.public import public, publish_value
from thalweg.variables import variable as graph_variables
from thalweg.variables.scope import STORE_KEY, get_variable_scope, variable_scope
from thalweg.variables.store import AUTO_REUSE, Request, VariableStore
from thalweg.variables.variable import ResourceVariable, Variable

_READ = basic.Identity()
_SCALARS = (int, float, str, bool, type(None))
_PACKAGE = __name__.partition(".")[0]


class EagerVariable(ResourceVariable):
    """A variable of eager code."""

    _reference: EagerTensor

    def _build(
        self, initial_value: Any, validate: bool, name: str | None, dtype: DType | None, shape: Any
    ) -> None:
        request = ""
        if eager_devices().has_accelerators:
            request = requested_device(get_default_graph()) or EAGER.device_name
        with graphs.pushed(EAGER), EAGER.name_scope(name or "Variable") as scope:
            initial: Any = initial_value() if callable(initial_value) else initial_value
            value = convert_to_tensor(initial, dtype)
            if not isinstance(value, EagerTensor):
                raise ValueError(f"{value!r} has no value that a variable of eager code can have.")
            self._name = scope.rstrip("/")
            self._allocate(value.device_value(), value.dtype.base_dtype, validate, shape, request)

    def _allocate(self, value: Any, dtype: DType, validate: bool, shape: Any, request: str) -> None:
        """Create the cell with its first value, and the node."""
        inferred = TensorShape.of(value.shape) if validate else unknown_shape()
        static_shape = inferred if shape is None else TensorShape(shape)
        device = eager_devices().device_for(request, dtype, static_shape)
        cell = VariableCell(self._name, dtype, static_shape, True, device.allocate)
        if isinstance(value, Buffer) and value.device == device.name:
            cell.buffer = value.copy()
        else:
            cell.assign(host_array(value))
        self._reference = self._variable = known(cell, dtype.as_ref, static_shape)
        op = state.VariableV2(dtype=dtype, given_shape=static_shape, shared_name=self._name)
        made_at = self._variable.op.made_at  # the user's line
        node_device = device.name if eager_devices().has_accelerators else ""
        self._node = Node(EAGER, op, self._name, (), (), node_device, {}, made_at, 0)
        self._node.outputs = (self._variable,)
        self._initial_value = None

    # Values

    @property
    def _snapshot(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride] - read when asked
        return self.value()

    def value(self) -> Tensor:
        """The value now."""
        if get_default_graph() is not EAGER:
            return basic.identity(self._variable, name="read")
        for tape in EAGER.tapes:
            tape.accessed(self)
        lazy_trace = EAGER.current()
        value = lazy_trace.variable_reads.get(self)
        if value is None:
            value = self._read(lazy_trace)
            EAGER.lazy_trace.variable_reads[self] = value
        return value

    def used_value(self) -> Tensor:
        """The value now, for an operator."""
        return self.value() if get_default_graph() is EAGER else super().used_value()

    def _read(self, lazy_trace: LazyTrace) -> EagerTensor:
        """Record a read; an earlier read at the same trace node left a shortcut."""
        reference = self._reference
        key = "read", lazy_trace.position(reference)
        trace_node = lazy_trace.end
        shortcut = trace_node.children.get(key)
        if shortcut is not None and not fast_path_disabled[0]:
            value = lazy_trace.advance_single(shortcut)
            if not lazy_trace.closed:  # else another thread ran the trace
                return value
        value = EAGER.record(_READ, (reference,), None)
        lazy_trace.cache_shortcut(key, trace_node, value)
        return value

    read_value = initialized_value = value  # it is always initialized

    def numpy(self) -> Any:
        """The value as a NumPy array."""
        return self._reference.cell().snapshot()[()]

    def eval(self, session: Any = None) -> Any:
        """The value."""
        return self.numpy()

    def load(self, value: Any, session: Any = None) -> None:
        """Set the value."""
        self.assign(value)

    @property
    def initial_value(self) -> Tensor:
        """Raise: it is not kept."""
        raise RuntimeError("`initial_value` not supported in EAGER mode.")

    @property
    def initializer(self) -> Node:
        """A no-op: the variable is initialized."""
        return basic.no_op()

    def is_initialized(self, name: str | None = None) -> Tensor:
        """True."""
        return convert_to_tensor(True)

    def __getitem__(self, key: IndexLike) -> Tensor:
        part = super().__getitem__(key)
        if isinstance(part, EagerTensor):
            part.slice_of = self, key  # to assign to it once it is computed, too
        return part

    # Changes

    def _after(self, changed: Tensor, read_value: bool) -> Any:
        if get_default_graph() is not EAGER:
            return super()._after(changed, read_value)
        EAGER.lazy_trace.variable_reads.pop(self, None)
        return self if read_value else None

    # Properties and protocols

    @property
    def name(self) -> str:
        """`name:0`."""
        return f"{self._name}:0"

    @property
    def op(self) -> Node:
        """The node of the variable."""
        return self._node

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._reference.__array__(dtype, copy)

    def __bool__(self) -> bool:
        return bool(self._reference)

    def __float__(self) -> float:
        return float(self._reference)

    def __int__(self) -> int:
        return int(self._reference)

    def __index__(self) -> int:
        return self._reference.__index__()

    def __len__(self) -> int:
        return len(self._reference)

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride] - here is a value
        return iter(self.value())

    def __deepcopy__(self, memo: Any) -> Variable:
        with EAGER.device(self.device):
            copy = Variable(
                self.numpy(), trainable=self.trainable, name=self._name, dtype=self.dtype
            )
        memo[id(self)] = copy
        return copy

    def __reduce__(self) -> Any:
        return _unpickled, (self.numpy(), self._name, self.trainable)

    def __repr__(self) -> str:
        kind = self.dtype.base_dtype.name
        return (
            f"<tf.Variable '{self.name}' shape={self.shape} dtype={kind}, numpy={self.numpy()!r}>"
        )


class EagerStore(VariableStore):
    """Variables by name: weak references, or a given dict. Only requests with reuse find them."""

    def __init__(self, variables: dict[str, Variable] | None = None) -> None:
        super().__init__()
        self._vars: Any = WeakValueDictionary[str, Variable]() if variables is None else variables

    def _get_single(self, request: Request, partition: Any = None) -> Variable:
        if not request.reuse:
            self._vars.pop(request.name, None)
        return super()._get_single(request, partition)


EAGER.collection_factories[STORE_KEY] = EagerStore


@public("contrib.eager.EagerVariableStore")
class EagerVariableStore:
    """Keeps the variables that `get_variable` makes inside `with store.as_default():`, and reuses
    them there by name."""

    def __init__(self, store: VariableStore | None = None) -> None:
        self._variables: dict[str, Variable] = {}
        self._store = EagerStore(self._variables)

    @contextmanager
    def as_default(self) -> Generator[None]:
        """Use the store inside the block."""
        stores = EAGER.get_collection_ref(STORE_KEY)
        previous = list(stores)
        stores[:] = [self._store]
        try:
            with variable_scope(get_variable_scope(), reuse=AUTO_REUSE):
                yield
        finally:
            stores[:] = previous

    def variables(self) -> list[Variable]:
        """All variables, sorted by name."""
        return sorted(self._variables.values(), key=lambda variable: variable.name)

    def trainable_variables(self) -> list[Variable]:
        """The trainable variables, sorted by name."""
        return [variable for variable in self.variables() if variable.trainable]

    def non_trainable_variables(self) -> list[Variable]:
        """The other variables, sorted by name."""
        return [variable for variable in self.variables() if not variable.trainable]


# Updates by optimizers


def update(
    owner: Any, grads_and_vars: Sequence[Any], slots: Sequence[Any], apply: Callable[[], Any]
) -> Any:
    """Run `apply`, which applies (gradient, variable) pairs with an optimizer, its `owner`.

    `slots` are the other variables that it updates.
    """
    lazy_trace, key = EAGER.current(), _key(owner, grads_and_vars, slots)

    def make() -> list[Any]:
        apply()
        return []

    if key is None:
        result = apply()
    else:
        result = EAGER.record_subgraph(lazy_trace, key, make)
        if result is None:
            return update(owner, grads_and_vars, slots, apply)
    if not EAGER.tapes:
        # Ending the trace here gives all training steps the same structure. Gradients that are not
        # referenced by then are never stored.
        EAGER.lazy_trace.closed = True
    return result


def _key(owner: Any, grads_and_vars: Sequence[Any], slots: Sequence[Any]) -> Any:
    """The structure of an update as a key; None if it may depend on more."""
    key = _hyperparameters(owner)
    if key is None or any(variable.constraint is not None for _, variable in grads_and_vars):
        return None
    for gradient, variable in grads_and_vars:
        parts = component_tensors(gradient)
        key.append(len(parts))
        key += [EAGER.position(part) for part in parts]  # pyright: ignore[reportArgumentType] - eager code has eager tensors
        key.append(EAGER.position(variable.gradient_source()))
    key += [EAGER.position(variable.gradient_source()) for variable in slots]
    return tuple(key)


def _hyperparameters(owner: Any) -> list[Any] | None:
    """An optimizer's class, numbers, and positions of tensors; None if it has other attributes."""
    if not type(owner).__module__.startswith(_PACKAGE):
        return None
    key: list[Any] = [type(owner)]
    attributes: dict[str, Any] = owner.__dict__
    for name, value in attributes.items():
        if type(value) in _SCALARS:
            key += name, type(value), value
        elif isinstance(value, EagerVariable):
            key += name, EAGER.position(value.gradient_source())  # pyright: ignore[reportArgumentType] - as below
        elif isinstance(value, EagerTensor):
            key += name, EAGER.position(value)
        elif type(value) is not Tensor and not isinstance(value, dict):
            return None
    return key


# Construction


def _unpickled(value: Any, name: str, trainable: bool) -> Variable:
    return EagerVariable(value, name=name, trainable=trainable)


def _variable_class(kind: type[Variable]) -> type[Variable]:
    """The class of which `tf.Variable(...)` makes an instance now."""
    is_eager = kind in (Variable, ResourceVariable) and root(get_default_graph()) is EAGER
    return EagerVariable if is_eager else kind


stand_ins[EagerVariable] = EagerVariable.value
graph_variables.variable_class[:] = [_variable_class]
publish_value("contrib.eager.Variable", Variable)
