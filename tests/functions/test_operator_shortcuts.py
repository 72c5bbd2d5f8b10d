"""Shortcuts of operators on eager tensors: taken where they apply, and only there."""

import numpy as np
import pytest

import thalweg as tf
from thalweg.graph.shapes import TensorShape


@pytest.fixture(autouse=True)
def _eager():
    with tf.eager_mode():
        yield


def _chain(x, numbers):
    for number in numbers:
        x = x * number
        x = x + 1
    return x


def test_a_repeated_chain_gives_the_same_values():
    x = tf.constant([1.0, 2.0])
    first = _chain(x, [0.5, 3, 0.5]).numpy()
    for _ in range(3):
        np.testing.assert_array_equal(_chain(x, [0.5, 3, 0.5]).numpy(), first)
    np.testing.assert_array_equal(_chain(x, [0.5, 2, 0.5]).numpy(), [3.0, 3.5])


def test_zeros_keep_their_signs():
    for number in (0.0, -0.0, 0.0, -0.0):
        x = tf.constant([1.0]) + 1.0
        signs = np.signbit((x * number).numpy())
        assert signs[0] == np.signbit(number)


def test_a_float_beside_integers_is_an_error_every_time():
    for _ in range(3):
        x = tf.constant([1, 2]) + 1
        assert (x * 2).numpy().tolist() == [4, 6]
        x = tf.constant([1, 2]) + 1
        with pytest.raises((TypeError, ValueError)):
            x * 2.5


def test_division_of_integers_by_zero_names_the_line_that_divides():
    def first(x, y):
        return x // y

    def second(x, y):
        return x // y

    x = tf.constant([4]) + 0
    assert first(x, tf.constant([2]) + 0).numpy() == [2]
    line = second.__code__.co_firstlineno + 1
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"shortcuts\.py:{line}$"):
        second(tf.constant([4]) + 0, tf.constant([0]) + 0).numpy()


def test_overridden_gradients_hold_on_a_cached_path():
    @tf.RegisterGradient("TripledProduct")
    def _tripled(op, gradient):
        return gradient * 3.0, None

    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = (x + 1.0) * 5.0
        return tape.gradient(y, x).numpy()

    x = tf.constant([1.0])
    assert slope(x) == slope(x) == [5.0]
    with tf.get_default_graph().gradient_override_map({"Mul": "TripledProduct"}):
        assert slope(x) == [3.0]
    assert slope(x) == [5.0]


def test_a_graph_that_is_built_in_between_gets_the_nodes():
    for _ in range(2):
        x = tf.constant([1.0]) + 1.0
        y = x * 2.0
        with tf.Graph().as_default() as graph:
            z = x * 2.0
            assert z.graph is graph
            with tf.Session() as session:
                assert session.run(z) == [4.0]
        assert y.numpy() == [4.0]


def test_reads_of_a_variable_see_what_was_written():
    variable = tf.Variable([1.0])
    for expected in ([3.0], [7.0], [15.0]):
        before = variable * 2.0
        variable.assign(before + 1.0)
        np.testing.assert_array_equal((variable + 0.0).numpy(), expected)


def test_a_shortcut_reads_no_shapes(monkeypatch):
    """Whether the operator can fail is known from its first use, also for another number object."""
    x = tf.constant([1.0, 2.0])
    for _ in range(2):
        assert (x * float("0.5")).numpy().tolist() == [0.5, 1.0]
    reads = []
    whole = TensorShape.whole
    monkeypatch.setattr(TensorShape, "whole", property(lambda s: reads.append(s) or whole.fget(s)))
    y = x * float("0.5")
    assert not reads
    assert y.numpy().tolist() == [0.5, 1.0]


@pytest.mark.parametrize("number", [3, 2.5])
def test_the_value_of_a_tensor_of_a_shortcut_is_known_without_a_run(number):
    x = tf.constant(np.array([1, 2], type(number)))
    for _ in range(3):
        y = x + number
        assert y.op.type == "Add"
        assert tf.contrib.util.constant_value(y).tolist() == [1 + number, 2 + number]
        y.numpy()


def test_the_result_of_an_update_is_an_operand():
    variable = tf.Variable([1.0, 2.0])
    for _ in range(2):
        assert (tf.scatter_update(variable, [0], [5.0]) * 2).numpy().tolist() == [10.0, 4.0]
        assert (3 - tf.assign(variable, [1.0, 2.0])).numpy().tolist() == [2.0, 1.0]
