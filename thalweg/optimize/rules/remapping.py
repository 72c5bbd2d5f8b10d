"""Inference with constant weights: normalisation and scales become part of convolutions.

Bias, activation and residual need no rule: the compiler fuses them into the loops of a product, as
it does with any elementwise code. What pays is what disappears: a batch norm of constants is a
factor and an offset per channel, `W2 = W R`, `B2 = B R + P`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from thalweg.optimize.facts import is_float, value_of
from thalweg.optimize.pattern import const, op
from thalweg.optimize.rule import Exactness, Match, rule
from thalweg.optimize.rules.products import is_per_channel, scaled_channels

ROUNDING = Exactness.ROUNDING


def _is_of_one_dtype(match: Match) -> bool:
    """Whether what is normalised has the dtype of the statistics."""
    return match.bound["x"].dtype.base_dtype is match.bound["s"].dtype.base_dtype


def _normalised(x: Any, s: Any, o: Any, m: Any, v: Any, e: float) -> Any:
    scale, offset, mean, variance = (np.asarray(value_of(each)) for each in (s, o, m, v))
    factor = scale / np.sqrt(variance + scale.dtype.type(e))
    y = x * factor.astype(scale.dtype) + (offset - mean * factor).astype(scale.dtype)
    return [y, m, v, m, v]


def _channels(rng: Any) -> Mapping[str, Any]:
    positive = {name: rng.uniform(0.5, 2, size=3) for name in "sv"}
    others = {name: rng.normal(size=3) for name in "om"}
    return {"x": rng.normal(size=(1, 2, 2, 3)), "e": 0.001, **positive, **others}


def _biased(rng: Any) -> Mapping[str, Any]:
    return {
        "x": rng.normal(size=(1, 5, 4, 2)),
        "w": rng.normal(size=(2, 2, 2, 3)),
        "b": rng.normal(size=3),
        "c": rng.normal(size=3),
        "strides": (1, 1, 1, 1),
        "padding": "SAME",
    }


def _scaled_with_bias(x: Any, w: Any, b: Any, c: Any, strides: Any, padding: Any) -> Any:
    factor, offset = np.asarray(value_of(c)), np.asarray(value_of(b))
    product = op.Conv2D(x, scaled_channels(c, w, 3), strides=strides, padding=padding)
    return product + np.asarray(factor * offset, offset.dtype)


RULES = (
    rule(
        "batch norm of constants",
        ROUNDING,
        lambda x, s, o, m, v, e: op.FusedBatchNormV2(
            x, const(s), const(o), const(m), const(v), epsilon=e, is_training=False
        ),
        _normalised,
        _is_of_one_dtype,
        is_float,
        sample=_channels,
    ),
    *(
        rule(
            f"factor after a convolution with {kind}",
            ROUNDING,
            lambda x, w, b, c, strides, padding, kind=kind: (
                getattr(op, kind)(
                    op.Conv2D(x, const(w), strides=strides, padding=padding), const(b)
                )
                * const(c)
            ),
            _scaled_with_bias,
            is_per_channel(3),
            is_float,
            single_use=True,
            sample=_biased,
        )
        for kind in ("BiasAdd", "Add")
    ),
)
