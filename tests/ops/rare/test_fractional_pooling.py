"""Fractional pooling: regions, values and gradients."""

import itertools

import numpy as np
import pytest

import thalweg as tf
from thalweg.ops.random.philox import Philox, Words
from thalweg.ops.rare.fractional_pooling import draw_sequence

R = np.random.default_rng(0)
X = R.permutation(2 * 7 * 9 * 2).reshape(2, 7, 9, 2) / 3.0
RATIO = (1.0, 1.6, 2.3, 1.0)


@pytest.mark.parametrize("pseudo_random", [False, True])
@pytest.mark.parametrize("size, count", [(7, 4), (9, 3), (10, 7), (23, 6), (5, 5)])
def test_sizes_of_regions_differ_by_at_most_one(size: int, count: int, pseudo_random: bool) -> None:
    for seed in range(20):
        sequence = draw_sequence(size, count, pseudo_random, Words(Philox.from_seeds(seed, 1)))
        sizes = np.diff(sequence)
        assert (sequence[0], sequence[-1], len(sizes)) == (0, size, count)
        assert set(sizes.tolist()) <= {size // count, size // count + 1}


def pooled(x, rows, columns, overlapping, function):
    extra = int(overlapping)
    cuts = [
        [
            function(x[:, r : R + extra, c : C + extra], axis=(1, 2))
            for c, C in itertools.pairwise(columns)
        ]
        for r, R in itertools.pairwise(rows)
    ]
    return np.moveaxis(np.array(cuts), 2, 0)


FUNCTIONS = {
    "max": (tf.nn.fractional_max_pool, np.max),
    "avg": (tf.nn.fractional_avg_pool, np.mean),
}


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("pseudo_random", [False, True])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_values(kind: str, pseudo_random: bool, overlapping: bool) -> None:
    function, numpy = FUNCTIONS[kind]
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = function(tf.constant(X), RATIO, pseudo_random, overlapping)
        assert [t.shape.as_list() for t in outputs] == [[2, 4, 3, 2], [5], [4]]
        y, rows, columns = session.run(outputs)
        np.testing.assert_allclose(y, pooled(X, rows, columns, overlapping, numpy))


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_gradient(kind: str, overlapping: bool) -> None:
    function, _ = FUNCTIONS[kind]
    x = X[:1, :4, :5, :1]
    with tf.Graph().as_default(), tf.Session():
        tensor = tf.constant(x)
        y, _, _ = function(tensor, (1, 1.5, 1.5, 1), True, overlapping, deterministic=True, seed=3)
        error = tf.test.compute_gradient_error(
            tensor, x.shape, y, y.shape.as_list(), x_init_value=x
        )
        assert error < 1e-6


def test_only_deterministic_regions_stay_the_same() -> None:
    wide = np.zeros((1, 101, 101, 1), np.float32)

    def rows(**options):
        with tf.Graph().as_default(), tf.Session() as session:
            fetch = tf.nn.fractional_max_pool(wide, (1, 1.5, 1.5, 1), **options)
            return [session.run(fetch)[1].tolist() for _ in range(2)]

    first, second = rows(deterministic=True, seed=1)
    assert first == second
    assert rows(deterministic=True, seed=1)[0] == first
    first, second = rows(seed=1)
    assert first != second
    assert rows(seed=1) == [first, second]
    first, second = rows(deterministic=True)
    assert first == second


@pytest.mark.parametrize("ratio", [(1, 2, 2), (2, 2, 2, 1), (1, 0.5, 1, 1)])
def test_bad_ratios(ratio: tuple) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="pooling_ratio"):
        tf.nn.fractional_max_pool(X, ratio)
