"""Winograd convolutions of inputs of very different magnitude: each result has its own error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.codegen.contraction.plan import schedule
from thalweg.codegen.machine import host
from thalweg.runtime import engine

pytestmark = pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")

SIDE, CHANNELS, COLUMNS = 22, 64, 64  # the last tiles go beyond the image
#: Errors, beside the sum of the inputs that an output sees, times the largest tap.
MAX_ERROR = 1e-4


class Convolution:
    """A convolution, or the gradient of its input, on a session of its own."""

    def __init__(self, taps: int, gradient: bool) -> None:
        self.taps, self.gradient = taps, gradient
        random = np.random.RandomState(4)
        self.filters = random.normal(size=(taps, taps, CHANNELS, COLUMNS)).astype(np.float32)
        with tf.Graph().as_default():
            self.x = tf.placeholder(tf.float32, [2, SIDE, SIDE, CHANNELS])
            self.y = self._made()
            self.session = tf.Session()

    def _made(self) -> Any:
        if not self.gradient:
            return tf.nn.conv2d(self.x, self.filters, [1, 1, 1, 1], "SAME")
        swapped = self.filters.transpose(0, 1, 3, 2)
        sizes = [2, SIDE, SIDE, COLUMNS]
        return tf.nn.conv2d_backprop_input(sizes, swapped, self.x, [1, 1, 1, 1], "SAME")

    def __call__(self, x: Any) -> Any:
        return self.session.run(self.y, {self.x: x})

    @property
    def is_filtered(self) -> bool:
        """Whether it is computed by Winograd's algorithm on two cores."""
        plan = self.session.plan(self.y, {self.x: np.zeros(self.x.shape.as_list(), np.float32)})
        kernels = [k.kernel for k in plan.kernels if k.kind == "contraction"]
        return any(schedule(kernel, replace(host(), cores=2)).outputs for kernel in kernels)

    def exact(self, x: Any) -> Any:
        """The sums of products in float64."""
        filters = self.filters.astype(np.float64)
        if self.gradient:
            filters = filters[::-1, ::-1]
        return self._over_taps(x, lambda part, i, j: part @ filters[i, j])

    def seen(self, x: Any) -> Any:
        """What each output sees: the sum of the magnitudes of its inputs, times the largest tap."""
        magnitudes = np.abs(x).sum(-1, keepdims=True, dtype=np.float64)
        return self._over_taps(magnitudes, lambda part, i, j: part) * np.abs(self.filters).max()

    def _over_taps(self, x: Any, made: Callable[[Any, int, int], Any]) -> Any:
        edge, numbers = self.taps // 2, range(self.taps)
        padded = np.pad(x.astype(np.float64), [(0, 0), (edge, edge), (edge, edge), (0, 0)])
        parts = ((padded[:, i : i + SIDE, j : j + SIDE], i, j) for i in numbers for j in numbers)
        return sum(made(*part) for part in parts)

    def check(self, x: Any) -> None:
        """Compare with the sums of products, each with what it is of."""
        with np.errstate(all="ignore"):
            exact = self.exact(x)
            actual = self(x)
            own = np.broadcast_to(self.seen(x), actual.shape)
            finite = np.isfinite(exact) & (own < np.finfo(np.float32).max)
        tiny = 1e-37  # numbers below may be denormal, which are not exact
        errors = np.abs(actual[finite] - exact[finite]) / (own[finite] + tiny)
        assert errors.max(initial=0) < MAX_ERROR
        strange = ~np.isfinite(exact)
        np.testing.assert_array_equal(actual[strange], exact[strange].astype(np.float32))


@cache
def convolution(taps: int, gradient: bool) -> Convolution:
    return Convolution(taps, gradient)


each = pytest.mark.parametrize("gradient", [False, True])
taps = pytest.mark.parametrize("taps", [3, 5])


def inputs() -> Any:
    return np.random.RandomState(5).normal(size=(2, SIDE, SIDE, CHANNELS)).astype(np.float32)


@each
@taps
def test_it_is_winograd(taps: int, gradient: bool):
    if not host().has_masks:
        pytest.skip("whether it pays depends on the processor")
    assert convolution(taps, gradient).is_filtered


@each
@taps
@pytest.mark.parametrize("outlier", [-1e9, 1e20, np.inf, -np.inf, np.nan])
def test_one_outlier_at_each_place_of_a_tile(taps: int, gradient: bool, outlier: float):
    for index in range(0, 36, 1 if taps == 3 else 7):
        x = inputs()
        x[0, 8 + index // 6, 8 + index % 6, index % CHANNELS] = outlier
        convolution(taps, gradient).check(x)


@each
@taps
@pytest.mark.parametrize("place", [(0, 0), (0, 21), (21, 21), (20, 3)])
def test_an_outlier_at_the_edge(taps: int, gradient: bool, place: tuple[int, int]):
    x = inputs()
    x[1, *place, 3] = -1e9
    convolution(taps, gradient).check(x)


SPREADS: dict[str, Callable[[Any], Any]] = {
    "ordinary": lambda x: x,
    "rectified": lambda x: np.maximum(x, 0),
    "by elements": lambda x: x * 10.0 ** np.random.RandomState(6).uniform(-15, 15, x.shape),
    "by pixels": lambda x: x * 10.0 ** np.random.RandomState(6).uniform(-15, 15, (*x.shape[:3], 1)),
    "by channels": lambda x: x * 10.0 ** np.random.RandomState(6).uniform(-15, 15, CHANNELS),
    "several outliers": lambda x: np.where(np.random.RandomState(6).rand(*x.shape) < 1e-3, 1e8, x),
    "denormal": lambda x: x * 1e-39,
    "denormal but one": lambda x: np.where(
        np.arange(x.size).reshape(x.shape) == 5000, 1, x * 1e-39
    ),
    "half of an image": lambda x: x * np.where(np.arange(SIDE) < 9, 1e9, 1)[:, None, None],
    "zero around": lambda x: x * (np.arange(SIDE) == 9)[:, None, None],
    "zero": lambda x: x * 0,
}


@each
@taps
@pytest.mark.parametrize("name", SPREADS)
def test_inputs_that_differ_in_magnitude(taps: int, gradient: bool, name: str):
    convolution(taps, gradient).check(SPREADS[name](inputs()).astype(np.float32))


#: What the rest of a tile is beside an outlier that is not very large.
AROUND: dict[str, Callable[[Any], Any]] = {
    "dense": lambda x: x,
    "sparse": lambda x: x * (np.random.RandomState(7).rand(*x.shape) < 1 / 64),
    "one channel": lambda x: x * (np.arange(CHANNELS) == CHANNELS - 1),
    "as small as rounding": lambda x: np.abs(x) * 1e-3,
}


@each
@taps
@pytest.mark.parametrize("around", AROUND)
def test_outliers_of_any_magnitude(taps: int, gradient: bool, around: str):
    rows, columns = np.mgrid[2:SIDE:5, 2:SIDE:5]
    for power in range(0, 20, 2):
        x = AROUND[around](inputs())
        x[:, rows, columns, power] = 2.0**power
        convolution(taps, gradient).check(x)


@each
@taps
def test_what_is_large_in_all_channels(taps: int, gradient: bool):
    rows, columns = np.mgrid[2:SIDE:7, 2:SIDE:7]
    for power in range(0, 20, 2):
        x = inputs() * (np.arange(CHANNELS) == 5)
        x[:, rows, columns] = inputs()[:, rows, columns] * 2.0**power
        convolution(taps, gradient).check(x)
