"""Arithmetic with fewer or cheaper operations."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from thalweg.optimize.facts import (
    broadcasts_into,
    is_float,
    is_number,
    is_real,
    same_shape,
    value_of,
)
from thalweg.optimize.pattern import const, op
from thalweg.optimize.rule import Match, Rule, rounding
from thalweg.optimize.rules.neutral import keeps_shape

_X = keeps_shape("x")


def _have_one_shape(match: Match) -> bool:
    """Whether x, y and z are known to have equal shapes."""
    x, y, z = (match.bound[name].shape for name in "xyz")
    return same_shape(x, y) and same_shape(x, z)


def _is_smaller(match: Match) -> bool:
    """Whether s and t broadcast into x and y, which are larger than both."""
    x, y, s, t = (match.bound[name].shape for name in "xyst")
    sizes: list[int | None] = [shape.num_elements() for shape in (x, s, t)]
    large, *small = [size for size in sizes if size is not None] or [0]
    if len(small) < 2 or not same_shape(x, y):
        return False
    return broadcasts_into(s, x) and broadcasts_into(t, x) and max(small) < large


def _has_reciprocal(match: Match) -> bool:
    value = value_of(match.bound["c"])
    if value is None or value.dtype.kind != "f":
        return False
    with np.errstate(all="ignore"):
        inverse = 1 / value
    normal = np.isfinite(inverse) & (np.abs(inverse) >= np.finfo(value.dtype).tiny)
    return bool(np.all(normal & np.isfinite(value) & (value != 0)))


def _times_reciprocal(x: Any, c: Any) -> Any:
    value = value_of(c)
    assert value is not None
    return x * np.asarray(1 / value, value.dtype)


def _is_positive(match: Match) -> bool:
    """Whether c is positive. For c = -2 and x infinite, `x * c + x` is NaN, but `x * -1` is not."""
    value = value_of(match.bound["c"])
    return value is not None and bool(np.all(value > 0))


def _one_more(x: Any, c: Any) -> Any:
    value = value_of(c)
    assert value is not None
    return x * np.asarray(value + value.dtype.type(1), value.dtype)


def _large_and_small(rng: Any) -> dict[str, Any]:
    large = {name: rng.normal(size=(3, 4)) for name in "xy"}
    return large | {name: rng.normal(size=(4,)) for name in "st"}


def _reduces_something(match: Match) -> bool:
    """Whether the result has fewer elements than x, but not none: an empty Max is infinite."""
    many: int | None = match.bound["x"].shape.num_elements()
    few = match.root.output.shape.num_elements()
    return many is not None and few is not None and 0 < few < many


def _reduced(rng: Any) -> dict[str, Any]:
    return {"x": rng.normal(size=(3, 4)), "a": [1], "keep": bool(rng.integers(2))}


_regrouped = partial(rounding, dtypes=is_float, single_use=True)

RULES = (
    Rule("add the negative", lambda x, y: x + -y, lambda x, y: x - y, dtypes=is_number),
    Rule("subtract the negative", lambda x, y: x - -y, lambda x, y: x + y, dtypes=is_number),
    Rule("product of negatives", lambda x, y: -x * -y, lambda x, y: x * y, dtypes=is_real),
    Rule("quotient of negatives", lambda x, y: -x / -y, lambda x, y: x / y, dtypes=is_float),
    rounding(
        "minus a difference",
        lambda x, y: -(x - y),
        lambda x, y: y - x,
        dtypes=is_number,
        single_use=True,
    ),
    Rule("add to itself", lambda x: x + x, lambda x: x * 2, dtypes=is_real),
    rounding(
        "add to a multiple",
        lambda x, c: x * const(c) + x,
        _one_more,
        _is_positive,
        is_real,
        single_use=True,
    ),
    Rule("multiply by itself", lambda x: x * x, op.Square, dtypes=is_real),
    rounding("power two", lambda x: op.Pow(x, 2), op.Square, _X, is_real),
    rounding("power three", lambda x: op.Pow(x, 3), lambda x: x * op.Square(x), _X, is_float),
    rounding("power one half", lambda x: op.Pow(x, 0.5), op.Sqrt, _X, is_float, stabilises=True),
    rounding(
        "power minus one half", lambda x: op.Pow(x, -0.5), op.Rsqrt, _X, is_float, stabilises=True
    ),
    rounding("power minus one", lambda x: op.Pow(x, -1), op.Reciprocal, _X, is_float),
    _regrouped(
        "divide by a square root",
        lambda x, y: x / op.Sqrt(y),
        lambda x, y: x * op.Rsqrt(y),
        stabilises=True,
    ),
    _regrouped("reciprocal of a square root", lambda x: op.Reciprocal(op.Sqrt(x)), op.Rsqrt),
    rounding(
        "divide by a constant",
        lambda x, c: x / const(c),
        _times_reciprocal,
        _has_reciprocal,
        is_float,
    ),
    _regrouped(
        "hoist a common factor",
        lambda x, y, z: x * y + x * z,
        lambda x, y, z: x * (y + z),
        _have_one_shape,
        stabilises=True,
    ),
    _regrouped(
        "hoist a common divisor",
        lambda x, y, z: y / x + z / x,
        lambda x, y, z: (y + z) / x,
        _have_one_shape,
        stabilises=True,
    ),
    _regrouped(
        "add what is small first",
        lambda x, y, s, t: (x + s) + (y + t),
        lambda x, y, s, t: (x + y) + (s + t),
        _is_smaller,
        sample=_large_and_small,
    ),
    _regrouped(
        "multiply what is small first",
        lambda x, y, s, t: (x * s) * (y * t),
        lambda x, y, s, t: (x * y) * (s * t),
        _is_smaller,
        sample=_large_and_small,
    ),
    # Up to rounding: a polynomial may fall by a unit in the last place where the function rises.
    *(
        _regrouped(
            f"{extreme.lower()} of {kind.lower()}",
            lambda x, a, keep, extreme=extreme, kind=kind: getattr(op, extreme)(
                getattr(op, kind)(x), const(a), keep_dims=keep
            ),
            lambda x, a, keep, extreme=extreme, kind=kind: getattr(op, kind)(
                getattr(op, extreme)(x, a, keep_dims=keep)
            ),
            _reduces_something,
            sample=_reduced,
        )
        for extreme in ("Max", "Min")
        for kind in ("Exp", "Sigmoid", "Tanh", "Softplus")
    ),
)
