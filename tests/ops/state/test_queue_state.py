"""Queues outside of steps: order, blocking, closing, and cancellation."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tf
from thalweg.graph.dtypes import float32, int64, string
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ops.state.queue_elements import Components, frozen
from thalweg.ops.state.queue_state import (
    FIFOQueue,
    PaddingFIFOQueue,
    PriorityQueue,
    RandomShuffleQueue,
)
from thalweg.runtime.cancellation import Cancellation

ONE = Components([int64], [scalar()])


def stop(cancellation, message="stop"):
    cancellation.cancel(tf.errors.CancelledError(None, None, message))


class Caller(threading.Thread):
    """Runs a call on a separate thread until it ends or blocks."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.cancellation = Cancellation()
        self.result = self.error = None
        self._call = call
        self._settled = threading.Event()
        register = self.cancellation.on_cancel

        def on_cancel(wake):
            undo = register(wake)
            self._settled.set()  # a request registers when it begins to wait
            return undo

        self.cancellation.on_cancel = on_cancel
        self.start()
        self._settled.wait()

    def run(self):
        try:
            self.result = self._call(self.cancellation)
        except tf.errors.OpError as error:
            self.error = error
        self._settled.set()

    def finished(self):
        self.join()
        return self

    @property
    def is_waiting(self):
        return self.is_alive()


def put(queue, *values):
    return Caller(lambda c: queue.enqueue_many([np.array(values, np.int64)], c, -1))


def take(queue, number, fewer=False):
    def call(cancellation):
        return queue.dequeue_many(number, fewer, cancellation, -1)[0].tolist()

    return Caller(call)


def close(queue, cancels=False):
    return Caller(lambda c: queue.close(cancels, c))


def fifo(capacity=3):
    return FIFOQueue("q", ONE, capacity)


def test_first_in_first_out():
    queue = fifo()
    put(queue, 1, 2, 3).finished()
    assert take(queue, 2).finished().result == [1, 2]
    assert len(queue) == 1


def test_more_elements_than_the_capacity_are_enqueued_in_parts():
    queue = fifo()
    writer = put(queue, *range(8))
    assert writer.is_waiting and len(queue) == 3
    assert take(queue, 8).finished().result == list(range(8))
    assert writer.finished().error is None


def test_more_elements_than_the_capacity_are_dequeued_in_parts():
    queue = fifo(2)
    reader = take(queue, 5)
    for value in range(4):
        put(queue, value).finished()
    assert reader.is_waiting and len(queue) == 0
    put(queue, 4).finished()
    assert reader.finished().result == [0, 1, 2, 3, 4]


def test_pending_requests_complete_in_order():
    queue = fifo()
    readers = [take(queue, number) for number in (2, 1, 3)]
    writers = [put(queue, *values) for values in ((0,), (1, 2), (3, 4, 5))]
    assert [reader.finished().result for reader in readers] == [[0, 1], [2], [3, 4, 5]]
    assert all(writer.finished().error is None for writer in writers)


def test_closing_completes_pending_enqueues_and_rejects_later_ones():
    queue = fifo(1)
    put(queue, 1).finished()
    waiting = put(queue, 2)
    closing = close(queue)
    late = put(queue, 3)
    assert closing.is_waiting and not queue.is_closed
    assert take(queue, 2).finished().result == [1, 2]
    assert waiting.finished().error is None and closing.finished().error is None
    assert isinstance(late.finished().error, tf.errors.CancelledError)
    assert "FIFOQueue 'q' is closed." in late.error.message


def test_closing_may_cancel_pending_enqueues():
    queue = fifo(1)
    put(queue, 1).finished()
    waiting = put(queue, 2)
    close(queue, cancels=True).finished()
    assert "Enqueue operation was cancelled" in waiting.finished().error.message
    assert take(queue, 1).finished().result == [1]


def test_a_dequeue_of_more_than_a_closed_queue_has_removes_nothing():
    queue = fifo()
    reader = take(queue, 3)
    put(queue, 1, 2).finished()
    close(queue).finished()
    assert isinstance(reader.finished().error, tf.errors.OutOfRangeError)
    assert (
        "FIFOQueue 'q' is closed and has insufficient elements (requested 3, current size 2)"
        in reader.error.message
    )
    assert take(queue, 2).finished().result == [1, 2]  # restored after the first failed


def test_dequeue_up_to_returns_the_rest_of_a_closed_queue():
    queue = fifo()
    reader = take(queue, 3, fewer=True)
    put(queue, 1, 2).finished()
    assert reader.is_waiting
    close(queue).finished()
    assert reader.finished().result == [1, 2]
    assert isinstance(take(queue, 3, fewer=True).finished().error, tf.errors.OutOfRangeError)


def test_closing_twice_is_an_error():
    queue = fifo()
    close(queue).finished()
    assert "already closed" in close(queue).finished().error.message
    assert close(queue, cancels=True).finished().error is None


def test_a_cancelled_dequeue_restores_its_elements():
    queue = fifo()
    first, second = take(queue, 3), take(queue, 1)
    put(queue, 1, 2).finished()
    stop(first.cancellation)
    assert "Dequeue operation was cancelled" in first.finished().error.message
    assert second.finished().result == [1]
    assert take(queue, 1).finished().result == [2]


def test_a_cancelled_enqueue_unblocks_the_next():
    queue = fifo(1)
    put(queue, 0).finished()
    first, second = put(queue, 1, 2), put(queue, 3)
    stop(first.cancellation)
    assert "Enqueue operation was cancelled" in first.finished().error.message
    assert take(queue, 2).finished().result == [0, 3]
    assert second.finished().error is None


def test_a_step_past_its_deadline_raises_its_own_error():
    reader = take(fifo(), 1)
    reader.cancellation.cancel(tf.errors.DeadlineExceededError(None, None, "too late"))
    assert reader.finished().error.message == "too late"


def test_a_request_may_have_a_timeout():
    with pytest.raises(tf.errors.DeadlineExceededError, match="Dequeue operation timed out"):
        fifo().dequeue(Cancellation(), 0.001)


def test_a_timeout_does_not_change_a_full_queue():
    queue = fifo(1)
    put(queue, 1).finished()
    with pytest.raises(tf.errors.DeadlineExceededError, match="Enqueue"):
        queue.enqueue([np.int64(2)], Cancellation(), 0.001)
    assert take(queue, 1).finished().result == [1]
    assert put(queue, 3).finished().error is None


Operation = st.tuples(st.sampled_from(["put", "take", "cancel"]), st.integers(1, 4))


@settings(max_examples=60, deadline=None)
@given(st.lists(Operation, max_size=12), st.integers(1, 4))
def test_no_element_is_lost_or_reordered(operations, capacity):
    queue = fifo(capacity)
    numbers = iter(range(1000))
    writers, readers = [], []
    for kind, number in operations:
        if kind == "put":
            values = [next(numbers) for _ in range(number)]
            writers.append(put(queue, *values))
        elif kind == "take":
            readers.append(take(queue, number))
        elif readers:
            stop(readers[-1].cancellation)
    rest = take(queue, 10_000, fewer=True)
    close(queue)
    for caller in (*writers, *readers, rest):
        caller.finished()
    given_out = [value for reader in readers for value in reader.result or ()]
    put_in = [*range(next(numbers))]
    assert given_out + (rest.result or []) == put_in


# The other kinds


def test_batches_are_padded():
    shapes = [TensorShape([None, 2]), TensorShape([None])]
    queue = PaddingFIFOQueue("q", Components([float32, string], shapes), 10)
    for size in (1, 3):
        words = np.array([b"w"] * size, object)
        queue.enqueue([np.ones((size, 2), np.float32), words], Cancellation(), -1)
    numbers, words = queue.dequeue_many(2, False, Cancellation(), -1)
    assert numbers.tolist() == [[[1, 1], [0, 0], [0, 0]], [[1, 1], [1, 1], [1, 1]]]
    assert words.tolist() == [[b"w", b"", b""], [b"w", b"w", b"w"]]


def shuffling(seeds=(1, 2), reserve=0):
    return RandomShuffleQueue("q", ONE, 100, reserve, seeds)


def test_a_shuffling_queue_returns_a_permutation():
    queue = shuffling()
    put(queue, *range(50)).finished()
    given_out = take(queue, 50).finished().result
    assert sorted(given_out) == list(range(50)) and given_out != list(range(50))


def test_seeds_fix_the_order():
    def order(seeds):
        queue = shuffling(seeds)
        put(queue, *range(50)).finished()
        return take(queue, 50).finished().result

    assert order((1, 2)) == order((1, 2)) != order((1, 3))
    assert order((0, 0)) != order((0, 0))


def test_min_after_dequeue_holds_until_the_queue_is_closed():
    queue = shuffling(reserve=3)
    put(queue, *range(5)).finished()
    take(queue, 2).finished()
    reader = take(queue, 1)
    assert reader.is_waiting
    close(queue).finished()
    assert len(reader.finished().result) == 1 and len(queue) == 2


@pytest.mark.parametrize("reserve", [-1, 100])
def test_min_after_dequeue_must_be_below_the_capacity(reserve):
    with pytest.raises(tf.errors.InvalidArgumentError, match="min_after_dequeue"):
        shuffling(reserve=reserve)


def test_priorities_are_ascending_and_stable():
    components = Components([int64, string], [scalar(), scalar()])
    queue = PriorityQueue("q", components, 10)
    words = np.array([b"c", b"a", b"b", b"A"], object)
    queue.enqueue_many([np.array([3, 1, 2, 1]), words], Cancellation(), -1)
    priorities, words = queue.dequeue_many(4, False, Cancellation(), -1)
    assert priorities.tolist() == [1, 1, 2, 3]
    assert words.tolist() == [b"a", b"A", b"b", b"c"]


# Elements


def test_an_array_that_owns_its_memory_is_not_copied():
    array = np.zeros(4)
    assert frozen(array) is array and not array.flags.writeable


def test_a_view_of_writable_memory_is_copied():
    array = np.zeros(4)
    element = frozen(array.view())
    array[:] = 1
    assert element.tolist() == [0, 0, 0, 0]


def test_single_elements_are_not_copied():
    components = Components([float32], [TensorShape([262144])])
    queue = FIFOQueue("q", components, 4)
    made = np.ones(262144, np.float32)
    queue.enqueue([made], Cancellation(), -1)
    (element,) = queue.dequeue(Cancellation(), -1)
    assert element is made


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([np.zeros(2)], "Wrong number of components in tuple. Expected 2, got 1"),
        ([np.zeros(2, np.int32), np.zeros(3)], "Type mismatch in tuple component 0"),
        (
            [np.zeros(3, np.float32), np.int64(0)],
            r"Shape mismatch in tuple component 0. Expected \[2\], got \[3\]",
        ),
    ],
)
def test_invalid_elements(values, message):
    components = Components([float32, int64], [TensorShape([2]), scalar()])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        components.element(values)


def test_components_must_have_equal_numbers_of_rows():
    with pytest.raises(tf.errors.InvalidArgumentError, match="same size in the 0th dimension"):
        Components([int64, int64]).elements([np.arange(2), np.arange(3)])
