"""Stable forms: formulas that overflow or cancel, as what they mean.

The naive cross-entropy takes the logarithm of a softmax or of a sigmoid, which is that of zero at
large logits, and its gradient divides by the same zero. Both have a form without: the logarithm is
computed from the logits, and the division cancels with a factor that the gradient has anyway.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.optimize.facts import integers, is_float, last_size, same_shape
from thalweg.optimize.pattern import const, op
from thalweg.optimize.rule import Exactness, Match, rule

ROUNDING = Exactness.ROUNDING


def _sums_last_axis(match: Match) -> bool:
    """Whether g is summed over all of the axis that the softmax normalises."""
    g, z, axes = match.bound["g"], match.bound["z"], integers(match.bound["a"])
    rank, size = match.root.output.shape.rank, last_size(g)
    if axes is None or len(axes) != 1 or rank is None or size is None:
        return False
    return axes[0] in (-1, rank - 1) and size == last_size(z)


def _rows(rng: Any) -> dict[str, Any]:
    shape = (int(rng.integers(1, 4)), int(rng.integers(1, 6)))
    return {"g": rng.normal(size=shape), "z": rng.normal(size=shape) * 5, "a": [-1]}


def _softmax_gradient(g: Any, z: Any, a: Any) -> Any:
    s = op.Softmax(z)
    return (g / s - op.Sum(g / s * s, const(a), keep_dims=True)) * s


def _sums_rows(match: Match) -> bool:
    """Whether rows, which the softmax normalises, are summed with other axes: of one reduction over
    all, no thread has whole rows, and the log-softmax is not computed where it is summed."""
    rank, axes = match.bound["z"].shape.rank, integers(match.bound["a"])
    if rank is None or rank < 2 or axes is None or match.bound["labels"].shape.rank != rank:
        return False
    return len(axes) > 1 and {axis % rank for axis in axes} == set(range(rank))


def _rows_first(labels: Any, z: Any) -> Any:
    each = op.Sum(labels * op.LogSoftmax(z), np.array([z.shape.rank - 1], np.int32))
    return op.Sum(each, np.arange(z.shape.rank - 1, dtype=np.int32))


def _is_small_cross_entropy(match: Match) -> bool:
    """Whether this is a cross-entropy of short rows: in one kernel it takes one call less; of long
    rows, the log-softmax is better kept for the gradient."""
    labels, z, axes = match.bound["labels"], match.bound["z"], integers(match.bound["a"])
    if z.shape.rank != 2 or not same_shape(labels.shape, z.shape):
        return False
    return axes in ([1], [-1]) and (last_size(z) or 0) <= _MAX_ROW


_MAX_ROW = 64


def _logits(*axes: int) -> Any:
    def sample(rng: Any) -> dict[str, Any]:
        shape = (int(rng.integers(1, 4)), int(rng.integers(1, 6)))
        logits = rng.normal(size=shape) * 5
        return {"labels": rng.normal(size=shape), "z": logits, "a": list(axes)}

    return sample


RULES = (
    rule(
        "sum of a product with a log-softmax",
        ROUNDING,
        lambda labels, z, a: op.Sum(labels * op.LogSoftmax(z), const(a)),
        _rows_first,
        _sums_rows,
        is_float,
        sample=_logits(0, 1),
    ),
    rule(
        "cross-entropy of a log-softmax",
        ROUNDING,
        lambda labels, z, a: op.Sum(labels * op.LogSoftmax(z), const(a)),
        lambda labels, z: -op.SoftmaxCrossEntropyWithLogits(z, labels)[0],
        _is_small_cross_entropy,
        is_float,
        sample=_logits(-1),
        stabilises=True,
    ),
    rule(
        "exponential of a log-softmax",
        ROUNDING,
        lambda z: op.Exp(op.LogSoftmax(z)),
        op.Softmax,
        dtypes=is_float,
        single_use=True,
        sample=lambda rng: {"z": rng.normal(size=(3, int(rng.integers(1, 6)))) * 5},
    ),
    rule(
        "logarithm of a softmax",
        ROUNDING,
        lambda z: op.Log(op.Softmax(z)),
        op.LogSoftmax,
        dtypes=is_float,
        sample=lambda rng: {"z": rng.normal(size=(3, int(rng.integers(1, 6)))) * 5},
        stabilises=True,
    ),
    rule(
        "gradient of the logarithm of a softmax",
        ROUNDING,
        _softmax_gradient,
        # The loss has the same log-softmax: one pass over the logits serves both.
        lambda g, z, a: g - op.Sum(g, a, keep_dims=True) * op.Exp(op.LogSoftmax(z)),
        _sums_last_axis,
        is_float,
        sample=_rows,
        stabilises=True,
    ),
    rule(
        "logarithm of a sigmoid",
        ROUNDING,
        lambda x: op.Log(op.Sigmoid(x)),
        lambda x: -op.Softplus(-x),
        dtypes=is_float,
        stabilises=True,
    ),
    rule(
        "logarithm of one less a sigmoid",
        ROUNDING,
        lambda x: op.Log(1 - op.Sigmoid(x)),
        lambda x: -op.Softplus(x),
        dtypes=is_float,
        stabilises=True,
    ),
    rule(
        "gradient of the logarithm of a sigmoid",
        ROUNDING,
        lambda x, g: op.SigmoidGrad(op.Sigmoid(x), g / op.Sigmoid(x)),
        lambda x, g: g * op.Sigmoid(-x),
        dtypes=is_float,
        stabilises=True,
    ),
    rule(
        "gradient of the logarithm of one less a sigmoid",
        ROUNDING,
        lambda x, g: op.SigmoidGrad(op.Sigmoid(x), -(g / (1 - op.Sigmoid(x)))),
        lambda x, g: -(g * op.Sigmoid(x)),
        dtypes=is_float,
        stabilises=True,
    ),
    rule(
        "gradient of the sigmoid cross-entropy",
        ROUNDING,
        lambda x, g, h: op.SigmoidGrad(
            op.Sigmoid(x), op.AddN(-(h / (1 - op.Sigmoid(x))), g / op.Sigmoid(x))
        ),
        lambda x, g, h: g * op.Sigmoid(-x) - h * op.Sigmoid(x),
        dtypes=is_float,
        stabilises=True,
        sample=lambda rng: {name: rng.normal(size=(3, 4)) for name in "xgh"},
    ),
    rule(
        "logarithm of one and an exponential",
        ROUNDING,
        lambda x: op.Log(1 + op.Exp(x)),
        op.Softplus,
        dtypes=is_float,
        stabilises=True,
    ),
    rule(
        "log1p of an exponential",
        ROUNDING,
        lambda x: op.Log1p(op.Exp(x)),
        op.Softplus,
        dtypes=is_float,
        stabilises=True,
    ),
    rule(
        "gradient of softplus",
        ROUNDING,
        lambda x, g: g / (1 + op.Exp(x)) * op.Exp(x),
        lambda x, g: g * op.Sigmoid(x),
        dtypes=is_float,
        stabilises=True,
        sample=lambda rng: {name: rng.normal(size=(3, 4)) for name in "xg"},
    ),
    rule(
        "logarithm of one and more",
        ROUNDING,
        lambda x: op.Log(1 + x),
        op.Log1p,
        dtypes=is_float,
        stabilises=True,
    ),
    rule(
        "exponential less one",
        ROUNDING,
        lambda x: op.Exp(x) - 1,
        op.Expm1,
        dtypes=is_float,
        single_use=True,
        stabilises=True,
    ),
)
