"""Matrix products: transposes become flags."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.optimize.facts import integers
from thalweg.optimize.pattern import const, op
from thalweg.optimize.rule import Exactness, Match, Rule, rule

EXACT = Exactness.EXACT


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


RULES: tuple[Rule, ...] = (
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
