"""Gradients of max pooling: ops on its elements, or on their sum, are applied to its smaller input.

A window passes its gradient to its largest element. A ReLU's gradient sees the same value there as
in the pooled output, and the sum over all elements is that over all windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from thalweg.optimize.facts import is_float
from thalweg.optimize.pattern import every, op
from thalweg.optimize.rule import Match, rounding


def _pooled_only(match: Match) -> bool:
    """Whether channels are last, and nothing else uses the gradient of the pooling."""
    return match.bound["how"]["data_format"] == "NHWC" and match.uses(match.root.inputs[0]) == 1


def _sums_all_windows(match: Match) -> bool:
    """Whether channels are last, and windows lie within the images and do not span channels."""
    how = match.bound["how"]
    return (how["data_format"], how["padding"], how["ksize"][-1]) == ("NHWC", "VALID", 1)


def _images(rng: Any) -> Mapping[str, Any]:
    how = {"ksize": (1, 3, 3, 1), "strides": (1, 2, 2, 1)}
    how |= {"padding": "VALID", "data_format": "NHWC"}
    return {"x": rng.normal(size=(2, 7, 5, 3)), "dy": rng.normal(size=(2, 3, 2, 3)), "how": how}


def _gradient(x: Any, dy: Any, how: Any) -> Any:
    return op.MaxPoolGrad(x, op.MaxPool(x, **every(how)), dy, **every(how))


def _of_pooled(x: Any, dy: Any, how: Any) -> Any:
    y = op.MaxPool(x, **how)
    return op.MaxPoolGrad(x, y, op.ReluGrad(dy, y), **how)


_pooling = partial(rounding, dtypes=is_float, sample=_images)

RULES = (
    # Where a NaN is the largest of a window, the ReLU's gradient is 0, as it is for any NaN.
    _pooling(
        "relu gradient after that of max pooling",
        lambda x, dy, how: op.ReluGrad(_gradient(x, dy, how), x),
        _of_pooled,
        _pooled_only,
    ),
    _pooling(
        "bias gradient after that of max pooling",
        lambda x, dy, how: op.BiasAddGrad(_gradient(x, dy, how), data_format="NHWC"),
        lambda dy: op.BiasAddGrad(dy, data_format="NHWC"),
        _sums_all_windows,
    ),
)
