"""Queue ops: handles of a session's queues, and operations on them.

Handles flow along reference edges, as in TensorFlow's first graphs; the ops named V2 do the same
with resource handles, for imported graphs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.analysis.effects import reads
from thalweg.graph.dtypes import DType, int64
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar, unknown_shape, vector
from thalweg.ops.core.context import Context
from thalweg.ops.core.waiting import Done
from thalweg.ops.state import queue_state
from thalweg.ops.state.queue_elements import Components
from thalweg.ops.state.queue_state import Put, Queue, Take
from thalweg.platform.arrays import Array


class QueueHandle(Op, abstract=True):
    """A reference to a queue of the session."""

    signature = "-> handle: &string"
    stateful = True
    not_differentiable = True
    host_only = True
    component_types: tuple[DType, ...]
    shapes: tuple[TensorShape, ...] = ()
    capacity: int = -1
    container: str = ""
    shared_name: str = ""

    def shape(self) -> TensorShape:
        return vector(2)

    def make(self, name: str) -> Queue:
        """A new queue of this kind."""
        raise TypeError(f"{type(self).__name__} must define make")

    def kernel(self, context: Context) -> Queue:
        name = self.shared_name or context.node.name
        result: Any = context.resource(
            name, self.container, lambda: self._create(name, context.node)
        )
        if not isinstance(result, Queue):
            raise errors.invalid(f"'{name}' is a {type(result).__name__}, not a queue")
        if result.made_by is not self:
            result.check_same(self.make(name))
        return result

    def _create(self, name: str, node: Node) -> Queue:
        queue = self.make(name)
        queue.made_by, queue.origin = self, node.origin
        return queue


class FIFOQueueOp(QueueHandle, name="FIFOQueue"):
    """A reference to a queue whose elements are first in, first out."""

    def make(self, name: str) -> Queue:
        components = Components(self.component_types, self.shapes)
        return queue_state.FIFOQueue(name, components, self.capacity)


class FIFOQueueV2(FIFOQueueOp):
    """As FIFOQueue, by a resource handle."""

    signature = "-> handle: resource"

    def shape(self) -> TensorShape:
        return scalar()


class PaddingFIFOQueueOp(QueueHandle, name="PaddingFIFOQueue"):
    """A reference to a queue whose batches are padded with zeros."""

    def make(self, name: str) -> Queue:
        components = Components(self.component_types, self.shapes)
        return queue_state.PaddingFIFOQueue(name, components, self.capacity)


class PaddingFIFOQueueV2(PaddingFIFOQueueOp):
    """As PaddingFIFOQueue, by a resource handle."""

    signature = "-> handle: resource"

    def shape(self) -> TensorShape:
        return scalar()


class RandomShuffleQueueOp(QueueHandle, name="RandomShuffleQueue"):
    """A reference to a queue whose elements are dequeued in random order."""

    min_after_dequeue: int = 0
    seed: int = 0
    seed2: int = 0

    def make(self, name: str) -> Queue:
        components = Components(self.component_types, self.shapes)
        seeds = self.seed, self.seed2
        return queue_state.RandomShuffleQueue(
            name, components, self.capacity, self.min_after_dequeue, seeds
        )


class RandomShuffleQueueV2(RandomShuffleQueueOp):
    """As RandomShuffleQueue, by a resource handle."""

    signature = "-> handle: resource"

    def shape(self) -> TensorShape:
        return scalar()


class PriorityQueueOp(QueueHandle, name="PriorityQueue"):
    """A reference to a queue whose elements are ordered by their first component."""

    component_types: tuple[DType, ...] = ()

    def make(self, name: str) -> Queue:
        shapes = self.shapes or [unknown_shape()] * len(self.component_types)
        components = Components((int64, *self.component_types), (scalar(), *shapes))
        return queue_state.PriorityQueue(name, components, self.capacity)


class PriorityQueueV2(PriorityQueueOp):
    """As PriorityQueue, by a resource handle."""

    signature = "-> handle: resource"

    def shape(self) -> TensorShape:
        return scalar()


# Operations


class QueueOp(Op, abstract=True):
    """An op on a queue."""

    stateful = True
    not_differentiable = True
    host_only = True


class WaitingQueueOp(QueueOp, abstract=True):
    """An op on a queue that may block."""

    blocking = True
    timeout_ms: int = -1

    @property
    def limit(self) -> float:
        """The timeout in seconds; -1 for none."""
        return self.timeout_ms / 1000 if self.timeout_ms >= 0 else -1

    @property
    def can_start(self) -> bool:
        """Whether it needs no thread: one with a timeout does."""
        return self.timeout_ms < 0


class QueueEnqueue(WaitingQueueOp):
    """Adds an element."""

    signature = "handle: &string, components: [Tcomponents] ->"

    def shape(self, handle: Tensor, components: list[Tensor]) -> list[TensorShape]:
        return []

    def kernel(self, context: Context, handle: Queue, components: list[Array]) -> tuple[()]:
        handle.enqueue(components, context.cancellation, self.limit)
        return ()

    def start(self, context: Context, done: Done, handle: Queue, components: list[Array]) -> None:
        request = Put([handle.components.element(components)])
        handle.start(request, context.cancellation, lambda error: done((), error))


class QueueEnqueueV2(QueueEnqueue):
    """As QueueEnqueue, by a resource handle."""

    signature = "handle: resource, components: [Tcomponents] ->"


class QueueEnqueueMany(WaitingQueueOp):
    """Adds an element for each row of the components."""

    signature = "handle: &string, components: [Tcomponents] ->"

    def shape(self, handle: Tensor, components: list[Tensor]) -> list[TensorShape]:
        return []

    def kernel(self, context: Context, handle: Queue, components: list[Array]) -> tuple[()]:
        handle.enqueue_many(components, context.cancellation, self.limit)
        return ()

    def start(self, context: Context, done: Done, handle: Queue, components: list[Array]) -> None:
        request = Put(handle.components.elements(components))
        handle.start(request, context.cancellation, lambda error: done((), error))


class QueueEnqueueManyV2(QueueEnqueueMany):
    """As QueueEnqueueMany, by a resource handle."""

    signature = "handle: resource, components: [Tcomponents] ->"


class DequeueOp(WaitingQueueOp, abstract=True):
    """Removes elements."""

    component_types: tuple[DType, ...]

    def check(self, queue: Queue) -> None:
        """Raise unless the elements of a queue are what the graph expects."""
        given = queue.components.dtypes
        if given != self.component_types:
            raise errors.invalid(
                f"The components of queue '{queue.name}' are {_names(given)}, but "
                f"{_names(self.component_types)} are expected"
            )


def _names(dtypes: tuple[DType, ...]) -> str:
    return ", ".join(dtype.name for dtype in dtypes)


class QueueDequeue(DequeueOp):
    """Removes an element."""

    signature = "handle: &string -> components: [component_types]"

    def shape(self, handle: Tensor) -> list[TensorShape]:
        return [unknown_shape()] * len(self.component_types)

    def kernel(self, context: Context, handle: Queue) -> tuple[Array, ...]:
        self.check(handle)
        return handle.dequeue(context.cancellation, self.limit)

    def start(self, context: Context, done: Done, handle: Queue) -> None:
        self.check(handle)
        request = Take(1)

        def on_done(error: BaseException | None) -> None:
            done(None if error else request.taken[0], error)

        handle.start(request, context.cancellation, on_done)


class QueueDequeueV2(QueueDequeue):
    """As QueueDequeue, by a resource handle."""

    signature = "handle: resource -> components: [component_types]"


class QueueDequeueMany(DequeueOp):
    """Removes n elements and batches them."""

    signature = "handle: &string, n: int32 -> components: [component_types]"
    fewer_at_the_end = False

    def shape(self, handle: Tensor, n: Tensor) -> list[TensorShape]:
        check_number(n)
        return [unknown_shape()] * len(self.component_types)

    def kernel(self, context: Context, handle: Queue, n: Array) -> tuple[Array, ...]:
        self.check(handle)
        wanted = _number(n, "DequeueUpToOp" if self.fewer_at_the_end else "DequeueManyOp")
        return handle.dequeue_many(wanted, self.fewer_at_the_end, context.cancellation, self.limit)


class QueueDequeueManyV2(QueueDequeueMany):
    """As QueueDequeueMany, by a resource handle."""

    signature = "handle: resource, n: int32 -> components: [component_types]"


class QueueDequeueUpTo(QueueDequeueMany):
    """As QueueDequeueMany, but takes fewer from a closed queue that has no more."""

    fewer_at_the_end = True


class QueueDequeueUpToV2(QueueDequeueUpTo):
    """As QueueDequeueUpTo, by a resource handle."""

    signature = "handle: resource, n: int32 -> components: [component_types]"


def check_number(n: Tensor) -> None:
    """Raise unless `n` is a scalar that is not known to be negative."""
    n.shape.assert_has_rank(0)
    known = constant_value(n)
    if known is not None and known < 0:
        raise ValueError(f"cannot take {known} elements from a queue")


def _number(n: Array, what: str) -> int:
    if np.ndim(n):
        raise errors.invalid(f"n must be a scalar, but has shape {np.shape(n)}")
    if n < 0:
        raise errors.invalid(f"{what} requested {n} < 0 elements")
    return int(n)


class QueueClose(QueueOp):
    """Closes a queue, after its pending enqueues or cancelling them."""

    signature = "handle: &string ->"
    blocking = True
    cancel_pending_enqueues: bool = False

    def shape(self, handle: Tensor) -> list[TensorShape]:
        return []

    def kernel(self, context: Context, handle: Queue) -> tuple[()]:
        handle.close(self.cancel_pending_enqueues, context.cancellation)
        return ()


class QueueCloseV2(QueueClose):
    """As QueueClose, by a resource handle."""

    signature = "handle: resource ->"


class QueueIsClosed(QueueOp):
    """Whether a queue is closed."""

    signature = "handle: &string -> is_closed: bool"
    effects = (reads("handle"),)

    def shape(self, handle: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, handle: Queue) -> Any:
        return np.bool_(handle.is_closed)


class QueueIsClosedV2(QueueIsClosed):
    """As QueueIsClosed, by a resource handle."""

    signature = "handle: resource -> is_closed: bool"


class QueueSize(QueueOp):
    """The number of elements of a queue"""

    signature = "handle: &string -> size: int32"
    effects = (reads("handle"),)

    def shape(self, handle: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, handle: Queue) -> Any:
        return np.int32(len(handle))


class QueueSizeV2(QueueSize):
    """As QueueSize, by a resource handle."""

    signature = "handle: resource -> size: int32"


#: The equivalent ops on resource handles.
BY_RESOURCE: dict[type[QueueOp], type[QueueOp]] = {
    QueueEnqueue: QueueEnqueueV2,
    QueueEnqueueMany: QueueEnqueueManyV2,
    QueueDequeue: QueueDequeueV2,
    QueueDequeueMany: QueueDequeueManyV2,
    QueueDequeueUpTo: QueueDequeueUpToV2,
    QueueClose: QueueCloseV2,
    QueueIsClosed: QueueIsClosedV2,
    QueueSize: QueueSizeV2,
}


class RefSelect(Op):
    """One of several references."""

    signature = "index: int32, inputs: N*&T -> output: &T"
    effects = ()  # it only forwards a reference
    stateful = True
    not_differentiable = True
    host_only = True

    def shape(self, index: Tensor, inputs: list[Tensor]) -> TensorShape:
        index.shape.assert_has_rank(0)
        first, *others = [tensor.shape for tensor in inputs]
        return first if all(shape.sizes == first.sizes for shape in others) else unknown_shape()

    def kernel(self, context: Context, index: Array, inputs: list[Any]) -> Any:
        if not 0 <= index < len(inputs):
            raise errors.invalid(f"Index must be in the range [0, {len(inputs)}) but got {index}")
        return inputs[int(index)]
