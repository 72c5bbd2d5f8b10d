"""Conditional accumulators: means and sums, stale gradients, waiting and cancelling."""

import threading

import numpy as np
import pytest

import thalweg as tf
from thalweg.ops.state.accumulator_state import (
    DenseAccumulator,
    SparseAccumulator,
    SparseGradient,
    immutable,
)
from thalweg.runtime.cancellation import Cancellation


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def test_mean_and_sum(session):
    for reduction, expected in (("MEAN", [2, 3]), ("SUM", [4, 6])):
        total = tf.ConditionalAccumulator(tf.float32, [2], reduction_type=reduction)
        session.run(total.apply_grad([1.0, 2.0]))
        session.run(total.apply_grad([3.0, 4.0]))
        assert session.run(total.num_accumulated()) == 2
        assert session.run(total.take_grad(1)).tolist() == expected
        assert session.run(total.num_accumulated()) == 0
    with pytest.raises(ValueError, match="MEAN"):
        tf.ConditionalAccumulator(tf.float32, reduction_type="MEDIAN")


def test_stale_gradients_are_dropped(session):
    total = tf.ConditionalAccumulator(tf.float32, [])
    session.run(total.set_global_step(3))
    session.run(total.apply_grad(100.0, local_step=2))
    session.run(total.apply_grad(1.0, local_step=3))
    assert session.run(total.take_grad(1)) == 1.0
    session.run(total.apply_grad(100.0, local_step=3))
    session.run(total.apply_grad(2.0, local_step=4))
    assert session.run(total.take_grad(1)) == 2.0


def test_shapes(session):
    total = tf.ConditionalAccumulator(tf.float32, [2, None])
    with pytest.raises(ValueError, match="incompatible"):
        total.apply_grad([1.0])
    fed = tf.placeholder(tf.float32)
    apply = total.apply_grad(fed)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Shape mismatch"):
        session.run(apply, {fed: [1.0]})
    session.run(apply, {fed: np.ones([2, 3])})
    with pytest.raises(tf.errors.InvalidArgumentError, match="Shape mismatch"):
        session.run(apply, {fed: np.ones([2, 4])})
    with pytest.raises(tf.errors.InvalidArgumentError, match="positive"):
        session.run(total.take_grad(0))


def test_takes_wait_for_enough(session):
    total = tf.ConditionalAccumulator(tf.float32, [])
    apply, take = total.apply_grad(4.0), total.take_grad(2)
    results = []
    thread = threading.Thread(target=lambda: results.append(session.run(take)))
    thread.start()
    session.run(apply)
    session.run(apply)
    thread.join()
    assert results == [4.0]


def test_closing_the_session_cancels_a_take():
    started = threading.Event()
    errors = []

    def start():
        started.set()
        return np.float32(0)

    def wait():
        try:
            session.run(take)
        except tf.errors.CancelledError as error:
            errors.append(error.message)

    with tf.Graph().as_default():
        session = tf.Session()
        total = tf.ConditionalAccumulator(tf.float32, [])
        with tf.control_dependencies([tf.py_func(start, [], tf.float32)]):
            take = total.take_grad(1)
        thread = threading.Thread(target=wait)
        thread.start()
        started.wait()
        session.close()
        thread.join()
    assert len(errors) == 1


def test_sharing(session):
    first, second = (tf.ConditionalAccumulator(tf.float32, [], shared_name="s") for _ in range(2))
    session.run(first.apply_grad(1.0))
    assert session.run(second.take_grad(1)) == 1.0
    other = tf.ConditionalAccumulator(tf.float64, [], shared_name="s")
    with pytest.raises(tf.errors.InvalidArgumentError, match="'s' holds float32"):
        session.run(other.num_accumulated())


def test_a_sparse_row_is_averaged_over_the_gradients_that_contain_it(session):
    total = tf.SparseConditionalAccumulator(tf.float32, [None, 2])
    session.run(total.apply_grad([0, 2], [[1.0, 1.0], [2.0, 4.0]]))
    session.run(total.apply_grad([2, 3], [[4.0, 2.0], [6.0, 6.0]], grad_shape=[5, 2]))
    taken = session.run(total.take_indexed_slices_grad(2))
    assert taken.indices.tolist() == [0, 2, 3]
    assert taken.values.tolist() == [[1, 1], [3, 3], [6, 6]]
    assert taken.dense_shape.tolist() == [-1, 2]
    slices = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([7, 7]))
    session.run(total.apply_indexed_slices_grad(slices, local_step=1))
    indices, values, _ = session.run(total.take_grad(1))
    assert (indices.tolist(), values.tolist()) == ([7], [[4, 6]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("reduction", ["MEAN", "SUM"])
@pytest.mark.parametrize("rows", [3, 20, 1000])  # most indices are repeated, some, hardly any
def test_sparse_gradients_are_summed_row_by_row(rows, reduction, dtype):
    generator = np.random.default_rng(rows)
    sizes = [20, 0, 1, 20]
    total = SparseAccumulator(tf.as_dtype(dtype), tf.TensorShape([rows, 2]), reduction)
    sums, gradients = np.zeros([rows, 2]), np.zeros(rows)
    for size in sizes:
        indices = generator.integers(0, rows, size)
        values = generator.integers(-99, 99, [size, 2]).astype(dtype)
        total.apply(0, SparseGradient(indices, values, None))
        np.add.at(sums, indices, values)
        gradients[np.unique(indices)] += 1
        values[:], indices[:] = 0, 0  # the caller may overwrite its arrays
    taken = total.take(len(sizes), Cancellation())
    found = np.flatnonzero(gradients)
    divisors = gradients[found, None] if reduction == "MEAN" else 1
    assert taken.indices.tolist() == found.tolist() and taken.indices.dtype == np.int64
    assert taken.values.dtype == dtype
    np.testing.assert_array_equal(taken.values, (sums[found] / divisors).astype(dtype))
    assert taken.shape.tolist() == [rows, 2]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("width", [(), (1,), (5,), (3, 2)])
@pytest.mark.parametrize("rows", [1, 3, 12, 60, 1000])
def test_rows_are_added_in_order_of_arrival(rows, width, dtype):
    generator = np.random.default_rng(rows)
    total = SparseAccumulator(tf.as_dtype(dtype), tf.TensorShape([rows, *width]), "SUM")
    sums = {}
    for _ in range(4):
        indices = generator.integers(0, rows, 50)
        values = generator.normal(size=[50, *width]).astype(dtype)
        total.apply(0, SparseGradient(indices, values, None))
        for index, value in zip(indices.tolist(), values, strict=True):
            sums[index] = sums[index] + value if index in sums else value
    taken = total.take(4, Cancellation())
    assert taken.indices.tolist() == sorted(sums)
    expected = np.array([sums[index] for index in sorted(sums)])
    assert taken.values.tobytes() == expected.tobytes() and taken.values.dtype == dtype


def test_indices_without_a_limit():
    total = SparseAccumulator(tf.float32, tf.TensorShape(None), "SUM")
    large, values = (1 << 63) - 1, np.array([[1.0], [2.0], [4.0]], np.float32)
    for indices in ([large, 0, large - 1], [0, large, large]):
        total.apply(0, SparseGradient(np.array(indices), values, None))
    taken = total.take(2, Cancellation())
    assert taken.indices.tolist() == [0, large - 1, large]
    assert taken.values.tolist() == [[3.0], [4.0], [7.0]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"slice 1 exceeded .* index is -1 "):
        total.apply(1, SparseGradient(np.array([0, -1, 2]), values, None))


def received(array):
    """A read-only array over bytes, like the payload of a message."""
    return np.ndarray(array.shape, array.dtype, array.tobytes())


def test_gradients_of_messages_are_not_copied():
    values = received(np.float32([[1, 2], [3, 4]]))
    assert immutable(values) is values and immutable(values[1:]).base is values
    for array in (np.ones(3), np.ones(3)[1:], np.broadcast_to(np.ones(1), 3)):
        assert not np.shares_memory(immutable(array), array)
    frozen = np.ones(3)
    view = frozen[:]
    view.flags.writeable = False  # like a fed value
    assert not np.shares_memory(immutable(view), frozen)


@pytest.mark.parametrize("reduction", ["MEAN", "SUM"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_dense_gradients_are_not_modified(reduction, dtype):
    for count in (1, 2, 5):
        total = DenseAccumulator(tf.as_dtype(dtype), tf.TensorShape([2]), reduction)
        gradients = [received(np.array([n, 10 * n], dtype)) for n in range(1, count + 1)]
        for gradient in gradients:
            total.apply(0, gradient)
        taken = total.take(count, Cancellation())
        assert [gradient[0] for gradient in gradients] == [*range(1, count + 1)]
        expected = np.sum(gradients, axis=0) / (count if reduction == "MEAN" else 1)
        assert taken.dtype == dtype and taken.tolist() == expected.astype(dtype).tolist()


def test_sparse_gradients_without_rows():
    total = SparseAccumulator(tf.float32, tf.TensorShape([4, 2]), "MEAN")
    total.apply(0, SparseGradient(np.zeros(0, np.int64), np.zeros([0, 2], np.float32), None))
    taken = total.take(1, Cancellation())
    assert taken.indices.shape == (0,) and taken.values.shape == (0, 2)


@pytest.mark.parametrize(
    ("indices", "values", "shape", "message"),
    [
        ([[0]], [[1.0, 2.0]], None, "indices should be vector"),
        ([0], 1.0, None, "0-dimensional"),
        ([0, 1], [[1.0, 2.0]], None, "Expected 2 non-empty input values, got 1"),
        ([4], [[1.0, 2.0]], None, "index of slice 0 exceeded limits"),
        ([0], [[1.0]], None, "expected values dim 1 to be 2, got 1"),
        ([0], [1.0], None, "expected values rank at least 2, got 1"),
        ([0], [[1.0, 2.0]], [4], "expected shape rank at least 2, got 1"),
        ([0], [[1.0, 2.0]], [3, 2], "expected shape dim 0 to be 4, got 3"),
    ],
)
def test_rejected_sparse_gradients_change_nothing(session, indices, values, shape, message):
    total = tf.SparseConditionalAccumulator(tf.float32, [4, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(total.apply_grad(indices, values, shape))
    assert session.run(total.num_accumulated()) == 0


def test_a_cancelled_take_removes_nothing():
    total = DenseAccumulator(tf.float32, tf.TensorShape([]), "MEAN")
    cancellation = Cancellation()
    cancellation.cancel(tf.errors.CancelledError(None, None, "its session is gone"))
    total.apply(0, np.float32(3.0))
    with pytest.raises(tf.errors.CancelledError, match="its session is gone"):
        total.take(1, cancellation)
    assert total.take(1, Cancellation()) == 3.0


def test_awaiting_gradients_does_not_remove_them(session):
    for total in (
        tf.ConditionalAccumulator(tf.float32, [1]),
        tf.SparseConditionalAccumulator(tf.float32, [1]),
    ):
        is_dense = isinstance(total, tf.ConditionalAccumulator)
        push = total.apply_grad([4.0]) if is_dense else total.apply_grad([0], [4.0])
        enough, count = total.await_grads(2), total.num_accumulated()
        thread = threading.Thread(target=session.run, args=(enough,))
        thread.start()
        session.run(push)
        assert thread.is_alive()
        session.run(push)
        thread.join()
        assert session.run(count) == 2


def test_awaiting_gradients_can_be_cancelled():
    total, cancellation = DenseAccumulator(tf.float32, tf.TensorShape([]), "MEAN"), Cancellation()
    cancellation.cancel(tf.errors.CancelledError(None, None, "its session is gone"))
    with pytest.raises(tf.errors.CancelledError, match="its session is gone"):
        total.await_count(1, cancellation)
