"""Where input pipelines begin: queues that give the rows of a tensor, epoch after epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.collections import GraphKeys
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import ShapeLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import indexing
from thalweg.ops.core import basic, casting, checks, filling, shaping
from thalweg.ops.io.files import matching_files
from thalweg.ops.random import random
from thalweg.ops.state.queues import FIFOQueue
from thalweg.public import public
from thalweg.summary.constructors import scalar as scalar_summary
from thalweg.train.queue_runner import QueueRunner, add_queue_runner
from thalweg.variables.variable import Variable


@public("train.match_filenames_once", "io.match_filenames_once")
def match_filenames_once(pattern: Any, name: str | None = None) -> Variable:
    """A local variable with the names of the files that match when it is initialized.

    Args:
        pattern: a pattern with `*` and `?`, or a vector of them.
        name: the name of the node.

    Returns:
        A variable, a vector of strings.

    Example:
        >>> tf.gfile.GFile("a.csv", "w").write("1")
        >>> files = tf.train.match_filenames_once("*.csv")
        >>> sess.run(tf.local_variables_initializer())
        >>> sess.run(files).tolist()
        [b'a.csv']
    """
    with name_scope(name, "matching_filenames", [pattern]) as scope:
        return Variable(
            matching_files(pattern),
            trainable=False,
            name=scope,
            validate_shape=False,
            collections=[GraphKeys.LOCAL_VARIABLES],
        )


@public("train.limit_epochs")
def limit_epochs(tensor: Any, num_epochs: int | None = None, name: str | None = None) -> Tensor:
    """`tensor`, which can be had `num_epochs` times; then comes an OutOfRangeError.

    The count is a local variable: run `tf.local_variables_initializer()`.
    """
    if num_epochs is None:
        return tensor
    if num_epochs <= 0:
        raise ValueError(f"num_epochs must be > 0 not {num_epochs}.")
    with name_scope(name, "limit_epochs", [tensor]) as scope:
        zero = basic.constant(0, dtypes.int64)
        epochs = Variable(
            zero, name="epochs", trainable=False, collections=[GraphKeys.LOCAL_VARIABLES]
        )
        counter = epochs.count_up_to(num_epochs)
        with get_default_graph().control_dependencies([counter]):
            return basic.identity(tensor, name=scope)


@public("train.input_producer")
def input_producer(
    input_tensor: Any,
    element_shape: ShapeLike = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: Node | None = None,
) -> FIFOQueue:
    """A queue of the rows of a tensor, in each epoch in another order; a queue runner fills it.

    Args:
        input_tensor: the rows.
        element_shape: the shape of a row, where the tensor does not tell.
        num_epochs: how often each row comes; without end if None.
        shuffle: whether rows come in random order.
        seed: of that order.
        capacity: how many rows the queue holds.
        shared_name: a name to share the queue between sessions by.
        summary_name: the name of a summary of how full it is.
        name: the name of the nodes.
        cancel_op: a node that closes the queue at once.

    Returns:
        The queue.

    Example:
        >>> queue = tf.train.input_producer([1, 2, 3], shuffle=False)
        >>> row = queue.dequeue()
        >>> coordinator = tf.train.Coordinator()
        >>> threads = tf.train.start_queue_runners(sess, coordinator)
        >>> sess.run(row), sess.run(row)
        (np.int32(1), np.int32(2))
        >>> coordinator.request_stop()
        >>> sess.run(queue.close(cancel_pending_enqueues=True))
        >>> coordinator.join(threads)
    """
    with name_scope(name, "input_producer", [input_tensor]):
        rows = convert_to_tensor(input_tensor, name="input_tensor")
        shape = rows.shape[1:].merge_with(element_shape)
        if not shape.is_fully_defined():
            raise ValueError(
                "Either `input_tensor` must have a fully defined shape or `element_shape` must be "
                "specified"
            )
        if shuffle:
            rows = random.random_shuffle(rows, seed=seed)
        rows = limit_epochs(rows, num_epochs)
        queue = FIFOQueue(
            capacity,
            [rows.dtype.base_dtype],
            [shape],
            shared_name=shared_name,
            name=name or "FIFOQueue",
        )
        add_queue_runner(QueueRunner(queue, [queue.enqueue_many([rows])], cancel_op=cancel_op))
        if summary_name is not None:
            fullness = casting.cast(queue.size(), dtypes.float32) * (1.0 / capacity)
            scalar_summary(summary_name, fullness)
        return queue


@public("train.string_input_producer")
def string_input_producer(
    string_tensor: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Node | None = None,
) -> FIFOQueue:
    """A queue that gives strings, such as the names of files, over and over.

    Args:
        string_tensor: a vector of strings.
        num_epochs: how often each string is given before `OutOfRangeError`; None means for ever.
            The count is a local variable: run `tf.local_variables_initializer()`.
        shuffle: whether the order is random in each epoch.
        seed: a number that fixes the order.
        capacity: the number of strings that wait.
        shared_name: a name to share the queue between sessions by.
        name: the name of the nodes.
        cancel_op: a node that stops the runner.

    Returns:
        A queue; a runner that fills it joins `QUEUE_RUNNERS`.

    Example:
        >>> queue = tf.train.string_input_producer(["a.csv", "b.csv"], shuffle=False)
        >>> name, coord = queue.dequeue(), tf.train.Coordinator()
        >>> threads = tf.train.start_queue_runners(sess, coord)
        >>> [sess.run(name) for _ in range(3)]
        [b'a.csv', b'b.csv', b'a.csv']
        >>> coord.request_stop()
        >>> coord.join(threads)
    """
    message = "string_input_producer requires a non-null input tensor"
    if isinstance(string_tensor, list | tuple | np.ndarray) and not len(cast("Any", string_tensor)):
        raise ValueError(message)
    with name_scope(name, "input_producer", [string_tensor]) as scope:
        strings = convert_to_tensor(cast("Any", string_tensor), dtypes.string)
        there_is_one = checks.Assert(shaping.size(strings) > 0, [message])
        with get_default_graph().control_dependencies([there_is_one]):
            strings = basic.identity(strings)
        return input_producer(
            strings,
            element_shape=[],
            num_epochs=num_epochs,
            shuffle=shuffle,
            seed=seed,
            capacity=capacity,
            shared_name=shared_name,
            name=scope,
            summary_name=f"fraction_of_{capacity}_full",
            cancel_op=cancel_op,
        )


@public("train.range_input_producer")
def range_input_producer(
    limit: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> FIFOQueue:
    """A queue that gives the integers below a limit, over and over.

    Args:
        limit: an int32 scalar.
        num_epochs: how often each number is given; None means for ever.
        shuffle: whether the order is random in each epoch.
        seed: a number that fixes the order.
        capacity: the number of integers that wait.
        shared_name: a name to share the queue between sessions by.
        name: the name of the nodes.

    Returns:
        A queue; a runner that fills it joins `QUEUE_RUNNERS`.

    Example:
        >>> index = tf.train.range_input_producer(10, shuffle=False).dequeue()
        >>> index.dtype, len(tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS))
        (tf.int32, 1)
    """
    with name_scope(name, "input_producer", [limit]) as scope:
        return input_producer(
            filling.range(limit),
            [],
            num_epochs,
            shuffle,
            seed,
            capacity,
            shared_name,
            f"fraction_of_{capacity}_full",
            scope,
        )


@public("train.slice_input_producer")
def slice_input_producer(
    tensor_list: Sequence[Any],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """One row of each tensor, in each step another one, the same of all.

    Args:
        tensor_list: tensors with a first axis of one size.
        num_epochs: how often each row is given; None means for ever.
        shuffle: whether the order is random in each epoch.
        seed: a number that fixes the order.
        capacity: the number of rows that wait.
        shared_name: a name to share the queue between sessions by.
        name: the name of the nodes.

    Returns:
        A list of tensors without the first axis.

    Example:
        >>> image, label = tf.train.slice_input_producer([tf.zeros([9, 4, 4]), tf.range(9)])
        >>> image.shape.as_list(), label.shape.as_list()
        ([4, 4], [])
    """
    with name_scope(name, "input_producer", tensor_list):
        tensors = [convert_to_tensor(tensor) for tensor in tensor_list]
        if not tensors:
            raise ValueError("Expected at least one tensor in slice_input_producer().")
        queue = range_input_producer(
            shaping.shape(tensors[0])[0],
            num_epochs=num_epochs,
            shuffle=shuffle,
            seed=seed,
            capacity=capacity,
            shared_name=shared_name,
        )
        index = queue.dequeue()
        return [indexing.gather(tensor, index) for tensor in tensors]
