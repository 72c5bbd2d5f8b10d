"""No step on a cluster leaves reference cycles, in the master or in a task."""

import pytest

import thalweg as tf
from tests.garbage import cycles_left_by

pytest.importorskip("zmq")


@pytest.fixture(scope="module")
def target():
    workers, servers = tf.test.create_local_cluster(1, 2)
    yield workers[0].target
    for server in [*workers, *servers]:
        server.stop()


def _updates():
    """Values of both servers, and an update of each."""
    updates = []
    for index in range(2):
        with tf.device(f"/job:ps/task:{index}"):
            value = tf.get_variable(f"value_{index}", [1])
        with tf.device("/job:worker/task:0"):
            change = tf.cos(value)
        updates.append(tf.assign_add(value, change).op)
    return updates


def _rows():
    """Rows of a table on both servers."""
    shards = []
    for index in range(2):
        with tf.device(f"/job:ps/task:{index}"):
            shards.append(tf.get_variable(f"shard_{index}", [50, 4]))
    with tf.device("/job:worker/task:0"):
        return tf.nn.embedding_lookup(shards, tf.range(32))


def _queue():
    """A dequeue on one server that waits for an element of the other."""
    with tf.device("/job:ps/task:0"):
        queue = tf.FIFOQueue(10, tf.float32)
    with tf.device("/job:ps/task:1"):
        element = tf.get_variable("element", []) * 2
    with tf.device("/job:ps/task:0"):
        return [queue.dequeue(), queue.enqueue(element)]


PROGRAMS = [_updates, _rows, _queue]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.strip("_"))
def test_a_step_leaves_no_cycles(target, program):
    with tf.Graph().as_default():
        fetches = program()
        with tf.Session(target) as session:
            session.run(tf.global_variables_initializer())
            assert not cycles_left_by(lambda: session.run(fetches))
