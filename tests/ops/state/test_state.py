"""Reading and changing variables: assign_*, count_up_to, temporary variables, cells."""

import threading

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS, check_loop
from thalweg.ops.core.context import VariableCell
from thalweg.ops.state import state


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def variable(value):
    made = tf.Variable(value)
    tf.get_default_session().run(made.initializer)
    return made


@pytest.mark.parametrize("dtype", [np.int32, *NARROW_FLOATS, np.float32, np.complex64])
def test_dense_updates(dtype, session):
    w = variable(np.array([1, 2, 3], dtype))
    delta = np.array([3, 1, 2], dtype)
    assert session.run(tf.assign(w, delta)).tolist() == delta.tolist()
    assert session.run(tf.assign_add(w, delta)).tolist() == (2 * delta).tolist()
    assert session.run(tf.assign_sub(w, delta)).tolist() == delta.tolist()
    assert session.run(w).dtype == dtype


@pytest.mark.parametrize("dtype", [np.int32, np.float16, np.complex64, np.uint8])
def test_compiled_updates_return_the_new_value(dtype, session):
    before, value = np.array([[1, 2], [3, 4]], dtype), np.array([[3, 1], [2, 5]], dtype)
    for change in (tf.assign, tf.assign_add, tf.assign_sub):
        node = change(variable(before), value).op
        check_loop(node, [before, value], [session.run(node.output)])


def test_strings_and_flags(session):
    words, flags = variable([b"a", b"b"]), variable([True, False])
    assert session.run(tf.assign(words, ["c", "d"])).tolist() == [b"c", b"d"]
    assert session.run(tf.assign(flags, [False, False])).tolist() == [False, False]


def test_failed_updates_change_nothing(session):
    w = variable([1.0, 2.0])
    fed = tf.placeholder(tf.float32)
    for change in (tf.assign, tf.assign_add, tf.assign_sub):
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(change(w, fed), {fed: np.zeros(3)})
    assert session.run(w).tolist() == [1, 2]


def test_static_shapes_are_checked():
    w = variable([1.0, 2.0])
    for change in (tf.assign, tf.assign_add, tf.assign_sub):
        with pytest.raises(ValueError, match="not compatible"):
            change(w, [1.0])
    with pytest.raises(TypeError, match=r"not in the list of allowed|does not match"):
        tf.assign_add(variable(["a"]), ["b"])


def test_control_dependencies_order_reads_and_writes(session):
    w = variable(1.0)
    before = tf.identity(w)
    with tf.control_dependencies([before]):
        change = tf.assign_add(w, 1.0)
    with tf.control_dependencies([change]):
        after = w.read_value()
    assert session.run([before, after]) == [1.0, 2.0]


def test_count_up_to(session):
    counter = variable(np.int64(0))
    step = tf.count_up_to(counter, 3)
    assert [session.run(step) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(tf.errors.OutOfRangeError):
        session.run(step)
    with pytest.raises(ValueError, match="not compatible"):
        tf.count_up_to(variable([1, 2]), 3)


def test_temporary_variables_live_for_a_step(session):
    fresh = state.temporary_variable([2], tf.float32, var_name="t")
    changed = tf.assign_add(tf.assign(fresh, [1.0, 2.0]), [1.0, 1.0])
    final = state.destroy_temporary_variable(changed, "t")
    assert session.run(final).tolist() == [2, 3]
    assert session.run(final).tolist() == [2, 3]
    missing = state.destroy_temporary_variable(fresh, "other")
    with pytest.raises(tf.errors.NotFoundError):
        session.run(missing)
    twin = state.temporary_variable([2], tf.float32, var_name="t")
    with pytest.raises(tf.errors.AlreadyExistsError):
        session.run(fresh + twin)


def test_equal_names_in_different_containers_are_different_variables(session):
    with tf.container("one"):
        a = state.variable_op([], tf.float32, shared_name="shared")
    b = state.variable_op([], tf.float32, shared_name="shared")
    c = state.variable_op([], tf.float32, shared_name="shared")
    session.run([tf.assign(a, 1.0), tf.assign(b, 2.0)])
    assert session.run([a, b, c]) == [1.0, 2.0, 2.0]


class TestCell:
    def cell(self):
        cell = VariableCell("w", tf.float32, tf.TensorShape([2]))
        cell.assign(np.array([1, 2], np.float32))
        return cell

    def test_reads_are_read_only_and_never_change(self):
        cell = self.cell()
        seen = cell.read()
        with pytest.raises(ValueError, match="read-only"):
            seen[0] = 5
        cell.update(lambda buffer: np.add(buffer, 1, out=buffer))
        assert seen.tolist() == [1, 2]
        assert cell.read().tolist() == [2, 3]

    def test_updates_write_in_place_when_nobody_reads(self):
        cell = self.cell()
        address = cell.read().__array_interface__["data"]
        cell.update(lambda buffer: np.add(buffer, 1, out=buffer))
        assert cell.read().__array_interface__["data"] == address

    def test_views_of_reads_count_as_reads(self):
        cell = self.cell()
        last = cell.read()[1:].reshape(1, 1)
        cell.update(lambda buffer: np.add(buffer, 1, out=buffer))
        assert last.tolist() == [[2]]

    def test_exchange_returns_the_old_memory_unless_it_is_leased(self):
        cell = self.cell()
        memory = cell.borrow().array
        assert cell.exchange(np.array([3, 4], np.float32)) is memory
        seen = cell.read()
        assert cell.exchange(memory) is None
        assert seen.tolist() == [3, 4] and cell.read().tolist() == [1, 2]
        assert cell.exchange(np.zeros(3, np.float32)) is None

    def test_concurrent_updates_are_not_lost(self):
        cell = self.cell()

        def work():
            for _ in range(200):
                cell.update(lambda buffer: np.add(buffer, 1, out=buffer))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cell.read().tolist() == [801, 802]

    def test_uninitialized(self):
        cell = VariableCell("w", tf.float32, tf.TensorShape([2]))
        assert not cell.is_initialized
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value w"):
            cell.read()
        assert VariableCell("e", tf.float32, tf.TensorShape([0])).is_initialized


def test_variables_of_old_graphs(session):
    old = state.VariableV1(dtype=tf.float32, given_shape=tf.TensorShape([2]))(name="old")
    session.run(tf.assign(old, [1.0, 2.0]))
    assert session.run(old + 1).tolist() == [2, 3]


def test_the_gradient_of_value_or_initial_is_that_of_the_variable(session):
    v = variable([1.0, 2.0])
    y = state.value_or_initial(v._ref(), tf.constant([5.0, 5.0]))
    assert session.run(tf.gradients(y * y, v)[0]).tolist() == [2, 4]
