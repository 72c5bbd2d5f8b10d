"""Matrix products and convolutions: transposes become flags, constant factors join the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from thalweg.graph.node import Tensor
from thalweg.optimize.facts import integers, is_float, value_of
from thalweg.optimize.pattern import const, op
from thalweg.optimize.rule import Exactness, Match, Rule, rule

EXACT, ROUNDING = Exactness.EXACT, Exactness.ROUNDING


def _swaps_last_two(match: Match) -> bool:
    order = integers(match.bound["p"])
    if order is None or len(order) < 2:
        return False
    rank = len(order)
    return order == [*range(rank - 2), rank - 1, rank - 2]


def _is_plain_matrix(match: Match) -> bool:
    return integers(match.bound["p"]) == [1, 0]


def _is_real_swap(match: Match) -> bool:
    return _swaps_last_two(match) and not match.bound["x"].dtype.is_complex


def _is_complex_swap(match: Match) -> bool:
    return _swaps_last_two(match) and match.bound["x"].dtype.is_complex


def _is_one_number(match: Match) -> bool:
    """Whether c is a single number, of a rank that does not enlarge the result."""
    factor: Tensor = match.bound["c"]
    value, rank = value_of(factor), match.bound["x"].shape.rank
    return value is not None and value.size == 1 and rank is not None and value.ndim <= rank


def is_per_channel(axis: int) -> Callable[[Match], bool]:
    """The condition that c is one number, or one for each channel on an axis of the weights."""

    def when(match: Match) -> bool:
        factor, weights = value_of(match.bound["c"]), value_of(match.bound["w"])
        if factor is None or weights is None or factor.ndim > 4:
            return False
        per_channel = factor.shape[-1:] == weights.shape[axis : axis + 1]
        return factor.size == 1 or (per_channel and factor.size == factor.shape[-1])

    return when


def _matrices(rng: Any) -> dict[str, Any]:
    m, k, n = (int(size) for size in rng.integers(1, 6, 3))
    a, b = bool(rng.integers(2)), bool(rng.integers(2))
    x = rng.normal(size=(m, k)[:: -1 if a else 1])
    y = rng.normal(size=(k, n)[:: -1 if b else 1])
    return {"x": x, "y": y, "a": a, "b": b, "p": [1, 0]}


def _first_transposed(rng: Any) -> dict[str, Any]:
    found = _matrices(rng)
    return found | {"x": found["x"].T.copy()}


def _second_transposed(rng: Any) -> dict[str, Any]:
    found = _matrices(rng)
    return found | {"y": found["y"].T.copy()}


def _batches(found: dict[str, Any]) -> dict[str, Any]:
    stacked = {name: np.stack([found[name]] * 2) for name in "xy"}
    return found | stacked | {"p": [0, 2, 1]}


def _images(rng: Any, channels: int = 2) -> dict[str, Any]:
    return {
        "x": rng.normal(size=(1, 5, 4, 2)),
        "w": rng.normal(size=(2, 2, 2, 3)),
        "c": rng.normal(size=(channels,) if rng.integers(2) else ()),
        "strides": (1, 1, 1, 1),
        "padding": "SAME",
    }


def scaled_channels(c: Any, w: Any, axis: int) -> Any:
    """The weights of a convolution times a number for each channel of an axis, folded."""
    factor, weights = value_of(c), value_of(w)
    assert factor is not None and weights is not None
    shape = [1, 1, 1, 1]
    shape[axis] = factor.size
    return np.asarray(factor.reshape(shape) * weights, weights.dtype)


def _scaled(c: Any, w: Any) -> Any:
    """The weights times a number, folded."""
    factor, weights = value_of(c), value_of(w)
    assert factor is not None and weights is not None
    return np.asarray(factor.ravel()[0] * weights, weights.dtype)


def _factor(found: dict[str, Any], rng: Any) -> dict[str, Any]:
    return found | {"w": found["y"], "c": np.array(rng.normal())}


MATMUL: tuple[Rule, ...] = (
    rule(
        "transpose into the first factor",
        EXACT,
        lambda x, y, p, a, b: op.MatMul(op.Transpose(x, const(p)), y, transpose_a=a, transpose_b=b),
        lambda x, y, a, b: op.MatMul(x, y, transpose_a=not a, transpose_b=b),
        _is_plain_matrix,
        sample=_first_transposed,
    ),
    rule(
        "transpose into the second factor",
        EXACT,
        lambda x, y, p, a, b: op.MatMul(x, op.Transpose(y, const(p)), transpose_a=a, transpose_b=b),
        lambda x, y, a, b: op.MatMul(x, y, transpose_a=a, transpose_b=not b),
        _is_plain_matrix,
        sample=_second_transposed,
    ),
    rule(
        "transpose of a product",
        EXACT,
        lambda x, y, p, a, b: op.Transpose(op.MatMul(x, y, transpose_a=a, transpose_b=b), const(p)),
        lambda x, y, a, b: op.MatMul(y, x, transpose_a=not b, transpose_b=not a),
        _is_plain_matrix,
        single_use=True,
        sample=_matrices,
    ),
    rule(
        "transpose into the first factor of a batch",
        EXACT,
        lambda x, y, p, a, b: op.BatchMatMulV2(op.Transpose(x, const(p)), y, adj_x=a, adj_y=b),
        lambda x, y, a, b: op.BatchMatMulV2(x, y, adj_x=not a, adj_y=b),
        _is_real_swap,
        sample=lambda rng: _batches(_first_transposed(rng)),
    ),
    rule(
        "transpose into the second factor of a batch",
        EXACT,
        lambda x, y, p, a, b: op.BatchMatMulV2(x, op.Transpose(y, const(p)), adj_x=a, adj_y=b),
        lambda x, y, a, b: op.BatchMatMulV2(x, y, adj_x=a, adj_y=not b),
        _is_real_swap,
        sample=lambda rng: _batches(_second_transposed(rng)),
    ),
    rule(
        "conjugate transpose into the first factor of a batch",
        EXACT,
        lambda x, y, p, a, b: op.BatchMatMulV2(
            op.ConjugateTranspose(x, const(p)), y, adj_x=a, adj_y=b
        ),
        lambda x, y, a, b: op.BatchMatMulV2(x, y, adj_x=not a, adj_y=b),
        _is_complex_swap,
        sample=lambda rng: _batches(_first_transposed(rng)),
    ),
    rule(
        "conjugate transpose into the second factor of a batch",
        EXACT,
        lambda x, y, p, a, b: op.BatchMatMulV2(
            x, op.ConjugateTranspose(y, const(p)), adj_x=a, adj_y=b
        ),
        lambda x, y, a, b: op.BatchMatMulV2(x, y, adj_x=a, adj_y=not b),
        _is_complex_swap,
        sample=lambda rng: _batches(_second_transposed(rng)),
    ),
)

SCALES: tuple[Rule, ...] = (
    rule(
        "factor into the weights of a product",
        ROUNDING,
        lambda x, c, w, a, b: op.MatMul(x * const(c), const(w), transpose_a=a, transpose_b=b),
        lambda x, c, w, a, b: op.MatMul(x, _scaled(c, w), transpose_a=a, transpose_b=b),
        _is_one_number,
        is_float,
        sample=lambda rng: _factor(_matrices(rng), rng),
    ),
    rule(
        "factor after a product into the weights",
        ROUNDING,
        lambda x, c, w, a, b: op.MatMul(x, const(w), transpose_a=a, transpose_b=b) * const(c),
        lambda x, c, w, a, b: op.MatMul(x, _scaled(c, w), transpose_a=a, transpose_b=b),
        _is_one_number,
        is_float,
        single_use=True,
        sample=lambda rng: _factor(_matrices(rng), rng),
    ),
    rule(
        "factor into the weights of a convolution",
        ROUNDING,
        lambda x, c, w, strides, padding: op.Conv2D(
            x * const(c), const(w), strides=strides, padding=padding
        ),
        lambda x, c, w, strides, padding: op.Conv2D(
            x, scaled_channels(c, w, 2), strides=strides, padding=padding
        ),
        is_per_channel(2),
        is_float,
        sample=_images,
    ),
    rule(
        "factor after a convolution into the weights",
        ROUNDING,
        lambda x, c, w, strides, padding: (
            op.Conv2D(x, const(w), strides=strides, padding=padding) * const(c)
        ),
        lambda x, c, w, strides, padding: op.Conv2D(
            x, scaled_channels(c, w, 3), strides=strides, padding=padding
        ),
        is_per_channel(3),
        is_float,
        single_use=True,
        sample=lambda rng: _images(rng, 3),
    ),
)
