"""Random numbers inside loops and conditionals: other ones every iteration, whatever runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.ops.random.philox import Philox
from thalweg.ops.random.random import SkipRandom
from thalweg.runtime import native_control
from thalweg.runtime.dataflow import control_region


def draws(monkeypatch: Any, native: bool) -> list[Any]:
    monkeypatch.setattr(control_region, "NATIVE", native)
    with tf.Graph().as_default(), tf.Session() as session:
        choice = tf.placeholder(tf.bool, [])
        _, rows = tf.while_loop(
            lambda i, rows: i < 5,
            lambda i, rows: (i + 1, rows.write(i, tf.random_uniform([3], seed=3))),
            [tf.constant(0), tf.TensorArray(tf.float32, 5, element_shape=[3])],
        )
        chosen = tf.cond(
            choice, lambda: tf.random_normal([2], seed=1), lambda: tf.random_uniform([2], seed=2)
        )
        fetches = [rows.stack(), chosen]
        return [session.run(fetches, {choice: taken}) for taken in (True, False, False, True)]


def test_every_iteration_draws_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = np.concatenate([rows.ravel() for rows, _ in draws(monkeypatch, True)])
    assert len(set(seen.tolist())) == len(seen)


def test_every_body_draws_numbers_of_its_own_from_the_seed_of_the_graph() -> None:
    """Nodes are counted in each body: bodies that are alike would be seeded alike."""

    def in_branch() -> Any:
        return tf.cond(choice, lambda: tf.random_uniform([4]), lambda: tf.zeros([4]))

    def in_loop() -> Any:
        def body(i: Any, _: Any) -> Any:
            return i + 1, tf.random_uniform([4])

        return tf.while_loop(lambda i, _: i < 1, body, [0, tf.zeros([4])])[1]

    def nested() -> Any:
        return tf.cond(choice, in_branch, in_loop)

    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        choice = tf.placeholder(tf.bool, [])
        made = [build() for build in (in_branch, in_loop, nested) * 2] + [tf.random_uniform([4])]
        drawn = {tensor: session.run(tensor, {choice: True}).tobytes() for tensor in made}
        assert len(set(drawn.values())) == len(drawn)


def test_native_loops_draw_what_the_executor_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    for result, wanted in zip(draws(monkeypatch, True), draws(monkeypatch, False), strict=True):
        for one, other in zip(result, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_stream_moves_on_by_what_an_iteration_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    lower = native_control.cached_lower

    def noted(region: Any, *rest: Any) -> Any:
        made.extend(node.op for node in region.nodes if isinstance(node.op, SkipRandom))
        return lower(region, *rest)

    monkeypatch.setattr(native_control, "cached_lower", noted)
    draws(monkeypatch, True)
    in_loop, *in_branches = [op.blocks for op in made]
    assert [2 * in_loop] * 2 == [3 * blocks for blocks in in_branches]  # of three, two, two numbers
    assert in_loop > 0


@pytest.mark.parametrize("blocks", [0, 1, 7, 2**32 - 1, 2**40 + 3])
def test_a_skipped_stream_is_that_much_further_on(blocks: int) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        start = np.asarray(Philox(3, 5).skip(2**32 - 2).place())
        place = tf.Variable(start, name="place")
        session.run(place.initializer)
        moved = session.run(SkipRandom(blocks=blocks)(place))
    expected = Philox(3, 5).skip(2**32 - 2)
    assert moved.tolist() == list(expected.skip(blocks).place())
