"""Stacks whose parts are computed in place, and transposed weights that small products share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import native
from thalweg.ir.kernel import Contraction
from thalweg.runtime import engine

compiled_only = pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")


def products(x: Any, count: int) -> list[Any]:
    """Tensors that are worth storing, each computed from the one before."""
    rng = np.random.default_rng(1)
    result: list[Any] = []
    for _ in range(count):
        w = tf.constant(rng.standard_normal((24, 24)).astype(np.float32) / 5)
        x = tf.tanh(tf.matmul(x, w))
        result.append(x)
    return result


def both(make: Any, shape: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The result of a step, on the reference kernels and compiled."""
    data = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    result: list[Any] = []
    for compiles in (False, True):
        monkeypatch.setattr(engine, "COMPILES", compiles)
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.float32, shape)
            fetches = make(x)
            session.run(tf.global_variables_initializer())
            result.append(session.run(fetches, {x: data}))
    return result


def check(make: Any, shape: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the compiled step with the reference kernels."""
    reference, compiled = both(make, shape, monkeypatch)
    for ours, theirs in zip(compiled, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def stack_and_parts(x: Any) -> list[Any]:
    """A stack whose memory must not be reused while its parts are read again."""
    parts = products(x, 4)
    whole = tf.reshape(tf.stack(parts), [24, 24])
    changed = whole * tf.transpose(tf.matmul(whole, whole))
    last = tf.matmul(changed, changed)
    return [last, tf.matmul(parts[1], last), tf.matmul(parts[2], changed)]


def rows_of_different_heights(x: Any) -> list[Any]:
    parts = products(x, 3)
    whole = tf.concat([parts[0][:2] * 2.0, parts[1], tf.matmul(tf.ones([5, 6]), parts[2])], 0)
    return [tf.matmul(whole, tf.ones([24, 4])), tf.reduce_max(parts[1])]


def a_part_twice(x: Any) -> list[Any]:
    a, b = products(x, 2)
    return [tf.matmul(tf.concat([a, b, a], 0), tf.ones([24, 4]))]


def columns(x: Any) -> list[Any]:
    a, b = products(x, 2)
    return [tf.matmul(tf.concat([a, b], 1), tf.ones([48, 4])), tf.reduce_sum(a)]


def stacks_of_stacks(x: Any) -> list[Any]:
    a, b, c, d = products(x, 4)
    inner = tf.stack([a, b]), tf.stack([c, d])
    whole = tf.reshape(tf.concat(inner, 0), [24, 24])
    return [tf.matmul(whole, whole), tf.matmul(tf.reshape(inner[0], [12, 24]), tf.ones([24, 3]))]


CASES = [stack_and_parts, rows_of_different_heights, a_part_twice, columns, stacks_of_stacks]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_stacks_agree_with_the_reference_kernels(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(make, (6, 24), monkeypatch)


@compiled_only
def test_parts_of_a_stack_are_made_inside_it() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [6, 24])
        whole = tf.reshape(tf.stack(products(x, 4)), [24, 24])
        step = native(tf.matmul(whole, tf.ones([24, 8])))
        assert len(step.listing.lowered.pieces) == 4
        assert len(step.listing.calls) == 5  # four parts and the product of the whole
        assert all(isinstance(call.launch.kernel, Contraction) for call in step.listing.calls)


def backwards(x: Any, steps: int) -> list[Any]:
    """The gradients of a small recurrent network with respect to its input and its weights."""
    rng = np.random.default_rng(3)
    w = tf.Variable(rng.standard_normal((40, 40)).astype(np.float32) / 5)
    state = x
    for _ in range(steps):
        state = tf.tanh(tf.matmul(state, w))
    return tf.gradients(tf.reduce_sum(state), [x, w])


@compiled_only
@pytest.mark.parametrize(
    ("rows", "steps", "is_transposed"),
    [
        (16, 2, False),
        (16, 11, False),
        (16, 12, True),
        (48, 20, True),
        (4, 20, False),
        (64, 20, False),
    ],
)
def test_weights_are_transposed_once_for_many_products(
    rows: int, steps: int, is_transposed: bool
) -> None:
    with tf.Graph().as_default():
        slope, _ = backwards(tf.placeholder(tf.float32, [rows, 40]), steps)
        step = native(slope)
        copies = [c for c in step.listing.calls if not isinstance(c.launch.kernel, Contraction)]
        transposes = [c for c in copies if [b.size for b in c.launch.buffers] == [1600, 1600]]
        assert len(transposes) == is_transposed


def weights_that_change_in_between(x: Any) -> list[Any]:
    w = tf.Variable(np.linspace(-1, 1, 400, dtype=np.float32).reshape(20, 20))
    state, weights = x, w.read_value()
    for step in range(30):
        state = tf.tanh(tf.matmul(state, weights, transpose_b=True))
        if step == 15:
            with tf.control_dependencies([state]):
                change = tf.assign(w, w * 0.5 + 0.1)
            with tf.control_dependencies([change]):
                weights = w.read_value()
    return [state]


@compiled_only
def test_weights_that_change_in_between_are_not_kept_turned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(weights_that_change_in_between, (16, 20), monkeypatch)


@compiled_only
def test_gradients_through_turned_weights_agree_with_the_reference_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(partial(backwards, steps=14), (16, 40), monkeypatch)


@compiled_only
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_small_parts_are_not_fused_into_what_reads_the_whole(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a concatenation are few numbers, and so is what reads all of them."""

    def slopes(x: Any) -> list[Any]:
        halves = tf.split(tf.matmul(x, x, transpose_a=True), 2, 0)
        return tf.gradients([tf.tanh(half) for half in halves], [x])

    check(slopes, [rows, 2], monkeypatch)


@pytest.mark.parametrize("axis", [0, 3])
@pytest.mark.parametrize("layers", [2, 3, 4])
@pytest.mark.parametrize("depth", [1, 2])
def test_stacks_of_stacks(
    depth: int, layers: int, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As keys and values of all layers go into the memory of a text that is generated."""

    def make(x: Any) -> list[Any]:
        stacks: list[Any] = []
        for _ in range(layers):
            both = tf.split(tf.tanh(tf.concat([x, x * 2], 1)), 2, axis=1)
            parts = [tf.transpose(tf.reshape(part, [1, 4, 64]), [1, 0, 2]) for part in both]
            x = x + tf.reshape(tf.transpose(parts[0], [1, 0, 2]), [1, 256])
            stacks.append(tf.stack(parts))
        if depth == 2:
            stacks = [tf.stack([stack, 2 * stack]) for stack in stacks]
        whole = tf.stack(stacks)
        past = tf.ones([3 if n == axis else size for n, size in enumerate(whole.shape.as_list())])
        return [tf.concat([past, whole], axis), x]

    check(make, [1, 256], monkeypatch)
