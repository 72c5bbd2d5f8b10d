"""Barriers: tables whose rows are inserted one component at a time and taken once complete.

A row has a key and as many components as the barrier has types. Complete rows are queued in the
order in which their keys were first inserted; `take_many` waits for enough of them.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.analysis.effects import reads
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import get_default_graph
from thalweg.graph.known import constant_input
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar, unknown_shape, vector
from thalweg.ops.core.context import Cancellation, Context
from thalweg.ops.state.queue_elements import Components, Element
from thalweg.ops.state.queue_ops import check_number
from thalweg.ops.state.queue_state import PriorityQueue
from thalweg.ops.state.queues import shape_list, type_list
from thalweg.platform.arrays import Array
from thalweg.platform.forks import renewed_after_fork

_FIRST_INDEX = -(2**63)

# State


class _Row:
    """An incomplete row."""

    def __init__(self, index: int, width: int) -> None:
        self.index = index
        self.values: list[Array | None] = [None] * width


class _Ready(PriorityQueue):
    """Complete rows: (index of the first insertion with the key, key, values)."""

    kind = "Barrier"


class BarrierTable:
    """The complete and incomplete rows of a barrier."""

    made_by: object = None

    def __init__(
        self, name: str, types: tuple[DType, ...], shapes: tuple[TensorShape, ...]
    ) -> None:
        self.name = name
        self._types = types
        known = shapes or [unknown_shape()] * len(types)
        self._parts = [Components([kind], [s]) for kind, s in zip(types, known, strict=True)]
        row = Components((dtypes.int64, dtypes.string, *types), (scalar(), scalar(), *known))
        self.ready = _Ready(name, row, -1)
        self._incomplete: dict[bytes, _Row] = {}
        self._next_index = _FIRST_INDEX
        self._is_closed = False
        self._is_cancelled = False
        self.renew_locks()
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """Replace the lock by one that is not held."""
        self._lock = threading.Lock()

    @property
    def incomplete_size(self) -> int:
        """The number of incomplete rows."""
        return len(self._incomplete)

    def check_same(self, other: BarrierTable) -> None:
        """Raise unless this barrier has the attributes of `other`."""
        self.ready.check_same(other.ready)

    def insert(self, component: int, keys: list[bytes], values: Array) -> None:
        """Set a component of the rows with these keys; complete rows are queued."""
        if not 0 <= component < len(self._types):
            raise errors.invalid(f"The component ID is out of range {component} > num_components")
        parts = self._parts[component].elements([values])
        if len(keys) != len(parts):
            raise errors.invalid(f"{len(keys)} keys were given for {len(parts)} values")
        if keys and not values.size:
            raise errors.invalid(
                "Tensors with no elements are not supported: received shape "
                f"{list(values.shape)} for component {component}"
            )
        with self._lock:
            self._check_open(keys)
            has_new = any(key not in self._incomplete for key in keys)
            complete = [
                row
                for key, (value,) in zip(keys, parts, strict=True)
                if (row := self._set(key, component, value)) is not None
            ]
            self._next_index += has_new
            self.ready.put(complete)
            if self._is_closed and not self._incomplete:
                self.ready.close_now()

    def _check_open(self, keys: list[bytes]) -> None:
        if self._is_cancelled:
            raise errors.CancelledError(None, None, f"Barrier '{self.name}' is closed.")
        new = [key for key in keys if key not in self._incomplete] if self._is_closed else []
        if new:
            raise errors.CancelledError(
                None,
                None,
                f"Barrier '{self.name}' is closed, but attempted to insert a brand new key: "
                f"{new[0].decode(errors='replace')}",
            )

    def _set(self, key: bytes, component: int, value: Array) -> Element | None:
        """Set one component; returns the row if it is now complete."""
        row = self._incomplete.get(key)
        if row is None:
            row = self._incomplete[key] = _Row(self._next_index, len(self._types))
        if row.values[component] is not None:
            raise errors.invalid(
                f"Key {key.decode(errors='replace')} already has a value for component "
                f"{component} in barrier {self.name}"
            )
        row.values[component] = value
        values = [other for other in row.values if other is not None]
        if len(values) < len(row.values):
            return None
        del self._incomplete[key]
        return np.array(row.index, np.int64), np.array(key, object), *values

    def take(
        self, wanted: int, allows_fewer: bool, cancellation: Cancellation, limit: float
    ) -> tuple[Any, ...]:
        """Remove complete rows and batch them; blocks until there are enough."""
        with self._lock:
            number = self._remaining(wanted, allows_fewer) if self._is_closed else wanted
        return self.ready.dequeue_many(number, allows_fewer, cancellation, limit)

    def _remaining(self, wanted: int, allows_fewer: bool) -> int:
        """The number of rows to take from a closed barrier: ready ones and, unless fewer are
        allowed, those that may still be completed. Raises if there are too few."""
        total = len(self.ready) + (0 if allows_fewer else len(self._incomplete))
        number = min(wanted, total) if allows_fewer else wanted
        if total < max(number, 1):
            raise errors.OutOfRangeError(
                None,
                None,
                f"Barrier '{self.name}' is closed and has insufficient elements "
                f"(requested {wanted}, total size {total})",
            )
        return number

    def close(self, cancels: bool) -> None:
        """Reject new keys; with `cancels`, all insertions."""
        with self._lock:
            if self._is_closed and (self._is_cancelled or not cancels):
                raise errors.CancelledError(None, None, f"Barrier '{self.name}' is already closed.")
            self._is_closed, self._is_cancelled = True, cancels
            if cancels:
                self._incomplete.clear()
            if not self._incomplete:
                self.ready.close_now()


# Ops


class BarrierOp(Op, abstract=True):
    """An op on a barrier."""

    stateful = True
    not_differentiable = True
    host_only = True


class BarrierHandle(BarrierOp, name="Barrier"):
    """A reference to one of the session's barriers"""

    signature = "-> handle: &string"
    component_types: tuple[DType, ...]
    shapes: tuple[TensorShape, ...] = ()
    capacity: int = -1
    container: str = ""
    shared_name: str = ""

    def shape(self) -> TensorShape:
        return vector(2)

    def make(self, name: str) -> BarrierTable:
        """A new barrier of this kind."""
        table = BarrierTable(name, self.component_types, self.shapes)
        table.made_by = self
        return table

    def kernel(self, context: Context) -> BarrierTable:
        name = self.shared_name or context.node.name
        result: Any = context.resource(name, self.container, lambda: self.make(name))
        if not isinstance(result, BarrierTable):
            raise errors.invalid(f"'{name}' is a {type(result).__name__}, not a barrier")
        if result.made_by is not self:
            result.check_same(self.make(name))
        return result


class BarrierInsertMany(BarrierOp):
    """Sets a component of the rows with the given keys."""

    signature = "handle: &string, keys: string, values: T ->"
    component_index: int

    def shape(self, handle: Tensor, keys: Tensor, values: Tensor) -> list[TensorShape]:
        keys.shape.with_rank(1)[0].merge_with(values.shape.with_rank_at_least(1)[0])
        return []

    def kernel(
        self, context: Context, handle: BarrierTable, keys: Array, values: Array
    ) -> tuple[()]:
        handle.insert(self.component_index, np.ravel(keys).tolist(), np.asarray(values))
        return ()


class BarrierTakeMany(BarrierOp):
    """Removes complete rows and batches them."""

    signature = (
        "handle: &string, num_elements: int32 "
        "-> indices: int64, keys: string, values: [component_types]"
    )
    blocking = True
    component_types: tuple[DType, ...]
    allow_small_batch: bool = False
    wait_for_incomplete: bool = False
    timeout_ms: int = -1

    def shape(self, handle: Tensor, num_elements: Tensor) -> list[Any]:
        check_number(num_elements)
        return [unknown_shape(), unknown_shape(), [unknown_shape()] * len(self.component_types)]

    def kernel(self, context: Context, handle: BarrierTable, num_elements: Array) -> list[Any]:
        limit = self.timeout_ms / 1000 if self.timeout_ms >= 0 else -1
        wanted = int(num_elements)
        return list(handle.take(wanted, self.allow_small_batch, context.cancellation, limit))


class BarrierClose(BarrierOp):
    """Closes a barrier: new keys are rejected."""

    signature = "handle: &string ->"
    cancel_pending_enqueues: bool = False

    def shape(self, handle: Tensor) -> list[TensorShape]:
        return []

    def kernel(self, context: Context, handle: BarrierTable) -> tuple[()]:
        handle.close(self.cancel_pending_enqueues)
        return ()


class BarrierReadySize(BarrierOp):
    """The number of complete rows."""

    signature = "handle: &string -> size: int32"
    effects = (reads("handle"),)

    def shape(self, handle: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, handle: BarrierTable) -> Any:
        return np.int32(len(handle.ready))


class BarrierIncompleteSize(BarrierOp):
    """The number of incomplete rows."""

    signature = "handle: &string -> size: int32"
    effects = (reads("handle"),)

    def shape(self, handle: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, handle: BarrierTable) -> Any:
        return np.int32(handle.incomplete_size)


# The Python class


class Barrier:
    """A table of rows by key, which are filled component by component and taken once complete."""

    def __init__(
        self, types: Any, shapes: Any = None, shared_name: str | None = None, name: str = "barrier"
    ) -> None:
        self._types = type_list(types)
        self._shapes = shape_list(shapes) or [unknown_shape() for _ in self._types]
        for index, shape in enumerate(self._shapes):
            if shape.num_elements() == 0:
                raise ValueError(
                    f"Empty tensors are not supported, but received shape '{shape}' at index "
                    f"{index}"
                )
        handle = BarrierHandle(
            component_types=tuple(self._types),
            shapes=tuple(self._shapes),
            container=get_default_graph().container_name,
            shared_name=shared_name or "",
        )
        self._barrier_ref: Tensor = handle(name=name)
        self._name = self._barrier_ref.op.name.split("/")[-1]

    @property
    def barrier_ref(self) -> Tensor:
        """The reference to the barrier."""
        return self._barrier_ref

    @property
    def name(self) -> str:
        """The name of the node that produces the reference."""
        return self._barrier_ref.op.name

    def insert_many(
        self, component_index: int, keys: Any, values: Any, name: str | None = None
    ) -> Node:
        """Set a component of the rows with these keys."""
        insert = BarrierInsertMany(component_index=component_index)
        return insert(
            self._barrier_ref,
            convert_to_tensor(keys, dtypes.string),
            convert_to_tensor(values, self._types[component_index]),
            name=name or f"{self._name}_BarrierInsertMany",
        )

    def take_many(
        self,
        num_elements: Any,
        allow_small_batch: bool = False,
        timeout: int | None = None,
        name: str | None = None,
    ) -> Any:
        """Remove complete rows: (indices, keys, values). Waits until there are enough.

        With `allow_small_batch`, a closed barrier may return fewer; `timeout` is in milliseconds.
        """
        take = BarrierTakeMany(
            component_types=tuple(self._types),
            allow_small_batch=allow_small_batch,
            timeout_ms=-1 if timeout is None else timeout,
        )
        taken = take(self._barrier_ref, num_elements, name=name or f"{self._name}_BarrierTakeMany")
        known = None if allow_small_batch else constant_input(taken[0], 1)
        batch = vector(None if known is None else int(known))
        taken.indices.set_shape(batch)
        taken.keys.set_shape(batch)
        for tensor, shape in zip(taken.values, self._shapes, strict=True):
            tensor.set_shape(batch.concatenate(shape))
        return taken

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Node:
        """Reject new keys; with `cancel_pending_enqueues`, also components of existing ones."""
        close = BarrierClose(cancel_pending_enqueues=cancel_pending_enqueues)
        return close(self._barrier_ref, name=name or f"{self._name}_BarrierClose")

    def ready_size(self, name: str | None = None) -> Tensor:
        """The number of complete rows."""
        return BarrierReadySize()(self._barrier_ref, name=name or f"{self._name}_BarrierReadySize")

    def incomplete_size(self, name: str | None = None) -> Tensor:
        """The number of incomplete rows."""
        name = name or f"{self._name}_BarrierIncompleteSize"
        return BarrierIncompleteSize()(self._barrier_ref, name=name)
