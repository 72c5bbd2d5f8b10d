"""Integers that overflow wrap around: nothing is simplified as if they had no bounds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from tests.random_graphs import examples
from tests.random_graphs.generator import interpret

COMPARISONS = tf.less, tf.less_equal, tf.greater, tf.greater_equal, tf.equal, tf.not_equal
FACTORS = 1, 2, 3, 4, 8, 100


def extremes(dtype: Any) -> Any:
    """Numbers beside which sums and products overflow, and others."""
    least, greatest = (int(end) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    found = [least, least + 1, least // 2, least // 4 - 1, -7, -1, 0, 1, 5, greatest // 4 + 1]
    found += [greatest // 3, greatest // 2 + 1, greatest - 1, greatest]
    return np.array(found).astype(dtype)


class Maker:
    """Random integer arithmetic, much of which cancels."""

    def __init__(self, seed: int, leaves: list[tf.Tensor]) -> None:
        self.random, self.leaves = Random(seed), leaves

    def value(self, depth: int) -> tf.Tensor:
        """An expression of a depth."""
        if not depth:
            return self.random.choice(self.leaves)
        x, factor = self.value(depth - 1), self.random.choice(FACTORS)
        makers: list[Callable[[], tf.Tensor]] = [
            lambda: x + factor,
            lambda: x - factor,
            lambda: x * factor,
            lambda: tf.floordiv(x, factor),
            lambda: tf.floormod(x, factor),
            lambda: -x,
            lambda: x + self.random.choice(self.leaves),
            lambda: x - self.random.choice(self.leaves),
            lambda: tf.maximum(x, self.value(depth - 1)),
            lambda: tf.minimum(x, factor),
        ]
        return self.random.choice(makers)()


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.int16, tf.uint8], ids=repr)
@examples(25, 2000)
@given(st.integers(0, 2**63))
def test_compiled_integers_wrap_around_as_those_of_numpy(dtype: tf.DType, seed: int) -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        values = extremes(dtype.as_numpy_dtype)
        x, y = (tf.placeholder(dtype, [len(values)]) for _ in range(2))
        limited = tf.clip_by_value(x, tf.constant(0, dtype), tf.constant(9, dtype))
        counted = tf.cast(tf.range(len(values)), dtype)
        make = Maker(seed, [x, y, limited, counted])
        sides = [make.value(make.random.randrange(4)) for _ in range(8)]
        found = [make.random.choice(COMPARISONS)(*make.random.sample(sides, 2)) for _ in range(8)]
        feeds = {x: values, y: make.random.sample(values.tolist(), len(values))}
        feeds = {tensor: np.array(value, values.dtype) for tensor, value in feeds.items()}
        with np.errstate(all="ignore"):
            expected = interpret(graph.nodes, feeds)
        for tensor, actual in zip(found + sides, session.run(found + sides, feeds), strict=True):
            np.testing.assert_array_equal(actual, expected[tensor], str(tensor))


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.int16, tf.int8], ids=repr)
def test_the_least_number_is_its_own_negative_whatever_takes_it(dtype: tf.DType) -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        values = extremes(dtype.as_numpy_dtype)
        x = tf.placeholder(dtype, [len(values)])
        limit = tf.constant(values[0], dtype)
        for negative in (-x, -tf.abs(x), -(x + 1)):
            takers = [negative // 3, negative % 7, tf.maximum(negative, 3), tf.abs(negative)]
            takers += [negative < limit + 1, tf.cast(negative, tf.int64)]
            takers += [tf.cast(negative, tf.float64), negative * 2, tf.reduce_max(negative)]
            with np.errstate(all="ignore"):
                expected = interpret(graph.nodes, {x: values})
            for tensor in takers:  # each alone: a kernel may take the value one way only
                actual = session.run(tensor, {x: values})
                np.testing.assert_array_equal(actual, expected[tensor], str(tensor))
