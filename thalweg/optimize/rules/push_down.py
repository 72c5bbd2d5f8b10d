"""Reassociates sums and products so that two constants become one when the step is planned.

The new constant must not be larger than the tensor that it is applied to.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np

from thalweg.graph.analysis.evaluate import outputs_of
from thalweg.ops.core.basic import constant
from thalweg.optimize.facts import broadcasts_into, is_float, is_number, value_of
from thalweg.optimize.pattern import const
from thalweg.optimize.rule import Match, rounding


def _fits(match: Match) -> bool:
    """Whether both constants broadcast into x."""
    x = match.bound["x"].shape
    return all(broadcasts_into(match.bound[name].shape, x) for name in "cd")


def _is_in_range(match: Match) -> bool:
    """Whether the constants can be multiplied and divided without overflow or underflow."""
    if not _fits(match):
        return False
    values = [value_of(match.bound[name]) for name in "cd"]
    if any(value is None or value.dtype.kind != "f" for value in values):
        return False
    sizes = [np.abs(value) for value in values if value is not None]
    return all(bool(np.all((size >= 1e-3) & (size <= 1e3))) for size in sizes)


def fold(tensor: Any) -> Any:
    """An op of constants, folded: a chain of sums is folded in one traversal."""
    values = [value_of(operand) for operand in tensor.op.inputs]
    assert all(value is not None for value in values)
    return constant(outputs_of(tensor.op, cast("list[Any]", values))[0])


def _numbers(rng: Any) -> dict[str, Any]:
    return {
        "x": rng.normal(size=(2, 3)),
        "c": rng.uniform(0.5, 2, size=(3,) if rng.integers(2) else ()),
        "d": rng.uniform(0.5, 2),
    }


_folding = partial(rounding, single_use=True, sample=_numbers)
_sum = partial(_folding, when=_fits, dtypes=is_number)
_product = partial(_folding, when=_is_in_range, dtypes=is_float)

RULES = (
    _sum("x + c + d", lambda x, c, d: (x + const(c)) + const(d), lambda x, c, d: x + fold(c + d)),
    _sum("x - c + d", lambda x, c, d: (x - const(c)) + const(d), lambda x, c, d: x + fold(d - c)),
    _sum("c - x + d", lambda x, c, d: (const(c) - x) + const(d), lambda x, c, d: fold(c + d) - x),
    _sum("x + c - d", lambda x, c, d: (x + const(c)) - const(d), lambda x, c, d: x + fold(c - d)),
    _sum("x - c - d", lambda x, c, d: (x - const(c)) - const(d), lambda x, c, d: x - fold(c + d)),
    _sum("c - x - d", lambda x, c, d: (const(c) - x) - const(d), lambda x, c, d: fold(c - d) - x),
    _sum("d - (x + c)", lambda x, c, d: const(d) - (x + const(c)), lambda x, c, d: fold(d - c) - x),
    _sum("d - (x - c)", lambda x, c, d: const(d) - (x - const(c)), lambda x, c, d: fold(d + c) - x),
    _sum("d - (c - x)", lambda x, c, d: const(d) - (const(c) - x), lambda x, c, d: x + fold(d - c)),
    _product("x c d", lambda x, c, d: (x * const(c)) * const(d), lambda x, c, d: x * fold(c * d)),
    _product("x / c d", lambda x, c, d: (x / const(c)) * const(d), lambda x, c, d: x * fold(d / c)),
    _product("c / x d", lambda x, c, d: (const(c) / x) * const(d), lambda x, c, d: fold(c * d) / x),
    _product("x c / d", lambda x, c, d: (x * const(c)) / const(d), lambda x, c, d: x * fold(c / d)),
    _product(
        "c / x / d", lambda x, c, d: (const(c) / x) / const(d), lambda x, c, d: fold(c / d) / x
    ),
    _product(
        "d / (x c)", lambda x, c, d: const(d) / (x * const(c)), lambda x, c, d: fold(d / c) / x
    ),
    _product(
        "d / (x / c)", lambda x, c, d: const(d) / (x / const(c)), lambda x, c, d: fold(d * c) / x
    ),
    _product(
        "d / (c / x)", lambda x, c, d: const(d) / (const(c) / x), lambda x, c, d: x * fold(d / c)
    ),
)
