"""Inference with constant weights: normalisation and scales are folded into products.

Bias, activation and residual need no rule: the compiler fuses them into the loops of a product, as
any elementwise code. A batch norm with constant statistics is a factor and an offset per channel,
which are folded: `W2 = W R`, `B2 = B R + P`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from thalweg.optimize.facts import is_float, value_of
from thalweg.optimize.pattern import const, every, op
from thalweg.optimize.rule import Match, Rule, rounding
from thalweg.optimize.rules.weights import (
    LINEAR,
    channel_count,
    is_channels_first,
    is_per_channel,
    sampled,
    scaled,
)
from thalweg.platform.arrays import Array

# Batch norm


def _is_of_one_dtype(match: Match) -> bool:
    """Whether the input of the batch norm has the dtype of the statistics."""
    return match.bound["x"].dtype.base_dtype is match.bound["s"].dtype.base_dtype


def _normalised(x: Any, s: Any, o: Any, m: Any, v: Any, e: float, layout: str) -> Any:
    scale, offset, mean, variance = (np.asarray(value_of(tensor)) for tensor in (s, o, m, v))
    factor = scale / np.sqrt(variance + scale.dtype.type(e))
    parts = [part.astype(scale.dtype) for part in (factor, offset - mean * factor)]
    times, plus = [part.reshape(-1, 1, 1) if layout == "NCHW" else part for part in parts]
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
        drawn = draw(rng)
        layout = "NCHW" if is_channels_first(drawn["how"]) else "NHWC"
        count = channel_count(kind, drawn["how"], drawn["w"].shape, True)
        return drawn | {"b": rng.normal(size=count), "layout": layout}

    return sample


def _offset(kind: str) -> Callable[[Any], Mapping[str, Any]]:
    draw = sampled(kind, True)

    def sample(rng: Any) -> Mapping[str, Any]:
        drawn = draw(rng)
        return drawn | {"b": rng.normal(size=drawn["c"].shape)}

    return sample


def _is_of_one_layout(kind: str) -> Callable[[Match], bool]:
    is_factor = is_per_channel(kind, True)

    def when(match: Match) -> bool:
        is_first = is_channels_first(match.bound["how"])
        return (match.bound["layout"] == "NCHW") is is_first and is_factor(match)

    return when


def _scaled_sum(kind: str, x: Any, w: Any, offset: Array, c: Any, how: Any) -> Any:
    """`(x W + offset) c`, with the factor folded into the weights and the offset."""
    product = getattr(op, kind)(x, scaled(kind, how, c, w, True), **how)
    return product + np.asarray(value_of(c) * offset, offset.dtype)


def _after_bias(kind: str, title: str) -> Rule:
    def replacement(x: Any, w: Any, b: Any, c: Any, how: Any) -> Any:
        bias = np.asarray(value_of(b))
        if is_channels_first(how):
            bias = bias.reshape(-1, *[1] * (len(how["data_format"]) - 2))
        return _scaled_sum(kind, x, w, bias, c, how)

    return rounding(
        f"factor after {title} with BiasAdd",
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
    return rounding(
        f"factor after {title} with Add",
        lambda x, w, b, c, how: (
            (getattr(op, kind)(x, const(w), **every(how)) + const(b)) * const(c)
        ),
        lambda x, w, b, c, how: _scaled_sum(kind, x, w, np.asarray(value_of(b)), c, how),
        is_per_channel(kind, True),
        is_float,
        single_use=True,
        sample=_offset(kind),
    )


RULES = (
    rounding(
        "batch norm of constants",
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
