"""Partitioned variables and the functions that say how to cut them."""

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


@pytest.mark.parametrize(
    ("partitioner", "shape", "dtype", "expected"),
    [
        (tf.fixed_size_partitioner(4), [10, 3], tf.float32, [4, 1]),
        (tf.fixed_size_partitioner(4, axis=1), [10, 3], tf.float32, [1, 3]),
        (tf.variable_axis_size_partitioner(64), [64, 4], tf.float32, [16, 1]),
        (tf.variable_axis_size_partitioner(64, axis=1), [4, 64], tf.float64, [1, 32]),
        (tf.variable_axis_size_partitioner(64, max_shards=3), [64, 4], tf.float32, [3, 1]),
        (tf.variable_axis_size_partitioner(64), [8], tf.string, [2]),
        (tf.min_max_variable_partitioner(8, min_slice_size=64), [64, 1], tf.float32, [4, 1]),
        (tf.min_max_variable_partitioner(2, min_slice_size=64), [64, 1], tf.float32, [2, 1]),
        (tf.min_max_variable_partitioner(8, min_slice_size=1 << 20), [64], tf.float32, [1]),
    ],
)
def test_partitioners(partitioner, shape, dtype, expected):
    assert partitioner(shape=tf.TensorShape(shape), dtype=dtype) == expected


def test_bad_partitioners():
    with pytest.raises(ValueError, match="must be positive"):
        tf.variable_axis_size_partitioner(0)
    with pytest.raises(ValueError, match="must be positive"):
        tf.variable_axis_size_partitioner(8, max_shards=0)
    with pytest.raises(ValueError, match="not fully defined"):
        tf.variable_axis_size_partitioner(8)(tf.TensorShape([None]), tf.float32)
    with pytest.raises(ValueError, match="axis 1"):
        tf.min_max_variable_partitioner(axis=1)(tf.TensorShape([4]), tf.float32)
    for partitions, message in (
        (3, "sequence"),
        ([2], "rank"),
        ([0, 1], "zero partitions"),
        ([2, 2], "one dimension"),
        ([5, 1], "Cannot create 5 slices"),
    ):
        with pytest.raises(ValueError, match=message):
            tf.get_variable("w", [4, 2], partitioner=lambda p=partitions, **_: p)


def test_parts_make_the_whole(session):
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    w = tf.get_variable(
        "w", initializer=tf.constant(rows), partitioner=tf.fixed_size_partitioner(2)
    )
    assert [part.op.name for part in w] == ["w/part_0", "w/part_1"]
    assert [part.shape.as_list() for part in w] == [[3, 2], [2, 2]]
    assert [part.save_slice_info.spec for part in w] == ["5 2 0,3:0,2", "5 2 3,2:0,2"]
    assert (len(w), w.name, w.shape.as_list()) == (2, "w", [5, 2])
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(session.run(tf.convert_to_tensor(w)), rows)
    np.testing.assert_array_equal(session.run(w.as_tensor() * 2.0), 2 * rows)
    session.run(w.assign(tf.constant(rows + 1)))
    np.testing.assert_array_equal(session.run(w.as_tensor()), rows + 1)
    with pytest.raises(TypeError, match="no one buffer"):
        tf.convert_to_tensor(w, as_ref=True)


def test_initializers_see_the_whole(session):
    w = tf.get_variable(
        "w",
        [4, 3],
        initializer=tf.initializers.identity(),
        partitioner=tf.fixed_size_partitioner(2),
    )
    session.run(tf.global_variables_initializer())
    np.testing.assert_array_equal(session.run(w.as_tensor()), np.eye(4, 3))


def test_reuse(session):
    cut = tf.fixed_size_partitioner(2)
    with tf.variable_scope("a", reuse=tf.AUTO_REUSE):
        w = tf.get_variable("w", [4], partitioner=cut)
        assert tf.get_variable("w", [4], partitioner=cut) is w
        assert tf.get_variable("w") is w
        with pytest.raises(ValueError, match="partitions"):
            tf.get_variable("w", [4], partitioner=tf.fixed_size_partitioner(4))
        with pytest.raises(ValueError, match="shape"):
            tf.get_variable("w", [6], partitioner=cut)
        tf.get_variable("single", [4])
        with pytest.raises(ValueError, match="unpartitioned version"):
            tf.get_variable("single", [4], partitioner=cut)
    with tf.variable_scope("a"):
        with pytest.raises(ValueError, match="already exists"):
            tf.get_variable("w", [4], partitioner=cut)
        with pytest.raises(ValueError, match="No partitioner was provided"):
            tf.get_variable("w", [4])
    with tf.variable_scope("a", reuse=True), pytest.raises(ValueError, match="does not exist"):
        tf.get_variable("new", [4], partitioner=cut)


def test_create_partitioned_variables(session):
    parts = tf.create_partitioned_variables([4, 2], [4, 1], tf.ones_initializer(), name="p")
    assert [part.op.name for part in parts] == [f"p/part_{i}" for i in range(4)]
    with pytest.raises(ValueError, match="length"):
        tf.create_partitioned_variables([4, 2], [4], tf.ones_initializer())


def test_partition_info():
    info = tf.variables.partitioned.PartitionInfo([9, 3], [3, 0])
    assert info.single_slice_dim([3, 3]) == 0
    assert info.single_offset([3, 3]) == 3
    assert tf.variables.partitioned.PartitionInfo([9, 3], [0, 0]).single_slice_dim([9, 3]) is None
    with pytest.raises(ValueError, match="exceed"):
        info.single_slice_dim([7, 3])
    with pytest.raises(ValueError, match="0 <= offset"):
        tf.variables.partitioned.PartitionInfo([9, 3], [9, 0])


def test_a_saver_sees_the_name_that_a_program_sets():
    halves = tf.fixed_size_partitioner(2)
    first = tf.get_variable("first", [4, 5], partitioner=halves)
    second = tf.get_variable("second", [4, 5], partitioner=halves)
    second._name = "first"
    with pytest.raises(ValueError, match="same name: first"):
        tf.train.Saver([first, second])
