"""Variables of eager code: made at once, with a value, and gone when nobody holds them.

A program writes `tf.Variable(...)` or `tf.get_variable(...)`; what it gets in eager code is an
`EagerVariable`. Its buffer flows along reference edges as a graph's variables do, so every op,
layer and optimizer takes it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from numpy.typing import NDArray

from thalweg.functions.devices import eager_devices
from thalweg.functions.eager import EAGER, recorded, requested_device
from thalweg.functions.lazy_trace import LazyTrace, fast_path_disabled
from thalweg.functions.tensors import EagerTensor, known
from thalweg.functions.trace import host_array
from thalweg.graph.convert import convert_to_tensor, stand_ins
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph, get_default_graph, graphs
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.graph.subgraph import root
from thalweg.ops.core import basic
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state import state
from thalweg.public import public, publish_value
from thalweg.variables import variable as graph_variables
from thalweg.variables.scope import STORE_KEY, get_variable_scope, variable_scope
from thalweg.variables.store import AUTO_REUSE, Request, VariableStore
from thalweg.variables.variable import ResourceVariable, Variable

Array = NDArray[Any]


_READ = basic.Identity()


class EagerVariable(ResourceVariable):
    """State that eager code reads and changes."""

    _reference: EagerTensor

    def _build(
        self, initial_value: Any, validate: bool, name: str | None, dtype: DType | None, shape: Any
    ) -> None:
        request = ""
        if eager_devices().has_gpus:
            request = requested_device(get_default_graph()) or EAGER.device_name
        with graphs.pushed(EAGER), EAGER.name_scope(name or "Variable") as scope:
            made: Any = initial_value() if callable(initial_value) else initial_value
            value = convert_to_tensor(made, dtype)
            if not isinstance(value, EagerTensor):
                raise ValueError(f"{value!r} has no value that a variable of eager code can have.")
            self._name = scope.rstrip("/")
            self._hold(value.located(), value.dtype.base_dtype, validate, shape, request)

    def _hold(self, value: Any, dtype: DType, validate: bool, shape: Any, request: str) -> None:
        given = TensorShape.of(value.shape) if validate else unknown_shape()
        known_shape = given if shape is None else TensorShape(shape)
        device = eager_devices().home(request, dtype, known_shape)
        cell = VariableCell(self._name, dtype, known_shape, True, device.allocate)
        if isinstance(value, Buffer) and value.device == device.name:
            cell.buffer = value.copy()
        else:
            cell.assign(host_array(value))
        self._reference = self._variable = known(cell, dtype.as_ref, known_shape)
        op = state.VariableV2(dtype=dtype, given_shape=known_shape, shared_name=self._name)
        holder = self._variable.op  # for the line of the user's code
        asked = device.name if eager_devices().has_gpus else ""
        self._node = Node(EAGER, op, self._name, (), (), asked, {}, *holder.made_at, 0)
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
        found = lazy_trace.reads.get(self)
        if found is None:
            found = self._read(lazy_trace)
            EAGER.lazy_trace.reads[self] = found
        return found

    def _read(self, lazy_trace: LazyTrace) -> EagerTensor:
        """Record that the value is read; where that led the last time is found again."""
        reference = self._reference
        position = EAGER.enter(lazy_trace, reference)
        trace_node = lazy_trace.end
        shortcut = trace_node.shortcuts.get(position)
        if shortcut is not None and not fast_path_disabled[0]:
            found = lazy_trace.take(shortcut)
            if not lazy_trace.closed:  # no other thread wanted a value meanwhile
                return found
        found = recorded(_READ, (reference,), None, 3)
        if (
            found._lazy_trace is lazy_trace
            and lazy_trace.end.parent is trace_node
            and lazy_trace.end.is_plain
        ):
            trace_node.shortcuts[position] = lazy_trace.shortcut()
        return found

    def read_value(self) -> Tensor:
        """The value now."""
        return self.value()

    def numpy(self) -> Any:
        """The value as a NumPy array."""
        return self._reference.cell().snapshot()[()]

    def eval(self, session: Any = None) -> Any:
        """The value."""
        return self.numpy()

    def load(self, value: Any, session: Any = None) -> None:
        """Set the value."""
        self.assign(value)

    def initialized_value(self) -> Tensor:
        """The value: it always has one."""
        return self.value()

    @property
    def initial_value(self) -> Tensor:
        """Nobody keeps it."""
        raise RuntimeError("`initial_value` not supported in EAGER mode.")

    @property
    def initializer(self) -> Node:
        """Nothing to run: the variable has its value."""
        return basic.no_op()

    def is_initialized(self, name: str | None = None) -> Tensor:
        """True."""
        return convert_to_tensor(True)

    # Changes

    def _after(self, changed: Tensor, read_value: bool) -> Any:
        if get_default_graph() is not EAGER:
            return super()._after(changed, read_value)
        EAGER.lazy_trace.reads.pop(self, None)
        return self if read_value else None

    # What it is

    @property
    def name(self) -> str:
        """`name:0`."""
        return f"{self._name}:0"

    @property
    def op(self) -> Node:
        """The node that owns the buffer."""
        return self._node

    @property
    def graph(self) -> Graph:
        """The eager graph, or the one inside it that is being built."""
        return EAGER.inner()

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

    def __copy__(self) -> Variable:
        return self

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
    """Variables by name, as long as they live. Only a request that reuses finds them again."""

    def __init__(self, kept: Any = None) -> None:
        super().__init__()
        self._vars: Any = WeakValueDictionary[str, Variable]() if kept is None else kept

    def _get_single(self, request: Request, partition: Any = None) -> Variable:
        if not request.reuse:
            self._vars.pop(request.name, None)
        return super()._get_single(request, partition)


EAGER.makers[STORE_KEY] = EagerStore


@public("contrib.eager.EagerVariableStore")
class EagerVariableStore:
    """Keeps the variables that `get_variable` makes inside `with store.as_default():`, to be found
    again there under their names."""

    def __init__(self, store: VariableStore | None = None) -> None:
        self._kept: dict[str, Variable] = {}
        self._store = EagerStore(self._kept)

    @contextmanager
    def as_default(self) -> Generator[None]:
        """Use the store inside the block."""
        stores = EAGER.get_collection_ref(STORE_KEY)
        before = list(stores)
        stores[:] = [self._store]
        try:
            with variable_scope(get_variable_scope(), reuse=AUTO_REUSE):
                yield
        finally:
            stores[:] = before

    def variables(self) -> list[Variable]:
        """All variables in it, by name."""
        return sorted(self._kept.values(), key=lambda variable: variable.name)

    def trainable_variables(self) -> list[Variable]:
        """Those that optimizers change."""
        return [variable for variable in self.variables() if variable.trainable]

    def non_trainable_variables(self) -> list[Variable]:
        """Those that optimizers leave alone."""
        return [variable for variable in self.variables() if not variable.trainable]


def _unpickled(value: Any, name: str, trainable: bool) -> Variable:
    return EagerVariable(value, name=name, trainable=trainable)


def _variable_class(kind: type[Variable]) -> type[Variable]:
    """What `tf.Variable(...)` makes now."""
    is_eager = kind in (Variable, ResourceVariable) and root(get_default_graph()) is EAGER
    return EagerVariable if is_eager else kind


stand_ins[EagerVariable] = EagerVariable.value
graph_variables.variable_class[:] = [_variable_class]
publish_value("contrib.eager.Variable", Variable)
