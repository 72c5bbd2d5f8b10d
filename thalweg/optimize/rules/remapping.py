"""Inference with constant weights: normalisation and scales become part of products.

Bias, activation and residual need no rule: the compiler fuses them into the loops of a product, as
it does with any elementwise code. What pays is what disappears: a batch norm of constants is a
factor and an offset per channel, `W2 = W R`, `B2 = B R + P`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.optimize.facts import is_float, value_of
from thalweg.optimize.pattern import const, every, op
from thalweg.optimize.rule import Exactness, Match, Rule, rule
from thalweg.optimize.rules.weights import (
    LINEAR,
    channel_count,
    is_channels_first,
    is_per_channel,
    sampled,
    scaled,
)

Array = NDArray[Any]
ROUNDING = Exactness.ROUNDING

# Batch norm


def _is_of_one_dtype(match: Match) -> bool:
    """Whether what is normalised has the dtype of the statistics."""
    return match.bound["x"].dtype.base_dtype is match.bound["s"].dtype.base_dtype


def _normalised(x: Any, s: Any, o: Any, m: Any, v: Any, e: float, layout: str) -> Any:
    scale, offset, mean, variance = (np.asarray(value_of(each)) for each in (s, o, m, v))
    factor = scale / np.sqrt(variance + scale.dtype.type(e))
    parts = [each.astype(scale.dtype) for each in (factor, offset - mean * factor)]
    times, plus = [each.reshape(-1, 1, 1) if layout == "NCHW" else each for each in parts]
    return [x * times + plus, m, v, m, v]


def _channels(rng: Any) -> Mapping[str, Any]:
    positive = {name: rng.uniform(0.5, 2, size=3) for name in "sv"}
    others = {name: rng.normal(size=3) for name in "om"}
    is_first = bool(rng.integers(2))
    x = rng.normal(size=(1, 3, 2, 2) if is_first else (1, 2, 2, 3))
    layout = "NCHW" if is_first else "NHWC"
    return {"x": x, "e": 0.001, "layout": layout, **positive, **others}


# Factors after an offset: `(x W + b) c = x (W c) + b c`


def _biased(kind: str) -> Callable[[Any], Mapping[str, Any]]:
    draw = sampled(kind, True)

    def sample(rng: Any) -> Mapping[str, Any]:
        found = draw(rng)
        layout = "NCHW" if is_channels_first(found["how"]) else "NHWC"
        count = channel_count(kind, found["how"], found["w"].shape, True)
        return found | {"b": rng.normal(size=count), "layout": layout}

    return sample


def _offset(kind: str) -> Callable[[Any], Mapping[str, Any]]:
    draw = sampled(kind, True)

    def sample(rng: Any) -> Mapping[str, Any]:
        found = draw(rng)
        return found | {"b": rng.normal(size=found["c"].shape)}

    return sample


def _is_of_one_layout(kind: str) -> Callable[[Match], bool]:
    is_factor = is_per_channel(kind, True)

    def when(match: Match) -> bool:
        is_first = is_channels_first(match.bound["how"])
        return (match.bound["layout"] == "NCHW") is is_first and is_factor(match)

    return when


def _after_bias(kind: str, title: str) -> Rule:
    def replacement(x: Any, w: Any, b: Any, c: Any, how: Any) -> Any:
        bias = np.asarray(value_of(b))
        if is_channels_first(how):
            bias = bias.reshape(-1, *[1] * (len(how["data_format"]) - 2))
        product = getattr(op, kind)(x, scaled(kind, how, c, w, True), **how)
        return product + np.asarray(value_of(c) * bias, bias.dtype)

    return rule(
        f"factor after {title} with BiasAdd",
        ROUNDING,
        lambda x, w, b, c, how, layout: (
            op.BiasAdd(getattr(op, kind)(x, const(w), **every(how)), const(b), data_format=layout)
            * const(c)
        ),
        replacement,
        _is_of_one_layout(kind),
        is_float,
        single_use=True,
        sample=_biased(kind),
    )


def _after_offset(kind: str, title: str) -> Rule:
    def replacement(x: Any, w: Any, b: Any, c: Any, how: Any) -> Any:
        offset = np.asarray(value_of(b))
        product = getattr(op, kind)(x, scaled(kind, how, c, w, True), **how)
        return product + np.asarray(value_of(c) * offset, offset.dtype)

    return rule(
        f"factor after {title} with Add",
        ROUNDING,
        lambda x, w, b, c, how: (
            (getattr(op, kind)(x, const(w), **every(how)) + const(b)) * const(c)
        ),
        replacement,
        is_per_channel(kind, True),
        is_float,
        single_use=True,
        sample=_offset(kind),
    )


RULES = (
    rule(
        "batch norm of constants",
        ROUNDING,
        lambda x, s, o, m, v, e, layout: op.FusedBatchNormV2(
            x,
            const(s),
            const(o),
            const(m),
            const(v),
            epsilon=e,
            data_format=layout,
            is_training=False,
        ),
        _normalised,
        _is_of_one_dtype,
        is_float,
        sample=_channels,
    ),
    *(make(*each) for each in LINEAR.items() for make in (_after_bias, _after_offset)),
)
