"""Tensors stored in a session by handle."""

import gc

import pytest

import thalweg as tf


def test_a_value_stays_in_the_session() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        handle = session.run(tf.get_session_handle(tf.constant([1.0, 2.0])))
        assert handle.dtype == tf.float32
        assert str(handle) == handle.handle
        assert handle.eval().tolist() == [1, 2]
        holder, value = tf.get_session_tensor(handle.handle, tf.float32)
        assert session.run(value * 3.0, {holder: handle.handle}).tolist() == [3, 6]


def test_steps_pass_values_by_handle() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        handle = session.run(tf.get_session_handle(tf.constant(0)))
        holder, value = tf.get_session_tensor(handle.handle, tf.int32)
        following = tf.get_session_handle(value + 1)
        for _ in range(3):
            handle = session.run(following, {holder: handle.handle})
        assert handle.eval() == 3


def test_deleted_values_are_gone() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        handle = session.run(tf.get_session_handle(tf.constant(1)))
        holder, value = tf.get_session_tensor(handle.handle, tf.int32)
        handle.delete()
        with pytest.raises(TypeError, match="already been deleted"):
            handle.eval()
        with pytest.raises(tf.errors.InvalidArgumentError, match="not in the session store"):
            session.run(value, {holder: handle.handle})


def test_a_raw_handle_outlives_its_object() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        node = tf.get_session_handle(tf.constant(5))
        raw = session.run(node).get_raw_handle()
        lost = session.run(node).handle
        gc.collect()
        holder, value = tf.get_session_tensor(raw, tf.int32)
        assert session.run(value, {holder: raw}) == 5
        with pytest.raises(tf.errors.InvalidArgumentError, match="not in the session store"):
            session.run(value, {holder: lost})
        place, delete = tf.delete_session_tensor(raw)
        session.run(delete, {place: raw})
        with pytest.raises(tf.errors.InvalidArgumentError, match="not in the session store"):
            session.run(delete, {place: raw})


def test_only_tensors_have_handles() -> None:
    with pytest.raises(TypeError, match="must be of type Tensor"):
        tf.get_session_handle(1)
