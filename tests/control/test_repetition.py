"""Loops whose turn is one small kernel, which repeats itself in native code."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg as tf
from thalweg.codegen.loops import Repetition
from thalweg.runtime import native_control


@pytest.fixture
def repetitions(monkeypatch: pytest.MonkeyPatch) -> list[Repetition]:
    """Those that are made meanwhile, of three turns at most in one call."""
    made: list[Repetition] = []
    request = native_control.repeated_request

    def noted(kernel, target, again):
        made.append(Repetition(again.deciding, 3))
        return request(kernel, target, made[-1])

    monkeypatch.setattr(native_control, "repeated_request", noted)
    return made


def test_a_counter_counts(repetitions: list[Repetition]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        most = tf.placeholder(tf.int32, [])
        count = tf.while_loop(lambda i: i < most, lambda i: i + 1, [tf.constant(0)])
        found = [int(session.run(count, {most: n})) for n in (-5, 0, 1, 2, 3, 4, 7, 1000)]
    assert found == [0, 0, 1, 2, 3, 4, 7, 1000]
    assert repetitions


def test_a_vector_is_carried_from_call_to_call(repetitions: list[Repetition]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float64, [5])
        _, y = tf.while_loop(
            lambda i, y: i < 10,
            lambda i, y: (i + 1, 0.5 * y + x),
            [tf.constant(0), tf.zeros_like(x)],
        )
        given = np.arange(5.0)
        found = session.run(y, {x: given})
    np.testing.assert_allclose(found, given * (2 - 0.5**9))


def test_a_division_by_zero_is_an_error_of_the_step() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        start = tf.placeholder(tf.int32, [])
        _, y = tf.while_loop(
            lambda i, y: i < 5, lambda i, y: (i + 1, 100 // (i - 3)), [tf.constant(0), start]
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="zero"):
            session.run(y, {start: 1})
        assert session.run(start + 1, {start: 1}) == 2
