"""Gradients of conditionals and loops against central differences, first and second order; asked
for inside bodies; and of gathers, which stay slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import thalweg as tf
from tests.control.test_random_programs import COUNT, WIDTH, Graphed
from tests.ops.harness import check_gradient

X = np.array([0.3, -0.7, 1.1])


@pytest.mark.usefixtures("lowering")
class TestSwitchCase:
    @pytest.mark.parametrize("number", [0, 1, 2, 7, -1])
    def test_both_orders(self, number: int) -> None:
        def chosen(x: Any, y: Any) -> Any:
            branches = [lambda: x * x * y, lambda: tf.sin(y) * x, lambda: tf.exp(x * y)]
            return tf.switch_case(tf.constant(number), branches)

        check_gradient(chosen, [X, X[::-1].copy()], [0, 1], True, 1e-5, 1e-7)

    def test_branches_that_take_different_things(self) -> None:
        def chosen(x: Any, y: Any) -> Any:
            first = tf.switch_case(tf.constant(0), [lambda: x**3, lambda: y * 1.0])
            second = tf.switch_case(tf.constant(1), {0: lambda: x**3, 1: lambda: tf.sin(y)})
            return first * second

        check_gradient(chosen, [X, X + 1], [0, 1], True, 1e-5, 1e-7)

    def test_in_a_loop_by_the_number_of_the_iteration(self) -> None:
        def looped(x: Any, w: Any) -> Any:
            def body(i: Any, y: Any) -> Any:
                steps = [lambda: y * w, lambda: tf.tanh(y), lambda: y + w * w]
                return i + 1, tf.switch_case(i, steps, default=lambda: y * x)

            return tf.while_loop(lambda i, y: i < 5, body, [0, x])[1]

        check_gradient(looped, [X, X[::-1].copy()], [0, 1], True, 1e-5, 1e-7)


_places = st.integers(0, COUNT - 1)
_smooth = st.tuples(
    st.just("assign"), _places, st.sampled_from(["mul", "tanh", "sin", "gather"]), _places, _places
)
_decided = st.tuples(_places, st.sampled_from([-1e3, 1e3]))  # far from where a shift would matter


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    block = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        st.tuples(st.just("cond"), _decided, block, block),
        st.tuples(st.just("loop"), st.integers(0, 2), _decided, block),
        st.tuples(st.just("fixed_switch"), st.integers(-1, 2), block, block),
    )


class _Nest(Graphed):
    def fixed_switch(self, state: list[Any], number: int, *blocks: Any) -> list[Any]:
        branches = [lambda block=block: self.block(block, state) for block in blocks]
        return tf.switch_case(tf.constant(number), branches)


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.recursive(_smooth, lambda inner: _nested(inner), max_leaves=4), min_size=1, max_size=2
    )
)
def test_random_nests_have_the_slopes_of_their_values(program: Any) -> None:
    rng = np.random.default_rng(1)
    values = [rng.normal(scale=0.4, size=WIDTH) for _ in range(COUNT)]
    check_gradient(
        lambda *starts: _Nest().block(program, list(starts)), values, [0, 1, 2], True, 1e-4, 1e-6
    )


@pytest.mark.usefixtures("lowering")
class TestInsideBodies:
    def test_of_what_is_computed_outside(self, sess: tf.Session) -> None:
        x = tf.constant(5.0)
        squared = tf.square(x)

        def body(i: Any, total: Any) -> Any:
            scaled = tf.constant([1.0, 2.0, 3.0]) * squared
            return i + 1, total + tf.gradients(scaled, x)[0]

        _, total = tf.while_loop(lambda i, _: i < 10, body, [0, tf.constant(0.0)])
        assert sess.run(total) == 600.0
        assert sess.run(tf.gradients(total, x)[0]) == 120.0

    def test_through_several_bodies_and_a_loop_outside(self, sess: tf.Session) -> None:
        v = tf.Variable(3.0)
        _, cube = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * v), [0, 1.0])

        def body(i: Any, y: Any) -> Any:
            yes, no = lambda: tf.gradients(cube * y, v)[0], lambda: tf.gradients(v * i_, v)[0]
            i_ = tf.cast(i, tf.float32)
            return i + 1, y + tf.cond(i < 2, yes, no)

        _, y = tf.while_loop(lambda i, _: i < 4, body, [0, tf.constant(1.0)])
        sess.run(v.initializer)
        assert sess.run(y) == 28.0 * 28.0 + 2.0 + 3.0

    def test_of_what_is_wholly_outside(self, sess: tf.Session) -> None:
        x = tf.constant(4.0)
        y = x * x
        slope = tf.cond(x > 0.0, lambda: tf.gradients(y, x)[0], lambda: x)
        assert sess.run(slope) == 8.0

    def test_of_an_argument_stops_there(self, sess: tf.Session) -> None:
        x = tf.constant(2.0)

        def body(i: Any, y: Any) -> Any:
            assert tf.gradients(i * 2, x) == [None]
            return i + 1, y - 0.1 * tf.gradients(y * y, y)[0]

        _, y = tf.while_loop(lambda i, _: i < 2, body, [0, x])
        np.testing.assert_allclose(sess.run(y), 2.0 * 0.8**2, rtol=1e-6)


@pytest.mark.usefixtures("lowering")
class TestSlices:
    def test_of_a_conditional(self, sess: tf.Session) -> None:
        v, c = tf.Variable([1.0, 42.0]), tf.placeholder(tf.bool, [])
        chosen = tf.cond(c, lambda: tf.identity(v), lambda: tf.gather(v, [1, 1]))
        (result,) = tf.gradients(chosen, v)
        assert isinstance(result, tf.IndexedSlices)
        sess.run(v.initializer)
        dense = tf.convert_to_tensor(result)
        assert sess.run(dense, {c: True}).tolist() == [1.0, 1.0]
        assert sess.run(dense, {c: False}).tolist() == [0.0, 2.0]

    def test_a_branch_that_gathers_nothing_has_no_rows(self, sess: tf.Session) -> None:
        v, c = tf.Variable(np.ones((5, 2))), tf.placeholder(tf.bool, [])
        y = tf.cond(c, lambda: tf.reduce_sum(tf.gather(v, [3])), lambda: tf.zeros([], v.dtype))
        (result,) = tf.gradients(y, v)
        sess.run(v.initializer)
        assert sess.run(result.indices, {c: True}).tolist() == [3]
        assert sess.run(result.values, {c: False}).shape == (0, 2)
        train = tf.train.GradientDescentOptimizer(1.0).minimize(y)
        sess.run(train, {c: True})
        sess.run(train, {c: False})
        assert sess.run(v)[:, 0].tolist() == [1, 1, 1, 0, 1]

    @pytest.mark.parametrize("count", [0, 1, 4])
    @pytest.mark.parametrize("size", [2, None])
    def test_of_a_loop(self, sess: tf.Session, count: int, size: int | None) -> None:
        table = np.arange(12.0).reshape(6, 2) / 7
        v, ids = tf.constant(table), tf.placeholder(tf.int32, [size])

        def body(i: Any, y: Any) -> Any:
            return i + 1, 0.5 * y + tf.reduce_sum(tf.gather(v, ids + i) ** 3)

        y = tf.while_loop(lambda i, _: i < count, body, [0, tf.zeros([], tf.float64)])[1]
        (result,) = tf.gradients(y, v)
        assert isinstance(result, tf.IndexedSlices)
        dense = tf.convert_to_tensor(result)
        (twice,) = tf.gradients(dense, v)
        first, second = np.zeros_like(table), np.zeros_like(table)
        for i in range(count):
            for row in (0, 1):
                first[row + i] += 3 * table[row + i] ** 2 * 0.5 ** (count - 1 - i)
                second[row + i] += 6 * table[row + i] * 0.5 ** (count - 1 - i)
        np.testing.assert_allclose(sess.run(dense, {ids: [0, 1]}), first)
        np.testing.assert_allclose(sess.run(tf.convert_to_tensor(twice), {ids: [0, 1]}), second)

    def test_of_a_loop_whose_iterations_gather_more_and_more(self, sess: tf.Session) -> None:
        v = tf.constant(np.ones((4, 3)))

        def body(i: Any, y: Any) -> Any:
            return i + 1, y + tf.reduce_sum(tf.gather(v, tf.range(i)))

        y = tf.while_loop(lambda i, _: i < 5, body, [0, tf.zeros([], tf.float64)])[1]
        (result,) = tf.gradients(y, v)
        dense = sess.run(tf.convert_to_tensor(result))
        assert dense[:, 0].tolist() == [4, 3, 2, 1]

    def test_of_a_conditional_in_a_loop(self, sess: tf.Session) -> None:
        v = tf.Variable(np.arange(10.0).reshape(5, 2))

        def body(i: Any, y: Any) -> Any:
            row = tf.reduce_sum(tf.gather(v, [0]))
            return i + 1, tf.cond(tf.equal(i, 3), lambda: tf.square(y), lambda: y + row)

        y = tf.while_loop(lambda i, _: i < 5, body, [0, tf.zeros([], tf.float64)])[1]
        (result,) = tf.gradients(y, v)
        sess.run(v.initializer)
        dense = sess.run(tf.convert_to_tensor(result))
        np.testing.assert_allclose(dense, [[19.0, 19.0]] + [[0.0, 0.0]] * 4)


@pytest.mark.usefixtures("lowering")
def test_only_variables_that_a_gradient_reaches_go_back(sess: tf.Session) -> None:
    x = tf.placeholder(tf.float32, [])
    _, a, b = tf.while_loop(
        lambda i, *_: i < 3,
        lambda i, a, b: (i + 1, a * x, b * a),
        [0, tf.constant(1.0), tf.constant(1.0)],
    )
    of_a, of_b = (tf.gradients(y, x)[0] for y in (a, b))
    assert len(of_a.op.outputs) < len(of_b.op.outputs)
    assert sess.run([of_a, of_b], {x: 2.0}) == [12.0, 12.0]
    start = tf.gradients(a, b.op.inputs[2])[0]
    assert sess.run(start, {x: 2.0}) == 0.0


def _looped(x: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, tf.sin(y * x)), [0, x])


def _chosen(x: Any) -> Any:
    return tf.cond(x > 0.0, lambda: (x * x, tf.sin(x)), lambda: (x, x))


def _switched(x: Any) -> Any:
    branches = [lambda: (x, x), lambda: (tf.exp(x), tf.tanh(x) * x)]
    return tf.switch_case(tf.cast(x, tf.int32), branches)


@pytest.mark.usefixtures("lowering")
@pytest.mark.parametrize("fed", [0, 1])
@pytest.mark.parametrize("build", [_looped, _chosen, _switched])
def test_what_is_fed_for_an_output_is_no_matter_to_traces(
    sess: tf.Session, build: Any, fed: int
) -> None:
    """The gradient reads what the control node saved, from whichever output it takes it. A product
    with 1 is optimised, and with it the step."""
    x = tf.placeholder(tf.float32, [])
    outputs = build(x)
    (slope,) = tf.gradients(outputs[1], x)
    expected, other = sess.run([slope, outputs[1 - fed]], {x: 1.5})
    fetches = [slope, outputs[fed] * 1, outputs[1 - fed] * 1]
    found = sess.run(fetches, {x: 1.5, outputs[fed]: 7})
    np.testing.assert_allclose(found, [expected, 7, other], rtol=1e-6)


@pytest.mark.usefixtures("lowering")
@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("in_loop", [True, False])
def test_decided_conditionals_inside_each_other(
    sess: tf.Session, outer: bool, inner: bool, in_loop: bool
) -> None:
    """Gradients are asked for inside of branches, and of them: what is constant gives what is
    decided when the step runs."""

    def powers(x: Any) -> Any:
        return lambda: tf.exp(x), lambda: x**3

    def sloped(x: Any, truths: list[Any]) -> Any:
        y = tf.cond(truths[1], lambda: tf.sin(x) * x, lambda: tf.cond(truths[0], *powers(x)))
        return tf.gradients(y, x)[0] * y

    def program(x: Any, truths: list[Any]) -> list[Any]:
        def chosen(z: Any) -> Any:
            return tf.cond(truths[0], lambda: sloped(z, truths), lambda: z * z)

        y = tf.while_loop(lambda i, _: i < 2, lambda i, z: (i + 1, chosen(z)), [0, x])[1]
        y = y if in_loop else chosen(x)
        return [y, tf.gradients(y, x)[0]]

    x, values = tf.placeholder(tf.float32, [2]), [outer, inner]
    fed = [tf.placeholder(tf.bool, []) for _ in values]
    programs = program(x, fed), program(x, [tf.constant(value) for value in values])
    feeds = {x: [0.3, -0.4], **dict(zip(fed, values, strict=True))}
    for one, other in zip(*(sess.run(each, feeds) for each in programs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_inside_bodies_go_where_their_ops_are(sess: tf.Session) -> None:
    x = tf.constant([1.0, 2.0])

    def body(i: Any, y: Any) -> Any:
        with tf.device("/cpu:0"):
            product = tf.multiply(y, x, name="product")
        return i + 1, tf.cond(i < 1, lambda: tf.sin(product, name="bent"), lambda: product)

    y = tf.while_loop(lambda i, _: i < 2, body, [0, x])[1]
    (slope,) = tf.gradients(y, x, colocate_gradients_with_ops=True)
    loop = next(node for node in reversed(sess.graph.get_operations()) if node.type == "While")
    inside = loop.op.body.graph.get_operations()
    branches = next(node for node in inside if node.type == "If").op.branches
    nodes = [*inside, *(node for branch in branches for node in branch.graph.get_operations())]
    made = [node for node in nodes if node.type in ("Mul", "Cos")]
    groups = {group for node in made for group in node.colocation_groups()}
    assert groups == {b"loc:@while/product", b"loc:@while/cond/bent"}
    assert {n.device for n in made if n.colocation_groups() == [b"loc:@while/product"]} == {
        "/device:CPU:0"
    }
    np.testing.assert_allclose(sess.run(slope), [1.9220755, -5.9859514], rtol=1e-5)
