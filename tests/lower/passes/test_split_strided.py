"""Gradients of strided convolutions: one plain product for each phase of the stride."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import lowered
from thalweg.ir.expr import Reduce
from thalweg.ir.index import affine
from thalweg.ir.kernel import Contraction
from thalweg.ir.loop import IndexTuple
from thalweg.lower.nests.match_contraction import phases

SIZES = [(7, 6), (8, 8), (5, 9), (1, 4)]
STRIDES = [(1, 1), (2, 2), (2, 1), (3, 2), (4, 3)]


def slope(size: tuple[int, int], window: tuple[int, int], stride: tuple[int, int], pad: str) -> Any:
    """The gradient by the input, and its dy."""
    x = tf.placeholder(tf.float32, [2, *size, 3])
    w = tf.placeholder(tf.float32, [*window, 3, 16])
    y = tf.nn.conv2d(x, w, [1, *stride, 1], pad)
    dy = tf.placeholder(tf.float32, y.shape)
    return tf.gradients(y, [x, w], dy), (x, w, dy)


@pytest.mark.parametrize("stride", [(2, 2), (3, 2), (1, 2)])
def test_each_phase_is_a_product_of_its_own(stride: tuple[int, int]) -> None:
    with tf.Graph().as_default():
        (dx, _), _ = slope((16, 12), (3, 3), stride, "SAME")
        kernels = [launch.kernel for launch in lowered(dx).launches]
        assert len(kernels) == stride[0] * stride[1]
        assert all(isinstance(kernel, Contraction) for kernel in kernels)


def test_phases_cover_every_place_once() -> None:
    at = IndexTuple.over((7, 5, 3))
    strides = {at.variables[0]: 2, at.variables[1]: 3}
    seen: list[tuple[int, ...]] = []
    for place, loops in phases(at, strides):
        for values in itertools.product(*(range(loop.extent) for loop in loops)):
            chosen = dict(zip(loops, values, strict=True))
            forms = [affine(index) for index in place]
            seen.append(
                tuple(
                    f.constant + sum(factor * chosen[v] for v, factor in f.terms.items())
                    for f in forms
                )
            )
    assert sorted(seen) == list(np.ndindex(7, 5, 3))


@pytest.mark.parametrize("pad", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("window", [(1, 1), (3, 3), (2, 5)])
def test_gradients_are_the_adjoint(
    window: tuple[int, int], stride: tuple[int, int], pad: str
) -> None:
    """<dy, conv(x, w)> = <dx, x> = <dw, w>, exactly in whole numbers."""
    rng = np.random.default_rng(0)
    for size in SIZES:
        if pad == "VALID" and any(n < k for n, k in zip(size, window, strict=True)):
            continue
        with tf.Graph().as_default(), tf.Session() as session:
            (dx, dw), (x, w, dy) = slope(size, window, stride, pad)
            feeds = {
                t: rng.integers(-3, 4, t.shape.as_list()).astype(np.float32) for t in (x, w, dy)
            }
            y = tf.nn.conv2d(x, w, [1, *stride, 1], pad)
            actual = session.run(
                [tf.reduce_sum(y * dy), tf.reduce_sum(dx * x), tf.reduce_sum(dw * w)], feeds
            )
        assert actual[0] == actual[1] == actual[2]


def test_places_that_no_window_meets_have_no_slope() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        (dx, _), inputs = slope((9, 9), (1, 1), (3, 3), "VALID")
        actual = session.run(dx, {t: np.ones(t.shape.as_list(), np.float32) for t in inputs})
    assert np.count_nonzero(actual[0, :, :, 0]) == 9
    np.testing.assert_array_equal(actual[:, ::3, ::3], 16.0)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_phases_without_a_window_sum_nothing(dtype: Any) -> None:
    """They are zeros: no sum of products of zeros, which narrow floats are widened for."""
    with tf.Graph().as_default():
        w, dy = tf.placeholder(dtype, [1, 1, 16, 32]), tf.placeholder(dtype, [2, 4, 4, 32])
        dx = tf.nn.conv2d_backprop_input([2, 8, 8, 16], w, dy, [1, 2, 2, 1], "VALID")
        kernels = [launch.kernel for launch in lowered(dx).launches]
    product, *zeros = kernels
    assert isinstance(product, Contraction) and len(zeros) == 3
    assert not any(kernel.every(Reduce) for kernel in zeros)
