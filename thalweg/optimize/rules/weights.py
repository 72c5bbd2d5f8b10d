"""Folds constant factors of a product's input or output into its constant weights:
`(x c) W = x (c W)` and `(x W) c = x (W c)`.

A factor is one number, or one for each channel, in any layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from thalweg.optimize.facts import is_float, value_of
from thalweg.optimize.pattern import const, every, op
from thalweg.optimize.rule import Match, Rule, rounding
from thalweg.optimize.rules.products import matrices
from thalweg.platform.arrays import Array

Attributes = Mapping[str, Any]

#: The ops that are linear in their weights, and what rule names call them.
LINEAR = {
    "MatMul": "a product",
    "Conv2D": "a convolution",
    "Conv3D": "a convolution of volumes",
    "DepthwiseConv2dNative": "a depthwise convolution",
}


def _weight_axes(kind: str, how: Attributes, of_result: bool) -> tuple[int, ...]:
    """The axes of the weights that are the channels of the input, or of the result."""
    if kind == "MatMul":
        if how["transpose_a"] and not of_result:
            return ()  # the last axis of the input is that of the rows
        return (-1,) if of_result != how["transpose_b"] else (-2,)
    if kind == "DepthwiseConv2dNative" and of_result:
        return (-2, -1)
    return (-1,) if of_result else (-2,)


def channel_count(kind: str, how: Attributes, weights: Sequence[int], of_result: bool) -> int:
    """The number of input or output channels; 1 if a factor per channel cannot be folded."""
    return prod([weights[axis] for axis in _weight_axes(kind, how, of_result)])


def _rank(how: Attributes) -> int:
    return len(how.get("data_format", "NC"))


def is_channels_first(how: Attributes) -> bool:
    """Whether the layout in attributes has channels first."""
    return _rank(how) > 2 and how["data_format"].startswith("NC")


def is_per_channel(kind: str, of_result: bool) -> Callable[[Match], bool]:
    """The condition that c is one number, or one for each channel of the input or result."""

    def when(match: Match) -> bool:
        factor, weights = value_of(match.bound["c"]), value_of(match.bound["w"])
        how: Attributes = match.bound["how"]
        if factor is None or weights is None or factor.ndim > _rank(how):
            return False
        count = channel_count(kind, how, weights.shape, of_result)
        axis_from_end = _rank(how) - 1 if is_channels_first(how) else 1
        is_along = factor.ndim >= axis_from_end and factor.shape[-axis_from_end] == count
        return factor.size == 1 or (factor.size == count and is_along)

    return when


def scaled(kind: str, how: Attributes, c: Any, w: Any, of_result: bool) -> Array:
    """The weights times a factor, folded."""
    factor, weights = np.asarray(value_of(c)), np.asarray(value_of(w))
    axes = {axis % weights.ndim for axis in _weight_axes(kind, how, of_result)}
    if factor.size > 1:
        sizes = enumerate(weights.shape)
        factor = factor.reshape([size if axis in axes else 1 for axis, size in sizes])
    else:
        factor = factor.reshape(())
    return np.asarray(factor * weights, weights.dtype)


# What the tests draw


def sampled(kind: str, of_result: bool) -> Callable[[Any], dict[str, Any]]:
    """Draws a product with a factor."""

    def sample(rng: Any) -> dict[str, Any]:
        drawn = _factors(rng) if kind == "MatMul" else _images(rng, kind)
        how = drawn["how"]
        count = channel_count(kind, how, drawn["w"].shape, of_result)
        after = [1] * (_rank(how) - 2 if is_channels_first(how) else 0)
        return drawn | {"c": rng.normal(size=(count, *after) if rng.integers(2) else ())}

    return sample


def _factors(rng: Any) -> dict[str, Any]:
    drawn = matrices(rng)
    how = {"transpose_a": drawn["a"], "transpose_b": drawn["b"]}
    return {"x": drawn["x"], "w": drawn["y"], "how": how}


def _images(rng: Any, kind: str) -> dict[str, Any]:
    axes = "DHW" if kind == "Conv3D" else "HW"
    layout = f"NC{axes}" if rng.integers(2) else f"N{axes}C"
    sizes = dict(zip("NCDHW", (1, 2, 3, 4, 5), strict=True))
    strides = (1,) * len(layout)
    how = {"strides": strides, "padding": "SAME", "data_format": layout, "dilations": strides}
    return {
        "x": rng.normal(size=[sizes[axis] for axis in layout]),
        "w": rng.normal(size=(*[2] * len(axes), 2, 3)),
        "how": how,
    }


# Rules


def _before(kind: str, title: str) -> Rule:
    return rounding(
        f"factor into the weights of {title}",
        lambda x, c, w, how: getattr(op, kind)(x * const(c), const(w), **every(how)),
        lambda x, c, w, how: getattr(op, kind)(x, scaled(kind, how, c, w, False), **how),
        is_per_channel(kind, False),
        is_float,
        sample=sampled(kind, False),
    )


def _after(kind: str, title: str) -> Rule:
    return rounding(
        f"factor after {title} into the weights",
        lambda x, c, w, how: getattr(op, kind)(x, const(w), **every(how)) * const(c),
        lambda x, c, w, how: getattr(op, kind)(x, scaled(kind, how, c, w, True), **how),
        is_per_channel(kind, True),
        is_float,
        single_use=True,
        sample=sampled(kind, True),
    )


RULES = tuple(make(*each) for each in LINEAR.items() for make in (_before, _after))
