"""Steps with nodes that block: they wait without holding up what they wait for."""

import threading

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as opened:
        yield opened


def accumulator():
    return tf.ConditionalAccumulator(tf.float32, shape=[2])


def test_a_node_may_wait_for_a_later_one_of_its_step(session):
    total = accumulator()
    taken = total.take_grad(2)
    first, second = (total.apply_grad(np.ones(2, np.float32) * k) for k in (1, 3))
    doubled = taken * 2.0
    value, _, _ = session.run([doubled, first, second])
    assert value.tolist() == [4.0, 4.0]


def test_two_blocking_nodes_feed_each_other(session):
    one, two = accumulator(), accumulator()
    with tf.control_dependencies([one.take_grad(1)]):
        to_two = two.apply_grad(np.ones(2, np.float32))
    from_two = two.take_grad(1)
    to_one = one.apply_grad(np.ones(2, np.float32))
    value, _, _ = session.run([from_two, to_two, to_one])
    assert value.tolist() == [1.0, 1.0]


def test_another_step_may_unblock(session):
    total = accumulator()
    taken, apply = total.take_grad(1), total.apply_grad(np.ones(2, np.float32))
    results = []
    waiter = threading.Thread(target=lambda: results.append(session.run(taken)))
    waiter.start()
    session.run(apply)
    waiter.join()
    assert results[0].tolist() == [1.0, 1.0]


def test_an_error_elsewhere_ends_the_waiting(session):
    total = accumulator()
    bad = tf.gather([1.0], tf.placeholder_with_default([7], [1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="7 is not in"):
        session.run([total.take_grad(1), total.take_grad(1), bad])


@pytest.mark.parametrize("waiters", [1, 3])
def test_a_timeout_ends_the_waiting(waiters):
    with tf.Graph().as_default():
        total = accumulator()
        taken = [total.take_grad(1) for _ in range(waiters)]
        config = tf.ConfigProto(operation_timeout_in_ms=50)
        with tf.Session(config=config) as session:
            with pytest.raises(tf.errors.DeadlineExceededError, match="50 ms"):
                session.run(taken)
            session.run(total.apply_grad(np.ones(2, np.float32)))
            assert session.run(taken[0]).tolist() == [1.0, 1.0]


def test_closing_the_session_ends_the_waiting():
    with tf.Graph().as_default():
        taken = accumulator().take_grad(1)
        session = tf.Session()
        errors = []

        def wait():
            try:
                session.run(taken)
            except (tf.errors.CancelledError, RuntimeError) as error:  # while it waits, or before
                errors.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        while waiter.is_alive():
            session.close()
            waiter.join(0.01)
        assert len(errors) == 1


def test_what_touches_a_variable_keeps_its_order_beside_a_node_that_blocks(session):
    """Whatever is ready first: a read comes after the writes before it."""
    total, v = accumulator(), tf.Variable(1.0)
    session.run(v.initializer)
    written = v.assign_add(2.0)
    with tf.control_dependencies([written]):
        read = v.read_value()
    later = v.assign(read * 10.0)
    apply = total.apply_grad(np.ones(2, np.float32))
    taken = total.take_grad(1)
    value, _, _, _ = session.run([read, later, taken, apply])
    assert value == 3.0
    assert session.run(v) == 30.0
    (plan,) = [plan for plan in session._plans.values() if plan.may_block]
    assert "ConditionalAccumulator" in [step.node.type for step in plan.instructions]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_step_that_fails_takes_no_later_element(devices):
    with tf.Graph().as_default():
        queue = tf.FIFOQueue(3, [tf.float32], [[]])
        taken = queue.dequeue()
        with tf.device(f"/cpu:{devices - 1}"):
            bad = tf.gather([1.0], tf.placeholder_with_default([7], [1]))
        config = tf.ConfigProto(device_count={"CPU": devices})
        with tf.Session(config=config) as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match="7 is not in"):
                session.run([taken, bad])
            session.run(queue.enqueue(1.0))
            session.run(queue.enqueue(2.0))
            assert session.run(taken) == 1.0


def test_a_step_that_fails_elsewhere_takes_no_element_that_is_there(session):
    queue = tf.FIFOQueue(3, [tf.float32], [[]])
    taken = queue.dequeue()
    bad = tf.gather([1.0], tf.placeholder_with_default([7], [1]))
    session.run(queue.enqueue(1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="7 is not in"):
        session.run([taken, bad])
    assert session.run(queue.size()) == 1
