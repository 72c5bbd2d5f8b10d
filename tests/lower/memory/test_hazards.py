"""Variables that are read and written in one step: every read sees what it should.

Each case runs compiled and on the NumPy kernels, twice in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest

import thalweg as tf
from thalweg.runtime import engine

START = np.arange(12, dtype=np.float32).reshape(3, 4) / 4


def after(earlier: Any) -> Any:
    return tf.control_dependencies(earlier if isinstance(earlier, list) else [earlier])


def read_around_an_assignment(v: Any) -> Any:
    old = v.read_value()
    with after(old):
        changed = v.assign_add(tf.ones_like(v))
    with after(changed):
        new = v.read_value()
    return [old * 2, new * 2, old + new]


def identity_then_update(v: Any) -> Any:
    held = tf.identity(v)
    moved = tf.exp(held)
    with after(held):
        changed = tf.assign(v, v * 0.5)
    with after(changed):
        return [tf.identity(moved), held + 1]


def assign_then_read_the_reference(v: Any) -> Any:
    return [tf.assign(v, tf.square(v)) + 1]


def reversed_in_place(v: Any) -> Any:
    return [tf.assign(v, tf.reverse(v, [0, 1]))]


def shifted_in_place(v: Any) -> Any:
    return [tf.assign(v, tf.concat([v[1:], v[:1]], 0))]


def rows_gathered_in_place(v: Any) -> Any:
    return [tf.assign(v, tf.gather(v, [2, 0, 0]))]


def multiplied_by_itself(v: Any) -> Any:
    square = tf.matmul(v, v, transpose_b=True)
    return [tf.assign(v, tf.matmul(square, v) * 0.01)]


def normalised_in_place(v: Any) -> Any:
    return [tf.assign(v, tf.nn.softmax(v))]


def centred_in_place(v: Any) -> Any:
    return [tf.assign(v, v - tf.reduce_mean(v))]


def summed_along_in_place(v: Any) -> Any:
    return [tf.assign(v, tf.cumsum(v, 1))]


def updated_twice(v: Any) -> Any:
    first = v.assign_add(tf.ones_like(v))
    with after(first):
        second = v.assign(v * 2)
    with after(second):
        return [v.read_value()]


def swapped(v: Any) -> Any:
    other = tf.Variable(-START)
    old, theirs = tf.identity(v), tf.identity(other)
    with after([old, theirs]):
        return [tf.assign(v, theirs), tf.assign(other, old)]


def scattered_from_itself(v: Any) -> Any:
    rows = tf.gather(tf.identity(v), [2, 1])
    with after(rows):
        return [tf.scatter_add(v, [0, 1], rows)]


def scattered_then_read(v: Any) -> Any:
    changed = tf.scatter_update(v, [1], [[9.0, 8.0, 7.0, 6.0]])
    with after(changed):
        return [tf.reduce_sum(v.read_value(), 1), changed]


def sliced_assignment(v: Any) -> Any:
    old = tf.reduce_sum(v)
    with after(old):
        changed = v[1:, :2].assign(v[:2, 2:])
    return [old, changed]


def expensive_read_after_update(v: Any) -> Any:
    dear = tf.exp(tf.sin(tf.identity(v)))
    with after(dear):
        changed = v.assign(dear)
    with after(changed):
        return [tf.reduce_sum(dear, 0), dear * v.read_value()]


def update_by_its_own_gradient(v: Any) -> Any:
    loss = tf.reduce_sum(tf.square(tf.matmul(v, v, transpose_b=True)))
    (slope,) = tf.gradients(loss, v)
    return [loss, tf.assign_sub(v, 0.001 * slope), slope]


def chained_through_references(v: Any) -> Any:
    once = tf.assign_add(v, tf.ones_like(START))
    twice = tf.assign_sub(once, 0.5 * tf.ones_like(START))
    return [tf.assign(twice, twice * 2)]


CASES: list[Callable[[Any], Any]] = [
    read_around_an_assignment,
    identity_then_update,
    assign_then_read_the_reference,
    reversed_in_place,
    shifted_in_place,
    rows_gathered_in_place,
    multiplied_by_itself,
    normalised_in_place,
    centred_in_place,
    summed_along_in_place,
    updated_twice,
    swapped,
    scattered_from_itself,
    scattered_then_read,
    sliced_assignment,
    expensive_read_after_update,
    update_by_its_own_gradient,
    chained_through_references,
]


def run(build: Callable[[Any], Any], compiled: bool) -> list[Any]:
    """The fetches of two steps, and the values of the variables after each."""
    result: list[Any] = []
    with (
        mock.patch.object(engine, "COMPILES", compiled),
        tf.Graph().as_default(),
        tf.Session() as session,
    ):
        variable = tf.Variable(START)
        fetches = build(variable)
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            result += session.run(fetches)
            result += session.run(tf.global_variables())
    return result


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_steps_with_hazards_are_the_same_compiled(build: Callable[[Any], Any]) -> None:
    for one, other in zip(run(build, True), run(build, False), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)


def test_what_was_read_is_not_what_is_there_now() -> None:
    """A fetched value does not change with the variable."""
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.Variable(START)
        more = variable.assign_add(tf.ones_like(START))
        session.run(variable.initializer)
        kept = [session.run(variable) for _ in range(2)]
        results = [session.run(more) for _ in range(3)]
        np.testing.assert_array_equal(kept[0], START)
        for count, result in enumerate(results, 1):
            np.testing.assert_array_equal(result, START + count)


def test_known_results() -> None:
    """The same, against expected values."""
    (old, new, both, *_) = run(read_around_an_assignment, True)
    np.testing.assert_array_equal(old, START * 2)
    np.testing.assert_array_equal(new, (START + 1) * 2)
    np.testing.assert_array_equal(both, START * 2 + 1)


def test_a_step_that_fails_changes_nothing_that_lasts() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.Variable(START)
        row = tf.placeholder(tf.int32, [1])
        changed = variable.assign_add(tf.ones_like(START) * tf.gather(START[0], row)[0])
        session.run(variable.initializer)
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(changed, {row: [4]})
        np.testing.assert_array_equal(session.run(variable), START)


def test_an_uninitialised_variable_is_told_by_name() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.Variable(START, name="weights")
        with pytest.raises(tf.errors.FailedPreconditionError, match="weights"):
            session.run(variable + 1)


def test_a_feed_is_never_written() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [3, 4])
        array = START.copy()
        results = session.run([x + 1, tf.exp(x), tf.identity(x), tf.reshape(x, [12])], {x: array})
        for result in results:
            assert not np.shares_memory(result, array)
            result[...] = 0
        np.testing.assert_array_equal(array, START)


def test_a_check_that_fails_after_an_update_does_not_update_twice() -> None:
    """The step runs again for the error message: no update may be applied twice."""
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.Variable(START)
        rows = tf.placeholder(tf.int32, [1])
        more = variable.assign_add(tf.ones_like(START))
        with after(more):
            known = tf.gather(START, rows)
            found = tf.gather(START, tf.cast(variable.read_value()[0, :1], tf.int32) + rows)
        session.run(variable.initializer)
        for count, fetch in enumerate([known, found, found], 1):
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(fetch, {rows: [3]})
            np.testing.assert_array_equal(session.run(variable), START + count)


@pytest.mark.parametrize("shape", [(1, 0), (0, 3), (2, 3)])
def test_a_step_over_nothing_updates_once(shape: tuple[int, ...]) -> None:
    # Places in an empty array are remainders by zero: no fault, after which a step runs again.
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, shape)
        v = tf.Variable(0.0)
        padded = tf.pad(tf.tile(x, [2, 1]), [[0, 0], [1, 1]])
        fetches = [tf.reduce_sum(tf.cos(padded)), v.assign_add(1.0).op]
        session.run(tf.global_variables_initializer())
        for count in range(1, 4):
            total, _ = session.run(fetches, {x: np.zeros(shape, np.float32)})
            assert total == 2 * shape[0] * (shape[1] + 2)
            assert session.run(v) == count
