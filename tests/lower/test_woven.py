"""Tensors that are made where they lie side by side."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from thalweg.loops.loop import Variable
from thalweg.lower.affine import Affine
from thalweg.lower.woven import Rows
from thalweg.runtime import session as sessions

compiled_only = pytest.mark.skipif(not sessions.COMPILES, reason="nothing is compiled")


@given(
    st.integers(1, 12),
    st.integers(0, 9),
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(1, 4), st.integers(-3, 24)), max_size=3),
    st.integers(0, 30),
)
def test_places_in_rows(length, wider, start, loops, constant):
    variables = [Variable.fresh(extent) for extent, _ in loops]
    factors = [factor or 1 for _, factor in loops]
    rows = Rows(length, length + wider, start)
    found = rows.place(Affine(constant, dict(zip(variables, factors, strict=True))))
    for values in product(*(range(extent) for extent, _ in loops)):
        place = constant + sum(f * v for f, v in zip(factors, values, strict=True))
        row, within = divmod(place, length)
        if found is not None:
            seen = zip(variables, values, strict=True)
            there = found.constant + sum(found.terms[v] * value for v, value in seen)
            assert there == row * rows.stride + within + start


def test_plain_rows_have_a_place():
    i, j = Variable.fresh(16), Variable.fresh(24)
    found = Rows(24, 96, 48).place(Affine(0, {i: 24, j: 1}))
    assert found == Affine(48, {i: 96, j: 1})
    assert Rows(24, 96, 48).place(Affine(1, {i: 24, j: 1})) is None


def cells(x: Any, count: int, width: int, axis: int = 1) -> tuple[list[Any], list[Any]]:
    """Steps of an LSTM, unrolled, and its weights: the gradient of the gates' split is a concat."""
    rng = np.random.default_rng(3)
    shape = [width, 4 * width] if axis == 1 else [4 * width, width]
    weights = tf.Variable(rng.standard_normal(shape).astype(np.float32) / 5)
    h = c = x
    states: list[Any] = []
    for _ in range(count):
        sums = tf.matmul(h, weights) if axis == 1 else tf.matmul(weights, h)
        i, j, f, o = tf.split(sums, 4, axis)
        c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(c) * tf.sigmoid(o)
        states.append(h)
    return states, [weights]


def gradients(x: Any) -> list[Any]:
    states, (weights,) = cells(x, 6, 24)
    return [tf.reduce_sum(tf.stack(states)), *tf.gradients(tf.square(states[-1]), [weights, x])]


def a_part_that_is_asked_for(x: Any) -> list[Any]:
    states, _ = cells(x, 3, 24)
    found = tf.gradients(tf.square(states[-1]), [x])
    nodes = [node for node in x.graph.get_operations() if node.type == "ConcatV2"]
    return [*found, nodes[1].inputs[0], nodes[1].outputs[0]]


def rows_below_one_another(x: Any) -> list[Any]:
    states, (weights,) = cells(tf.transpose(x), 4, 24, axis=0)
    return tf.gradients(tf.square(states[-1]), [weights, x])


def a_part_that_is_read_twice(x: Any) -> list[Any]:
    states, _ = cells(x, 3, 24)
    found = tf.gradients(tf.square(states[-1]), [x])
    nodes = [node for node in x.graph.get_operations() if node.type == "ConcatV2"]
    return [*found, tf.reduce_max(nodes[1].inputs[2], 0)]


def the_middle_axis(x: Any) -> list[Any]:
    a = tf.matmul(x, tf.ones([24, 24]) / 7.0)
    grid = tf.reshape(a, [-1, 6, 4])
    parts = [tf.sigmoid(grid) * grid, tf.tanh(grid), grid * grid]
    whole = tf.concat(parts, 1)
    return [tf.matmul(whole, whole, transpose_b=True)]


PROGRAMS = [
    gradients,
    a_part_that_is_asked_for,
    rows_below_one_another,
    a_part_that_is_read_twice,
    the_middle_axis,
]


@pytest.mark.parametrize("make", PROGRAMS)
@pytest.mark.parametrize("rows", [1, 5, 16, 33])
def test_the_same_numbers(make: Any, rows: int, monkeypatch: pytest.MonkeyPatch):
    data = np.random.default_rng(2).standard_normal((rows, 24)).astype(np.float32)
    found: list[Any] = []
    for compiles in (False, True):
        monkeypatch.setattr(sessions, "COMPILES", compiles)
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.float32, [rows, 24])
            fetches = make(x)
            session.run(tf.global_variables_initializer())
            found.append(session.run(fetches, {x: data}))
    for ours, theirs in zip(*reversed(found), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def copies(make: Any) -> int:
    """How many kernels copy tensors side by side."""
    data = np.ones((16, 24), np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [16, 24])
        fetches = make(x)
        session.run(tf.global_variables_initializer())
        plan = session.plan(fetches, {x: data})
        return sum("concat" in kernel.name for kernel in plan.kernels)


@compiled_only
def test_gradients_of_gates_are_made_in_one_matrix():
    assert copies(gradients) == 1  # of six steps; at the last one, two nests make the parts


@compiled_only
@pytest.mark.parametrize("make", [a_part_that_is_asked_for, a_part_that_is_read_twice])
def test_what_is_asked_for_or_read_elsewhere_is_copied(make: Any):
    assert copies(make) == 2  # of three
