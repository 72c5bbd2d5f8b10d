"""Barriers: rows can be taken once they are complete."""

import threading

import pytest

import thalweg as tf
from thalweg.ops.rare.barriers import Barrier

FIRST = -(2**63)


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as opened:
        yield opened


@pytest.fixture
def barrier():
    return Barrier((tf.float32, tf.string), shapes=((), ()))


def test_rows_are_taken_in_the_order_of_their_keys(session, barrier):
    session.run(barrier.insert_many(0, ["a", "b"], [1.0, 2.0]))
    session.run(barrier.insert_many(1, ["a"], ["x"]))
    session.run(barrier.insert_many(0, ["c"], [3.0]))
    session.run(barrier.insert_many(1, ["c"], ["z"]))
    sizes = barrier.ready_size(), barrier.incomplete_size()
    assert session.run(sizes) == (2, 1)
    session.run(barrier.insert_many(1, ["b"], ["y"]))
    indices, keys, values = session.run(barrier.take_many(3))
    assert indices.tolist() == [FIRST, FIRST, FIRST + 1]
    assert keys.tolist() == [b"a", b"b", b"c"]
    assert [value.tolist() for value in values] == [[1, 2, 3], [b"x", b"y", b"z"]]
    assert session.run(sizes) == (0, 0)


def test_take_many_waits(session, barrier):
    results = []
    take = barrier.take_many(1)
    waiter = threading.Thread(target=lambda: results.append(session.run(take)))
    waiter.start()
    session.run(barrier.insert_many(0, ["k"], [1.0]))
    session.run(barrier.insert_many(1, ["k"], ["v"]))
    waiter.join()
    assert results[0].keys.tolist() == [b"k"]


def test_a_component_can_be_set_once(session, barrier):
    insert = barrier.insert_many(0, ["k"], [1.0])
    session.run(insert)
    with pytest.raises(tf.errors.InvalidArgumentError, match="already has a value"):
        session.run(insert)


def test_a_closed_barrier_accepts_components_of_existing_rows(session, barrier):
    session.run(barrier.insert_many(0, ["a", "b"], [1.0, 2.0]))
    session.run(barrier.close())
    with pytest.raises(tf.errors.CancelledError, match="brand new key: c"):
        session.run(barrier.insert_many(0, ["c"], [1.0]))
    with pytest.raises(tf.errors.OutOfRangeError, match=r"requested 3, total size 2"):
        session.run(barrier.take_many(3))
    session.run(barrier.insert_many(1, ["a", "b"], ["x", "y"]))
    assert session.run(barrier.take_many(2)).keys.tolist() == [b"a", b"b"]
    with pytest.raises(tf.errors.OutOfRangeError, match="insufficient elements"):
        session.run(barrier.take_many(1))


def test_a_cancelled_barrier_rejects_insertions(session, barrier):
    session.run(barrier.insert_many(0, ["a"], [1.0]))
    session.run(barrier.close())
    session.run(barrier.close(cancel_pending_enqueues=True))
    assert session.run(barrier.incomplete_size()) == 0
    with pytest.raises(tf.errors.CancelledError, match="is closed"):
        session.run(barrier.insert_many(1, ["a"], ["x"]))
    with pytest.raises(tf.errors.CancelledError, match="already closed"):
        session.run(barrier.close())


def test_a_small_batch(session, barrier):
    session.run(barrier.insert_many(0, ["a", "b"], [1.0, 2.0]))
    session.run(barrier.insert_many(1, ["a"], ["x"]))
    session.run(barrier.close())
    take = barrier.take_many(5, allow_small_batch=True)
    assert take.indices.shape.as_list() == [None]
    assert session.run(take).keys.tolist() == [b"a"]


def test_take_many_may_have_a_timeout(session, barrier):
    with pytest.raises(tf.errors.DeadlineExceededError, match="timed out"):
        session.run(barrier.take_many(1, timeout=1))


def test_static_shapes(barrier):
    indices, keys, values = barrier.take_many(4)
    assert indices.shape == keys.shape == values[0].shape == [4]
    with pytest.raises(ValueError):
        barrier.insert_many(0, ["a", "b"], [1.0])
    with pytest.raises(ValueError, match="Empty tensors"):
        Barrier(tf.float32, shapes=((0,),))


def test_shared_barriers_must_have_equal_attributes(session):
    session.run(Barrier(tf.float32, ((),), shared_name="b").ready_size())
    with pytest.raises(tf.errors.InvalidArgumentError, match="component types"):
        session.run(Barrier(tf.int32, ((),), shared_name="b").ready_size())
