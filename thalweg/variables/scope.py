"""`variable_scope` and `get_variable`: variables by name, created or shared.

A scope is a name prefix with defaults for the variables inside it. Each thread has its own open
scope; the variables belong to the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from thalweg.graph import dtypes
from thalweg.graph.build import graph_of
from thalweg.graph.collections import GraphKeys
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import Collections, DeviceLike, DTypeLike, ShapeLike, UserObject
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.variables.store import AUTO_REUSE, Request, VariableStore
from thalweg.variables.variable import Variable, VariableAggregation, VariableSynchronization

if TYPE_CHECKING:
    from thalweg.variables.initializers import InitializerLike
    from thalweg.variables.store import ReuseMode

SCOPES_KEY = ("__variable_scopes",)
STORE_KEY = ("__variable_store",)
_DEFAULTS = (
    "initializer",
    "regularizer",
    "caching_device",
    "partitioner",
    "custom_getter",
    "dtype",
    "use_resource",
    "constraint",
)


@public("no_regularizer")
def no_regularizer(_: UserObject) -> None:
    """A regularizer that adds no loss: it overrides that of the scope."""
    return None


@public("VariableScope")
class VariableScope:
    """A prefix for variable names, and defaults for the variables inside it."""

    def __init__(
        self,
        reuse: bool | ReuseMode | None,
        name: str = "",
        initializer: InitializerLike = None,
        regularizer: Callable[[Any], Any] | None = None,
        caching_device: DeviceLike = None,
        partitioner: Callable[..., Any] | None = None,
        custom_getter: Callable[..., Any] | None = None,
        name_scope: str = "",
        dtype: Any = dtypes.float32,
        use_resource: bool | None = None,
        constraint: Callable[[Any], Any] | None = None,
    ) -> None:
        self._reuse = reuse
        self._name = name
        self._name_scope = name_scope
        self.initializer = initializer
        self.regularizer = regularizer
        self.caching_device = caching_device
        self.partitioner = partitioner
        self.custom_getter = custom_getter
        self.dtype = dtype
        self.use_resource = use_resource
        self.constraint = constraint

    @property
    def name(self) -> str:
        """The prefix."""
        return self._name

    def __repr__(self) -> str:
        return described(self, self._name, reuse=self._reuse)

    @property
    def original_name_scope(self) -> str:
        """The name scope that was opened when this scope was created."""
        return self._name_scope

    @property
    def reuse(self) -> bool | ReuseMode | None:
        """False: create variables; True: share existing ones; AUTO_REUSE: share or create."""
        return self._reuse

    def reuse_variables(self) -> None:
        """Share existing variables from now on."""
        self._reuse = True

    def set_initializer(self, initializer: InitializerLike) -> None:
        """Set the default initializer."""
        self.initializer = initializer

    def set_regularizer(self, regularizer: Callable[[Any], Any] | None) -> None:
        """Set the default regularizer."""
        self.regularizer = regularizer

    def set_caching_device(self, caching_device: DeviceLike) -> None:
        """Set the default caching device."""
        self.caching_device = caching_device

    def set_partitioner(self, partitioner: Callable[..., Any] | None) -> None:
        """Set the default partitioner."""
        self.partitioner = partitioner

    def set_custom_getter(self, custom_getter: Callable[..., Any] | None) -> None:
        """Set the default custom getter."""
        self.custom_getter = custom_getter

    def set_dtype(self, dtype: Any) -> None:
        """Set the default dtype."""
        self.dtype = dtype

    def set_use_resource(self, use_resource: bool | None) -> None:
        """Set whether resource variables are created by default."""
        self.use_resource = use_resource

    def get_collection(self, name: Hashable) -> list[Any]:
        """The items of a collection whose names begin with this scope's name."""
        return get_default_graph().get_collection(name, f"{self._name}/" if self._name else None)

    def trainable_variables(self) -> list[Any]:
        """The trainable variables of this scope."""
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)

    def global_variables(self) -> list[Any]:
        """The global variables of this scope."""
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def local_variables(self) -> list[Any]:
        """The local variables of this scope."""
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)

    def get_variable(
        self,
        var_store: VariableStore,
        name: str,
        shape: ShapeLike = None,
        dtype: DTypeLike | None = None,
        initializer: InitializerLike = None,
        regularizer: Callable[[Any], Any] | None = None,
        reuse: bool | ReuseMode | None = None,
        trainable: bool | None = None,
        collections: Collections = None,
        caching_device: DeviceLike = None,
        partitioner: Callable[..., Any] | None = None,
        validate_shape: bool = True,
        use_resource: bool | None = None,
        custom_getter: Callable[..., Any] | None = None,
        constraint: Callable[[Any], Any] | None = None,
        synchronization: int = VariableSynchronization.AUTO,
        aggregation: int = VariableAggregation.NONE,
    ) -> Variable:
        """The variable with a name in the scope, shared or created."""
        full_name = f"{self._name}/{name}" if self._name else name
        with get_default_graph().name_scope(None):
            if dtype is not None and initializer is not None and not callable(initializer):
                _check_initializer(initializer, dtype)
            request = Request(
                full_name,
                shape,
                as_dtype(self.dtype if dtype is None else dtype),
                self.initializer if initializer is None else initializer,
                regularizer or self.regularizer,
                self._reuse if reuse is None else reuse,
                trainable,
                collections,
                caching_device or self.caching_device,
                partitioner or self.partitioner,
                validate_shape,
                self.use_resource if use_resource is None else use_resource,
                constraint or self.constraint,
                synchronization,
                aggregation,
            )
            return var_store.get(request, custom_getter or self.custom_getter)

    def _get_partitioned_variable(
        self, var_store: VariableStore, name: str | None, **options: Any
    ) -> Any:
        """The partitioned variable with a name, for `create_partitioned_variables`."""
        if self.custom_getter is not None:
            raise ValueError(
                "Private access to _get_partitioned_variable is not allowed when a custom getter "
                f"is set. Current custom getter: {self.custom_getter}. If you use "
                "create_partitioned_variables, use get_variable with a partitioner instead."
            )
        explicit = {n: v for n, v in options.items() if v is not None}
        defaults = {n: getattr(self, n) for n in _DEFAULTS if n != "custom_getter"}
        if (explicit.get("partitioner") or self.partitioner) is None:
            raise ValueError("No partitioner was specified")
        full_name = "/".join(filter(None, (self._name, name)))
        with get_default_graph().name_scope(None):
            return var_store.get_partitioned(
                Request(full_name, reuse=self._reuse, **(defaults | explicit))
            )


def _check_initializer(initializer: Any, dtype: Any) -> None:
    own_dtype = convert_to_tensor(initializer).dtype.base_dtype
    if own_dtype != as_dtype(dtype):
        raise ValueError(
            f"Initializer type '{own_dtype}' and explicit dtype '{as_dtype(dtype)}' don't match."
        )


# The state of a graph


class _Scopes(threading.local):
    """The open scope of a graph in this thread, and how often each scope name was opened."""

    def __init__(self) -> None:
        self.current = VariableScope(False)
        self.counts: dict[str, int] = {}


def _graph_state(key: Any, make: Callable[[], Any]) -> Any:
    """The object in a collection of the default graph, created on first use."""
    items = get_default_graph().get_collection_ref(key)
    if not items:
        items.append(make())
    return items[0]


def _scopes() -> _Scopes:
    return _graph_state(SCOPES_KEY, _Scopes)


def variable_store() -> VariableStore:
    """The named variables of the default graph."""
    return _graph_state(STORE_KEY, VariableStore)


#: The name that TensorFlow programs use.
_get_default_variable_store = variable_store


@public("get_variable_scope")
def get_variable_scope() -> VariableScope:
    """The open variable scope.

    Returns:
        A VariableScope with `name`, `reuse`, `initializer` and so on, and `reuse_variables()`.

    Example:
        >>> with tf.variable_scope("layer"):
        ...     tf.get_variable_scope().name
        'layer'
    """
    return _scopes().current


@public("get_variable")
def get_variable(
    name: str,
    shape: ShapeLike = None,
    dtype: DTypeLike | None = None,
    initializer: InitializerLike = None,
    regularizer: Callable[[Any], Any] | None = None,
    trainable: bool | None = None,
    collections: Collections = None,
    caching_device: DeviceLike = None,
    partitioner: Callable[..., Any] | None = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Callable[..., Any] | None = None,
    constraint: Callable[[Any], Any] | None = None,
    synchronization: int = VariableSynchronization.AUTO,
    aggregation: int = VariableAggregation.NONE,
) -> Variable:
    """The variable with a name in the open variable scope: created, or shared if the scope reuses.

    Args:
        name: the name below the open scope.
        shape: the shape; required for a new variable unless the initializer has one.
        dtype: the dtype; by default that of the scope, float32.
        initializer: an initializer or a tensor; by default Glorot's for floats, zeros for others.
        regularizer: a function of the variable; its result joins `REGULARIZATION_LOSSES`.
        trainable: whether optimizers update it by default.
        collections: the graph collections to join; by default `GLOBAL_VARIABLES`.
        caching_device: the device of reads.
        partitioner: a function from shape and dtype to the number of parts along each axis.
        validate_shape: whether the initial value must have a known shape.
        use_resource: whether a read gives the value at its point of the step.
        custom_getter: a function to call instead, with the getter as its first argument.
        constraint: a function of the value that optimizers apply after each update.
        synchronization, aggregation: kept for distributed programs.

    Returns:
        A `tf.Variable`.

    Raises:
        ValueError: where the name exists and the scope does not reuse, or vice versa.

    Example:
        >>> w = tf.get_variable("w", [2, 2], initializer=tf.ones_initializer())
        >>> sess.run(w.initializer)
        >>> sess.run(w)
        array([[1., 1.],
               [1., 1.]], dtype=float32)
    """
    return get_variable_scope().get_variable(
        variable_store(),
        name,
        shape,
        dtype,
        initializer,
        regularizer,
        None,
        trainable,
        collections,
        caching_device,
        partitioner,
        validate_shape,
        use_resource,
        custom_getter,
        constraint,
        synchronization,
        aggregation,
    )


@public("get_local_variable")
def get_local_variable(name: str, *args: Any, **kwargs: Any) -> Any:
    """`get_variable` for a variable that is local to this process and not trainable."""
    collections = list(kwargs.pop("collections", None) or ())
    kwargs["trainable"] = False
    kwargs["collections"] = [*collections, GraphKeys.LOCAL_VARIABLES]
    return get_variable(name, *args, **kwargs)


# Opening a scope


@contextmanager
def _open(
    name_or_scope: str | VariableScope, reuse: Any, name_scope: str | None, options: dict[str, Any]
) -> Generator[VariableScope]:
    scopes = _scopes()
    outer, counts = scopes.current, dict(scopes.counts)
    if isinstance(name_or_scope, VariableScope):
        base, name = name_or_scope, name_or_scope.name
        original = base.original_name_scope if name_scope is None else name_scope
    else:
        base = outer
        name = f"{outer.name}/{name_or_scope}" if outer.name else name_or_scope
        original = name_scope or ""
    # A scope opened by name cannot disable the outer one's reuse; one opened by object can.
    by_object = isinstance(name_or_scope, VariableScope) and reuse is not None
    inner = VariableScope(reuse if by_object else reuse or base.reuse, name, name_scope=original)
    for option in _DEFAULTS:
        setattr(inner, option, _combined(option, options.get(option), getattr(base, option)))
    scopes.counts[name] = scopes.counts.get(name, 0) + 1
    scopes.current = inner
    try:
        yield inner
    finally:
        scopes.current = outer
        if isinstance(name_or_scope, VariableScope):
            scopes.counts = counts
        else:
            _reset_inner_counts(scopes.counts, name)


def _combined(option: str, inner: Any, outer: Any) -> Any:
    if inner is None:
        return outer
    if option == "custom_getter" and outer is not None:
        return _nested_getter(inner, outer)
    return as_dtype(inner) if option == "dtype" else inner


def _nested_getter(inner: Callable[..., Any], outer: Callable[..., Any]) -> Callable[..., Any]:
    """The inner scope's getter, whose `getter` is the outer scope's."""

    def getter(getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def through_outer(*inner_args: Any, **inner_kwargs: Any) -> Any:
            return outer(getter, *inner_args, **inner_kwargs)

        return inner(through_outer, *args, **kwargs)

    return getter


def _reset_inner_counts(counts: dict[str, int], name: str) -> None:
    """Make the names inside a closed scope available again for when it is reopened."""
    for inner in counts:
        if not name or inner.startswith(f"{name}/"):
            counts[inner] = 0


def _unique_scope(prefix: str) -> str:
    scopes = _scopes()
    full = f"{scopes.current.name}/{prefix}" if scopes.current.name else prefix
    if not scopes.counts.get(full):
        return prefix
    number = 1
    while scopes.counts.get(f"{full}_{number}"):
        number += 1
    return f"{prefix}_{number}"


@public("variable_scope")
class variable_scope:  # noqa: N801 - TensorFlow's spelling
    """Open a scope in which `tf.get_variable` prefixes, shares and initializes variables.

    Args:
        name_or_scope: the name to append to the open scope, or a scope to re-enter.
        default_name: a name to make unique, used where `name_or_scope` is None.
        values: tensors that the code inside uses; they must belong to one graph.
        initializer, regularizer, caching_device, partitioner, custom_getter, dtype, constraint:
            the defaults of `tf.get_variable` inside.
        reuse: True: variables must exist; `tf.AUTO_REUSE`: shared or created; None: as outside.
        use_resource: whether variables inside are resource variables by default.
        auxiliary_name_scope: whether to open a name scope along with the variable scope.

    Example:
        >>> def weights():
        ...     with tf.variable_scope("layer", reuse=tf.AUTO_REUSE):
        ...         return tf.get_variable("w", [2, 3])
        >>> weights() is weights()
        True
        >>> weights().name
        'layer/w:0'
    """

    def __init__(
        self,
        name_or_scope: str | VariableScope | None,
        default_name: str | None = None,
        values: Sequence[Any] | None = None,
        initializer: InitializerLike = None,
        regularizer: Callable[[Any], Any] | None = None,
        caching_device: DeviceLike = None,
        partitioner: Callable[..., Any] | None = None,
        custom_getter: Callable[..., Any] | None = None,
        reuse: bool | ReuseMode | None = None,
        dtype: DTypeLike | None = None,
        use_resource: bool | None = None,
        constraint: Callable[[Any], Any] | None = None,
        auxiliary_name_scope: bool = True,
    ) -> None:
        if name_or_scope is None and default_name is None:
            raise TypeError("If default_name is None then name_or_scope is required")
        if name_or_scope is not None and not isinstance(name_or_scope, str | VariableScope):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
            raise TypeError("VariableScope: name_or_scope must be a string or VariableScope.")
        if name_or_scope is None and reuse:
            raise ValueError("reuse=True cannot be used without a name_or_scope")
        self._name_or_scope: str | VariableScope | None = name_or_scope
        self._default_name = default_name
        self._values = values
        self._reuse = reuse
        self._auxiliary = auxiliary_name_scope
        self._options: dict[str, Any] = {
            "initializer": initializer,
            "regularizer": regularizer,
            "caching_device": caching_device,
            "partitioner": partitioner,
            "custom_getter": custom_getter,
            "dtype": dtype,
            "use_resource": use_resource,
            "constraint": constraint,
        }
        self._opened: list[AbstractContextManager[VariableScope]] = []

    def __repr__(self) -> str:
        chosen = self._name_or_scope
        name = chosen.name if isinstance(chosen, VariableScope) else chosen or self._default_name
        return described(self, name, reuse=self._reuse)

    def __enter__(self) -> VariableScope:
        opened = self._scope()
        scope = opened.__enter__()
        self._opened.append(opened)
        return scope

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._opened.pop().__exit__(error_type, error, traceback)

    @contextmanager
    def _scope(self) -> Generator[VariableScope]:
        graph = graph_of(self._values or ())
        with graph.as_default(), self._names(graph) as names:
            chosen = self._name_or_scope
            if chosen is None:
                chosen = _unique_scope(cast("str", self._default_name))
            if isinstance(chosen, VariableScope):
                names = None
            with _open(chosen, self._reuse, names, self._options) as scope:
                yield scope

    def _names(self, graph: Graph) -> AbstractContextManager[str | None]:
        """The name scope that goes with the variable scope; the root has none."""
        chosen = self._name_or_scope
        if chosen is None:
            chosen = self._default_name
        name = chosen.name.split("/")[-1] if isinstance(chosen, VariableScope) else chosen
        if not name:
            return nullcontext("")
        if not self._auxiliary:
            current = graph.get_name_scope()
            return graph.name_scope(f"{current}/" if current else None)
        return graph.name_scope(name)


def pure_variable_scope(
    name_or_scope: str | VariableScope,
    reuse: Any = None,
    old_name_scope: str | None = None,
    **defaults: Any,
) -> AbstractContextManager[VariableScope]:
    """A variable scope that opens no name scope."""
    return _open(name_or_scope, reuse, old_name_scope, defaults)


@contextmanager
def function_scope(counts: dict[str, int] | None) -> Generator[dict[str, int]]:
    """The variable scope of a trace of a function.

    The first trace runs in the caller's scope and returns its counts. Later traces start from these
    counts, so that the same names are generated and refer to the same variables.
    """
    scopes = _scopes()
    if counts is None:
        yield dict(scopes.counts)
        return
    saved, scopes.counts = scopes.counts, dict(counts)
    try:
        with variable_scope(scopes.current, reuse=AUTO_REUSE, auxiliary_name_scope=False):
            yield counts
    finally:
        scopes.counts = saved


@public("variable_op_scope")
def variable_op_scope(
    values: Sequence[Any],
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    initializer: InitializerLike = None,
    regularizer: Callable[[Any], Any] | None = None,
    caching_device: DeviceLike = None,
    partitioner: Callable[..., Any] | None = None,
    custom_getter: Callable[..., Any] | None = None,
    reuse: bool | ReuseMode | None = None,
    dtype: DTypeLike | None = None,
    use_resource: bool | None = None,
    constraint: Callable[[Any], Any] | None = None,
) -> variable_scope:
    """`tf.variable_scope` with its arguments in the old order."""
    return variable_scope(
        name_or_scope,
        default_name,
        values,
        initializer,
        regularizer,
        caching_device,
        partitioner,
        custom_getter,
        reuse,
        dtype,
        use_resource,
        constraint,
    )
