"""`tf.Variable`: a buffer that outlives steps, with its initializer and its read.

A variable is three nodes: the buffer `w` (a reference), `w/Assign` (the initializer) and `w/read`
(its value). It is converted to its value where a tensor is needed; ops that write it take the
reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NoReturn, cast
from weakref import WeakValueDictionary

from numpy.typing import ArrayLike

from thalweg import protos
from thalweg.graph import context
from thalweg.graph.build import graph_of
from thalweg.graph.collections import GraphKeys
from thalweg.graph.composite import IndexedSlices, SparseTensor
from thalweg.graph.convert import convert_to_tensor, register_tensor_conversion_function
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import DeviceLike, IndexLike, MaybeNone, ShapeLike, TensorLike
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.graph.subgraph import enclosing_graphs, is_body, lifted, root
from thalweg.ops.arrays import indexing
from thalweg.ops.core import basic
from thalweg.ops.state import scatter, state
from thalweg.public import public, publish_value
from thalweg.variables.creators import VariableMeta
from thalweg.variables.save_slice import SaveSliceInfo, strip_scope, with_scope


@public("VariableSynchronization")
class VariableSynchronization:
    """When copies of a distributed variable are synchronised; ignored in one process."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


@public("VariableAggregation")
class VariableAggregation:
    """How updates of copies of a distributed variable are combined."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3
    ONLY_FIRST_TOWER = 3


#: (the class that was called) -> the class to instantiate
variable_class: list[Callable[[type[Variable]], type[Variable]]] = [lambda called: called]


#: Callbacks for each variable that this thread is about to create; they may raise.
creations: context.ThreadStack[Callable[[Variable], Any]] = context.ThreadStack()


class _Defaults:
    """The defaults of variables that are created later."""

    use_resource = False


@public("enable_resource_variables")
def enable_resource_variables() -> None:
    """Create resource variables from now on, unless `use_resource=False` is given.

    Example:
        >>> tf.enable_resource_variables()
        >>> tf.resource_variables_enabled()
        True
        >>> tf.disable_resource_variables()
    """
    _Defaults.use_resource = True


@public("disable_resource_variables")
def disable_resource_variables() -> None:
    """Undo `enable_resource_variables`.

    Example:
        >>> tf.disable_resource_variables()
        >>> tf.resource_variables_enabled()
        False
    """
    _Defaults.use_resource = False


@public("resource_variables_enabled")
def resource_variables_enabled() -> bool:
    """Whether new variables are resource variables by default.

    Returns:
        True after `enable_resource_variables`.

    Example:
        >>> tf.resource_variables_enabled()
        False
    """
    return _Defaults.use_resource


_owners: WeakValueDictionary[int, Variable] = WeakValueDictionary()  # by the id of the reference


def variable_of(reference: Tensor) -> Variable | None:
    """The variable with a reference tensor, if the tensor is one's."""
    owner = _owners.get(id(reference))
    return owner if owner is not None and owner.gradient_source() is reference else None


@public("Variable")
class Variable(metaclass=VariableMeta):
    """State that steps read and write; a session holds its value, from its initialisation on.

    A variable can be used wherever a tensor can. Change it with `assign`, `assign_add`, the scatter
    methods, or an optimizer.

    Args:
        initial_value: a value, a tensor, or a function without arguments that returns one.
        trainable: whether optimizers update it by default; None means True.
        collections: the graph collections to join; None means `GLOBAL_VARIABLES`.
        validate_shape: whether all values must have the shape of the initial value.
        caching_device: the device of reads.
        name: the name of the variable, made unique in the graph.
        variable_def: a VariableDef protobuf of an existing variable, instead of `initial_value`.
        dtype: the dtype to convert the initial value to.
        expected_shape: ignored; accepted for old programs.
        import_scope: the name scope of the names in `variable_def`.
        constraint: a function of the value that optimizers apply after each update.
        use_resource: whether a read gives the value at its point of the step.
        synchronization, aggregation: kept for distributed programs.
        shape: the static shape, if it is less specific than that of the initial value.

    Example:
        >>> v = tf.Variable([1.0, 2.0], name="v")
        >>> sess.run(v.initializer)
        >>> sess.run(v.assign_add([10.0, 10.0]))
        array([11., 12.], dtype=float32)
        >>> v.name, v.shape.as_list()
        ('v:0', [2])
    """

    SaveSliceInfo = SaveSliceInfo
    __array_priority__ = 100  # NumPy arrays defer to our operators

    _variable: Tensor
    _snapshot: Tensor
    _initializer_op: Node
    _initial_value: Tensor | None

    def __new__(cls, *args: Any, use_resource: bool | None = None, **kwargs: Any) -> Variable:
        """Choose the class: that of resource variables, or of variables of eager code."""
        if use_resource is None:
            use_resource = resource_variables_enabled()
        chosen = ResourceVariable if use_resource and cls is Variable else cls
        return object.__new__(variable_class[0](chosen))

    def __init__(
        self,
        initial_value: TensorLike | Callable[[], TensorLike] | None = None,
        trainable: bool | None = None,
        collections: Iterable[Any] | None = None,
        validate_shape: bool = True,
        caching_device: DeviceLike = None,
        name: str | None = None,
        variable_def: protos.VariableDef | None = None,
        dtype: Any = None,
        expected_shape: ShapeLike = None,
        import_scope: str | None = None,
        constraint: Callable[[Any], Any] | None = None,
        use_resource: bool | None = None,
        synchronization: int = VariableSynchronization.AUTO,
        aggregation: int = VariableAggregation.NONE,
        shape: ShapeLike = None,
    ) -> None:
        self._caching_device = caching_device
        self._save_slice_info: SaveSliceInfo | None = None
        self._constraint = constraint
        self._trainable = trainable is None or bool(trainable)
        self.synchronization = synchronization
        self.aggregation = aggregation
        if variable_def is not None:
            if initial_value is not None:
                raise ValueError("variable_def and initial_value are mutually exclusive.")
            self._from_definition(variable_def, import_scope)
            return
        if initial_value is None:
            raise ValueError(
                "initial_value must be specified: a value, a tensor or a function that makes one."
            )
        if constraint is not None and not callable(constraint):
            raise ValueError("The `constraint` argument must be a callable.")
        base_dtype = None if dtype is None else as_dtype(dtype).base_dtype
        keys = _collections(collections, self._trainable)
        for callback in creations.items:
            callback(self)
        if isinstance(initial_value, Tensor):
            initial_value = lifted(initial_value)
        self._build(initial_value, validate_shape, name, base_dtype, shape)
        _owners[id(self._variable)] = self
        self.graph.add_to_collections(keys, self)

    def _build(
        self, initial_value: Any, validate: bool, name: str | None, dtype: DType | None, shape: Any
    ) -> None:
        graph = root(get_default_graph() if callable(initial_value) else graph_of([initial_value]))
        current = get_default_graph()
        outer_scope = (current if root(current) is graph else graph).get_name_scope()
        with ExitStack() as scopes:
            scopes.enter_context(graph.as_default())
            scopes.enter_context(graph.name_scope(f"{outer_scope}/" if outer_scope else None))
            scopes.enter_context(graph.control_dependencies(None))
            scope = scopes.enter_context(graph.name_scope(name or "Variable"))
            if callable(initial_value):
                # Colocate the value with the variable, which does not exist yet, by its name.
                group = b"loc:@" + scope.rstrip("/").encode()
                scopes.enter_context(graph.attr_scope({"_class": [group]}))
                with graph.name_scope("Initializer"), graph.device(None):
                    initial_value = cast("Callable[[], Any]", initial_value)()
                    value = convert_to_tensor(initial_value, dtype, name="initial_value")
            else:
                value = convert_to_tensor(initial_value, dtype, name="initial_value")
            self._initial_value = value
            self._variable = state.variable_op(
                _buffer_shape(value, validate, shape),
                value.dtype,
                name=scope,
                is_resource=isinstance(self, ResourceVariable),
            )
            self._initializer_op = state.assign(self._variable, value, validate_shape=validate).op
            with self._reading_device():
                self._snapshot = basic.identity(self._variable, name="read")
        reads = graph.reads_here()
        if (
            reads is not None
        ):  # the control inputs are older than the variable: they do not write it
            reads[self._variable] = self._snapshot

    def _from_definition(self, definition: Any, import_scope: str | None) -> None:
        graph = get_default_graph()

        def element(name: str) -> Any:
            return graph.as_graph_element(with_scope(name, import_scope))

        self._variable = element(definition.variable_name)
        self._initializer_op = element(definition.initializer_name)
        self._snapshot = element(definition.snapshot_name)
        initial = getattr(definition, "initial_value_name", "")
        self._initial_value = element(initial) if initial else None
        self._trainable = getattr(definition, "trainable", True)
        if definition.HasField("save_slice_info_def"):
            self._save_slice_info = SaveSliceInfo(
                save_slice_info_def=definition.save_slice_info_def, import_scope=import_scope
            )

    def _reading_device(self) -> AbstractContextManager[Any]:
        graph = self.graph
        if self._caching_device is not None:
            return graph.device(self._caching_device)
        return graph.colocate_with(self._variable.op)

    # Values

    def value(self) -> Tensor:
        """The value at this point, after the open control dependencies."""
        value = self.used_value()
        if value is self._snapshot and is_body(get_default_graph()):
            return basic.identity(value)  # later writes of the body do not change it
        return value

    def used_value(self) -> Tensor:
        """The value for a use: a read after the open control dependencies, if there are any, else
        the read that all other uses share."""
        for graph in enclosing_graphs(get_default_graph()):
            reads = graph.reads_here()
            if reads is not None:
                return self._read_in(graph, reads)
            if graph is self.graph:
                break
        return self._snapshot

    def _read_in(self, graph: Graph, reads: dict[Tensor, Tensor]) -> Tensor:
        """The read of the open control scope, which all uses there share."""
        value = reads.get(self._variable)
        if value is None:
            with graph.as_default(), graph.name_scope(f"{self._variable.op.name}/"):
                value = reads[self._variable] = basic.identity(self._variable, name="read")
        return value

    def read_value(self) -> Tensor:
        """A new read of the value, after the open control dependencies."""
        return basic.identity(self._variable, name="read")

    def eval(self, session: context.Runner | None = None) -> MaybeNone:
        """The value in a session, by default the default one."""
        return self._variable.eval(session=session)

    def load(self, value: ArrayLike, session: context.Runner | None = None) -> None:
        """Set the value in a session, without new nodes.

        Args:
            value: an array of its shape.
            session: the session; the default one if None.
        """
        runner = context.runner_for(self.graph, session, "load()")
        runner.run(self._initializer_op, {self._initializer_op.inputs[1]: value})

    def initialized_value(self) -> Tensor:
        """The value, or the initial value if the variable is not initialised."""
        graph = self.graph
        with graph.as_default(), graph.control_dependencies(None):
            value = state.value_or_initial(self._variable, self.initial_value)
            if self._caching_device is None:
                return value
            with graph.device(self._caching_device):
                return basic.identity(value)

    @property
    def initial_value(self) -> Tensor:
        """The tensor the initializer assigns."""
        return (
            self._initializer_op.inputs[1] if self._initial_value is None else self._initial_value
        )

    @property
    def initializer(self) -> Node:
        """The node that assigns the initial value."""
        return self._initializer_op

    def initialise_with(self, value: Tensor, initializer: Node) -> None:
        """Replace the initial value and the initializer, for steps that are planned later."""
        self._initial_value = value
        self._initializer_op = initializer

    def gradient_source(self) -> Tensor:
        """The tensor to which gradients with respect to this variable refer: its reference."""
        return self._variable

    def is_initialized(self, name: str | None = None) -> Tensor:
        """Whether the variable has a value in the session."""
        return state.IsVariableInitialized()(self._variable, name=name)

    # Changes

    def assign(
        self,
        value: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Tensor | MaybeNone:
        """Set the variable to a value.

        Args:
            value: a tensor of its dtype and shape.
            use_locking: whether the update excludes other uses of the variable.
            name: the name of the node.
            read_value: whether to return the new value, else the node.
        """
        return self._changed(state.assign, value, use_locking, name, read_value)

    def assign_add(
        self,
        delta: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Tensor | MaybeNone:
        """Add `delta`; returns the new value."""
        return self._changed(state.assign_add, delta, use_locking, name, read_value)

    def assign_sub(
        self,
        delta: TensorLike,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Tensor | MaybeNone:
        """Subtract `delta`; returns the new value."""
        return self._changed(state.assign_sub, delta, use_locking, name, read_value)

    def _changed(
        self,
        change: Callable[..., Any],
        value: Any,
        use_locking: bool,
        name: str | None,
        read_value: bool,
    ) -> Any:
        changed = change(self._variable, value, use_locking=use_locking, name=name)
        return self._after(changed, read_value)

    def _after(self, changed: Tensor, read_value: bool) -> Any:
        """The result of a change."""
        return changed if read_value else changed.op

    def count_up_to(self, limit: int) -> Tensor:
        """The value before this step adds 1; OutOfRangeError once it is `limit`."""
        return state.count_up_to(self._variable, limit)

    def scatter_add(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Add rows."""
        return self._scatter(scatter.scatter_add, sparse_delta, use_locking, name)

    def scatter_sub(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Subtract rows."""
        return self._scatter(scatter.scatter_sub, sparse_delta, use_locking, name)

    def scatter_mul(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Multiply rows."""
        return self._scatter(scatter.scatter_mul, sparse_delta, use_locking, name)

    def scatter_div(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Divide rows."""
        return self._scatter(scatter.scatter_div, sparse_delta, use_locking, name)

    def scatter_min(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Take the smaller of rows."""
        return self._scatter(scatter.scatter_min, sparse_delta, use_locking, name)

    def scatter_max(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Take the larger of rows."""
        return self._scatter(scatter.scatter_max, sparse_delta, use_locking, name)

    def scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Set rows."""
        return self._scatter(scatter.scatter_update, sparse_delta, use_locking, name)

    def batch_scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        """Set rows of each member of a batch."""
        return self._scatter(scatter.batch_scatter_update, sparse_delta, use_locking, name)

    def _scatter(
        self, change: Callable[..., Tensor], delta: Any, use_locking: bool, name: str | None
    ) -> Tensor:
        if not isinstance(delta, IndexedSlices):
            raise ValueError(f"sparse_delta is not IndexedSlices: {delta}")
        return change(
            self._variable, delta.indices, delta.values, use_locking=use_locking, name=name
        )

    def scatter_nd_update(self, indices: Any, updates: Any, name: str | None = None) -> Tensor:
        """Set slices."""
        return scatter.scatter_nd_update(self._variable, indices, updates, name=name)

    def scatter_nd_add(self, indices: Any, updates: Any, name: str | None = None) -> Tensor:
        """Add to slices."""
        return scatter.scatter_nd_add(self._variable, indices, updates, name=name)

    def scatter_nd_sub(self, indices: Any, updates: Any, name: str | None = None) -> Tensor:
        """Subtract from slices."""
        return scatter.scatter_nd_sub(self._variable, indices, updates, name=name)

    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor:
        """Rows of the value."""
        return indexing.gather(self.used_value(), indices, name=name)

    def gather_nd(self, indices: Any, name: str | None = None) -> Tensor:
        """Slices of the value."""
        return indexing.gather_nd(self.used_value(), indices, name=name)

    # Properties

    @property
    def name(self) -> str:
        """`node:0`."""
        return self._variable.name

    @property
    def dtype(self) -> DType:
        """The reference dtype."""
        return self._variable.dtype

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return self._variable.shape

    def get_shape(self) -> TensorShape:
        """The static shape."""
        return self._variable.shape

    def set_shape(self, shape: ShapeLike) -> None:
        """Merge a shape into the static shape."""
        self._variable.set_shape(shape)
        self._snapshot.set_shape(shape)

    @property
    def op(self) -> Node:
        """The node that owns the buffer."""
        return self._variable.op

    @property
    def graph(self) -> Graph:
        """The graph this variable belongs to."""
        return self._variable.graph

    @property
    def device(self) -> str:
        """The requested device."""
        return self._variable.device

    @property
    def trainable(self) -> bool:
        """Whether optimizers update it by default."""
        return self._trainable

    @property
    def constraint(self) -> Callable[[Any], Any] | None:
        """The function that optimizers apply to the value after each update."""
        return self._constraint

    def _ref(self) -> Tensor:
        return self._variable

    def _as_graph_element(self) -> Tensor:
        return self._variable

    def _AsTensor(self) -> Tensor:
        return self.used_value()

    def _set_save_slice_info(self, save_slice_info: SaveSliceInfo | None) -> None:
        self._save_slice_info = save_slice_info

    def _get_save_slice_info(self) -> SaveSliceInfo | None:
        return self._save_slice_info

    @property
    def save_slice_info(self) -> SaveSliceInfo | None:
        """The slice of a partitioned variable that this is, if it is one."""
        return self._save_slice_info

    def to_proto(self, export_scope: str | None = None) -> protos.VariableDef | MaybeNone:
        """A VariableDef, or None if the variable is outside `export_scope`."""
        if export_scope is not None and not self.name.startswith(export_scope):
            return None
        definition = protos.VariableDef()
        definition.variable_name = strip_scope(self._variable.name, export_scope)
        definition.initializer_name = strip_scope(self._initializer_op.name, export_scope)
        definition.snapshot_name = strip_scope(self._snapshot.name, export_scope)
        definition.initial_value_name = strip_scope(self.initial_value.name, export_scope)
        definition.trainable = self._trainable
        if self._save_slice_info is not None:
            slice_def = self._save_slice_info.to_proto(export_scope)
            definition.save_slice_info_def.MergeFrom(slice_def)
        return definition

    @staticmethod
    def from_proto(variable_def: protos.VariableDef, import_scope: str | None = None) -> Variable:
        """The variable a VariableDef describes, in the default graph."""
        return Variable(variable_def=variable_def, import_scope=import_scope)

    def __getitem__(self, key: IndexLike) -> Tensor:
        return operators["getitem"](self.used_value(), key)

    def __iter__(self) -> NoReturn:
        raise TypeError("'Variable' object is not iterable.")

    def __copy__(self) -> Variable:
        return self

    def __repr__(self) -> str:
        return f"<tf.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}>"

    def __str__(self) -> str:
        return repr(self)


# Construction


def _collections(collections: Iterable[Any] | None, trainable: bool) -> list[Any]:
    if collections is None:
        collections = [GraphKeys.GLOBAL_VARIABLES]
    if not isinstance(collections, list | tuple | set):
        raise ValueError(
            f"collections argument to Variable constructor must be a list, tuple, or set. Got "
            f"{collections} of type {type(collections)}"
        )
    keys = list(cast("Sequence[Any]", collections))
    if trainable and GraphKeys.TRAINABLE_VARIABLES not in keys:
        keys.append(GraphKeys.TRAINABLE_VARIABLES)
    return keys


def _buffer_shape(value: Tensor, validate: bool, shape: Any) -> TensorShape:
    if shape is not None:
        return TensorShape(shape)
    if not validate:
        return unknown_shape()
    if not value.shape.is_fully_defined():
        raise ValueError(
            f"initial_value must have a shape specified: {value} (made at {value.op.origin}). Give "
            "a static shape, or pass validate_shape=False"
        )
    return value.shape


# Conversion to a tensor


def _as_tensor(
    variable: Variable, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    if dtype is not None and not dtype.is_compatible_with(variable.dtype):
        raise ValueError(
            f"Incompatible type conversion requested to type '{dtype.name}' for variable of type "
            f"'{variable.dtype.name}': {variable!r}"
        )
    return variable.gradient_source() if as_ref else variable.used_value()


register_tensor_conversion_function(Variable, _as_tensor)

_UNARY = frozenset({"__invert__", "__neg__", "__abs__"})


def _unary(operator: str) -> Callable[[Variable], Tensor]:
    """A unary operator of variables: that of the value."""
    on_tensor = getattr(Tensor, operator)

    def on_variable(self: Variable) -> Tensor:
        return on_tensor(self.used_value())

    on_variable.__name__ = operator
    return on_variable


def _binary(operator: str) -> Callable[[Variable, TensorLike], Tensor]:
    """A binary operator of variables: that of the value."""

    def on_variable(self: Variable, other: TensorLike) -> Tensor:
        return getattr(self.used_value(), operator)(other)

    on_variable.__name__ = operator
    return on_variable


for _operator in _UNARY:
    setattr(Variable, _operator, _unary(_operator))
for _operator in Tensor.OVERLOADABLE_OPERATORS - _UNARY - {"__getitem__"}:
    setattr(Variable, _operator, _binary(_operator))


@public("is_tensor", "contrib.framework.is_tensor")
def is_tensor(x: object) -> bool:
    """Whether an object is a tensor, dense or sparse, or a variable.

    Args:
        x: anything.

    Returns:
        True for a Tensor, SparseTensor, IndexedSlices or Variable.

    Example:
        >>> tf.is_tensor(tf.constant(1.0)), tf.is_tensor(1.0)
        (True, False)
    """
    return isinstance(x, Tensor | SparseTensor | IndexedSlices | Variable)


class ResourceVariable(Variable):
    """A variable whose reads give the value at their point of the step: `use_resource=True`."""

    @property
    def dtype(self) -> DType:
        """The dtype of the value."""
        return self._variable.dtype.base_dtype

    @property
    def handle(self) -> Tensor:
        """The reference, which functions that write the variable take."""
        return self._variable


publish_value("VariableV1", Variable)
