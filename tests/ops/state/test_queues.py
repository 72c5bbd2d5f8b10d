"""Queues in graphs: names, shapes, shared names, and steps that wait."""

import threading

import numpy as np
import pytest

import thalweg as tf
from thalweg.runtime.cancellation import Cancellation


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as opened:
        yield opened


@pytest.fixture
def waiting(monkeypatch):
    """A semaphore that is released whenever a node begins to wait on a queue."""
    semaphore = threading.Semaphore(0)
    register = Cancellation.on_cancel

    def on_cancel(self, wake):
        undo = register(self, wake)
        semaphore.release()
        return undo

    monkeypatch.setattr(Cancellation, "on_cancel", on_cancel)
    return semaphore


class Run(threading.Thread):
    """Runs a step on a separate thread."""

    def __init__(self, session, fetches, feed_dict=None, **kwargs):
        super().__init__(daemon=True)
        self.value = self.error = None
        self._step = lambda: session.run(fetches, feed_dict, **kwargs)
        self.start()

    def run(self):
        try:
            self.value = self._step()
        except (tf.errors.OpError, RuntimeError) as error:
            self.error = error

    def finished(self):
        self.join()
        return self


def test_elements_of_several_components(session):
    queue = tf.FIFOQueue(10, [tf.float32, tf.string], shapes=[[2], []])
    session.run(queue.enqueue(([1.0, 2.0], "a")))
    session.run(queue.enqueue_many(([[3.0, 4.0], [5.0, 6.0]], ["b", "c"])))
    assert session.run(queue.size()) == 3
    numbers, word = session.run(queue.dequeue())
    assert numbers.tolist() == [1, 2] and word == b"a"
    numbers, words = session.run(queue.dequeue_many(2))
    assert numbers.tolist() == [[3, 4], [5, 6]] and words.tolist() == [b"b", b"c"]


def test_components_with_names(session):
    queue = tf.FIFOQueue(10, [tf.int32, tf.float32], names=["i", "f"])
    session.run(queue.enqueue({"f": 0.5, "i": 7}))
    assert session.run(queue.dequeue()) == {"i": 7, "f": 0.5}
    with pytest.raises(ValueError, match="enqueue a dictionary"):
        queue.enqueue((1, 2.0))
    with pytest.raises(ValueError, match="match names"):
        queue.enqueue({"i": 1})


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.FIFOQueue(5, tf.int32, [[]]),
        lambda: tf.RandomShuffleQueue(5, 0, tf.int32, [[]]),
        lambda: tf.PaddingFIFOQueue(5, tf.int32, [[]]),
    ],
)
def test_static_shapes(make):
    queue = make()
    assert queue.dequeue().shape == []
    assert queue.dequeue_many(3).shape == [3]
    assert queue.dequeue_many(tf.placeholder(tf.int32, [])).shape.as_list() == [None]
    assert queue.dequeue_up_to(3).shape.as_list() == [None]


def test_padding_keeps_the_static_rank():
    queue = tf.PaddingFIFOQueue(5, tf.int32, [[None, 2]])
    assert queue.dequeue_many(3).shape.as_list() == [3, None, 2]


def test_shapes_are_checked_at_construction():
    queue = tf.FIFOQueue(5, [tf.int32, tf.int32], shapes=[[], [2]])
    with pytest.raises(ValueError):
        queue.enqueue(([1], [1, 2]))
    with pytest.raises(ValueError):
        queue.enqueue_many(([1, 2, 3], [[1, 1], [2, 2]]))
    with pytest.raises(ValueError, match="2 components"):
        queue.enqueue(1)
    with pytest.raises(ValueError, match="-1"):
        queue.dequeue_many(-1)


def test_node_names():
    queue = tf.FIFOQueue(5, tf.int32, name="jobs")
    assert queue.name == "jobs"
    assert queue.enqueue(1).name == "jobs_enqueue"
    assert queue.enqueue_many([[1]]).name == "jobs_EnqueueMany"
    assert queue.dequeue().op.name == "jobs_Dequeue"
    assert queue.size().op.name == "jobs_Size"
    assert queue.close().name == "jobs_Close"


def test_batches_need_shapes(session):
    queue = tf.FIFOQueue(5, tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="specified shapes"):
        session.run(queue.dequeue_many(1))


def test_queues_of_one_shared_name_are_one_queue(session):
    one, two = (tf.FIFOQueue(5, tf.int32, shared_name="shared") for _ in range(2))
    session.run(one.enqueue(3))
    assert session.run(two.dequeue()) == 3
    other = tf.FIFOQueue(6, tf.int32, shared_name="shared")
    with pytest.raises(tf.errors.InvalidArgumentError, match="capacity"):
        session.run(other.size())
    other = tf.PaddingFIFOQueue(5, tf.int32, [[]], shared_name="shared")
    with pytest.raises(tf.errors.InvalidArgumentError, match="type"):
        session.run(other.size())


def test_a_name_of_another_resource_is_an_error(session):
    session.run(tf.ConditionalAccumulator(tf.float32, shared_name="taken").num_accumulated())
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a queue"):
        session.run(tf.FIFOQueue(6, tf.int32, shared_name="taken").size())


def test_a_queue_selected_in_the_step(session):
    queues = [tf.FIFOQueue(5, tf.int32, [[]]) for _ in range(3)]
    which = tf.placeholder(tf.int32, [])
    chosen = tf.QueueBase.from_list(which, queues)
    session.run(chosen.enqueue(9), {which: 1})
    assert [session.run(queue.size()) for queue in queues] == [0, 1, 0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="range"):
        session.run(chosen.size(), {which: 3})


def test_a_closed_queue(session):
    queue = tf.FIFOQueue(5, tf.int32)
    is_closed = queue.is_closed()
    assert not session.run(is_closed)
    session.run(queue.close())
    assert session.run(is_closed)
    with pytest.raises(tf.errors.CancelledError, match="is closed"):
        session.run(queue.enqueue(1))
    with pytest.raises(tf.errors.OutOfRangeError, match=r"requested 1, current size 0"):
        session.run(queue.dequeue())


def test_fed_arrays_may_be_reused(session):
    queue = tf.FIFOQueue(5, tf.float32)
    fed = tf.placeholder(tf.float32, [3])
    buffer = np.zeros(3, np.float32)
    session.run(queue.enqueue(fed), {fed: buffer})
    buffer[:] = 1
    assert session.run(queue.dequeue()).tolist() == [0, 0, 0]


def test_fetched_arrays_may_be_changed(session):
    queue = tf.FIFOQueue(5, tf.float32)
    value = tf.placeholder_with_default([1.0, 2.0], [2]) * 2.0
    fetched, _ = session.run([value, queue.enqueue(value)])
    fetched[:] = 0
    assert session.run(queue.dequeue()).tolist() == [2, 4]


def test_dequeued_arrays_are_writable(session):
    queue = tf.FIFOQueue(5, tf.float32)
    session.run(queue.enqueue(([1.0, 2.0],)))
    session.run(queue.dequeue())[:] = 5


def test_one_step_may_enqueue_and_dequeue(session):
    queue = tf.FIFOQueue(1, tf.int32)
    taken = queue.dequeue()
    value, _ = session.run([taken + 1, queue.enqueue(4)])
    assert value == 5


# Waiting


def test_a_dequeue_waits_for_an_enqueue_of_another_step(session, waiting):
    queue = tf.FIFOQueue(1, tf.int32)
    reader = Run(session, queue.dequeue())
    waiting.acquire()
    session.run(queue.enqueue(6))
    assert reader.finished().value == 6


def test_a_timeout_leaves_the_queue_usable(session):
    queue = tf.FIFOQueue(1, tf.int32)
    taken = queue.dequeue()
    options = tf.RunOptions(timeout_in_ms=5)
    for _ in range(2):
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(taken, options=options)
    session.run(queue.enqueue(6))
    assert session.run(taken) == 6
    session.run(queue.enqueue(7))
    with pytest.raises(tf.errors.DeadlineExceededError):
        session.run(queue.enqueue(8), options=options)
    assert session.run(taken) == 7


def test_closing_the_session_cancels_waiting_steps(waiting):
    with tf.Graph().as_default():
        empty, full = tf.FIFOQueue(1, tf.int32, [[]]), tf.FIFOQueue(1, tf.int32)
        session = tf.Session()
        session.run(full.enqueue(1))
        steps = [empty.dequeue(), empty.dequeue_many(2), full.enqueue(2), full.enqueue_many([[1]])]
        runs = []
        for step in steps:
            runs.append(Run(session, step))
            waiting.acquire()
        session.close()
        for run in runs:
            assert isinstance(run.finished().error, tf.errors.CancelledError)
            assert "operation was cancelled" in run.error.message


def test_a_failure_of_another_node_cancels_a_waiting_node(session):
    queue = tf.FIFOQueue(1, tf.int32)
    bad = tf.gather([1], tf.placeholder_with_default([7], [1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="7"):
        session.run([queue.dequeue(), queue.dequeue(), bad])
    session.run(queue.enqueue(1))
    assert session.run(queue.dequeue()) == 1


def test_many_producers_and_consumers(session):
    queue = tf.FIFOQueue(7, tf.int64, [[]])
    number = tf.placeholder(tf.int64, [])
    enqueue, dequeue, batch = queue.enqueue(number), queue.dequeue(), queue.dequeue_up_to(5)
    producers, each = 120, 20
    seen, lock = [], threading.Lock()

    def produce(first):
        for value in range(first, first + each):
            session.run(enqueue, {number: value})

    def consume(step):
        while True:
            try:
                values = np.atleast_1d(session.run(step)).tolist()
            except tf.errors.OutOfRangeError:
                return
            with lock:
                seen.extend(values)

    consumers = [threading.Thread(target=consume, args=(step,)) for step in [dequeue, batch] * 60]
    writers = [threading.Thread(target=produce, args=(k * each,)) for k in range(producers)]
    for thread in consumers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    session.run(queue.close())
    for thread in consumers:
        thread.join()
    assert sorted(seen) == list(range(producers * each))


# Imported graphs


def test_resource_handles(session):
    attributes = {"component_types": (tf.int32,), "shapes": (tf.TensorShape([]),), "capacity": 5}
    handle = tf.get_default_graph().create_op("FIFOQueueV2", [], attrs=attributes).outputs[0]
    queue = tf.QueueBase([tf.int32], [[]], None, handle)
    session.run([queue.enqueue(3), queue.enqueue_many([[3, 3]])])
    assert session.run(queue.size()) == 3
    assert session.run(queue.dequeue()) == 3
    assert session.run(queue.dequeue_many(1)).tolist() == [3]
    session.run(queue.close())
    assert session.run(queue.is_closed())
    assert session.run(queue.dequeue_up_to(9)).tolist() == [3]
    assert queue.dequeue().op.type == "QueueDequeueV2"


def by_resource(definition):
    """A graph with queues as resource handles, as later TensorFlow writes it."""
    for node in definition.node:
        if "Queue" in node.op:
            node.op += "V2"
    return definition


@pytest.mark.parametrize(
    ("make", "elements", "taken"),
    [
        (lambda: tf.FIFOQueue(5, tf.int32, name="q"), [3, 1, 2], [3, 1, 2]),
        (lambda: tf.RandomShuffleQueue(5, 2, tf.int32, seed=1, name="q"), [4, 4, 4], [4]),
        (lambda: tf.PaddingFIFOQueue(5, tf.int32, [[]], name="q"), [3, 1, 2], [3, 1, 2]),
    ],
)
@pytest.mark.parametrize("change", [lambda definition: definition, by_resource])
def test_imported_queues(make, elements, taken, change):
    with tf.Graph().as_default() as graph:
        queue = make()
        queue.enqueue(tf.placeholder(tf.int32, [], name="element"), name="put")
        queue.dequeue(name="take")
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(change(graph.as_graph_def()), name="")
        for element in elements:
            session.run("put", {"element:0": element})
        assert [session.run("take:0") for _ in taken] == taken


@pytest.mark.parametrize("change", [lambda definition: definition, by_resource])
def test_imported_queues_pad(change):
    with tf.Graph().as_default() as graph:
        queue = tf.PaddingFIFOQueue(5, tf.int32, [[None]], name="q")
        queue.enqueue(tf.placeholder(tf.int32, [None], name="element"), name="put")
        queue.dequeue_many(2, name="take")
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(change(graph.as_graph_def()), name="")
        session.run("put", {"element:0": [1]})
        session.run("put", {"element:0": [2, 3]})
        assert session.run("take:0").tolist() == [[1, 0], [2, 3]]


@pytest.mark.parametrize("change", [lambda definition: definition, by_resource])
def test_imported_queues_order_by_priority(change):
    with tf.Graph().as_default() as graph:
        queue = tf.PriorityQueue(5, tf.string, [[]], name="q")
        queue.enqueue_many(([3, 1, 2], ["c", "a", "b"]), name="put")
        queue.dequeue_many(3, name="take")
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(change(graph.as_graph_def()), name="")
        session.run("put")
        priorities, words = session.run(["take:0", "take:1"])
        assert priorities.tolist() == [1, 2, 3] and words.tolist() == [b"a", b"b", b"c"]


def test_graphs_with_queues_can_be_exported_and_imported(session):
    queue = tf.RandomShuffleQueue(5, 1, [tf.int32], [[]], seed=3, name="q")
    queue.enqueue(1, name="put")
    queue.dequeue(name="take")
    definition = tf.get_default_graph().as_graph_def()
    with tf.Graph().as_default() as graph, tf.Session() as other:
        tf.import_graph_def(definition, name="")
        other.run("put")
        other.run("put")
        assert other.run("take:0") == 1
        assert graph.as_graph_def() == definition


def test_errors_name_the_component_that_does_not_match():
    queue = tf.FIFOQueue(3, [tf.int32, tf.float32], shapes=[[], [2]], name="pairs")
    with pytest.raises(ValueError, match=r"incompatible: component 1 of queue 'pairs'"):
        queue.enqueue([1, [1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match=r"incompatible: component 1 of queue 'pairs'"):
        queue.enqueue_many([[1], [[1.0, 2.0, 3.0]]])
    with pytest.raises(TypeError, match="capacity of a queue is an integer, not 'x'"):
        tf.FIFOQueue("x", tf.float32)
