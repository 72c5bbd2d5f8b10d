"""The variables of `get_variable` in a graph, by full name: created on first request, then shared.

A `Request` describes a variable; the store finds it, or creates it and applies its regularizer. A
request with a partitioner gives a `PartitionedVariable`, whose parts are stored too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from thalweg.graph import dtypes
from thalweg.graph.collections import GraphKeys
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.ops.arrays import slicing
from thalweg.platform.caches import memoized
from thalweg.public import publish_value
from thalweg.variables.initializers import GlorotUniform, Initializer, Zeros
from thalweg.variables.partitioned import PartitionedVariable, PartitionInfo, slice_plan
from thalweg.variables.save_slice import SaveSliceInfo
from thalweg.variables.variable import Variable, VariableAggregation, VariableSynchronization


class ReuseMode:
    """The type of `AUTO_REUSE`."""

    def __repr__(self) -> str:
        return "tf.AUTO_REUSE"


#: Reuse a variable if it exists, else create it.
AUTO_REUSE = ReuseMode()
publish_value("AUTO_REUSE", AUTO_REUSE)


@dataclass(frozen=True)
class Request:
    """The arguments of `get_variable`, completed with the defaults of the scope."""

    name: str
    shape: Any = None
    dtype: Any = dtypes.float32
    initializer: Any = None
    regularizer: Callable[[Any], Any] | None = None
    reuse: Any = None
    trainable: bool | None = None
    collections: Any = None
    caching_device: Any = None
    partitioner: Callable[..., Any] | None = None
    validate_shape: bool = True
    use_resource: bool | None = None
    constraint: Callable[[Any], Any] | None = None
    synchronization: Any = VariableSynchronization.AUTO
    aggregation: Any = VariableAggregation.NONE

    def arguments(self) -> dict[str, Any]:
        """The fields as keyword arguments of a custom getter."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class VariableStore:
    """The named variables of one graph."""

    def __init__(self) -> None:
        self._vars: dict[str, Variable] = {}
        self._partitioned: dict[str, PartitionedVariable] = {}

    def get(self, request: Request, custom_getter: Callable[..., Any] | None = None) -> Any:
        """The variable of a request, through the custom getter if there is one."""
        if custom_getter is None:
            return self._get(request)
        if not callable(custom_getter):
            raise ValueError(f"Passed a custom_getter which is not callable: {custom_getter}")
        if request.trainable is None:  # getters ask for a bool
            on_read = request.synchronization == VariableSynchronization.ON_READ
            request = replace(request, trainable=not on_read)
        arguments = _accepted(custom_getter, request.arguments())
        return custom_getter(getter=self.get_variable, **arguments)

    def get_variable(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The variable with a name; the other arguments are the fields of a `Request`."""
        names = [field.name for field in fields(Request)][1:]
        return self._get(Request(name, **dict(zip(names, args, strict=False)), **kwargs))

    def _get(self, request: Request) -> Any:
        if request.partitioner is not None and not _is_scalar(request.shape):
            if not callable(request.partitioner):
                raise ValueError(
                    f"Partitioner must be callable, but received: {request.partitioner}"
                )
            with get_default_graph().name_scope(None):
                return self.get_partitioned(request)
        if request.reuse and request.partitioner is None and request.name in self._partitioned:
            return self.get_partitioned(request)
        if f"{request.name}/part_0" in self._vars:
            raise ValueError(
                "No partitioner was provided, but a partitioned version of the variable was "
                f"found: {request.name}/part_0. Perhaps a variable of the same name was already "
                "created with partitioning?"
            )
        return self._get_single(request)

    # One buffer

    def _get_single(self, request: Request, partition: PartitionInfo | None = None) -> Variable:
        name, initializer = request.name, request.initializer
        from_value = initializer is not None and not callable(initializer)
        if request.shape is not None and from_value:
            raise ValueError(
                f"If initializer is a constant, do not specify shape: variable {name} takes the "
                "shape of its initializer."
            )
        shape, dtype = as_shape(request.shape), as_dtype(request.dtype).base_dtype
        existing = self._vars.get(name)
        if existing is not None:
            _check_reuse(existing, name, shape, dtype, request.reuse)
            return existing
        if request.reuse is True:
            raise _missing(f"Variable {name}")
        variable = self._make(request, shape, dtype, partition)
        self._vars[name] = variable
        _regularize(variable, request)
        return variable

    def _make(
        self, request: Request, shape: TensorShape, dtype: DType, partition: PartitionInfo | None
    ) -> Variable:
        value, value_dtype = request.initializer, None
        if value is None or callable(value):
            value, value_dtype = _initial_value(request, shape, dtype, partition)
        return Variable(
            value,
            name=request.name,
            trainable=request.trainable,
            collections=request.collections,
            caching_device=request.caching_device,
            dtype=value_dtype,
            validate_shape=request.validate_shape,
            constraint=request.constraint,
            use_resource=request.use_resource,
            synchronization=request.synchronization,
            aggregation=request.aggregation,
        )

    # Several

    def get_partitioned(self, request: Request) -> PartitionedVariable:
        """The partitioned variable of a request."""
        name, initializer = request.name, request.initializer
        if name in self._vars:
            raise ValueError(
                "A partitioner was provided, but an unpartitioned version of the variable was "
                f"found: {name}. Perhaps a variable of the same name was already created without "
                "partitioning?"
            )
        shape = as_shape(request.shape)
        if isinstance(initializer, Tensor):
            shape = shape.merge_with(initializer.shape)
        partitions = _partitions(request, shape)
        existing = self._partitioned.get(name)
        if existing is not None:
            _check_partitioned_reuse(existing, request, shape, partitions)
            return existing
        if request.reuse is True:
            raise _missing(f"PartitionedVariable {name}")
        if partitions is None:
            raise ValueError(f"No partitioner was specified for {name}")
        self._check_parts(name, shape, partitions)
        parts = self._parts(request, shape, partitions)
        dtype = as_dtype(request.dtype)
        variable = PartitionedVariable(name, shape.whole or (), dtype, parts, partitions)
        self._partitioned[name] = variable
        return variable

    def _check_parts(self, name: str, shape: TensorShape, partitions: Sequence[int]) -> None:
        axis = slice_plan(cast("list[int]", shape.as_list()), partitions)[0]
        count = partitions[axis]
        if f"{name}/part_0" not in self._vars:
            return
        for extra, exists in ((count - 1, False), (count, True)):
            if (f"{name}/part_{extra}" in self._vars) is exists:
                state = "was the extra shard" if exists else "was not"
                raise ValueError(
                    "Partitioner returned a different partitioning than what was already found. "
                    f"Partitioner returned {count} shards, and shard {name}/part_0 was found, but "
                    f"{name}/part_{extra} {state}."
                )

    def _parts(
        self, request: Request, shape: TensorShape, partitions: Sequence[int]
    ) -> list[Variable]:
        graph = get_default_graph()
        full = cast("list[int]", shape.as_list())
        parts: list[Variable] = []
        for index, (offset, size) in enumerate(slice_plan(full, partitions)[1]):
            name = f"{request.name}/part_{index}"
            with graph.name_scope(f"{name}/PartitionedInitializer"):
                part = _part_request(request, name, offset, size)
            with graph.name_scope(None):
                variable = self._get_single(part, PartitionInfo(full, offset))
            variable._set_save_slice_info(  # pyright: ignore[reportPrivateUsage] - as TensorFlow's savers know it
                SaveSliceInfo(request.name, full, offset, size)
            )
            parts.append(variable)
        return parts


def _missing(variable: str) -> ValueError:
    return ValueError(
        f"{variable} does not exist, or was not created with tf.get_variable(). Did you mean to "
        "set reuse=None in VarScope (or reuse=tf.AUTO_REUSE)?"
    )


def _is_scalar(shape: Any) -> bool:
    return shape is not None and as_shape(shape).rank == 0


def _accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a custom getter accepts: older getters lack newer ones."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return arguments
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}


def _check_reuse(
    existing: Variable, name: str, shape: TensorShape, dtype: DType, reuse: Any
) -> None:
    if reuse is False:
        raise ValueError(
            f"Variable {name} already exists, disallowed. Did you mean to set reuse=True in "
            f"VarScope (or reuse=tf.AUTO_REUSE)? Originally defined at:\n\n  {existing.op.origin}"
        )
    pairs: list[tuple[str, bool, Any, Any]] = [
        ("shape", shape.is_compatible_with(existing.shape), shape, existing.shape),
        ("dtype", dtype.is_compatible_with(existing.dtype), dtype.name, existing.dtype.name),
    ]
    for what, fits, specified, found in pairs:
        if not fits:
            raise ValueError(
                f"Trying to share variable {existing.op.name}, but specified {what} {specified} "
                f"and found {what} {found}. It was made at {existing.op.origin}"
            )


def _regularize(variable: Variable, request: Request) -> None:
    if not request.regularizer:
        return
    graph = variable.graph
    with graph.colocate_with(variable.op), graph.name_scope(f"{request.name}/Regularizer/"):
        loss = request.regularizer(variable)
    if loss is not None:
        graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)


def _initial_value(
    request: Request, shape: TensorShape, dtype: DType, partition: PartitionInfo | None
) -> tuple[Callable[[], Any], DType | None]:
    """A function that creates the initial value, and the value's dtype."""
    make: Callable[..., Any] = request.initializer or _default_initializer(dtype)
    if inspect.isclass(make):
        make = cast("Callable[..., Any]", make())
    if shape.is_fully_defined():
        sizes = shape.as_list()
        options = {"partition_info": partition} if _takes(make, "partition_info") else {}
        return lambda: make(sizes, dtype=dtype, **options), dtype
    if _needs_no_argument(make):
        return make, None
    raise ValueError(
        f"Shape of a new variable ({request.name}) must be fully defined, but instead was {shape}."
    )


def _default_initializer(dtype: DType) -> Callable[..., Any]:
    if dtype.is_floating:
        return GlorotUniform()
    if dtype.is_integer or dtype.is_bool:
        return Zeros()
    raise ValueError(f"An initializer is required for variables of dtype {dtype.name}")


def _takes(function: Callable[..., Any], name: str) -> bool:
    if isinstance(function, Initializer):
        return _class_takes(type(function), name)
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@memoized(1_000)
def _class_takes(initializer: type[Initializer], name: str) -> bool:
    return _takes(initializer.__call__, name)


def _needs_no_argument(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return all(p.default is not p.empty for p in parameters)


def _partitions(request: Request, shape: TensorShape) -> list[int] | None:
    """The partitioner's result for a shape; None if the request has no partitioner."""
    if request.partitioner is None:
        return None
    if not shape.is_fully_defined():
        raise ValueError(
            f"Shape of a new partitioned variable ({request.name}) must be fully defined, but "
            f"instead was {shape}."
        )
    if not shape.rank:
        raise ValueError(f"A partitioned Variable must have rank at least 1, shape: {shape}")
    partitions = request.partitioner(shape=shape, dtype=request.dtype)
    if not isinstance(partitions, Sequence):
        raise ValueError(f"Partitioner must return a sequence, but saw: {partitions}")
    counts = [int(count) for count in cast("Sequence[Any]", partitions)]
    if len(counts) != shape.rank:
        raise ValueError(
            "Partitioner returned a partition list that does not match the Variable's rank: "
            f"{counts} vs. {shape}"
        )
    if any(count < 1 for count in counts):
        raise ValueError(f"Partitioner returned zero partitions for some axes: {counts}")
    return counts


def _check_partitioned_reuse(
    existing: PartitionedVariable,
    request: Request,
    shape: TensorShape,
    partitions: list[int] | None,
) -> None:
    if request.reuse is False:
        raise ValueError(
            f"Partitioned variable with name {request.name} already exists. Did you mean to set "
            f"reuse=True in VarScope (or reuse=tf.AUTO_REUSE)? It was made at {existing.origin}"
        )
    dtype, counts = as_dtype(request.dtype), existing.partitions
    pairs: list[tuple[str, bool, Any, Any]] = [
        ("shape", shape.is_compatible_with(existing.shape), shape, existing.shape),
        ("dtype", dtype.is_compatible_with(existing.dtype), dtype.name, existing.dtype.name),
        ("partitions", partitions in (None, counts), partitions, counts),
    ]
    for what, fits, specified, found in pairs:
        if not fits:
            raise ValueError(
                f"Trying to reuse partitioned variable {request.name}, but specified {what} "
                f"{specified} and found {what} {found}."
            )


def _part_request(request: Request, name: str, offset: list[int], size: list[int]) -> Request:
    initializer = request.initializer
    part = replace(request, name=name, partitioner=None, shape=None)
    if initializer is None or callable(initializer):
        return replace(part, shape=size)
    value = convert_to_tensor(
        initializer, None if isinstance(initializer, Tensor) else request.dtype
    )
    value = slicing.slice(value, offset, size)
    return replace(part, initializer=value, dtype=value.dtype.base_dtype)
