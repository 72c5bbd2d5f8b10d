"""Lowering for targets with other parameters: other kernels, the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import lowered, use_target

Array = np.ndarray[Any, Any]


def total(x: Any) -> Any:
    return tf.reduce_sum(tf.sqrt(x))


def softmax(x: Any) -> Any:
    return tf.nn.softmax(x) * 2.0


def product(x: Any) -> Any:
    return tf.matmul(x, x, transpose_b=True)


def layers(x: Any) -> Any:
    y = tf.exp(x)
    return tf.add_n([tf.sin(y + number) * y for number in range(12)])


def outer(x: Any) -> Any:
    return tf.expand_dims(tf.exp(x), 1) * x


# what is computed, a shape, the numbers of another processor
TARGETS: dict[str, tuple[Any, tuple[int, int], dict[str, Any]]] = {
    "sums in fewer parts": (total, (64, 4096), {"reduction_splits": 8}),
    "sums in one part": (total, (64, 4096), {"min_split_elements": 1 << 40}),
    "softmax in two kernels": (
        softmax,
        (64, 300),
        {"min_rows_with_reduction": 1 << 20, "min_split_elements": 1},
    ),
    "products as plain loops": (product, (20, 24), {"min_contraction_work": 1 << 40}),
    "small kernels": (layers, (5, 7), {"max_expressions": 20, "max_streams": 4}),
    "dear loads": (outer, (50, 30), {"load_cost": 1e6}),
}


def shapes_of_kernels(fetch: Any) -> list[tuple[str, list[int]]]:
    kernels = [launch.kernel for launch in lowered(fetch).launches]
    return [(type(k).__name__, [int(a.size) for a in k.arguments]) for k in kernels]


@pytest.mark.parametrize("name", TARGETS)
def test_another_target_gets_another_lowering_with_the_same_values(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, shape, numbers = TARGETS[name]
    value = np.random.default_rng(0).random(shape, np.float32)

    def run() -> tuple[Any, Array]:
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.float32, shape)
            y = compute(x)
            return shapes_of_kernels(y), session.run(y, {x: value})

    here, expected = run()
    use_target(monkeypatch, **numbers)
    there, actual = run()
    assert here != there
    np.testing.assert_allclose(actual, expected, rtol=2e-5)


def test_an_arena_is_aligned_as_the_target_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    use_target(monkeypatch, alignment=4096)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [40, 40])
        y = tf.matmul(tf.matmul(x, x), x)
        value = np.random.default_rng(1).random((40, 40), np.float32)
        actual = session.run(y, {x: value})
        assert session.plan(y, {x: value}).kernels
    np.testing.assert_allclose(actual, value @ value @ value, rtol=1e-4)
