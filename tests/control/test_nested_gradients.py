"""Gradients of loops in loops: in native code, on the executor, and where one takes over from the
other in the middle of a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import on_reference_kernels
from thalweg.control.lists import ListValue
from thalweg.runtime.native_control import NativeControl

X = np.array([0.3, -0.7, 1.1])
Loop = Callable[[Callable[[Any], Any], Callable[..., Any], list[Any]], list[Any]]


def graphed(going: Callable[..., Any], body: Callable[..., Any], start: list[Any]) -> list[Any]:
    return tf.while_loop(going, body, start)


def unrolled(going: Callable[..., Any], body: Callable[..., Any], start: list[Any]) -> list[Any]:
    """The same with counters that Python counts."""
    while going(*start):
        start = list(body(*start))
    return start


def chosen(loop: Loop, number: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """One of two, by whether a counter is even."""
    if loop is graphed:
        return tf.cond(tf.equal(number % 2, 0), yes, no)
    return yes() if number % 2 == 0 else no()


def growing(loop: Loop, x: Any, iterations: int = 4) -> Any:
    """Iteration i has i iterations inside: none at first."""

    def body(i: Any, y: Any) -> Any:
        inside = loop(lambda j, z: j < i, lambda j, z: (j + 1, tf.sin(z) * x), [0, y])[1]
        return i + 1, inside * y + x

    return loop(lambda i, y: i < iterations, body, [0, x])[1]


def often(loop: Loop, x: Any) -> Any:
    """More iterations in all than there is room for at first."""

    def body(i: Any, y: Any) -> Any:
        inside = loop(
            lambda j, z: j < 30 + i, lambda j, z: (j + 1, 0.99 * tf.sin(z) + 0.01 * x), [0, y]
        )
        return i + 1, inside[1] + 0.1 * y

    return loop(lambda i, y: i < 12, body, [0, x])[1]


def in_a_branch(loop: Loop, x: Any) -> Any:
    """Every other iteration has a loop inside."""

    def body(i: Any, y: Any) -> Any:
        def inside() -> Any:
            return loop(lambda j, z: j < i, lambda j, z: (j + 1, tf.sin(z) * x), [0, y])[1]

        return i + 1, chosen(loop, i, inside, lambda: y * x) + y

    return loop(lambda i, y: i < 5, body, [0, x])[1]


def three_deep(loop: Loop, x: Any) -> Any:
    def outer(k: Any, y: Any) -> Any:
        def middle(i: Any, y: Any) -> Any:
            inner = loop(lambda j, z: j < i + k, lambda j, z: (j + 1, tf.sin(z) * x), [0, y])[1]
            return i + 1, inner * y + x

        return k + 1, loop(lambda i, y: i < k, middle, [0, y])[1]

    return loop(lambda k, y: k < 3, outer, [0, x])[1]


def two_beside(loop: Loop, x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        one = loop(lambda j, z: j < i, lambda j, z: (j + 1, tf.sin(z)), [0, y])[1]
        two = loop(lambda j, z: j < 2, lambda j, z: (j + 1, z * one * x), [0, y])[1]
        return i + 1, one + two

    return loop(lambda i, y: i < 3, body, [0, x])[1]


def with_weights(loop: Loop, x: Any) -> Any:
    """A product with what both loops take unchanged."""
    weights = tf.reshape(tf.tile(x, [3]), [3, 3]) * 0.5

    def body(i: Any, y: Any) -> Any:
        def body(j: Any, z: Any) -> Any:
            return j + 1, tf.tanh(tf.matmul(z, weights)) + tf.gather(weights, [1])

        return i + 1, loop(lambda j, z: j < i, body, [0, y])[1] + 0.5 * y

    return loop(lambda i, y: i < 4, body, [0, tf.expand_dims(x, 0)])[1]


def mapped_in_a_branch(loop: Loop, x: Any) -> Any:
    """An array that only some iterations make."""

    def mapped(y: Any) -> Any:
        made = tf.map_fn(lambda e: tf.sin(e) * e, y) if loop is graphed else tf.sin(y) * y
        return made + x

    def body(i: Any, y: Any) -> Any:
        return i + 1, chosen(loop, i + 1, lambda: mapped(y), lambda: y * x) + 0.1 * y

    return loop(lambda i, y: i < 4, body, [0, x])[1]


PROGRAMS = [growing, often, in_a_branch, three_deep, two_beside, with_weights]


def derivatives(program: Callable[..., Any], loop: Loop, order: int = 2) -> tuple[Any, list[Any]]:
    """A value and its gradients: of the sum, of the sum of squares of that, and so on."""
    x = tf.constant(X)
    result = [program(loop, x)]
    for _ in range(order):
        seed = result[-1] if len(result) == 1 else result[-1] ** 2
        slope = tf.gradients(tf.reduce_sum(seed), x, unconnected_gradients="zero")[0]
        result.append(tf.convert_to_tensor(slope))
    return x, result


@cache
def of_unrolled(program: Callable[..., Any], order: int) -> list[Any]:
    """The same of the unrolled graph, by NumPy."""
    with tf.Graph().as_default(), on_reference_kernels() as session:
        return session.run(derivatives(program, unrolled, order)[1])


def check(session: tf.Session, program: Callable[..., Any], order: int = 2) -> list[Any]:
    """Check a program against its unrolled form; returns the plan's text on its loops."""
    _, fetches = derivatives(program, graphed, order)
    for result, value in zip(session.run(fetches), of_unrolled(program, order), strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-7, atol=1e-12)
    return session.plan(fetches).controls


@pytest.mark.parametrize("program", PROGRAMS)
def test_are_those_of_the_unrolled_graph(
    program: Callable[..., Any], lowering: str, sess: tf.Session
) -> None:
    controls = check(sess, program)
    assert [control.was_native for control in controls] == [lowering == "native"] * len(controls)


def test_of_third_order(sess: tf.Session) -> None:
    forward, backward, *_ = check(sess, growing, 3)
    assert forward.was_native
    assert backward.was_native


@pytest.mark.parametrize("iterations", [0, 1, 2])
def test_of_few_iterations(iterations: int, sess: tf.Session) -> None:
    assert all(c.was_native for c in check(sess, lambda loop, x: growing(loop, x, iterations)))


def test_a_plan_shows_how_loops_ran(sess: tf.Session) -> None:
    _, fetches = derivatives(growing, graphed, 1)
    assert "native" not in str(sess.plan(fetches))
    sess.run(fetches)
    shown = str(sess.plan(fetches))
    assert shown.count("(While): native") == 2


def test_a_plan_shows_why_the_executor_ran_a_loop(sess: tf.Session) -> None:
    growing_text = tf.while_loop(
        lambda i, t: i < 2, lambda i, t: (i + 1, tf.string_join([t, "a"])), [0, tf.constant("b")]
    )[1]
    assert sess.run(growing_text) == b"baa"
    (control,) = sess.plan(growing_text).controls
    assert control.was_native is False
    assert f"on the executor ({control.reason})" in str(sess.plan(growing_text))


@pytest.mark.parametrize("program", [growing, in_a_branch, three_deep, mapped_in_a_branch])
@pytest.mark.parametrize("number", range(4))
def test_native_code_and_the_executor_take_over_from_each_other(
    program: Callable[..., Any], number: int, sess: tf.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, seen = NativeControl.__call__, list[Any]()

    def fails(native: Any, context: Any, values: Any) -> Any:
        """As if native code could not settle one of the loops of the step."""
        if native not in seen:
            seen.append(native)
        return None if seen.index(native) == number else call(native, context, values)

    monkeypatch.setattr(NativeControl, "__call__", fails)
    controls = check(sess, program)
    assert not all(control.was_native for control in controls)


def test_arrays_that_iterations_make(sess: tf.Session) -> None:
    """`map_fn` inside a loop: an array that a iteration makes, writes, reads and stacks."""

    def mapped(loop: Loop, x: Any) -> Any:
        def body(i: Any, y: Any) -> Any:
            if loop is graphed:
                return i + 1, tf.map_fn(lambda e: tf.sin(e) * e, y) + x
            return i + 1, tf.sin(y) * y + x

        return loop(lambda i, y: i < 3, body, [0, x])[1]

    assert all(control.was_native for control in check(sess, mapped, 1))


def test_arrays_that_branches_of_iterations_make(sess: tf.Session) -> None:
    assert all(control.was_native for control in check(sess, mapped_in_a_branch, 1))


def test_a_list_that_only_an_inner_loop_changes(lowering: str, sess: tf.Session) -> None:
    def body(i: Any, y: Any, array: Any) -> Any:
        def inner(j: Any, z: Any, array: Any) -> Any:
            return j + 1, z * 1.5, array.write(i * 2 + j, z)

        _, z, array = tf.while_loop(lambda j, *_: j < 2, inner, [0, y, array])
        return i + 1, z + 1.0, array

    array = tf.TensorArray(tf.float32, 6)
    _, y, array = tf.while_loop(lambda i, *_: i < 3, body, [0, tf.constant(1.0), array])
    fetches = [y, array.stack()]
    end, rows = sess.run(fetches)
    np.testing.assert_allclose(rows, [1.0, 1.5, 3.25, 4.875, 8.3125, 12.46875])
    np.testing.assert_allclose(end, 19.703125)
    (control,) = sess.plan(fetches).controls
    assert control.was_native is (lowering == "native")


class TestListsInFlatOnes:
    def lists(self) -> ListValue:
        flat = ListValue(tf.float64).take_over(np.arange(16.0).reshape(8, 2))
        return ListValue.of_nested(np.array([0, 3, 3, 0], np.int32), flat)

    def test_are_read_from_where_they_start(self) -> None:
        lists = self.lists()
        assert lists.read(1).read(0).tolist() == [6.0, 7.0]
        assert lists.read(0).read(2).tolist() == [4.0, 5.0]

    def test_gradients_of_them_add_up(self) -> None:
        gradients = self.lists().gradient()
        nested = gradients.as_nested()
        assert nested is not None and nested.flat.accumulates
        one = self.lists().read(1).gradient()
        one.write(0, np.array([1.0, 2.0]))
        gradients.write(1, one).write(1, one)
        assert gradients.read(1).read(0).tolist() == [2.0, 4.0]
        assert gradients.read(0).read(0).tolist() == [0.0, 0.0]

    def test_of_one_length_are_as_long_as_that(self) -> None:
        flat = ListValue(tf.int64).take_over(np.arange(9))
        lists = ListValue.of_nested(np.array([3, 0, 6], np.int32), flat, each=3)
        assert [lists.read(index).stack().tolist() for index in range(3)] == [
            [3, 4, 5],
            [0, 1, 2],
            [6, 7, 8],
        ]


def test_what_is_known_in_a_branch_is_known_to_all_its_gradients():
    w, v = tf.constant([1.0, 2.0, 3.0]), tf.constant([4.0, 5.0, 6.0])
    x = tf.placeholder_with_default(tf.zeros([3]), [3])
    yes = tf.placeholder_with_default(True, [])

    def outer() -> Any:
        last = tf.shape(x)[0] - 1  # the inner gradient asks for it first, then the outer one
        picked = tf.gather(v, last)
        return tf.cond(yes, lambda: picked * tf.gather(w, last), lambda: picked)

    y = tf.cond(yes, outer, lambda: tf.constant(0.0))
    gradients = [tf.convert_to_tensor(each) for each in tf.gradients(y, [w, v])]
    with tf.Session() as session:
        assert [each.tolist() for each in session.run(gradients)] == [[0, 0, 6], [0, 0, 3]]
