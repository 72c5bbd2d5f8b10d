"""Batches from single examples: `batch`, `shuffle_batch` and their relatives.

Each makes a queue of examples, has a queue runner fill it from the given tensors, and returns what
is taken from it in batches. The `_join` forms fill one queue from several lists of tensors, each
with a thread of its own; the `maybe_` forms leave out examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from thalweg.graph import dtypes
from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.known import constant_value
from thalweg.graph.likes import ShapeLike, Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.ops.arrays import indexing
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.core.densify import convert_to_tensor_or_sparse_tensor
from thalweg.ops.math import arithmetic
from thalweg.ops.sparse.sparse import sparse_expand_dims
from thalweg.ops.state.queues import FIFOQueue, PaddingFIFOQueue, QueueBase, RandomShuffleQueue
from thalweg.public import public
from thalweg.summary.constructors import scalar as scalar_summary
from thalweg.train import input_sparse
from thalweg.train.queue_runner import QueueRunner, add_queue_runner


class _Batching(NamedTuple):
    """What the functions below have in common."""

    scope: str
    batch_size: Any
    keep_input: Any
    enqueue_many: bool
    shapes: Any
    allow_smaller_final_batch: bool
    name: str | None


#: (dtypes, shapes) -> the queue that the examples go through
MakeQueue = Callable[[list[DType], list[Any]], QueueBase]


def _batched(
    inputs: Sequence[Any], threads: int, batching: _Batching, make_queue: MakeQueue
) -> Any:
    """What the batches hold, in the form the first of `inputs` has."""
    lists = _lists(inputs)
    flat = [tensor for tensors in lists for tensor in tensors]
    with name_scope(batching.name, batching.scope, [*flat, batching.keep_input]) as scope:
        examples = [[convert_to_tensor_or_sparse_tensor(t) for t in tensors] for tensors in lists]
        keep = _checked_keep(batching.keep_input, batching.enqueue_many)
        many = batching.enqueue_many
        if keep is not None:
            examples = [_kept(tensors, keep, many) for tensors in examples]
            many = True
        stored, kinds = input_sparse.store_all(examples, many)
        queue = make_queue(_dtypes(stored), _shapes(stored, batching.shapes, many))
        enqueue = queue.enqueue_many if many else queue.enqueue
        nodes = [enqueue(tensors) for tensors in stored]
        add_queue_runner(QueueRunner(queue, nodes * threads))
        take = queue.dequeue_up_to if batching.allow_smaller_final_batch else queue.dequeue_many
        taken = take(batching.batch_size, name=scope)
        return _in_form(input_sparse.restore(_list(taken), kinds), inputs[0])


# The given tensors


def _lists(inputs: Sequence[Any]) -> list[list[Any]]:
    """Each set of tensors as a list, dicts in the order of their keys."""
    if not inputs:
        raise ValueError("Expected at least one set of tensors")
    keys = {frozenset(cast("Mapping[str, Any]", i)) for i in inputs if isinstance(i, Mapping)}
    if len(keys) > 1:
        raise ValueError("All dictionaries in tensors_list must have the same keys")
    lists = [_list(tensors) for tensors in inputs]
    if not all(lists):
        raise ValueError("Expected at least one tensor in batch().")
    if len({len(tensors) for tensors in lists}) > 1:
        raise ValueError("All lists in tensors_list must have the same number of tensors")
    return lists


def _list(tensors: Any) -> list[Any]:
    if isinstance(tensors, Mapping):
        named = cast("Mapping[str, Any]", tensors)
        return [named[key] for key in sorted(named)]
    return list(cast("Any", tensors)) if isinstance(tensors, list | tuple) else [tensors]


def _in_form(batch: list[Any], form: Any) -> Any:
    if isinstance(form, Mapping):
        return dict(zip(sorted(cast("Mapping[str, Any]", form)), batch, strict=True))
    return batch[0] if len(batch) == 1 else batch


def _dtypes(lists: Sequence[Sequence[Tensor]]) -> list[DType]:
    first, *others = [[tensor.dtype.base_dtype for tensor in tensors] for tensors in lists]
    for other in others:
        if other != first:
            raise TypeError(
                f"Expected types to be consistent: {', '.join(kind.name for kind in first)} vs. "
                f"{', '.join(kind.name for kind in other)}."
            )
    return first


def _shapes(lists: Sequence[Sequence[Tensor]], given: Any, many: bool) -> list[Any]:
    """The shape of each component: as given, or what the first tensors say and all admit."""
    if given is not None:
        return given
    return [_shape(column, many) for column in zip(*lists, strict=True)]


def _shape(column: Sequence[Tensor], many: bool) -> TensorShape:
    for tensor in column:
        if tensor.shape.rank is None:
            raise ValueError(f"Cannot infer Tensor's rank: {tensor}")
    first, *others = [
        tensor.shape.with_rank_at_least(1)[1:] if many else tensor.shape for tensor in column
    ]
    for shape in others:
        first.assert_is_compatible_with(shape)
    return as_shape(first)


# Leaving out examples


def _checked_keep(keep_input: Any, many: bool) -> Tensor | None:
    """What to keep as a tensor, or None if that is everything."""
    keep = convert_to_tensor(keep_input)
    if keep.dtype.base_dtype is not dtypes.bool:
        raise TypeError(f"`keep_input` must be a bool tensor, not {keep.dtype.name}")
    if keep.shape.rank is None:
        raise ValueError("`keep_input` dimensions must be known at graph construction.")
    if keep.shape.rank > 1:
        raise ValueError("`keep_input` must be 0 or 1 dimensions.")
    if keep.shape.rank == 1 and not many:
        raise ValueError("`keep_input` cannot be a vector when `enqueue_many=False`.")
    known = constant_value(keep)
    return None if known is not None and known.all() else keep


def _kept(tensors: Sequence[Any], keep: Tensor, many: bool) -> list[Any]:
    """The examples to keep, as rows: those of many, or one or none."""
    rows = list(tensors) if many else [_as_row(tensor) for tensor in tensors]
    if keep.shape.rank == 0:
        keep = filling.fill(shaping.expand_dims(_row_count(rows[0]), 0), keep)
    places = shaping.squeeze(choosing.where(keep), [1])
    return [
        input_sparse.sparse_rows(row, keep)
        if isinstance(row, SparseTensor)
        else indexing.gather(row, places)
        for row in rows
    ]


def _as_row(tensor: Any) -> Any:
    expand = sparse_expand_dims if isinstance(tensor, SparseTensor) else shaping.expand_dims
    return expand(tensor, 0)


def _row_count(tensor: Any) -> Tensor:
    is_sparse = isinstance(tensor, SparseTensor)
    return casting.cast(
        (tensor.dense_shape if is_sparse else shaping.shape(tensor))[0], dtypes.int32
    )


# Queues


def _fifo(capacity: int, dynamic_pad: bool, shared_name: str | None) -> MakeQueue:
    kind = PaddingFIFOQueue if dynamic_pad else FIFOQueue

    def make(types: list[DType], shapes: list[Any]) -> QueueBase:
        queue = kind(capacity, types, shapes, shared_name=shared_name)
        fullness = casting.cast(queue.size(), dtypes.float32) * (1.0 / capacity)
        scalar_summary(f"fraction_of_{capacity}_full", fullness)
        return queue

    return make


def _shuffling(
    capacity: int, min_after_dequeue: int, seed: int | None, shared_name: str | None
) -> MakeQueue:
    if capacity <= min_after_dequeue:
        raise ValueError(
            f"capacity {capacity} must be bigger than min_after_dequeue {min_after_dequeue}."
        )

    def make(types: list[DType], shapes: list[Any]) -> QueueBase:
        queue = RandomShuffleQueue(
            capacity, min_after_dequeue, types, shapes, seed=seed, shared_name=shared_name
        )
        room = capacity - min_after_dequeue
        spare = arithmetic.maximum(0, queue.size() - min_after_dequeue)
        fullness = casting.cast(spare, dtypes.float32) * (1.0 / room)
        scalar_summary(f"fraction_over_{min_after_dequeue}_of_{room}_full", fullness)
        return queue

    return make


# What users call


@public("train.batch")
def batch(
    tensors: Sequence[TensorLike] | Mapping[str, TensorLike] | Tensor,
    batch_size: TensorLike,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Sequence[ShapeLike] | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Structure:
    """Batches of examples that come one per step.

    Args:
        tensors: the parts of an example, as a list or a dict.
        batch_size: the number of examples of a batch.
        num_threads: how many threads fill the queue; more than one mixes the order.
        capacity: the number of examples that wait.
        enqueue_many: whether `tensors` are batches already, cut along their first axis.
        shapes: the shapes of the parts, where their static shapes do not tell.
        dynamic_pad: pad parts of varying sizes with zeros to the largest of a batch.
        allow_smaller_final_batch: give what is left at the end as a smaller batch.
        shared_name: a name to share the queue between sessions by.
        name: the name of the nodes.

    Returns:
        The structure of `tensors`, each with a first axis for the batch.

    Example:
        >>> number = tf.train.range_input_producer(10, shuffle=False).dequeue()
        >>> numbers, squares = tf.train.batch([number, number**2], batch_size=3)
        >>> coord = tf.train.Coordinator()
        >>> threads = tf.train.start_queue_runners(sess, coord)
        >>> sess.run(squares)
        array([0, 1, 4], dtype=int32)
        >>> coord.request_stop()
        >>> coord.join(threads)
    """
    return maybe_batch(
        tensors,
        True,
        batch_size,
        num_threads,
        capacity,
        enqueue_many,
        shapes,
        dynamic_pad,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


@public("train.maybe_batch")
def maybe_batch(
    tensors: Sequence[TensorLike] | Mapping[str, TensorLike] | Tensor,
    keep_input: TensorLike,
    batch_size: TensorLike,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Sequence[ShapeLike] | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Structure:
    """As `batch`, of the examples for which `keep_input` is true."""
    batching = _Batching(
        "batch", batch_size, keep_input, enqueue_many, shapes, allow_smaller_final_batch, name
    )
    make_queue = _fifo(capacity, dynamic_pad, shared_name)
    return _batched([tensors], num_threads, batching, make_queue)


@public("train.batch_join")
def batch_join(
    tensors_list: Sequence[Any],
    batch_size: TensorLike,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Sequence[ShapeLike] | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Structure:
    """Batches of examples from several sources, each read by a thread of its own.

    Args:
        tensors_list: a list with the parts of an example, as lists or dicts, for each source.
        batch_size: the number of examples of a batch.
        capacity: the number of examples that wait.
        enqueue_many: whether the tensors are batches already, cut along their first axis.
        shapes: the shapes of the parts, where their static shapes do not tell.
        dynamic_pad: pad parts of varying sizes with zeros to the largest of a batch.
        allow_smaller_final_batch: give what is left at the end as a smaller batch.
        shared_name: a name to share the queue between sessions by.
        name: the name of the nodes.

    Returns:
        The structure of an example, each part with a first axis for the batch.

    Example:
        >>> sources = [[tf.constant(1), tf.constant(2.0)] for _ in range(2)]
        >>> numbers, values = tf.train.batch_join(sources, batch_size=4)
        >>> numbers.shape.as_list(), values.dtype
        ([4], tf.float32)
    """
    return maybe_batch_join(
        tensors_list,
        True,
        batch_size,
        capacity,
        enqueue_many,
        shapes,
        dynamic_pad,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


@public("train.maybe_batch_join")
def maybe_batch_join(
    tensors_list: Sequence[Any],
    keep_input: TensorLike,
    batch_size: TensorLike,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Sequence[ShapeLike] | None = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Structure:
    """As `batch_join`, of the examples for which `keep_input` is true."""
    batching = _Batching(
        "batch_join", batch_size, keep_input, enqueue_many, shapes, allow_smaller_final_batch, name
    )
    make_queue = _fifo(capacity, dynamic_pad, shared_name)
    return _batched(tensors_list, 1, batching, make_queue)


@public("train.shuffle_batch")
def shuffle_batch(
    tensors: Sequence[TensorLike] | Mapping[str, TensorLike] | Tensor,
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Sequence[ShapeLike] | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Structure:
    """Batches of examples that come one per step, in a random order.

    Args:
        tensors: the parts of an example, as a list or a dict.
        batch_size: the number of examples of a batch.
        capacity: the number of examples that wait at most.
        min_after_dequeue: the number that stays behind a batch: more of them mix better.
        num_threads: how many threads fill the queue.
        seed: a number that fixes the order.
        enqueue_many: whether `tensors` are batches already, cut along their first axis.
        shapes: the shapes of the parts, where their static shapes do not tell.
        allow_smaller_final_batch: give what is left at the end as a smaller batch.
        shared_name: a name to share the queue between sessions by.
        name: the name of the nodes.

    Returns:
        The structure of `tensors`, each with a first axis for the batch.

    Example:
        >>> number = tf.train.range_input_producer(8, shuffle=False, num_epochs=1).dequeue()
        >>> numbers = tf.train.shuffle_batch([number], 4, capacity=8, min_after_dequeue=4)
        >>> sess.run(tf.local_variables_initializer())
        >>> coord = tf.train.Coordinator()
        >>> threads = tf.train.start_queue_runners(sess, coord)
        >>> sorted([*sess.run(numbers), *sess.run(numbers)]) == list(range(8))
        True
        >>> coord.request_stop()
        >>> coord.join(threads)
    """
    return maybe_shuffle_batch(
        tensors,
        batch_size,
        capacity,
        min_after_dequeue,
        True,
        num_threads,
        seed,
        enqueue_many,
        shapes,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


@public("train.maybe_shuffle_batch")
def maybe_shuffle_batch(
    tensors: Sequence[TensorLike] | Mapping[str, TensorLike] | Tensor,
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    keep_input: TensorLike,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Sequence[ShapeLike] | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Structure:
    """As `shuffle_batch`, of the examples for which `keep_input` is true."""
    batching = _Batching(
        "shuffle_batch",
        batch_size,
        keep_input,
        enqueue_many,
        shapes,
        allow_smaller_final_batch,
        name,
    )
    make_queue = _shuffling(capacity, min_after_dequeue, seed, shared_name)
    return _batched([tensors], num_threads, batching, make_queue)


@public("train.shuffle_batch_join")
def shuffle_batch_join(
    tensors_list: Sequence[Any],
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Sequence[ShapeLike] | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Structure:
    """As `shuffle_batch`, from several lists of tensors, each run by a thread of its own."""
    return maybe_shuffle_batch_join(
        tensors_list,
        batch_size,
        capacity,
        min_after_dequeue,
        True,
        seed,
        enqueue_many,
        shapes,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


@public("train.maybe_shuffle_batch_join")
def maybe_shuffle_batch_join(
    tensors_list: Sequence[Any],
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    keep_input: TensorLike,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Sequence[ShapeLike] | None = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Structure:
    """As `shuffle_batch_join`, of the examples for which `keep_input` is true."""
    batching = _Batching(
        "shuffle_batch_join",
        batch_size,
        keep_input,
        enqueue_many,
        shapes,
        allow_smaller_final_batch,
        name,
    )
    make_queue = _shuffling(capacity, min_after_dequeue, seed, shared_name)
    return _batched(tensors_list, 1, batching, make_queue)
