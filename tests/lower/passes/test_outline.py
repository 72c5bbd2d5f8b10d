"""Identical subgraphs of a step share kernels, on different buffers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import lowered
from thalweg.ir.kernel import Contraction
from thalweg.runtime import engine

STEPS, ROWS, COLUMNS = 8, 6, 20

Program = Callable[[Any], Any]


def agrees(program: Program, shape: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code and the reference kernels give the same, gradients among it."""
    data = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    found: list[Any] = []
    for compiles in (False, True):
        monkeypatch.setattr(engine, "COMPILES", compiles)
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.float32, shape)
            results = program(x)
            gradients = tf.gradients(results, x)
            session.run(tf.global_variables_initializer())
            found.append(session.run([results, gradients], {x: data}))
    flat = [tf.nest.flatten(each) for each in found]
    for ours, theirs in zip(flat[1], flat[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def steps(pieces: list[Any]) -> Any:
    """A state that is updated with one slice after the other, stored at each."""
    state = tf.zeros_like(pieces[0])
    states: list[Any] = []
    for piece in pieces:
        gate = tf.tanh(piece)
        state = tf.sigmoid(state + gate) * state + gate * gate
        states.append(state)
    return tf.stack(states)


def ramp(size: int) -> Any:
    """Different numbers, none of them large."""
    return tf.constant(np.linspace(-1, 1, size, dtype=np.float32))


def with_bias(x: Any) -> Any:
    return steps(tf.unstack(x + ramp(COLUMNS)))


def across_rows(x: Any) -> Any:
    """Pieces that begin in the middle of what is stretched over the rows."""
    moved = tf.reshape(x + ramp(COLUMNS), [-1, 8])
    return steps(tf.unstack(moved))


def by_columns(x: Any) -> Any:
    return steps(tf.split(tf.reshape(x, [-1, COLUMNS]) * 2.0, 4, 1))


def of_a_column(x: Any) -> Any:
    """A factor of each row, which is not the same from one piece to the next."""
    factors = tf.reshape(ramp(STEPS * ROWS), [-1, 1])
    rows = tf.reshape(x, [STEPS * ROWS, COLUMNS]) * factors
    return steps(tf.split(rows, STEPS, 0))


def of_known_values(x: Any) -> Any:
    """Numbers that differ from piece to piece, in the code itself."""
    row = x[0, 0] + ramp(COLUMNS)
    return steps(tf.unstack(row))


def of_one_or_two(x: Any) -> Any:
    """The same product of a tensor with itself and with another one."""
    pieces = tf.unstack(tf.tanh(x))
    return [steps([a * b, b * a, a * a]) for a, b in pairwise(pieces)]


def with_random_numbers_left_out(x: Any) -> Any:
    tf.set_random_seed(3)
    return steps([piece + 0.0 * tf.random_uniform([ROWS, COLUMNS]) for piece in tf.unstack(x)])


def with_updates_between(x: Any) -> Any:
    """A variable that is read in the same way before and after a write."""
    total = tf.Variable(tf.ones([ROWS, COLUMNS]))
    read: list[Any] = []
    last = tf.no_op()
    for piece in tf.unstack(x):
        with tf.control_dependencies([last]):
            read.append(tf.tanh(total.read_value() * piece))
        with tf.control_dependencies([read[-1]]):
            last = total.assign_add(tf.ones([ROWS, COLUMNS])).op
    return steps(read)


@pytest.mark.parametrize(
    "program",
    [
        with_bias,
        across_rows,
        by_columns,
        of_a_column,
        of_known_values,
        of_one_or_two,
        with_random_numbers_left_out,
        with_updates_between,
    ],
)
def test_equal_parts_agree_with_the_reference_kernels(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    agrees(program, [STEPS, ROWS, COLUMNS], monkeypatch)


def test_equal_parts_share_their_kernels() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [STEPS, ROWS, COLUMNS])
        weights = tf.placeholder(tf.float32, [COLUMNS, COLUMNS])
        state = tf.ones([ROWS, COLUMNS])
        for piece in tf.unstack(x + ramp(COLUMNS)):
            state = tf.tanh(tf.matmul(state, weights) + piece)
        launches = lowered(state).launches
    products = [launch.kernel for launch in launches if isinstance(launch.kernel, Contraction)]
    assert len(products) == STEPS
    assert len(set(products[1:-1])) == 1
    assert len({launch.starts for launch in launches}) >= STEPS


def test_parts_of_other_attributes_share_nothing() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [ROWS, COLUMNS])
        made = lowered(*(tf.reduce_sum(tf.tanh(x), axis) for axis in (0, 1)))
    kernels = {id(launch.kernel) for launch in made.launches}
    assert len(kernels) == len(made.launches)
