"""Numerically stable forms of formulas that overflow or cancel.

The naive cross-entropy takes the logarithm of a softmax or of a sigmoid, which is zero at large
logits, and its gradient divides by the same zero. In the stable forms the logarithm is computed
from the logits, and the division cancels with a factor of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from thalweg.optimize.facts import integers, is_float, last_size, same_shape
from thalweg.optimize.pattern import const, op
from thalweg.optimize.rule import Match, rounding


def _sums_last_axis(match: Match) -> bool:
    """Whether g is summed over the whole axis that the softmax normalises."""
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
    """Whether the rows that the softmax normalises are summed together with all other axes. In one
    reduction over all axes no thread has whole rows, and the log-softmax cannot be fused into
    it."""
    rank, axes = match.bound["z"].shape.rank, integers(match.bound["a"])
    if rank is None or rank < 2 or axes is None or match.bound["labels"].shape.rank != rank:
        return False
    return len(axes) > 1 and {axis % rank for axis in axes} == set(range(rank))


def _rows_first(labels: Any, z: Any) -> Any:
    row_sums = op.Sum(labels * op.LogSoftmax(z), np.array([z.shape.rank - 1], np.int32))
    return op.Sum(row_sums, np.arange(z.shape.rank - 1, dtype=np.int32))


def _is_small_cross_entropy(match: Match) -> bool:
    """Whether this is a cross-entropy of short rows: fused, it saves a kernel launch. For long rows
    the log-softmax is better kept for the gradient."""
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


def _drawn(names: str) -> Callable[[Any], dict[str, Any]]:
    return lambda rng: {name: rng.normal(size=(3, 4)) for name in names}


def _large_logits(rng: Any) -> dict[str, Any]:
    return {"z": rng.normal(size=(3, int(rng.integers(1, 6)))) * 5}


#: Rules whose replacement is accurate where the pattern overflows or cancels.
_stable = partial(rounding, dtypes=is_float, stabilises=True)

RULES = (
    rounding(
        "sum of a product with a log-softmax",
        lambda labels, z, a: op.Sum(labels * op.LogSoftmax(z), const(a)),
        _rows_first,
        _sums_rows,
        is_float,
        sample=_logits(0, 1),
    ),
    _stable(
        "cross-entropy of a log-softmax",
        lambda labels, z, a: op.Sum(labels * op.LogSoftmax(z), const(a)),
        lambda labels, z: -op.SoftmaxCrossEntropyWithLogits(z, labels)[0],
        _is_small_cross_entropy,
        sample=_logits(-1),
    ),
    rounding(
        "exponential of a log-softmax",
        lambda z: op.Exp(op.LogSoftmax(z)),
        op.Softmax,
        dtypes=is_float,
        single_use=True,
        sample=_large_logits,
    ),
    _stable(
        "logarithm of a softmax",
        lambda z: op.Log(op.Softmax(z)),
        op.LogSoftmax,
        sample=_large_logits,
    ),
    _stable(
        "gradient of the logarithm of a softmax",
        _softmax_gradient,
        # The loss has the same log-softmax: one pass over the logits serves both.
        lambda g, z, a: g - op.Sum(g, a, keep_dims=True) * op.Exp(op.LogSoftmax(z)),
        _sums_last_axis,
        sample=_rows,
    ),
    _stable("logarithm of a sigmoid", lambda x: op.Log(op.Sigmoid(x)), lambda x: -op.Softplus(-x)),
    _stable(
        "logarithm of one less a sigmoid",
        lambda x: op.Log(1 - op.Sigmoid(x)),
        lambda x: -op.Softplus(x),
    ),
    _stable(
        "gradient of the logarithm of a sigmoid",
        lambda x, g: op.SigmoidGrad(op.Sigmoid(x), g / op.Sigmoid(x)),
        lambda x, g: g * op.Sigmoid(-x),
    ),
    _stable(
        "gradient of the logarithm of one less a sigmoid",
        lambda x, g: op.SigmoidGrad(op.Sigmoid(x), -(g / (1 - op.Sigmoid(x)))),
        lambda x, g: -(g * op.Sigmoid(x)),
    ),
    _stable(
        "gradient of the sigmoid cross-entropy",
        lambda x, g, h: op.SigmoidGrad(
            op.Sigmoid(x), op.AddN(-(h / (1 - op.Sigmoid(x))), g / op.Sigmoid(x))
        ),
        lambda x, g, h: g * op.Sigmoid(-x) - h * op.Sigmoid(x),
        sample=_drawn("xgh"),
    ),
    _stable("logarithm of one and an exponential", lambda x: op.Log(1 + op.Exp(x)), op.Softplus),
    _stable("log1p of an exponential", lambda x: op.Log1p(op.Exp(x)), op.Softplus),
    _stable(
        "gradient of softplus",
        lambda x, g: g / (1 + op.Exp(x)) * op.Exp(x),
        lambda x, g: g * op.Sigmoid(x),
        sample=_drawn("xg"),
    ),
    _stable("logarithm of one and more", lambda x: op.Log(1 + x), op.Log1p),
    _stable("exponential less one", lambda x: op.Exp(x) - 1, op.Expm1, single_use=True),
)
