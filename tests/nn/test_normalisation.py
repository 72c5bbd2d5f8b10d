"""Moments, and normalising by them."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(0)
X = R.normal(size=(2, 3, 2)) + 1


@pytest.mark.parametrize("axes", [[0], [0, 2], [-1], [0, 1, 2], []])
@pytest.mark.parametrize("keep", [False, True])
def test_moments(axes: list, keep: bool) -> None:
    def expect(x):
        return [f(x, axis=tuple(axes), keepdims=keep) for f in (np.mean, np.var)]

    check(lambda x: tf.nn.moments(x, axes, keep_dims=keep), X, expect=expect)


def test_moments_of_short_floats() -> None:
    x = np.full(3000, 60, np.float16)
    check(
        lambda x: tf.nn.moments(x, [0]), x, expect=[np.float16(60), np.float16(0)], gradient=False
    )


@pytest.mark.parametrize("keep", [False, True])
def test_weighted_moments(keep: bool) -> None:
    weights = R.uniform(size=(2, 1, 2))

    def expect(x, w):
        w = np.broadcast_to(w, x.shape)
        total = w.sum((0, 1), keepdims=True)
        mean = (w * x).sum((0, 1), keepdims=True) / total
        variance = (w * (x - mean) ** 2).sum((0, 1), keepdims=True) / total
        return [m if keep else m[0, 0] for m in (mean, variance)]

    check(
        lambda x, w: tf.nn.weighted_moments(x, [0, 1], w, keep_dims=keep),
        X,
        weights,
        expect=expect,
        second=False,
    )


@pytest.mark.parametrize("shift", [None, 0.5])
def test_sufficient_statistics(shift: float | None) -> None:
    def build(x):
        counts, mean, variance, offset = tf.nn.sufficient_statistics(x, [0, 2], shift)
        assert (offset is None) == (shift is None)
        return counts, mean, variance, *tf.nn.normalize_moments(counts, mean, variance, offset)

    def expect(x):
        moved = x - (shift or 0)
        sums = moved.sum((0, 2)), (moved**2).sum((0, 2))
        return [np.float64(4), *sums, x.mean((0, 2)), x.var((0, 2))]

    check(build, X, expect=expect)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
def test_batch_normalization(scaled: bool, shifted: bool) -> None:
    mean, variance, offset, scale = R.uniform(0.5, 2, size=(4, 2))

    def build(x, m, v, b, s):
        return tf.nn.batch_normalization(
            x, m, v, b if shifted else None, s if scaled else None, 0.1
        )

    def expect(x, m, v, b, s):
        return (x - m) / np.sqrt(v + 0.1) * (s if scaled else 1) + (b if shifted else 0)

    check(build, X, mean, variance, offset, scale, expect=expect)

    def old(x, m, v, b, s):
        return tf.nn.batch_norm_with_global_normalization(x, m, v, b, s, 0.1, scaled)

    if shifted:
        check(old, X, mean, variance, offset, scale, expect=expect, gradient=False)
