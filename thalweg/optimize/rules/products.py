"""Matrix products: transposes become flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from thalweg.optimize.facts import integers, is_real
from thalweg.optimize.pattern import const, op
from thalweg.optimize.rule import Match, Rule


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


def matrices(rng: Any) -> dict[str, Any]:
    """Draws the factors of a product, transposed where its flags say so."""
    m, k, n = (int(size) for size in rng.integers(1, 6, 3))
    a, b = bool(rng.integers(2)), bool(rng.integers(2))
    x = rng.normal(size=(m, k)[:: -1 if a else 1])
    y = rng.normal(size=(k, n)[:: -1 if b else 1])
    return {"x": x, "y": y, "a": a, "b": b, "p": [1, 0]}


def _with_transposed(rng: Any, factor: str, is_batch: bool) -> dict[str, Any]:
    sample = matrices(rng)
    sample[factor] = sample[factor].T.copy()
    if is_batch:
        sample |= {name: np.stack([sample[name]] * 2) for name in "xy"} | {"p": [0, 2, 1]}
    return sample


def _into_factors(
    product: str, flags: tuple[str, str], transpose: str, title: str, when: Callable[[Match], bool]
) -> tuple[Rule, Rule]:
    """The rules that replace transposes of a product's factors by its flags."""
    multiply, transposed = getattr(op, product), getattr(op, transpose)
    is_batch = product == "BatchMatMulV2"

    def named(a: Any, b: Any) -> dict[str, Any]:
        return dict(zip(flags, (a, b), strict=True))

    return (
        Rule(
            title.format("first"),
            lambda x, y, p, a, b: multiply(transposed(x, const(p)), y, **named(a, b)),
            lambda x, y, a, b: multiply(x, y, **named(not a, b)),
            when,
            sample=lambda rng: _with_transposed(rng, "x", is_batch),
        ),
        Rule(
            title.format("second"),
            lambda x, y, p, a, b: multiply(x, transposed(y, const(p)), **named(a, b)),
            lambda x, y, a, b: multiply(x, y, **named(a, not b)),
            when,
            sample=lambda rng: _with_transposed(rng, "y", is_batch),
        ),
    )


_FLAGS, _BATCH_FLAGS = ("transpose_a", "transpose_b"), ("adj_x", "adj_y")

RULES: tuple[Rule, ...] = (
    *_into_factors("MatMul", _FLAGS, "Transpose", "transpose into the {} factor", _is_plain_matrix),
    Rule(
        "transpose of a product",
        lambda x, y, p, a, b: op.Transpose(op.MatMul(x, y, transpose_a=a, transpose_b=b), const(p)),
        lambda x, y, a, b: op.MatMul(y, x, transpose_a=not b, transpose_b=not a),
        _is_plain_matrix,
        dtypes=is_real,
        single_use=True,
        sample=matrices,
    ),
    *_into_factors(
        "BatchMatMulV2",
        _BATCH_FLAGS,
        "Transpose",
        "transpose into the {} factor of a batch",
        _is_real_swap,
    ),
    *_into_factors(
        "BatchMatMulV2",
        _BATCH_FLAGS,
        "ConjugateTranspose",
        "conjugate transpose into the {} factor of a batch",
        _is_complex_swap,
    ),
)
