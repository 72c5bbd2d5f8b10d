"""Loops: values, gradients and effects, in every way they can run."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf

pytestmark = pytest.mark.usefixtures("lowering")


def numeric(function, at, step=1e-5):
    """The slope of a function of one number, by central differences."""
    return (function(at + step) - function(at - step)) / (2 * step)


class TestValues:
    def test_a_counter(self, sess):
        assert sess.run(tf.while_loop(lambda i: i < 1000, lambda i: i + 1, [0])) == 1000

    @pytest.mark.parametrize("count", [0, 1, 2, 7])
    def test_any_number_of_iterations(self, sess, count):
        limit, x = tf.placeholder(tf.int32, []), tf.placeholder(tf.float32, [2])
        _, y = tf.while_loop(lambda i, _: i < limit, lambda i, y: (i + 1, y * x), [0, x])
        result = sess.run(y, {limit: count, x: [2.0, 3.0]})
        assert result.tolist() == [2.0 ** (count + 1), 3.0 ** (count + 1)]

    def test_variables_that_are_swapped(self, sess):
        result = tf.while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b, a), [0, 1.0, 2.0])
        assert sess.run(list(result)) == [3, 2.0, 1.0]

    def test_a_variable_that_becomes_a_constant(self, sess):
        result = tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.constant(7.0)), [0, 1.0])
        assert sess.run(list(result)) == [3, 7.0]

    def test_a_variable_that_becomes_what_is_outside(self, sess):
        x = tf.placeholder(tf.float32, [])
        _, y = tf.while_loop(lambda i, a: i < 2, lambda i, a: (i + 1, x), [0, 1.0])
        assert sess.run(y, {x: 9.0}) == 9.0

    def test_what_depends_on_nothing_is_made_outside(self, sess):
        """tf.control_dependencies(None) leaves loops and conditionals, keeping the name scope."""
        made = []

        def body(i, total):
            with tf.name_scope("weights"), tf.control_dependencies(None):
                made.append(tf.random_uniform([], name="drawn"))
            return i + 1, tf.cond(i > 2, lambda: total + outside(), lambda: total + made[0])

        def outside():
            with tf.control_dependencies(None):
                made.append(made[0] * 2)
            return made[1]

        _, total = tf.while_loop(lambda i, _: i < 4, body, [0, 0.0])
        once, twice, result = sess.run([*made, total])
        assert twice == 2 * once
        assert result == pytest.approx(3 * once + twice)
        assert made[0].name.endswith("weights/drawn:0")
        assert made[0].graph is total.graph

    def test_functions_of_datasets_are_not_left(self, sess):
        def mapped(x):
            with tf.control_dependencies(None):
                return x + 1

        dataset = tf.data.Dataset.range(3).map(mapped)
        assert sess.run(dataset.make_one_shot_iterator().get_next()) == 1

    def test_a_bool_as_variable(self, sess):
        x = tf.placeholder(tf.int32, [])
        _, i = tf.while_loop(lambda go, i: go, lambda go, i: (i + 1 < x, i + 1), [True, 0])
        assert sess.run(i, {x: 6}) == 6

    def test_a_constant_condition(self, sess):
        result = tf.while_loop(lambda i: tf.constant(False), lambda i: i + 1, [5])
        assert sess.run(result) == 5

    def test_tensors_that_grow(self, sess):
        _, x = tf.while_loop(
            lambda i, _: i < 4,
            lambda i, x: (i + 1, tf.concat([x, x * 2], 0)),
            [0, tf.constant([1])],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
        )
        assert x.shape.as_list() == [None]
        assert sess.run(x).tolist() == [1, 2, 2, 4, 2, 4, 4, 8, 2, 4, 4, 8, 4, 8, 8, 16]

    def test_structures(self, sess):
        start = {"i": tf.constant(0), "x": (tf.constant([1.0]), [tf.constant(2.0)])}

        def body(state):
            (a, (b,)) = state["x"]
            return {"i": state["i"] + 1, "x": (a * b, [b + 1.0])}

        result = tf.while_loop(lambda s: s["i"] < 3, lambda s: [body(s)], [start])
        actual = sess.run(result)
        assert actual["i"] == 3
        assert actual["x"][0].tolist() == [24.0]
        assert actual["x"][1] == [5.0]

    def test_sparse_tensors(self, sess):
        start = tf.SparseTensor([[0], [3]], [2.0, 4.0], [10])

        def body(i, x):
            return i + 1, tf.SparseTensor(x.indices, x.values * 2.0, x.dense_shape)

        _, result = tf.while_loop(lambda i, _: i < 3, body, [0, start])
        assert sess.run(result).values.tolist() == [16.0, 32.0]

    def test_strings(self, sess):
        _, text = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, t: (i + 1, tf.string_join([t, tf.as_string(i)])),
            [0, tf.constant("n")],
        )
        assert sess.run(text) == b"n012"

    def test_maximum_iterations(self, sess):
        limit = tf.placeholder(tf.int32, [])
        result = tf.while_loop(lambda i: i < 10, lambda i: i + 1, [0], maximum_iterations=limit)
        assert sess.run(result, {limit: 4}) == 4
        assert sess.run(result, {limit: 40}) == 10

    def test_a_single_variable_comes_alone(self, sess):
        same = tf.while_loop(lambda i: i < 2, lambda i: [i + 1], [0], return_same_structure=True)
        assert isinstance(same, list)
        assert sess.run(same) == [2]

    def test_loops_in_loops(self, sess):
        def outer(i, total):
            inner = tf.while_loop(lambda j, t: j < i, lambda j, t: (j + 1, t + i * j), [0, 0])
            return i + 1, total + inner[1]

        _, total = tf.while_loop(lambda i, _: i < 6, outer, [0, 0])
        assert sess.run(total) == sum(i * j for i in range(6) for j in range(i))

    def test_a_conditional_in_a_loop_in_a_conditional(self, sess):
        x = tf.placeholder(tf.int32, [])

        def body(i, odd, even):
            odd, even = tf.cond(
                tf.equal(i % 2, 0), lambda: (odd, even + i), lambda: (odd + i, even)
            )
            return i + 1, odd, even

        def loop():
            return tuple(tf.while_loop(lambda i, *_: i < x, body, [0, 0, 0])[1:])

        odd, even = tf.cond(x > 0, loop, lambda: (tf.constant(-1), tf.constant(-2)))
        assert sess.run([odd, even], {x: 10}) == [25, 20]
        assert sess.run([odd, even], {x: 0}) == [-1, -2]

    def test_loops_in_branches_of_loops(self, sess):
        def outer(i, total):
            def loop():
                return tf.while_loop(lambda j, _: j < i, lambda j, t: (j + 1, t + 1), [0, total])[1]

            return i + 1, tf.cond(i > 2, loop, lambda: total - 1)

        _, total = tf.while_loop(lambda i, _: i < 6, outer, [0, 0])
        assert sess.run(total) == -3 + 3 + 4 + 5


class TestVariables:
    def test_updates_in_the_body(self, sess):
        variable = tf.Variable([1.0, 2.0])

        def body(i):
            with tf.control_dependencies([tf.assign_add(variable, [1.0, 0.5])]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 4, body, [0])
        sess.run(variable.initializer)
        assert sess.run(loop) == 4
        assert sess.run(variable).tolist() == [5.0, 4.0]

    def test_writes_are_seen_by_the_next_iteration(self, sess):
        a, b = tf.Variable(0), tf.Variable(0)

        def body(i):
            with tf.control_dependencies([tf.assign_add(a, 1)]):
                second = tf.assign_add(b, a)
            with tf.control_dependencies([second]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 10, body, [0])
        sess.run(tf.global_variables_initializer())
        sess.run(loop)
        assert sess.run([a, b]) == [10, 55]

    def test_a_condition_reads_what_the_body_writes(self, sess):
        variable = tf.Variable(0)

        def body(i):
            with tf.control_dependencies([tf.assign_add(variable, 2)]):
                return i + 1

        loop = tf.while_loop(lambda _: variable < 10, body, [0])
        sess.run(variable.initializer)
        assert sess.run(loop) == 5
        assert sess.run(variable) == 10

    def test_writes_in_a_branch_in_a_body(self, sess):
        variable = tf.Variable(0)

        def body(i):
            write = tf.cond(i > 2, lambda: tf.assign_add(variable, i), lambda: tf.constant(0))
            with tf.control_dependencies([write]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 6, body, [0])
        sess.run(variable.initializer)
        sess.run(loop)
        assert sess.run(variable) == 12

    def test_a_run_that_fails_leaves_the_session_usable(self, sess):
        variable = tf.Variable(0)

        def body(i):
            check = tf.Assert(i < 3, ["stop", i])
            with tf.control_dependencies([check, tf.assign_add(variable, 1)]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 10, body, [0])
        sess.run(variable.initializer)
        with pytest.raises(tf.errors.InvalidArgumentError, match="stop"):
            sess.run(loop)
        sess.run(variable.initializer)
        assert sess.run(variable) == 0


class TestGradients:
    def test_of_a_power(self, sess):
        x, n = tf.placeholder(tf.float64, []), tf.placeholder(tf.int32, [])
        _, y = tf.while_loop(lambda i, _: i < n, lambda i, y: (i + 1, y * x), [0, x * 1.0])
        (first,) = tf.gradients(y, x)
        (second,) = tf.gradients(first, x)
        for count in (0, 1, 4):
            power = count + 1
            values = sess.run([y, first, second], {x: 1.3, n: count})
            expected = [1.3**power, power * 1.3**count, power * count * 1.3 ** (count - 1)]
            np.testing.assert_allclose(values, expected, rtol=1e-9)

    def test_of_matrices(self, sess):
        x = tf.placeholder(tf.float64, [3])
        w = tf.placeholder(tf.float64, [3, 3])

        def body(i, h):
            return i + 1, tf.tanh(tf.reshape(tf.matmul(tf.reshape(h, [1, 3]), w), [3]) + x)

        _, h = tf.while_loop(lambda i, _: i < 5, body, [0, x])
        loss = tf.reduce_sum(h * h)
        gradients = tf.gradients(loss, [x, w])
        random = np.random.RandomState(0)
        feeds = {x: random.randn(3), w: random.randn(3, 3)}
        result = sess.run(gradients, feeds)
        for tensor, gradient in zip((x, w), result, strict=True):
            flat = feeds[tensor].reshape(-1)
            for place in range(flat.size):
                at = flat[place]

                def loss_at(value, flat=flat, place=place):
                    flat[place] = value
                    return sess.run(loss, feeds)

                slope = numeric(loss_at, at)
                flat[place] = at
                assert abs(gradient.reshape(-1)[place] - slope) < 1e-6

    def test_only_through_what_ran(self, sess):
        x = tf.placeholder(tf.float64, [])

        def body(i, y):
            return i + 1, tf.cond(y > 3.0, lambda: y + x, lambda: y * x)

        _, y = tf.while_loop(lambda i, _: i < 5, body, [0, x])
        (first,) = tf.gradients(y, x)
        (second,) = tf.gradients(first, x)
        for at in (0.9, 1.7, 4.0):
            slope = numeric(lambda v: sess.run(y, {x: v}), at)
            assert abs(sess.run(first, {x: at}) - slope) < 1e-5
            curvature = numeric(lambda v: sess.run(first, {x: v}), at)
            assert abs(sess.run(second, {x: at}) - curvature) < 1e-4

    def test_loops_in_loops(self, sess):
        x = tf.placeholder(tf.float64, [])

        def outer(i, y):
            _, z = tf.while_loop(lambda j, _: j < i, lambda j, z: (j + 1, z * x + y), [0, y])
            return i + 1, tf.sin(z) + x

        _, y = tf.while_loop(lambda i, _: i < 4, outer, [0, x])
        (first,) = tf.gradients(y, x)
        for at in (0.3, 1.1):
            slope = numeric(lambda v: sess.run(y, {x: v}), at)
            assert abs(sess.run(first, {x: at}) - slope) < 1e-5

    def test_loops_in_branches_of_loops(self, sess):
        x = tf.placeholder(tf.float64, [])

        def outer(i, y):
            def loop():
                return tf.while_loop(lambda j, _: j < i, lambda j, z: (j + 1, z * x), [0, y])[1]

            return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: tf.sin(y) * x, loop)

        _, y = tf.while_loop(lambda i, _: i < 5, outer, [0, x])
        (first,) = tf.gradients(y, x)
        for at in (0.6, 1.2):
            slope = numeric(lambda v: sess.run(y, {x: v}), at)
            assert abs(sess.run(first, {x: at}) - slope) < 1e-5

    def test_a_loop_in_a_branch(self, sess):
        x = tf.placeholder(tf.float64, [])

        def loop():
            return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * x), [0, x])[1]

        y = tf.cond(x > 1.0, loop, lambda: x * 2.0)
        (first,) = tf.gradients(y, x)
        assert abs(sess.run(first, {x: 2.0}) - 32.0) < 1e-9
        assert sess.run(first, {x: 0.5}) == 2.0

    def test_of_a_variable(self, sess):
        w = tf.Variable([0.5, 2.0])
        _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * w), [0, tf.ones([2])])
        (gradient,) = tf.gradients(y, w)
        sess.run(w.initializer)
        np.testing.assert_allclose(sess.run(gradient), [3 * 0.25, 3 * 4.0])

    def test_without_back_prop(self, sess):
        x = tf.placeholder(tf.float32, [])
        y = tf.while_loop(lambda y: y < 9.0, lambda y: y * 2.0, [x], back_prop=False)
        assert tf.gradients(y, x) == [None]

    def test_shapes_that_change(self, sess):
        x = tf.placeholder(tf.float64, [1])
        _, y = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, y: (i + 1, tf.concat([y, y * x], 0)),
            [0, x],
            [tf.TensorShape([]), tf.TensorShape([None])],
        )
        (gradient,) = tf.gradients(tf.reduce_sum(y), x)
        at = 1.5  # (1 + x)^3 x
        expected = 3 * (1 + at) ** 2 * at + (1 + at) ** 3
        np.testing.assert_allclose(sess.run(gradient, {x: [at]}), [expected])


class TestBadInput:
    def test_a_shape_that_changes(self, sess):
        with pytest.raises(ValueError, match=r"not an invariant.*test_while.py:\d+"):
            tf.while_loop(lambda x: True, lambda x: tf.concat([x, x], 0), [tf.constant([1])])

    def test_an_invariant_that_does_not_fit(self, sess):
        with pytest.raises(ValueError, match="is not compatible with the initial shape"):
            tf.while_loop(
                lambda x: tf.constant(True),
                lambda x: x,
                [tf.constant([1, 2])],
                shape_invariants=[tf.TensorShape([3])],
            )

    def test_a_dtype_that_changes(self, sess):
        with pytest.raises(TypeError, match=r"enters the loop with type int32.*float32"):
            tf.while_loop(lambda x: x < 3, lambda x: tf.cast(x, tf.float32), [tf.constant(1)])

    def test_another_structure(self, sess):
        with pytest.raises(ValueError, match="structure of what body returns"):
            tf.while_loop(lambda x: x < 3, lambda x: (x, x), [tf.constant(1)])

    def test_a_condition_that_is_no_bool(self, sess):
        with pytest.raises(TypeError, match="boolean scalar"):
            tf.while_loop(lambda x: x, lambda x: x, [tf.constant(1)])

    def test_a_python_condition_on_a_tensor(self, sess):
        def body(i):
            return i + 1 if i > 0 else i

        with pytest.raises(TypeError, match="cannot decide an `if`"):
            tf.while_loop(lambda i: i < 3, body, [tf.constant(1)])

    def test_no_variables(self, sess):
        with pytest.raises(ValueError, match="No loop variables"):
            tf.while_loop(lambda: True, lambda: None, [])


@pytest.mark.usefixtures("lowering")
def test_a_reference_enters_a_loop_as_the_value_it_has(sess: tf.Session) -> None:
    v = tf.Variable(1.5)
    reference = v._ref()
    assert reference.dtype.is_ref_dtype
    _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * v), [0, reference])
    (slope,) = tf.gradients(y, v)
    sess.run(v.initializer)
    assert not y.dtype.is_ref_dtype
    assert sess.run([y, slope]) == [1.5**4, 4 * 1.5**3]
    assert sess.run(v) == 1.5


def test_a_body_may_refine_the_shape_of_its_argument():
    """What holds inside an iteration does not hold for the result."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None])

        def body(i: Any, x: Any) -> Any:
            x.set_shape([2])
            return i + 1, tf.concat([x, x], 0)

        invariants = [tf.TensorShape([]), tf.TensorShape([None])]
        (_, y) = tf.while_loop(lambda i, _: i < 1, body, [0, x], shape_invariants=invariants)
        assert y.shape.as_list() == [None]
        assert session.run(y + tf.ones([4]), {x: [1, 2]}).tolist() == [2, 3, 2, 3]
