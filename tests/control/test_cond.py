"""Conditionals: values, gradients and effects, in every way they can run."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf

pytestmark = pytest.mark.usefixtures("lowering")


def numeric(function, at, step=1e-4):
    """The slope of a function of one number, by central differences."""
    return (function(at + step) - function(at - step)) / (2 * step)


class TestValues:
    def test_both_branches(self, sess):
        x = tf.placeholder(tf.float32, [])
        result = tf.cond(x > 1.0, lambda: x * 2.0, lambda: x - 1.0)
        assert sess.run(result, {x: 3.0}) == 6.0
        assert sess.run(result, {x: 0.0}) == -1.0

    def test_what_is_passed_through(self, sess):
        x, y = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [2])
        choice = tf.placeholder(tf.bool, [])
        result = tf.cond(choice, lambda: (x, y), lambda: (y, x))
        feeds = {x: [1, 2], y: [3, 4]}
        assert [r.tolist() for r in sess.run(result, {**feeds, choice: True})] == [[1, 2], [3, 4]]
        assert [r.tolist() for r in sess.run(result, {**feeds, choice: False})] == [[3, 4], [1, 2]]

    def test_constants_as_results(self, sess):
        choice = tf.placeholder(tf.bool, [])
        result = tf.cond(choice, lambda: tf.constant([1, 2]), lambda: tf.constant([3, 4]))
        assert sess.run(result, {choice: True}).tolist() == [1, 2]
        assert sess.run(result, {choice: False}).tolist() == [3, 4]

    def test_shapes_that_differ(self, sess):
        choice = tf.placeholder(tf.bool, [])
        result = tf.cond(choice, lambda: tf.zeros([2, 3]), lambda: tf.ones([2, 5]))
        assert result.shape.as_list() == [2, None]
        assert sess.run(result, {choice: True}).shape == (2, 3)
        assert sess.run(result, {choice: False}).shape == (2, 5)

    def test_structures(self, sess):
        choice = tf.placeholder(tf.bool, [])

        def branch(scale):
            sparse = tf.SparseTensor([[0, 1]], [scale], [2, 2])
            return {"a": tf.constant(scale), "b": [sparse, (tf.constant([scale]),)]}

        result = tf.cond(choice, lambda: branch(1.0), lambda: branch(2.0))
        actual = sess.run(result, {choice: False})
        assert actual["a"] == 2.0
        assert actual["b"][0].values.tolist() == [2.0]
        assert actual["b"][1][0].tolist() == [2.0]

    def test_strings(self, sess):
        choice = tf.placeholder(tf.bool, [])
        result = tf.cond(choice, lambda: tf.constant("yes"), lambda: tf.string_join(["n", "o"]))
        assert sess.run(result, {choice: True}) == b"yes"
        assert sess.run(result, {choice: False}) == b"no"

    def test_a_sequence_of_one(self, sess):
        one = tf.cond(tf.constant(True), lambda: [tf.constant(1)], lambda: tf.constant(2))
        assert isinstance(one, tf.Tensor)
        strict = tf.cond(tf.constant(True), lambda: [1], lambda: [2], strict=True)
        assert isinstance(strict, list)
        assert sess.run([one, strict]) == [1, [1]]

    @pytest.mark.parametrize("index", [-1, 0, 1, 2, 9])
    def test_switch_case(self, sess, index):
        at, x = tf.placeholder(tf.int32, []), tf.constant(5)
        functions = [lambda: x + 1, lambda: x * 10, lambda: tf.constant(7)]
        expected = {0: 6, 1: 50}.get(index, 7)
        assert sess.run(tf.switch_case(at, functions), {at: index}) == expected

    def test_nesting(self, sess):
        x, y = tf.placeholder(tf.int32, []), tf.placeholder(tf.int32, [])

        def inner():
            return tf.cond(y > 0, lambda: x + y, lambda: tf.cond(y < -5, lambda: y, lambda: x))

        result = tf.cond(x > 0, inner, lambda: tf.constant(0))
        for a, b in [(1, 1), (1, -1), (1, -9), (-1, 1)]:
            expected = (a + b if b > 0 else b if b < -5 else a) if a > 0 else 0
            assert sess.run(result, {x: a, y: b}) == expected

    def test_a_loop_in_a_branch(self, sess):
        x = tf.placeholder(tf.int32, [])

        def loop():
            return tf.while_loop(lambda i, t: i < x, lambda i, t: (i + 1, t + i), [0, 0])[1]

        result = tf.cond(x > 2, loop, lambda: tf.constant(-1))
        assert sess.run(result, {x: 5}) == 10
        assert sess.run(result, {x: 1}) == -1

    def test_a_branch_without_inputs(self, sess):
        result = tf.cond(
            tf.placeholder_with_default(True, []),
            lambda: tf.fill([2], 3.0),
            lambda: tf.random_uniform([2]),
        )
        assert sess.run(result).tolist() == [3.0, 3.0]

    def test_fed_outputs_and_inputs(self, sess):
        x = tf.constant(2.0)
        result = tf.cond(x > 1.0, lambda: x * 2.0, lambda: x)
        assert sess.run(result, {x: 5.0}) == 10.0
        assert sess.run(result + 1.0, {result: 7.0}) == 8.0


class TestEffects:
    def test_only_the_branch_taken_writes(self, sess):
        choice = tf.placeholder(tf.bool, [])
        a, b = tf.Variable(1), tf.Variable(2)
        result = tf.cond(choice, lambda: tf.assign(a, 10), lambda: tf.assign(b, 20))
        sess.run(tf.global_variables_initializer())
        assert sess.run(result, {choice: True}) == 10
        assert sess.run([a, b]) == [10, 2]
        assert sess.run(result, {choice: False}) == 20
        assert sess.run([a, b]) == [10, 20]

    def test_what_is_only_awaited_runs(self, sess):
        variable = tf.Variable(1)
        result = tf.cond(tf.constant(True), lambda: tf.assign(variable, 5), lambda: variable)
        with tf.control_dependencies([result]):
            after = tf.constant(3)
        sess.run(variable.initializer)
        assert sess.run(after) == 3
        assert sess.run(variable) == 5

    def test_operations_as_results(self, sess):
        choice = tf.placeholder(tf.bool, [])
        variable = tf.Variable(1)
        result = tf.cond(choice, lambda: tf.assign(variable, 5).op, tf.no_op)
        sess.run(variable.initializer)
        sess.run(result, {choice: False})
        assert sess.run(variable) == 1
        sess.run(result, {choice: True})
        assert sess.run(variable) == 5

    def test_a_variable_that_is_written_is_read_again(self, sess):
        variable = tf.Variable(1)

        def branch():
            with tf.control_dependencies([tf.assign_add(variable, 4)]):
                return variable * 10

        result = tf.cond(tf.constant(True), branch, lambda: tf.constant(0))
        sess.run(variable.initializer)
        assert sess.run(result) == 50

    def test_assertions_and_prints(self, sess, capfd):
        x = tf.placeholder(tf.int32, [])

        def checked():
            with tf.control_dependencies([tf.Assert(x < 5, ["too large", x])]):
                return tf.Print(x, [x], "seen: ")

        result = tf.cond(x > 0, checked, lambda: tf.constant(0))
        assert sess.run(result, {x: 3}) == 3
        assert "seen: [3]" in capfd.readouterr().err
        assert sess.run(result, {x: -3}) == 0
        with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
            sess.run(result, {x: 7})

    def test_a_variable_fed_as_a_value(self, sess):
        variable = tf.Variable(1)
        result = tf.cond(tf.constant(True), lambda: variable.read_value() + 1, lambda: 0)
        assert sess.run(result, {variable._ref(): 41}) == 42


class TestGradients:
    def test_of_the_branch_taken(self, sess):
        x = tf.placeholder(tf.float64, [])
        y = tf.cond(x > 1.0, lambda: x * x * x, lambda: tf.sin(x))
        (first,) = tf.gradients(y, x)
        (second,) = tf.gradients(first, x)
        for at in (0.3, 2.0):
            slope = numeric(lambda v: sess.run(y, {x: v}), at)
            assert abs(sess.run(first, {x: at}) - slope) < 1e-6
            curvature = numeric(lambda v: sess.run(first, {x: v}), at)
            assert abs(sess.run(second, {x: at}) - curvature) < 1e-5

    def test_nothing_flows_into_what_did_not_run(self, sess):
        x = tf.placeholder(tf.float32, [])
        safe = tf.cond(tf.equal(x, 0.0), lambda: x, lambda: 1.0 / x)
        (gradient,) = tf.gradients(safe, x)
        assert sess.run(gradient, {x: 0.0}) == 1.0
        assert sess.run(gradient, {x: 2.0}) == -0.25

    def test_of_variables(self, sess):
        w = tf.Variable([1.0, 2.0])
        choice = tf.placeholder(tf.bool, [])
        loss = tf.cond(choice, lambda: tf.reduce_sum(w * w), lambda: tf.reduce_sum(w))
        (gradient,) = tf.gradients(loss, w)
        sess.run(w.initializer)
        assert sess.run(gradient, {choice: True}).tolist() == [2.0, 4.0]
        assert sess.run(gradient, {choice: False}).tolist() == [1.0, 1.0]

    def test_nested(self, sess):
        x = tf.placeholder(tf.float64, [])

        def inner():
            return tf.cond(x > 2.0, lambda: x**3, lambda: tf.exp(x) * x)

        y = tf.cond(x > 1.0, inner, lambda: x * 5.0) * x
        (first,) = tf.gradients(y, x)
        for at in (0.5, 1.5, 2.5):
            slope = numeric(lambda v: sess.run(y, {x: v}), at)
            assert abs(sess.run(first, {x: at}) - slope) < 1e-5

    def test_switch_case(self, sess):
        x, at = tf.placeholder(tf.float64, []), tf.placeholder(tf.int32, [])
        y = tf.switch_case(at, [lambda: x * x, lambda: tf.sin(x), lambda: x])
        (first,) = tf.gradients(y, x)
        for index, expected in enumerate([2 * 0.7, np.cos(0.7), 1.0]):
            assert abs(sess.run(first, {x: 0.7, at: index}) - expected) < 1e-9


class TestBadInput:
    def test_dtypes_that_differ(self, sess):
        with pytest.raises(ValueError, match=r"same type: float32 .*test_cond.py:\d+.*int32"):
            tf.cond(tf.constant(True), lambda: tf.constant(1.0), lambda: tf.constant(1))

    def test_structures_that_differ(self, sess):
        with pytest.raises(ValueError, match="Incompatible return values of true_fn and false_fn"):
            tf.cond(tf.constant(True), lambda: (1, 2), lambda: 1)

    def test_a_python_bool(self, sess):
        with pytest.raises(TypeError, match="Python `if`"):
            tf.cond(True, lambda: 1, lambda: 2)

    def test_no_value(self, sess):
        with pytest.raises(ValueError, match="must have a return value"):
            tf.cond(tf.constant(True), lambda: None, lambda: 2)

    def test_a_tensor_from_inside(self, sess):
        inside = []

        def branch():
            inside.append(tf.constant(1.0) * tf.placeholder_with_default(2.0, []))
            return inside[0]

        tf.cond(tf.constant(True), branch, lambda: tf.constant(1.0))
        with pytest.raises(ValueError, match=r"true_fn of tf\.cond and has no value outside"):
            inside[0] + 1.0

    def test_not_callable(self, sess):
        with pytest.raises(TypeError, match="true_fn must be callable"):
            tf.cond(tf.constant(True), 1, lambda: 2)


def test_the_false_branch_may_reuse_variables_that_the_true_branch_made() -> None:
    def branch(reuse: bool) -> Any:
        with tf.variable_scope("shared", reuse=reuse):
            return tf.get_variable("w", [], initializer=tf.ones_initializer()) * (2 if reuse else 1)

    with tf.Graph().as_default(), tf.Session() as session:
        flag = tf.placeholder(tf.bool, [])
        chosen = tf.cond(flag, lambda: branch(False), lambda: branch(True))
        session.run(tf.global_variables_initializer())
        assert session.run([chosen], {flag: True}) == [1]
        assert session.run([chosen], {flag: False}) == [2]
