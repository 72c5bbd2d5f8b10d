"""The public queue classes, whose methods add enqueue and dequeue nodes to the graph.

A queue keeps elements, tuples of tensors, between steps; any number of steps may add and remove
elements concurrently, and wait for each other. `queue.dequeue()` is a tensor (a list of them if
elements have several components, a dict if the components have names).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, cast

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, int64, resource
from thalweg.graph.graph import get_default_graph
from thalweg.graph.known import constant_input
from thalweg.graph.likes import DTypeLike, ShapeLike, Structure, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import get_seed, name_scope
from thalweg.graph.shapes import TensorShape, as_shape, scalar, unknown_shape, vector
from thalweg.ops.state.queue_ops import (
    BY_RESOURCE,
    FIFOQueueOp,
    PaddingFIFOQueueOp,
    PriorityQueueOp,
    QueueClose,
    QueueDequeue,
    QueueDequeueMany,
    QueueDequeueUpTo,
    QueueEnqueue,
    QueueEnqueueMany,
    QueueIsClosed,
    QueueOp,
    QueueSize,
    RandomShuffleQueueOp,
    RefSelect,
)
from thalweg.platform.described import described
from thalweg.public import public


@public("QueueBase", "io.QueueBase", "queue.QueueBase")
class QueueBase:
    """The methods of all queues; an instance may wrap a reference to a queue of any kind."""

    def __init__(
        self,
        dtypes: Sequence[DTypeLike],
        shapes: Sequence[ShapeLike] | None,
        names: Sequence[str] | None,
        queue_ref: Tensor,
    ) -> None:
        self._dtypes: list[DType] = [as_dtype(dtype) for dtype in dtypes]
        if shapes is not None and len(shapes) != len(self._dtypes):
            raise ValueError("Queue shapes must have the same length as dtypes")
        if names is not None and len(names) != len(self._dtypes):
            raise ValueError("Queue names must have the same length as dtypes")
        self._shapes: list[TensorShape] = (
            [unknown_shape() for _ in self._dtypes]
            if shapes is None
            else [as_shape(shape) for shape in shapes]
        )
        self._names = None if names is None else list(names)
        self._queue_ref = queue_ref
        self._name = queue_ref.op.name.split("/")[-1]

    def __repr__(self) -> str:
        dtypes, shapes = [dtype.name for dtype in self._dtypes], [str(s) for s in self._shapes]
        return described(
            self, self._name, dtypes=f"[{', '.join(dtypes)}]", shapes=f"[{', '.join(shapes)}]"
        )

    @staticmethod
    def from_list(index: Any, queues: Sequence[QueueBase]) -> QueueBase:
        """The queue `queues[index]`; the index is evaluated in each step."""
        if not queues or not isinstance(queues, list):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
            raise TypeError("A list of queues expected")
        if not all(isinstance(queue, QueueBase) for queue in queues):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
            raise TypeError("A list of queues expected")
        first, *others = queues
        if any(first.dtypes != queue.dtypes for queue in others):
            raise TypeError("Queues do not have matching component dtypes.")
        if any(first.names != queue.names for queue in others):
            raise TypeError("Queues do not have matching component names.")
        columns = zip(*(queue.shapes for queue in queues), strict=True)
        shapes = [reduce(TensorShape.most_specific_compatible_shape, column) for column in columns]
        chosen = RefSelect()(index, [queue.queue_ref for queue in queues])
        return QueueBase(first.dtypes, shapes, first.names, chosen)

    @property
    def queue_ref(self) -> Tensor:
        """The reference to the queue."""
        return self._queue_ref

    @property
    def name(self) -> str:
        """The name of the node that produces the reference."""
        return self._queue_ref.op.name

    @property
    def dtypes(self) -> list[DType]:
        """The dtype of each component."""
        return self._dtypes

    @property
    def shapes(self) -> list[TensorShape]:
        """The static shape of each component."""
        return self._shapes

    @property
    def names(self) -> list[str] | None:
        """The names of the components, if they have any."""
        return self._names

    def _op(self, kind: type[QueueOp], **attributes: Any) -> QueueOp:
        """An op of this kind, or its equivalent for resource handles if the queue has one."""
        is_resource = self._queue_ref.dtype is resource
        return (BY_RESOURCE[kind] if is_resource else kind)(**attributes)

    # Adding

    def enqueue(self, vals: TensorLike | Mapping[str, TensorLike], name: str | None = None) -> Node:
        """A node that adds one element; it waits while the queue is full.

        Args:
            vals: a tensor, or a list or dict with the parts of an element.
            name: the name of the node.
        """
        with name_scope(name, f"{self._name}_enqueue", _values(vals)) as scope:
            tensors = self._components(vals)
            for index, tensor in enumerate(tensors):
                self._check_shape(index, tensor.shape)
            return self._op(QueueEnqueue)(self._queue_ref, tensors, name=scope)

    def enqueue_many(
        self, vals: TensorLike | Mapping[str, TensorLike], name: str | None = None
    ) -> Node:
        """A node that adds the rows of tensors as elements; it waits while the queue is full.

        Args:
            vals: a tensor, or a list or dict of tensors with a first axis of one size.
            name: the name of the node.
        """
        with name_scope(name, f"{self._name}_EnqueueMany", _values(vals)) as scope:
            tensors = self._components(vals)
            rows = tensors[0].shape.with_rank_at_least(1)[0]
            for index, tensor in enumerate(tensors):
                rows = rows.merge_with(tensor.shape.with_rank_at_least(1)[0])
                self._check_shape(index, tensor.shape[1:])
            return self._op(QueueEnqueueMany)(self._queue_ref, tensors, name=scope)

    def _check_shape(self, place: int, shape: TensorShape) -> None:
        if not shape.is_compatible_with(self._shapes[place]):
            raise ValueError(
                f"Shapes {shape} and {self._shapes[place]} are incompatible: component {place} of "
                f"queue '{self._name}' has the latter"
            )

    def _components(self, vals: Any) -> list[Tensor]:
        """The values to enqueue, as one tensor per component."""
        values = self._in_order(vals)
        if len(values) != len(self._dtypes):
            raise ValueError(
                f"The elements of queue '{self._name}' have {len(self._dtypes)} components, but "
                f"{len(values)} were given"
            )
        return [
            convert_to_tensor(value, dtype, name=f"component_{index}")
            for index, (value, dtype) in enumerate(zip(values, self._dtypes, strict=True))
        ]

    def _in_order(self, vals: Any) -> Sequence[Any]:
        if not isinstance(vals, Mapping):
            if self._names:
                raise ValueError("You must enqueue a dictionary in a Queue with names")
            return _values(vals)
        if not self._names:
            raise ValueError("Queue must have names to enqueue a dictionary")
        named = cast("Mapping[str, Any]", vals)
        if sorted(self._names) != sorted(named):
            raise ValueError(
                "Keys in dictionary to enqueue do not match names of Queue.  Dictionary: "
                f"({sorted(named)}), Queue: ({sorted(self._names)})"
            )
        return [named[name] for name in self._names]

    # Removing

    def dequeue(self, name: str | None = None) -> Structure:
        """One element, taken out of the queue; a step waits while it is empty.

        Args:
            name: the name of the node.

        Raises:
            OutOfRangeError: when the queue is closed and empty.
        """
        take = self._op(QueueDequeue, component_types=tuple(self._dtypes))
        return self._taken(
            take(self._queue_ref, name=name or f"{self._name}_Dequeue"), TensorShape([])
        )

    def dequeue_many(self, n: TensorLike, name: str | None = None) -> Structure:
        """Several elements, stacked; a step waits until there are `n`.

        Args:
            n: the number of elements.
            name: the name of the node.

        Raises:
            OutOfRangeError: when the queue is closed and has fewer.
        """
        take = self._op(QueueDequeueMany, component_types=tuple(self._dtypes))
        tensors = take(self._queue_ref, n, name=name or f"{self._name}_DequeueMany")
        known = constant_input(tensors[0], 1)
        return self._taken(tensors, vector(None if known is None else int(known)))

    def dequeue_up_to(self, n: TensorLike, name: str | None = None) -> Structure:
        """Remove n elements, or all that a closed queue still has, and stack them."""
        take = self._op(QueueDequeueUpTo, component_types=tuple(self._dtypes))
        tensors = take(self._queue_ref, n, name=name or f"{self._name}_DequeueUpTo")
        return self._taken(tensors, vector(None))

    def _taken(self, tensors: list[Tensor], batch: TensorShape) -> Any:
        for tensor, shape in zip(tensors, self._shapes, strict=True):
            tensor.set_shape(batch.concatenate(shape))
        if self._names:
            return dict(zip(self._names, tensors, strict=True))
        return tensors[0] if len(tensors) == 1 else tensors

    # Closing and state

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Node:
        """Reject later enqueues; pending ones complete first, or are cancelled."""
        close = self._op(QueueClose, cancel_pending_enqueues=cancel_pending_enqueues)
        return close(self._queue_ref, name=name or f"{self._name}_Close")

    def is_closed(self, name: str | None = None) -> Tensor:
        """Whether the queue is closed."""
        return self._op(QueueIsClosed)(self._queue_ref, name=name or f"{self._name}_Is_Closed")

    def size(self, name: str | None = None) -> Tensor:
        """The number of elements of the queue."""
        return self._op(QueueSize)(self._queue_ref, name=name or f"{self._name}_Size")


def _values(vals: Any) -> list[Any]:
    """The components of an element given as a value, a sequence or a dict, as a list."""
    if isinstance(vals, Mapping):
        return list(cast("Mapping[str, Any]", vals).values())
    return list(cast("Sequence[Any]", vals)) if isinstance(vals, list | tuple) else [vals]


@public("FIFOQueue", "queue.FIFOQueue")
class FIFOQueue(QueueBase):
    """A queue whose elements are first in, first out.

    A step that takes from an empty queue, or adds to a full one, waits.

    Args:
        capacity: the maximum number of elements.
        dtypes: the dtype of an element, or a list with one for each part.
        shapes: the shapes of the parts; needed to take many at once.
        names: names of the parts: elements are then dicts.
        shared_name: a name to share the queue between sessions by.
        name: the name of the node.

    Example:
        >>> queue = tf.FIFOQueue(3, tf.int32, shapes=[()])
        >>> sess.run(queue.enqueue_many([[1, 2, 3]]))
        >>> sess.run(queue.dequeue()), sess.run(queue.dequeue_many(2))
        (np.int32(1), array([2, 3], dtype=int32))
    """

    def __init__(
        self,
        capacity: int,
        dtypes: DTypeLike | Sequence[DTypeLike],
        shapes: ShapeLike | Sequence[ShapeLike] = None,
        names: str | Sequence[str] | None = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        types = type_list(dtypes)
        known = shape_list(shapes)
        handle = FIFOQueueOp(**_common_attributes(types, known, capacity, shared_name))
        super().__init__(types, known, name_list(names, types), handle(name=name))


@public("RandomShuffleQueue", "io.RandomShuffleQueue", "queue.RandomShuffleQueue")
class RandomShuffleQueue(QueueBase):
    """A queue that returns elements in random order and keeps a minimum number to draw from.

    Args:
        capacity: the maximum number of elements.
        min_after_dequeue: how many must remain; a step that would leave fewer waits.
        dtypes: the dtype of an element, or a list with one for each part.
        shapes: the shapes of the parts; needed to take many at once.
        names: names of the parts: elements are then dicts.
        seed: a number that fixes the order.
        shared_name: a name to share the queue between sessions by.
        name: the name of the node.

    Example:
        >>> queue = tf.RandomShuffleQueue(10, 0, tf.int32, shapes=[()])
        >>> sess.run(queue.enqueue_many([[1, 2, 3]]))
        >>> sorted(sess.run(queue.dequeue_many(3)).tolist())
        [1, 2, 3]
    """

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: DTypeLike | Sequence[DTypeLike],
        shapes: ShapeLike | Sequence[ShapeLike] = None,
        names: str | Sequence[str] | None = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str = "random_shuffle_queue",
    ) -> None:
        types = type_list(dtypes)
        known = shape_list(shapes)
        first, second = _shuffle_seeds(seed, shared_name)
        handle = RandomShuffleQueueOp(
            **_common_attributes(types, known, capacity, shared_name),
            min_after_dequeue=min_after_dequeue,
            seed=first,
            seed2=second,
        )
        super().__init__(types, known, name_list(names, types), handle(name=name))


def _shuffle_seeds(seed: int | None, shared_name: str | None) -> tuple[int, int]:
    """The seeds of a queue; a shared queue has the same seeds in all graphs of one seed."""
    first, second = get_seed(seed)
    if first is None or second is None:
        return 0, 0
    if seed is None and shared_name is not None:
        digest = hashlib.md5(f"{first}{shared_name}".encode(), usedforsecurity=False)
        second = int(digest.hexdigest()[:8], 16) & 0x7FFFFFFF
    return first, second


@public("PaddingFIFOQueue", "io.PaddingFIFOQueue", "queue.PaddingFIFOQueue")
class PaddingFIFOQueue(QueueBase):
    """A FIFOQueue whose elements may vary in size: batches are padded with zeros.

    Args:
        capacity: the maximum number of elements.
        dtypes: the dtype of an element, or a list with one for each part.
        shapes: the shapes of the parts, with None for sizes that vary.
        names: names of the parts: elements are then dicts.
        shared_name: a name to share the queue between sessions by.
        name: the name of the node.

    Example:
        >>> queue = tf.PaddingFIFOQueue(2, tf.int32, shapes=[[None]])
        >>> for value in ([1], [2, 3]):
        ...     sess.run(queue.enqueue([value]))
        >>> sess.run(queue.dequeue_many(2))
        array([[1, 0],
               [2, 3]], dtype=int32)
    """

    def __init__(
        self,
        capacity: int,
        dtypes: DTypeLike | Sequence[DTypeLike],
        shapes: ShapeLike | Sequence[ShapeLike],
        names: str | Sequence[str] | None = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        types = type_list(dtypes)
        known = _partial_shape_list(shapes)
        if len(types) != len(known):
            raise ValueError(
                "Shapes must be provided for all components, but received "
                f"{len(types)} dtypes and {len(known)} shapes."
            )
        handle = PaddingFIFOQueueOp(**_common_attributes(types, known, capacity, shared_name))
        super().__init__(types, known, name_list(names, types), handle(name=name))


@public("PriorityQueue", "io.PriorityQueue", "queue.PriorityQueue")
class PriorityQueue(QueueBase):
    """A queue that returns the element with the smallest priority first.

    The priority is an additional first component of int64, before those that `types` declares.
    """

    def __init__(
        self,
        capacity: int,
        types: DTypeLike | Sequence[DTypeLike],
        shapes: ShapeLike | Sequence[ShapeLike] = None,
        names: str | Sequence[str] | None = None,
        shared_name: str | None = None,
        name: str = "priority_queue",
    ) -> None:
        others = type_list(types)
        known = shape_list(shapes)
        handle = PriorityQueueOp(**_common_attributes(others, known, capacity, shared_name))
        all_types = [int64, *others]
        all_shapes = [scalar(), *(known or [unknown_shape()] * len(others))]
        super().__init__(all_types, all_shapes, name_list(names, all_types), handle(name=name))


# Arguments


def _common_attributes(
    types: Sequence[DType],
    shapes: Sequence[TensorShape] | None,
    capacity: int,
    shared_name: str | None,
) -> dict[str, Any]:
    return {
        "component_types": tuple(types),
        "shapes": tuple(shapes or ()),
        "capacity": _integer(capacity),
        "container": get_default_graph().container_name,
        "shared_name": shared_name or "",
    }


def _integer(capacity: Any) -> int:
    try:
        return int(capacity)
    except (TypeError, ValueError):
        raise TypeError(f"The capacity of a queue is an integer, not {capacity!r}") from None


def type_list(dtypes: Any) -> list[DType]:
    """One dtype or several, as a list."""
    given = cast("Sequence[Any]", dtypes if isinstance(dtypes, list | tuple) else [dtypes])
    return [as_dtype(dtype) for dtype in given]


def name_list(names: Any, dtypes: Sequence[DType]) -> list[str] | None:
    """One name or several, as a list with one name per dtype."""
    if names is None:
        return None
    given = list(cast("Sequence[str]", names if isinstance(names, list | tuple) else [names]))
    if len(given) != len(dtypes):
        raise ValueError("List of names must have the same length as the list of dtypes")
    return given


def shape_list(shapes: Any) -> list[TensorShape] | None:
    """One shape or several, as a list; all must be fully defined."""
    if shapes is None:
        return None
    result = _shapes(shapes)
    if any(not shape.is_fully_defined() for shape in result):
        raise ValueError(f"All shapes must be fully defined: {result}")
    return result


def _partial_shape_list(shapes: Any) -> list[TensorShape]:
    if not isinstance(shapes, list | tuple) or not shapes or _is_single(cast("Any", shapes)):
        raise ValueError("When providing partial shapes, a list of shapes must be provided.")
    result = _shapes(shapes)
    if any(shape.rank is None for shape in result):
        raise ValueError(f"All shapes must have a defined rank: {result}")
    return result


def _shapes(shapes: Any) -> list[TensorShape]:
    if isinstance(shapes, TensorShape):
        return [shapes]
    if not isinstance(shapes, list | tuple):
        raise TypeError("shapes must be a TensorShape or a list or tuple of TensorShapes.")
    given = cast("Sequence[Any]", shapes)
    return [as_shape(given)] if _is_single(given) else [as_shape(shape) for shape in given]


def _is_single(shapes: Sequence[Any]) -> bool:
    """Whether a list has the sizes of one shape; an empty list is the shape of a scalar."""
    return all(size is None or isinstance(size, int) for size in shapes)
