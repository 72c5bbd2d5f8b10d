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


def devices(setter):
    with tf.device(setter):
        variables = [tf.Variable(1.0), tf.Variable(1.0), tf.Variable(1.0)]
        total = tf.add_n([v.value() for v in variables])
    return [v.device for v in variables], total.device


CLUSTER = {"ps": ["a:1", "b:1"], "worker": ["c:1"]}


def test_variables_go_round_the_servers():
    on_servers, total = devices(tf.train.replica_device_setter(cluster=CLUSTER))
    assert on_servers == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
    assert total == "/job:worker"
    assert devices(tf.train.replica_device_setter(ps_tasks=1))[0] == ["/job:ps/task:0"] * 3


def test_no_servers_no_setter():
    assert tf.train.replica_device_setter() is None
    assert tf.train.replica_device_setter(cluster={"worker": ["c:1"]}) is None


def test_a_strategy_may_choose():
    setter = tf.train.replica_device_setter(cluster=CLUSTER, ps_strategy=lambda node: 1)
    assert devices(setter)[0] == ["/job:ps/task:1"] * 3
    with pytest.raises(TypeError, match="callable"):
        tf.train.replica_device_setter(cluster=CLUSTER, ps_strategy=3)


def test_devices_merge_with_what_the_program_asked_for():
    setter = tf.train.replica_device_setter(ps_tasks=1, worker_device="/job:worker/task:3")
    with tf.device(setter), tf.device("/cpu:0"):
        w = tf.Variable(1.0)
        x = tf.constant(1.0)
    assert w.device == "/job:ps/task:0/device:CPU:0"
    assert x.device == "/job:worker/task:3/device:CPU:0"
    plain = tf.train.replica_device_setter(ps_tasks=1, merge_devices=False)
    with tf.device(plain), tf.device("/cpu:0"):
        assert tf.Variable(1.0).device == "/device:CPU:0"
