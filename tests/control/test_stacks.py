"""Stacks: last in, first out, one a step."""

import pytest

import thalweg as tf
from thalweg.control.stacks import Stack, StackClose, StackPop, StackPush


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def pushed(handle, *values):
    node = handle
    for value in values:
        with tf.control_dependencies([node]):
            node = StackPush()(handle, value)
    return node


def popped(handle, after, dtype=tf.float32):
    with tf.control_dependencies([after]):
        return StackPop(elem_type=dtype)(handle)


def test_last_in_first_out(session):
    handle = Stack(elem_type=tf.float32)()
    last = pushed(handle, [1.0], [2.0, 3.0])
    first = popped(handle, last)
    second = popped(handle, first)
    for _ in range(2):  # every step has a stack of its own
        values = session.run([last, first, second])
        assert [value.tolist() for value in values] == [[2, 3], [2, 3], [1]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="is empty"):
        session.run(popped(handle, second))


def test_names_are_unique(session):
    one, two = (Stack(elem_type=tf.float32, stack_name="mine")() for _ in range(2))
    names = [name.tolist() for name in session.run([one, two])]
    assert names[0][0] == names[1][0] == b"_stacks"
    assert names[0][1] != names[1][1]
    assert names[0][1].startswith(b"mine_")


def test_wrong_dtype_and_closed(session):
    handle = Stack(elem_type=tf.float32)()
    last = pushed(handle, 1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="holds float32, not int32"):
        session.run(popped(handle, last, tf.int32))
    with tf.control_dependencies([last]):
        closed = StackClose()(handle)
    session.run(closed)
    with pytest.raises(tf.errors.InvalidArgumentError, match="closed"):
        session.run(popped(handle, closed))
