"""Elements of queues are copied once: into the batch."""

import tracemalloc

import numpy as np
import pytest

import thalweg as tf
from thalweg.ops.state.queue_state import FIFOQueue

SIZE, COUNT = 1 << 18, 8
BYTES = 4 * SIZE
SLACK = BYTES // 4  # Python objects of a step


@pytest.fixture
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


@pytest.fixture
def traced():
    tracemalloc.start()
    yield
    tracemalloc.stop()


def most_added(call):
    """The peak of the bytes that a call allocates."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    call()
    return tracemalloc.get_traced_memory()[1] - before


def test_an_element_is_copied_only_into_the_batch(session, traced):
    queue = tf.FIFOQueue(COUNT, [tf.float32], shapes=[[SIZE]])
    with tf.device("/cpu:0"):  # memory of values from a GPU is not traced
        variable = tf.Variable(tf.ones([SIZE]))
        value = variable + 1.0
    session.run(tf.global_variables_initializer())
    put = session.make_callable(queue.enqueue(value))
    take = session.make_callable(queue.dequeue_many(COUNT))
    for _ in range(2):  # the first run plans and compiles
        added = [most_added(put) for _ in range(COUNT)]
        batch = most_added(take)
    assert all(BYTES <= each < BYTES + SLACK for each in added)  # the kernel's result
    assert COUNT * BYTES <= batch < COUNT * BYTES + SLACK


def test_an_element_passes_between_queues_without_a_copy(session, monkeypatch):
    taken, remove = [], FIFOQueue.remove

    def noted(self, *arguments):
        elements = remove(self, *arguments)
        taken.extend(elements)
        return elements

    monkeypatch.setattr(FIFOQueue, "remove", noted)
    first, second = (tf.FIFOQueue(2, [tf.float32], shapes=[[SIZE]]) for _ in range(2))
    session.run(first.enqueue(tf.random_uniform([SIZE])))
    session.run(second.enqueue(first.dequeue()))
    session.run(second.dequeue())
    assert np.shares_memory(*(element for (element,) in taken))
