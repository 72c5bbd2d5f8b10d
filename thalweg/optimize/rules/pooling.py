"""Gradients of max pooling: ops on its elements, or on their sum, are applied to its smaller input.

A window passes its gradient to its largest element. A ReLU's gradient sees the same value there as
in the pooled output, and the sum over all elements is that over all windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.optimize.facts import is_float
from thalweg.optimize.pattern import op
from thalweg.optimize.rule import Match, rounding


def _pooled_only(match: Match) -> bool:
    """Whether nothing else uses the gradient of the pooling."""
    return match.uses(match.root.inputs[0]) == 1


def _sums_all_windows(match: Match) -> bool:
    """Whether windows lie within the images, and do not span channels."""
    bound = match.bound
    return bound["padding"] == "VALID" and bound["ksize"][-1] == 1


def _images(rng: Any) -> Mapping[str, Any]:
    return {
        "x": rng.normal(size=(2, 7, 5, 3)),
        "dy": rng.normal(size=(2, 3, 2, 3)),
        "ksize": (1, 3, 3, 1),
        "strides": (1, 2, 2, 1),
        "padding": "VALID",
    }


def _gradient(x: Any, dy: Any, ksize: Any, strides: Any, padding: Any) -> Any:
    attributes = {"ksize": ksize, "strides": strides, "padding": padding, "data_format": "NHWC"}
    return op.MaxPoolGrad(x, op.MaxPool(x, **attributes), dy, **attributes)


def _of_pooled(x: Any, dy: Any, ksize: Any, strides: Any, padding: Any) -> Any:
    attributes = {"ksize": ksize, "strides": strides, "padding": padding, "data_format": "NHWC"}
    y = op.MaxPool(x, **attributes)
    return op.MaxPoolGrad(x, y, op.ReluGrad(dy, y), **attributes)


RULES = (
    # Where a NaN is the largest of a window, the ReLU's gradient is 0, as it is for any NaN.
    rounding(
        "relu gradient after that of max pooling",
        lambda x, dy, ksize, strides, padding: op.ReluGrad(
            _gradient(x, dy, ksize, strides, padding), x
        ),
        _of_pooled,
        _pooled_only,
        is_float,
        sample=_images,
    ),
    rounding(
        "bias gradient after that of max pooling",
        lambda x, dy, ksize, strides, padding: op.BiasAddGrad(
            _gradient(x, dy, ksize, strides, padding), data_format="NHWC"
        ),
        lambda dy: op.BiasAddGrad(dy, data_format="NHWC"),
        _sums_all_windows,
        is_float,
        sample=_images,
    ),
)
