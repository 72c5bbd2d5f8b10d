"""Updates of rows and slices of variables, compared with NumPy loops."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check_loop
from thalweg.ir.loop import NotLowered


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def variable(value):
    made = tf.Variable(value)
    tf.get_default_session().run(made.initializer)
    return made


ROWS = {
    "update": (tf.scatter_update, lambda old, new: new),
    "add": (tf.scatter_add, np.add),
    "sub": (tf.scatter_sub, np.subtract),
    "mul": (tf.scatter_mul, np.multiply),
    "div": (tf.scatter_div, np.divide),
    "min": (tf.scatter_min, np.minimum),
    "max": (tf.scatter_max, np.maximum),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("indices", [2, [1, 3], [2, 0, 2, 2], [[0, 1], [1, 4]], np.zeros([0], int)])
def test_rows(name, dtype, indices, session):
    scatter, rule = ROWS[name]
    rng = np.random.default_rng(0)
    before = rng.uniform(1, 2, [5, 3]).astype(dtype)
    indices = np.array(indices, np.int32)
    updates = rng.uniform(1, 2, [*indices.shape, 3]).astype(dtype)
    expected = before.copy()
    for place in np.ndindex(indices.shape):
        expected[indices[place]] = rule(expected[indices[place]], updates[place])
    w = variable(before)
    change = scatter(w, indices, updates)
    result = session.run(change)
    np.testing.assert_allclose(result, expected, rtol=1e-2 if dtype == np.float16 else 1e-6)
    np.testing.assert_array_equal(session.run(w), result)
    if dtype != np.float16:  # whose quotients and products by inverses differ visibly
        check_loop(change.op, [before, indices, updates], [result])


def test_scalar_updates_reach_every_row(session):
    w = variable([1, 2, 3])
    change = tf.scatter_add(w, [0, 2, 2], 10)
    assert session.run(change).tolist() == [11, 2, 23]
    check_loop(change.op, [[1, 2, 3], [0, 2, 2], 10], [[11, 2, 23]])


def test_integer_division_rounds_to_zero(session):
    w = variable([7, -7, 9])
    change = tf.scatter_div(w, [0, 1, 2, 2], [2, 2, -2, 2])
    assert session.run(change).tolist() == [3, -3, -2]
    with pytest.raises(NotLowered):
        check_loop(change.op, [[7, -7, 9], [0], [2]], [[3, -7, 9]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="division by zero"):
        session.run(tf.scatter_div(w, [0], [0]))


def test_flags_can_be_set(session):
    w = variable([False, False])
    assert session.run(tf.scatter_update(w, [1], [True])).tolist() == [False, True]


@pytest.mark.parametrize("indices", [[0, -1], [0, 3]])
def test_indices_outside_change_nothing(indices, session):
    w = variable([1.0, 2.0, 3.0])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"indices\[1\] = -?\d is not in \[0, 3\)"
    ):
        session.run(tf.scatter_add(w, indices, [1.0, 1.0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid indices"):
        session.run(tf.scatter_nd_add(w, [[i] for i in indices], [1.0, 1.0]))
    assert session.run(w).tolist() == [1, 2, 3]


def test_shapes_are_checked_at_construction_and_at_run_time(session):
    w = variable(np.zeros([3, 2], np.float32))
    with pytest.raises(ValueError, match="incompatible"):
        tf.scatter_add(w, [0, 1], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="outer 1 dimensions"):
        tf.scatter_nd_add(w, [[0], [1]], [[1.0, 2.0]])
    fed = tf.placeholder(tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"updates\.shape"):
        session.run(tf.scatter_add(w, [0, 1], fed), {fed: [[1.0, 2.0]]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="dimensions"):
        session.run(tf.scatter_nd_add(w, [[0], [1]], fed), {fed: [[1.0, 2.0]]})


SLICES = {
    "update": (tf.scatter_nd_update, lambda old, new: new),
    "add": (tf.scatter_nd_add, np.add),
    "sub": (tf.scatter_nd_sub, np.subtract),
}


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize(
    "indices", [[[1]], [[0, 1], [2, 0], [0, 1]], [[[2], [1]], [[0], [2]]], [[1, 2, 0]]]
)
def test_slices(name, indices, session):
    scatter, rule = SLICES[name]
    rng = np.random.default_rng(0)
    before = rng.normal(size=[3, 4, 2])
    indices = np.array(indices, np.int64)
    depth = indices.shape[-1]
    updates = rng.normal(size=[*indices.shape[:-1], *before.shape[depth:]])
    expected = before.copy()
    for place in np.ndindex(indices.shape[:-1]):
        where = tuple(indices[place])
        expected[where] = rule(expected[where], updates[place])
    change = scatter(variable(before), indices, updates)
    np.testing.assert_allclose(session.run(change), expected)
    check_loop(change.op, [before, indices, updates], [expected])


def test_batches(session):
    w = variable(np.zeros([2, 4, 3], np.float32))
    indices = np.array([[1, 3], [0, 2]])
    updates = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    expected = np.zeros([2, 4, 3])
    for member in range(2):
        expected[member, indices[member]] = updates[member]
    result = session.run(tf.batch_scatter_update(w, indices, updates))
    np.testing.assert_array_equal(result, expected)
