"""The global step and the device setter."""

import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_create_and_get():
    assert tf.train.get_global_step() is None
    with tf.name_scope("ignored"):
        step = tf.train.create_global_step()
    assert step.name == "global_step:0"
    assert step.dtype.base_dtype == tf.int64
    assert tf.train.get_global_step() is step
    assert tf.train.get_or_create_global_step() is step
    assert step not in tf.trainable_variables()
    with pytest.raises(ValueError, match="already exists"):
        tf.train.create_global_step()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert tf.train.global_step(session, step) == 0


def test_a_vector_of_one():
    with tf.Session() as session:
        assert tf.train.global_step(session, tf.constant([7])) == 7


def test_found_by_name():
    tf.Variable(0, name="global_step")
    assert tf.train.get_global_step().name == "global_step:0"


def test_get_or_create():
    assert tf.train.get_or_create_global_step() is tf.train.get_global_step()


@pytest.mark.parametrize(
    ("value", "message"), [(1.0, "integer type"), ([1, 2], "not scalar"), ("word", "integer type")]
)
def test_wrong_steps(value, message):
    with pytest.raises(TypeError, match=message):
        tf.train.assert_global_step(tf.Variable(value))
    with pytest.raises(TypeError, match="must be a Variable or Tensor"):
        tf.train.assert_global_step(7)
