"""Where a variable is read: a use under control dependencies comes after what they wait for."""

import numpy as np
import pytest

import thalweg as tf
from thalweg.variables.variable import ResourceVariable

RESOURCE = pytest.mark.parametrize("resource", [False, True])


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def variable(resource, name="v", value=(0.0, 0.0, 0.0)):
    initial = tf.constant_initializer(value)
    return tf.get_variable(name, [len(value)], initializer=initial, use_resource=resource)


def in_loop(v):
    return tf.while_loop(lambda i, s: i < 1, lambda i, s: (i + 1, s + v), [0, tf.zeros([3])])[1]


USES = {
    "identity": tf.identity,
    "operator": lambda v: v * 1,
    "gather": lambda v: tf.gather(v, [0, 1, 2]),
    "lookup": lambda v: tf.nn.embedding_lookup(v, [0, 1, 2]),
    "sparse_read": lambda v: v.sparse_read([0, 1, 2]),
    "gather_nd": lambda v: v.gather_nd([[0], [1], [2]]),
    "slice": lambda v: v[:3],
    "value": lambda v: v.value() + 0.0,
    "read_value": lambda v: v.read_value(),
    "convert": lambda v: tf.convert_to_tensor(v) + 0.0,
    "stack": lambda v: tf.stack([v])[0],
    "cond": lambda v: tf.cond(tf.constant(True), lambda: v * 1, lambda: v * 2),
    "loop": in_loop,
    "map_fn": lambda v: tf.map_fn(lambda i: v[i], tf.range(3), dtype=tf.float32),
    "function": lambda v: tf.function(lambda: v * 1)(),
    "host": lambda v: tf.py_func(lambda x: x, [v], tf.float32),
    "nested": lambda v: tf.cond(tf.constant(True), lambda: in_loop(v), lambda: v * 2),
}


@RESOURCE
@pytest.mark.parametrize("use", USES)
def test_a_use_sees_the_update_it_waits_for(session, resource, use):
    v = variable(resource)
    with tf.control_dependencies([tf.assign_add(v, tf.ones([3]))]):
        y = USES[use](v)
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(session.run(y), [1, 1, 1])
    np.testing.assert_array_equal(session.run(y), [2, 2, 2])


@RESOURCE
def test_uses_between_updates_see_each_its_own_value(session, resource):
    v = variable(resource)
    before = v * 1
    with tf.control_dependencies([before]):
        first = tf.assign_add(v, tf.ones([3]))
    with tf.control_dependencies([first]):
        between = v * 1
        with tf.control_dependencies([between]):
            second = tf.assign_add(v, tf.ones([3]))
    with tf.control_dependencies([second]):
        after = v * 1
    session.run(tf.global_variables_initializer())
    found = session.run([before, between, after])
    assert [float(value[0]) for value in found] == [0, 1, 2]


@RESOURCE
def test_a_loop_that_updates_reads_what_it_wrote(session, resource):
    v = variable(resource)

    def body(i, total):
        with tf.control_dependencies([tf.assign_add(v, tf.ones([3]))]):
            return i + 1, total + v

    _, total = tf.while_loop(lambda i, _: i < 4, body, [0, tf.zeros([3])])
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(session.run(total), [10, 10, 10])


def test_dependencies_on_nodes_outside_a_branch_count_inside(session):
    v = variable(False)
    update = tf.assign_add(v, tf.ones([3]))

    def branch():
        with tf.control_dependencies([update]):
            return v * 1

    y = tf.cond(tf.constant(True), branch, lambda: tf.zeros([3]))
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(session.run(y), [1, 1, 1])


@RESOURCE
def test_moving_averages_follow_the_step_they_wait_for(session, resource):
    v = variable(resource)
    train = tf.assign_add(v, tf.ones([3]))
    averages = tf.train.ExponentialMovingAverage(decay=0.0)
    with tf.control_dependencies([train]):
        maintain = averages.apply([v])
    session.run(tf.global_variables_initializer())
    for step in range(1, 4):
        session.run(maintain)
        np.testing.assert_array_equal(session.run(averages.average(v)), np.full(3, step))


def test_gradients_count_every_read(session):
    v = variable(False, value=(1.0, 2.0, 3.0))
    loss = tf.reduce_sum(v * v)
    with tf.control_dependencies([loss]):
        loss += tf.reduce_sum(3.0 * v)
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(session.run(tf.gradients(loss, [v])[0]), [5, 7, 9])


def test_a_read_is_made_once_in_a_scope_and_not_without_one():
    v = variable(False)
    graph = tf.get_default_graph()
    count = len(graph.get_operations())
    tf.convert_to_tensor(v)
    with tf.control_dependencies(None):
        tf.convert_to_tensor(v)
    assert len(graph.get_operations()) == count
    with tf.control_dependencies([v.initializer]):
        first, second = tf.convert_to_tensor(v), tf.convert_to_tensor(v)
        assert first is second
        assert first.op.control_inputs == [v.initializer]
        with tf.control_dependencies(None):
            assert tf.convert_to_tensor(v) is v._snapshot


def test_a_variable_made_after_dependencies_is_not_read_again():
    with tf.control_dependencies([tf.no_op()]):
        made = tf.Variable(1.0)
        doubled = made * 2
        with tf.control_dependencies([made.assign(5.0)]):
            tripled = made * 3
    assert doubled.op.inputs[0].op.name == "Variable/read"
    with tf.Session() as session:
        session.run(made.initializer)
        assert session.run(tripled) == 15.0


@RESOURCE
@pytest.mark.parametrize("branch", [True, False])
def test_a_value_that_was_taken_stays(session, resource, branch):
    v = variable(resource, value=(1.0, 2.0, 3.0))

    def overwrite():
        old = v.value()
        with tf.control_dependencies([old]):
            cleared = v.assign(tf.zeros([3]))
        with tf.control_dependencies([cleared]):
            copied = v[:2].assign(old[:2])
        with tf.control_dependencies([copied]):
            return tf.identity(v)

    given = tf.placeholder_with_default(True, [])
    result = tf.cond(given, overwrite, lambda: v * 1) if branch else overwrite()
    session.run(v.initializer)
    assert session.run(result).tolist() == [1.0, 2.0, 0.0]


def test_resources_have_a_class_of_their_own():
    plain, resource = variable(False, "plain"), variable(True, "resource")
    assert not isinstance(plain, ResourceVariable) and isinstance(resource, ResourceVariable)
    assert (plain.dtype, resource.dtype) == (tf.float32_ref, tf.float32)
    assert type(ResourceVariable(1.0)) is ResourceVariable
    tf.enable_resource_variables()
    assert type(tf.Variable(1.0)) is ResourceVariable
    assert type(tf.Variable(1.0, use_resource=False)) is tf.Variable
    tf.disable_resource_variables()
