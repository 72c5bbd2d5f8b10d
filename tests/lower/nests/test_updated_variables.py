"""Variables that change in a step: what is computed before an update is not used after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest

import thalweg as tf
from tests.codegen.cuda.sessions import emulated_kernels
from tests.lower.programs import use_target
from tests.soak import SOAKING
from thalweg.codegen.cuda.target import emulated
from thalweg.runtime import engine

#: What small rows need to be reduced, split and stored as long ones are.
SMALL = {
    "far_bytes": 64,
    "min_contraction_work": 16,
    "min_hoisted_bytes": 32,
    "min_rematerialized_bytes": 16,
    "min_shared_results": 16,
    "min_split_elements": 16,
}
COLUMNS = 24

FUNCTIONS: list[Callable[[Any], Any]] = [
    tf.nn.softmax,
    tf.nn.log_softmax,
    tf.sin,
    lambda x: x - tf.reduce_mean(x, 0, keepdims=True),
    lambda x: tf.nn.moments(x, [1], keep_dims=True)[1] + x,
    lambda x: tf.cumsum(x, 1) * 0.1,
    lambda x: tf.reverse(x, [1]),
    lambda x: tf.reduce_logsumexp(x, 1, keepdims=True) - x,
    lambda x: tf.matmul(x, x, transpose_b=True)[:, :1] * 0.1 + x,
]


def program(seed: int) -> tuple[list[Any], list[Any]]:
    """Variables, and values that are computed one after the other, some of them updates."""
    choices, rng = Random(seed), np.random.default_rng(seed)
    start, other = rng.normal(size=(2, 2, COLUMNS)).astype(np.float32)
    variables, values = [tf.Variable(start), tf.Variable(other)], [tf.constant(other)]
    few = choices.sample(FUNCTIONS, 2)
    for _ in range(choices.randint(4, 12)):
        variable, x = choices.choice(variables), choices.choice(values[-4:])
        with tf.control_dependencies(values[1:]):
            match choices.randrange(6):
                case 0:
                    made = tf.assign(variable, x)
                case 1:
                    made = tf.assign_add(variable, x * 0.5)
                case 2:
                    made = tf.assign_sub(variable, tf.nn.softmax(variable))
                case 3:
                    made = choices.choice(FUNCTIONS)(x)
                case _:
                    made = choices.choice(few)(variable)
            values.append(tf.identity(made))
    return variables, values[1:]


def outcome(variables: list[Any], values: list[Any]) -> list[Any]:
    """The values of two steps, and the variables after them."""
    with tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1)) as session:
        session.run(tf.global_variables_initializer())
        return [*session.run(values), *session.run(values), *session.run(variables)]


@pytest.mark.parametrize("is_gpu", [False, True])
@pytest.mark.parametrize("group", range(4))
def test_random_programs_agree_with_the_numpy_kernels(
    is_gpu: bool, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(group, 800 if SOAKING else 40, 4):
        with tf.Graph().as_default():
            parts = program(seed)
            with mock.patch.object(engine, "COMPILES", False):
                expected = outcome(*parts)
            if is_gpu:
                with emulated_kernels(replace(emulated(), **SMALL, min_nested_rows=4)):
                    found = outcome(*parts)
            else:
                use_target(monkeypatch, **SMALL)
                found = outcome(*parts)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("function", [tf.nn.softmax, tf.nn.log_softmax])
def test_a_reduction_of_a_variable_is_not_shared_across_its_update(function: Any) -> None:
    start = np.random.default_rng(0).normal(size=(2, 20_000)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.Variable(start)
        before = function(variable)
        with tf.control_dependencies([before]):
            update = variable.assign_add(start)
        with tf.control_dependencies([update]):
            after = function(variable.read_value())
        session.run(variable.initializer)
        found = session.run([before, after])
        wanted = session.run([function(start), function(2 * start)])
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
