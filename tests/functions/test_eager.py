"""Eager code: tensors as arrays, order of effects, errors, random numbers, memory, threads."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.functions import steps
from thalweg.functions.eager import EAGER
from thalweg.graph.graph import forget_default_graph
from thalweg.ops.rare.barriers import Barrier


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    with tf.eager_mode():
        yield


class TestMode:
    def test_is_on_inside_the_block_and_off_in_graphs(self):
        assert tf.executing_eagerly()
        with tf.Graph().as_default():
            assert not tf.executing_eagerly()
            assert "Tensor(" in str(tf.constant(1) + 1)
        assert tf.executing_eagerly()

    def test_graph_mode_has_a_graph_of_its_own(self):
        with tf.graph_mode() as graph:
            tf.constant(1)
            assert tf.get_default_graph() is graph and len(graph.nodes) == 1

    def test_enabling_holds_for_all_threads(self):
        seen: list[bool] = []
        forget_default_graph()  # other tests may have used it
        tf.enable_eager_execution()
        try:
            thread = threading.Thread(target=lambda: seen.append(tf.executing_eagerly()))
            thread.start()
            thread.join()
        finally:
            tf.disable_eager_execution()
        assert seen == [True]

    def test_eager_tensors_are_constants_in_a_graph(self):
        x = tf.constant([1.0, 2.0]) * 3
        with tf.Graph().as_default(), tf.Session() as session:
            y = tf.constant([1.0, 1.0]) + x
            assert session.run(y).tolist() == [4.0, 7.0]

    def test_symbolic_tensors_take_eager_ones_to_their_graph(self):
        graph = tf.Graph()
        with graph.as_default():
            symbolic = tf.constant(2.0)
        y = symbolic * tf.constant(3.0)
        assert y.graph is graph
        with tf.Session(graph=graph) as session:
            assert session.run(y) == 6.0

    def test_eager_variables_are_refused_in_a_graph(self):
        v = tf.Variable(1.0)
        with tf.Graph().as_default(), pytest.raises(ValueError, match="eager code"):
            v + 1.0

    def test_placeholders_and_sessions_are_refused(self):
        with pytest.raises(RuntimeError, match=r"tf.placeholder\(\) is not compatible with eager"):
            tf.placeholder(tf.float32)
        with pytest.raises(RuntimeError, match=r"tf.Session\(\) is not compatible with eager"):
            tf.Session()

    def test_init_scope_leaves_to_eager_code(self):
        with tf.init_scope():
            assert tf.executing_eagerly()


class TestTensors:
    def test_prints_its_value(self):
        x = tf.constant([1.0, 2.0]) * 2
        assert str(x) == "tf.Tensor([2. 4.], shape=(2,), dtype=float32)"
        assert repr(x) == (
            "<tf.Tensor: shape=(2,), dtype=float32, numpy=array([2., 4.], dtype=float32)>"
        )
        assert f"{tf.constant(1.5) * 2:.2f}" == "3.00"

    def test_gives_python_numbers(self):
        x = tf.constant(3) + 4
        assert float(x) == 7.0 and int(x) == 7 and x.item() == 7 and complex(x) == 7
        assert [10, 20, 30][tf.constant(1) + 1] == 30
        assert bool(tf.constant(1) < 2) and not tf.constant(1) > 2
        with pytest.raises(TypeError, match="integer scalar"):
            [1][tf.constant(0.5)]

    def test_numpy_is_a_copy_and_asarray_a_view_to_read(self):
        x = tf.ones([2])
        first = x.numpy()
        first += 1
        assert x.numpy().tolist() == [1.0, 1.0]
        view = np.asarray(x)
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 2
        assert np.asarray(x, np.float64).dtype == np.float64
        assert np.add(x, 1).tolist() == [2.0, 2.0]

    def test_constants_do_not_follow_their_arrays(self):
        array = np.ones(100, np.float32)
        x = tf.constant(array)
        y = x + array
        array[:] = 5
        assert y.numpy().tolist() == [2.0] * 100

    def test_length_iteration_and_indexing(self):
        x = tf.reshape(tf.range(6), [3, 2]) * 2
        assert len(x) == 3
        assert [row.numpy().tolist() for row in x] == [[0, 2], [4, 6], [8, 10]]
        assert x[1].numpy().tolist() == [4, 6] and x[-1, 0].numpy() == 8
        assert x[:, 1].numpy().tolist() == [2, 6, 10] and x[1:].shape == (2, 2)
        first, second = tf.constant([5, 6])
        assert (int(first), int(second)) == (5, 6)
        with pytest.raises(TypeError, match=r"(?i)scalar"):
            len(tf.constant(1))
        with pytest.raises(TypeError, match=r"(?i)scalar"):
            iter(tf.constant(1))

    def test_equality_is_identity_and_tensors_are_keys(self):
        x, y = tf.constant(1), tf.constant(1)
        assert x == x and x != y
        assert {x: 1, y: 2}[x] == 1

    def test_copies_and_pickles(self):
        x = tf.constant([1.0, 2.0]) + 1
        assert copy.copy(x) is x and copy.deepcopy(x) is x
        again = pickle.loads(pickle.dumps(x))
        assert again.numpy().tolist() == [2.0, 3.0] and again.dtype is tf.float32

    def test_shapes_are_always_whole(self):
        x = tf.constant([3, 0, 4])
        actual = tf.where(x > 1)
        assert actual.shape.as_list() == [2, 1] and actual.get_shape().is_fully_defined()
        assert tf.unique([1, 1, 2])[0].shape == (2,)
        assert tf.boolean_mask(x, [True, False, True]).shape == (2,)
        size = tf.reduce_max(x) - 2
        assert tf.zeros([size, 3]).shape.as_list() == [2, 3]
        assert tf.reshape(x, tf.stack([size - 1, -1])).shape.as_list() == [1, 3]

    def test_a_shape_error_comes_at_once(self):
        with pytest.raises(ValueError, match=r"must be equal.*test_eager.py"):
            tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))
        with pytest.raises(TypeError, match="float32"):
            tf.constant(1.0) + tf.constant(1)
        with pytest.raises(TypeError, match="int32"):
            tf.constant(2) * 2.5
        assert float(tf.constant(1.0) + 1) == 2.0

    def test_strings_and_host_ops(self):
        joined = tf.string_join([tf.constant("a"), "b"])
        assert joined.numpy() == b"ab"
        assert tf.constant(["x", "y"]).numpy().tolist() == [b"x", b"y"]
        assert tf.py_func(lambda v: v + 1, [tf.constant(1.0) * 2], tf.float32).numpy() == 3.0

    def test_several_and_structured_outputs(self):
        low, high = tf.split(tf.constant([1, 2, 3, 4]), 2)
        assert low.numpy().tolist() == [1, 2] and high.numpy().tolist() == [3, 4]
        values, indices = tf.nn.top_k(tf.constant([1.0, 3.0, 2.0]), 2)
        assert values.numpy().tolist() == [3.0, 2.0] and indices.numpy().tolist() == [1, 2]
        mean, variance = tf.nn.moments(tf.constant([1.0, 3.0]), [0])
        assert float(mean) == 2.0 and float(variance) == 1.0

    def test_values_match_numpy(self):
        random = np.random.RandomState(0)
        a, b = random.rand(5, 7).astype("f"), random.rand(7, 3).astype("f")
        x = tf.nn.relu(tf.matmul(a, b) - 1.5) ** 2 / 3.0
        expected = np.maximum(a @ b - 1.5, 0) ** 2 / 3
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-5)
        np.testing.assert_allclose((1 - x).numpy(), 1 - expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(tf.reduce_sum(x, 0).numpy(), expected.sum(0), rtol=1e-5)

    def test_numbers_beside_tensors_keep_their_sign_and_kind(self):
        x = tf.constant(1.0)
        assert np.signbit((x * -0.0).numpy()) and not np.signbit((x * 0.0).numpy())
        assert np.isnan((x * float("nan")).numpy())
        assert (tf.constant(3) // 2).numpy() == 1 and (tf.constant(3) / 2).numpy() == 1.5

    @pytest.mark.parametrize("count", [2, 6])
    def test_constants_that_change_are_data_at_last(self, count: int):
        x = tf.constant([1.0, 2.0])
        results = [(x * float(i)).numpy().tolist() for i in range(1, count)]
        assert results == [[i, 2 * i] for i in range(1, count)]

    def test_values_that_decide_shapes_are_guarded(self):
        for size in (2, 3, 2, 5, 6, 7):
            counted = tf.reduce_sum(tf.ones([size], tf.int32))
            assert tf.zeros(tf.stack([counted])).shape.as_list() == [size]
            assert tf.fill([int(counted)], 1.0).numpy().sum() == size


class TestEffects:
    def test_come_in_the_order_of_the_program(self):
        v = tf.Variable(1.0)
        before = v.value()
        v.assign_add(2.0)
        between = v * 10
        v.assign(7.0)
        assert (float(before), float(between), v.numpy()) == (1.0, 30.0, 7.0)

    def test_of_functions_of_the_module_are_seen_by_later_reads(self):
        v = tf.Variable([1.0, 2.0])
        first = v + 0.0
        tf.assign_add(v, [1.0, 1.0])
        second = v + 0.0
        tf.scatter_update(v, [0], [9.0])
        assert first.numpy().tolist() == [1.0, 2.0]
        assert second.numpy().tolist() == [2.0, 3.0]
        assert v.numpy().tolist() == [9.0, 3.0]

    @pytest.mark.parametrize("seed", range(20))
    def test_through_several_references_come_in_the_order_of_the_program(self, seed: int):
        random = np.random.RandomState(seed)
        variable, expected = tf.Variable(np.zeros(3, np.float32)), np.zeros(3, np.float32)
        references: list[Any] = [variable]
        reads: list[tuple[Any, Any]] = []
        for _ in range(30):
            chosen = references[random.randint(len(references))]
            kind, value = random.randint(5), np.float32(random.randint(100))
            if kind == 0:
                references.append(tf.assign_add(chosen, [value] * 3))
                expected = expected + value
            elif kind == 1:
                references.append(tf.scatter_update(chosen, [1], [value]))
                expected = np.where([False, True, False], value, expected)
            elif kind == 2:
                chosen.numpy()
            chosen = references[random.randint(len(references))]
            read = chosen if kind % 2 else chosen * 2.0
            if kind != 2:
                reads.append((read * 1.0, expected * (1 if kind % 2 else 2)))
            elif random.randint(2):
                assert chosen.numpy().tolist() == expected.tolist()
        for value, wanted in reads:
            assert value.numpy().tolist() == wanted.tolist()
        assert variable.numpy().tolist() == expected.tolist()

    def test_happen_though_nobody_holds_the_result(self, capfd: Any):
        tf.Print(tf.constant(1), ["first"])
        tf.Print(tf.constant(2), ["second"])
        assert int(tf.constant(3) + 1) == 4
        printed = capfd.readouterr().err
        assert printed.index("first") < printed.index("second")

    def test_python_functions_are_called_once_and_at_once(self):
        calls: list[float] = []
        v = tf.Variable(1.0)
        v.assign_add(1.0)
        tf.py_func(lambda x: calls.append(float(x)), [v], [])
        assert calls == [2.0]
        kept = len(steps._steps)
        for i in range(20):
            tf.py_func(lambda x: calls.append(float(x)), [tf.constant(float(i))], [])
        assert calls[1:] == [float(i) for i in range(20)]
        assert len(steps._steps) <= kept + 1

    def test_dead_intermediates_are_not_computed_for_users(self):
        x = tf.ones([4])
        y = x * 3
        kept = y + 1
        z = kept * 2
        del y
        z.numpy()
        assert kept._array is not None


class TestErrors:
    def test_name_the_op_and_the_line_of_this_call(self):
        x = tf.constant([1.0, 2.0])

        def look(index: int) -> Any:
            return tf.gather(x, tf.constant([index]))

        assert look(1).numpy().tolist() == [2.0]
        bad = tf.gather(x, tf.constant([7]))  # the line that made it
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            bad.numpy()
        line = next(
            number
            for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
            if "# the line that made it" in text and "gather" in text
        )
        assert "indices[0] = 7" in str(caught.value)
        assert f"test_eager.py:{line}" in str(caught.value)

    def test_leave_the_rest_usable(self):
        x = tf.constant([1.0, 2.0])
        v = tf.Variable(1.0)
        v.assign_add(1.0)
        bad, good = tf.gather(x, tf.constant([9])), x + 1
        after = bad * 2
        with pytest.raises(tf.errors.InvalidArgumentError):
            after.numpy()
        with pytest.raises(tf.errors.InvalidArgumentError):
            bad.numpy()
        assert good.numpy().tolist() == [2.0, 3.0]
        assert v.assign(3.0).numpy() == 3.0
        assert (x * 2).numpy().tolist() == [2.0, 4.0]

    def test_of_assertions_are_raised_when_a_value_is_read(self):
        check = tf.assert_positive(tf.constant([-1.0]) * 2)
        with (
            pytest.raises(tf.errors.InvalidArgumentError),
            tf.control_dependencies([check]),
        ):
            tf.identity(1.0).numpy()

    def test_come_at_the_op_when_everything_runs_op_by_op(self):
        tf.set_eager_sync(True)
        try:
            assert float(tf.constant(2.0) * 2) == 4.0
            with pytest.raises(tf.errors.InvalidArgumentError):
                tf.gather(tf.constant([1.0, 2.0]), tf.constant([9]))
        finally:
            tf.set_eager_sync(False)


def _queue() -> list[Any]:
    queue = tf.FIFOQueue(10, [tf.float32], [[2]])
    queue.enqueue_many([np.arange(10, dtype=np.float32).reshape(5, 2)])
    return [queue.dequeue_many(2), queue.dequeue_up_to(2), queue.dequeue(), queue.size()]


def _barrier() -> list[Any]:
    barrier = Barrier((tf.float32,), shapes=((),))
    barrier.insert_many(0, ["a", "b"], [1.0, 2.0])
    return [*barrier.take_many(2).values, barrier.ready_size()]


def _slices() -> list[Any]:
    variable = tf.Variable(np.arange(12, dtype=np.float32).reshape(4, 3))
    row = variable[1]
    total = row + 1.0
    row.assign([5.0, 6.0, 7.0])
    variable[2:, tf.constant(1)].assign(variable[:2, 0] * 2)
    with pytest.raises(ValueError, match="only supported for variables"):
        variable[0][1:].assign([1.0, 2.0])
    return [row, total, variable.value()]


def _lists() -> list[Any]:
    values = tf.constant(np.arange(6, dtype=np.float32).reshape(3, 2))
    entries = tf.TensorArray(tf.float32, tf.size(values) // 2, clear_after_read=False)
    entries = entries.unstack(values)
    grown = tf.TensorArray(tf.float32, 0, dynamic_size=True).write(0, values[0])
    mapped = tf.map_fn(lambda row: row * 2, values)
    summed = tf.scan(lambda total, row: total + row, values)
    folded = tf.foldl(lambda total, row: total + row, values)
    return [entries.stack(), entries.read(1), grown.stack(), grown.size(), mapped, summed, folded]


def _gradients() -> list[Any]:
    variable, x = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        hidden = tf.tanh(x * variable)
        loss = tf.reduce_sum(hidden * hidden)
    gradients = tape.gradient(loss, [x, variable, hidden])
    tf.train.AdamOptimizer(0.1).apply_gradients([(gradients[1], variable)])
    return [*gradients, variable.value(), tape.gradient(hidden, x)]


def _branches() -> list[Any]:
    x = tf.constant([1.0, -2.0])
    branch = tf.cond(tf.reduce_sum(x) > 0, lambda: x + 1, lambda: x - 1)
    loop = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 1.5), [0, x])
    parts = tf.split(x, 2)
    return [branch, *loop, *parts, *tf.unique(tf.constant([1, 2, 1]))]


@pytest.mark.parametrize("program", [_queue, _barrier, _slices, _lists, _gradients, _branches])
def test_a_program_that_runs_op_by_op_gives_the_same(program: Callable[[], list[Any]]) -> None:
    expected = [tensor.numpy() for tensor in program()]
    tf.set_eager_sync(True)
    try:
        actual = [tensor.numpy() for tensor in program()]
    finally:
        tf.set_eager_sync(False)
    for first, second in zip(expected, actual, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-6)


def test_a_slice_of_a_variable_is_assigned_what_was_read_after_it() -> None:
    variable, x = tf.Variable([1.0, 2.0, 3.0]), tf.constant([4.0, 5.0]) * 2
    variable[1:].assign(x.numpy())
    assert variable.numpy().tolist() == [1.0, 8.0, 10.0]


class TestRandom:
    def test_fresh_numbers_each_call(self):
        def draw() -> list[float]:
            return tf.random_normal([4]).numpy().tolist()

        assert draw() != draw()
        x, y = tf.random_uniform([4]), tf.random_uniform([4])
        assert x.numpy().tolist() != y.numpy().tolist()

    def test_a_seed_restarts_the_streams(self):
        def draws() -> list[Any]:
            tf.set_random_seed(5)
            pair = tf.random_uniform([3]), tf.random_normal([3])
            own = tf.random_uniform([3], seed=7)
            return [t.numpy().tolist() for t in (*pair, own, tf.random_uniform([3], seed=7))]

        try:
            first, second = draws(), draws()
            assert first == second
            assert first[2] != first[3]
        finally:
            tf.set_random_seed(None)


class TestVariables:
    def test_have_their_value_at_once(self):
        v = tf.Variable([[1.0, 2.0]], name="v")
        assert v.numpy().tolist() == [[1.0, 2.0]] and v.name == "v:0"
        assert np.asarray(v).shape == (1, 2) and v.shape == (1, 2)
        assert "numpy=array([[1., 2.]]" in repr(v)
        assert float(tf.Variable(2.5)) == 2.5 and int(tf.Variable(3)) == 3
        assert [float(x) for x in tf.Variable([1.0, 2.0])] == [1.0, 2.0]
        assert v.eval().tolist() == [[1.0, 2.0]] and bool(v.is_initialized())

    def test_changes_can_be_chained(self):
        v = tf.Variable([1.0, 2.0])
        assert v.assign([3.0, 4.0]).assign_add([1.0, 1.0]).numpy().tolist() == [4.0, 5.0]
        v.assign_sub([1.0, 1.0], read_value=False)
        v.scatter_add(tf.IndexedSlices(tf.constant([10.0]), tf.constant([1])))
        assert v.numpy().tolist() == [3.0, 14.0]
        v.load([0.0, 0.0])
        assert v.read_value().numpy().tolist() == [0.0, 0.0]

    def test_a_wrong_shape_is_refused(self):
        v = tf.Variable([1.0, 2.0])
        with pytest.raises(ValueError):
            v.assign([1.0])
        assert v.numpy().tolist() == [1.0, 2.0]

    def test_go_when_nobody_holds_them(self):
        v = tf.Variable(tf.ones([10]))
        (v * 2).numpy()
        cell = weakref.ref(v._variable._array)
        del v
        EAGER.start_lazy_trace()
        gc.collect()
        assert cell() is None

    def test_get_variable_makes_a_new_one_unless_it_reuses(self):
        first = tf.get_variable("shared", [2])
        assert tf.get_variable("shared", [2]) is not first
        with tf.variable_scope("scope", reuse=tf.AUTO_REUSE):
            one = tf.get_variable("w", [2])
            assert tf.get_variable("w", [2]) is one

    def test_a_store_keeps_them(self):
        store = tf.contrib.eager.EagerVariableStore()
        for _ in range(2):
            with store.as_default():
                tf.layers.dense(tf.ones([1, 2]), 3, name="layer")
        assert [v.name for v in store.variables()] == ["layer/bias:0", "layer/kernel:0"]
        assert len(store.trainable_variables()) == 2 and not store.non_trainable_variables()

    def test_copies_and_pickles_have_buffers_of_their_own(self):
        v = tf.Variable([1.0], name="v")
        for again in (copy.deepcopy(v), pickle.loads(pickle.dumps(v))):
            again.assign([5.0])
            assert again.numpy().tolist() == [5.0] and v.numpy().tolist() == [1.0]

    def test_layers_make_theirs(self):
        layer = tf.layers.Dense(4, activation=tf.nn.relu)
        y = layer(tf.ones([2, 3]))
        kernel, bias = (v.numpy() for v in layer.trainable_variables)
        np.testing.assert_allclose(
            y.numpy(), np.maximum(np.ones((2, 3)) @ kernel + bias, 0), rtol=1e-5
        )

    def test_the_global_step_is_one_variable(self):
        step = tf.train.get_or_create_global_step()
        assert tf.train.get_global_step() is step
        before = int(step)
        step.assign_add(1)
        assert int(step) == before + 1


class TestLibrary:
    def test_conditionals_and_loops(self):
        x, v = tf.constant(2.0), tf.Variable(0.0)
        assert float(tf.cond(x > 1, lambda: x * 2, lambda: x * 3)) == 4.0
        tf.cond(x > 1, lambda: v.assign_add(1.0), lambda: v.assign_add(10.0))
        assert v.numpy() == 1.0
        count, total = tf.while_loop(lambda i, s: i < 5, lambda i, s: (i + 1, s + x), [0, 0.0])
        assert int(count) == 5 and float(total) == 10.0
        assert tf.map_fn(lambda t: t * t, tf.constant([1.0, 2.0])).numpy().tolist() == [1.0, 4.0]

    def test_convolutions_and_normalisation(self):
        images = tf.constant(np.random.RandomState(0).rand(2, 8, 8, 3).astype("f"))
        kernel = tf.Variable(np.ones((3, 3, 3, 4), np.float32))
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.nn.conv2d(images, kernel, [1, 1, 1, 1], "SAME"))
            loss = tf.reduce_sum(tf.nn.max_pool(hidden, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"))
        assert tape.gradient(loss, kernel).shape == (3, 3, 3, 4)
        layer = tf.layers.BatchNormalization(momentum=0.5)
        layer(images, training=True)
        expected = images.numpy().mean((0, 1, 2)) / 2
        np.testing.assert_allclose(layer.moving_mean.numpy(), expected, rtol=1e-4)

    def test_cells_clipping_and_averages(self):
        cell = tf.nn.rnn_cell.LSTMCell(4)
        state = cell.zero_state(2, tf.float32)
        for _ in range(2):
            output, state = cell(tf.ones([2, 3]), state)
        assert output.shape == (2, 4) and len(cell.variables) == 2
        (clipped,), norm = tf.clip_by_global_norm([tf.constant([3.0, 4.0])], 1.0)
        np.testing.assert_allclose(clipped.numpy(), [0.6, 0.8], rtol=1e-6)
        assert float(norm) == 5.0
        v = tf.Variable(1.0)
        average = tf.train.ExponentialMovingAverage(0.5)
        average.apply([v])
        v.assign(3.0)
        average.apply([v])
        assert average.average(v).numpy() == 2.0

    def test_queues_slices_and_sparse_tensors(self):
        first, second = tf.FIFOQueue(10, tf.int32), tf.FIFOQueue(10, tf.int32)
        first.enqueue(3)
        first.enqueue(4)
        assert int(first.dequeue()) == 3 and int(first.size()) == 1 and int(second.size()) == 0
        v = tf.Variable([1.0, 2.0, 3.0])
        v[1:].assign([5.0, 6.0])
        assert v.numpy().tolist() == [1.0, 5.0, 6.0]
        sparse = tf.SparseTensor([[0, 1]], [2.0], [2, 2])
        assert tf.sparse_tensor_to_dense(sparse).numpy().tolist() == [[0.0, 2.0], [0.0, 0.0]]
        assert tf.contrib.util.constant_value(tf.constant([1, 2]) + 1).tolist() == [2, 3]


class TestMemory:
    def test_stays_flat(self):
        x = tf.ones([8])

        def work(count: int) -> None:
            y = x
            for i in range(count):
                y = tf.nn.relu(y * 0.5 + 1.0)
                if i % 50 == 0:
                    y.numpy()

        work(1_000)
        gc.collect()
        nodes, plans = len(EAGER.trace.nodes), len(steps._steps)
        objects = len(gc.get_objects())
        work(4_000)
        gc.collect()
        assert len(EAGER.trace.nodes) - nodes < 100
        assert len(steps._steps) - plans <= 4
        assert len(gc.get_objects()) - objects < 2_000

    def test_of_a_long_chain_that_is_never_read_is_bounded(self):
        y = tf.zeros([2])
        longest = 0
        for _ in range(10_000):
            y = y + 1.0
            longest = max(longest, len(EAGER.lazy_trace.tensors))
        assert longest <= 2_000
        assert y.numpy().tolist() == [10_000.0, 10_000.0]
        assert len(EAGER.lazy_trace.tensors) <= 1

    def test_of_shapes_that_always_change_is_bounded(self):
        for size in range(1, 60):
            (tf.ones([size]) + 1.0).numpy()
        assert len(steps._steps) <= 256


@pytest.fixture
def often_switching() -> Iterator[None]:
    """Threads take turns every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


_weighted = tf.function(lambda x, y: x * 2.0 + y)


def _vectors(numbers: Any, shared: Any) -> list[Any]:
    """Constants, and a pending sum of two of them, which another thread reads."""
    vectors = [tf.constant(np.full(20, number)) for number in numbers]
    vectors.append(vectors[0] + vectors[1])
    shared.put(vectors[-1])
    return vectors


def _shared_function(numbers: Any, shared: Any) -> tuple[float, Any]:
    *_, c, total = _vectors(numbers, shared)
    a_b, c_number = numbers[0] + numbers[1], numbers[2]
    return (a_b * 2 + c_number) * 2 + a_b, _weighted(_weighted(total, c), total)


def _shared_gradient(numbers: Any, shared: Any) -> tuple[float, Any]:
    *_, c, total = _vectors(numbers, shared)
    with tf.GradientTape() as tape:
        tape.watch(total)
        product = total * c
        shared.put(product)
        loss = tf.reduce_sum(product * product)
    return 2 * (numbers[0] + numbers[1]) * numbers[2] ** 2, tape.gradient(loss, total)


def _shared_update(numbers: Any, shared: Any) -> tuple[float, Any]:
    variable = tf.Variable(np.zeros(20))
    gradient = _vectors(numbers, shared)[-1] * 2.0
    shared.put(gradient)
    tf.train.GradientDescentOptimizer(1.0).apply_gradients([(gradient, variable)])
    return -2 * (numbers[0] + numbers[1]), variable


def _shared_operators(numbers: Any, shared: Any) -> tuple[float, Any]:
    *_, c, total = _vectors(numbers, shared)
    result, wanted = total, numbers[0] + numbers[1]
    for _ in range(5):
        result, wanted = result * c + total, wanted * numbers[2] + numbers[0] + numbers[1]
        shared.put(result)
    return wanted, tf.reduce_mean(result) + tf.maximum(result, 0.0) - result


_SHARED_PROGRAMS = {
    "function": _shared_function,
    "gradient": _shared_gradient,
    "update": _shared_update,
    "operators": _shared_operators,
}


class TestThreads:
    def test_have_their_own_lazy_traces(self):
        results: dict[int, float] = {}

        def work(number: int) -> None:
            with tf.eager_mode():
                x = tf.constant(float(number))
                for _ in range(50):
                    x = x + 1.0
                    if number % 2:
                        float(x)
                results[number] = float(x)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {n: n + 50.0 for n in range(8)}

    def test_see_each_others_tensors_and_variables(self):
        v = tf.Variable(0.0)
        pending: list[Any] = []

        def work() -> None:
            with EAGER.as_default():  # nothing runs at the end of the block
                v.assign_add(5.0)
                pending.append(tf.constant(2.0) * 3)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert float(pending[0]) == 6.0
        assert v.numpy() == 5.0

    @pytest.mark.parametrize("program", ["function", "gradient", "update", "operators"])
    def test_may_read_what_another_one_goes_on_recording_with(
        self, program: str, often_switching: None
    ):
        shared: SimpleQueue[Any] = SimpleQueue()
        failed: list[BaseException] = []

        def read() -> None:
            while (tensor := shared.get()) is not None:
                try:
                    tensor.numpy()
                except Exception as error:
                    failed.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        random = np.random.RandomState(0)
        try:
            for _ in range(400):
                wanted, tensor = _SHARED_PROGRAMS[program](random.rand(3), shared)
                np.testing.assert_allclose(tensor.numpy(), np.full(20, wanted), rtol=1e-6)
        finally:
            shared.put(None)
            reader.join()
        assert not failed


@pytest.mark.parametrize(
    "name", ["assign", "scatter_update", "random_uniform", "py_func", "Print", "read_file"]
)
def test_what_changes_state_or_draws_numbers_is_never_replayed(name: str) -> None:
    assert not hasattr(getattr(tf, name), "__wrapped__")
    assert hasattr(tf.reduce_mean, "__wrapped__")


def filled() -> Any:
    """A queue with two elements, enqueued by one step."""
    queue = tf.FIFOQueue(10, [tf.float32], shapes=[[]])
    queue.enqueue(1.0)
    queue.enqueue(2.0)
    return queue


def test_steps_of_equal_structure_use_their_own_queues():
    """The plan of a step is shared by all steps of its structure; the objects they use are not."""
    queues = [filled() for _ in range(3)]
    assert [int(queue.size()) for queue in queues] == [2, 2, 2]

    def move(queue: Any, variable: Any) -> float:
        total = queue.dequeue() + queue.dequeue()
        variable.assign_add(total)
        queue.enqueue(total)
        return float(variable)

    variables = [tf.Variable(10.0 * n) for n in range(3)]
    assert list(map(move, queues, variables)) == [3.0, 13.0, 23.0]
    assert [int(queue.size()) for queue in queues] == [1, 1, 1]


def test_a_dict_is_no_argument_of_an_op():
    with pytest.raises(TypeError, match="Add"):
        tf.add(tf.constant([1.0]), {"a": 1.0, 2: 3.0})


def test_errors_of_repeated_operators_name_their_own_lines():
    """Shapes that are known only at run time may not fit, whatever the operator and its dtype."""
    for dtype in (np.int32, np.float32):
        x, two = tf.constant(np.array([1, 2, 3], dtype)), tf.constant(np.ones(2, dtype))
        with pytest.raises(tf.errors.InvalidArgumentError) as first:
            (tf.unique(x)[0] + two).numpy()
        with pytest.raises(tf.errors.InvalidArgumentError) as second:
            (tf.unique(x)[0] + two).numpy()
        for info in (first, second):
            (here,) = [entry for entry in info.traceback if entry.path.name == "test_eager.py"]
            assert f"test_eager.py:{here.lineno + 1}" in str(info.value)
