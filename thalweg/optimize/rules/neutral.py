"""Neutral and absorbing elements: operands that change nothing, or determine the result.

An operand may change the shape by broadcasting though it changes no value: rules require that it is
known not to. Zero times NaN is NaN, so zero absorbs integers only. A complex product is four real
products, where infinity times zero is NaN: one is not neutral there.
"""

from __future__ import annotations

from collections.abc import Callable

from thalweg.optimize.facts import (
    broadcasts_into,
    is_boolean,
    is_float,
    is_integer,
    is_number,
    is_real,
)
from thalweg.optimize.pattern import op
from thalweg.optimize.rule import Match, Rule, rounding


def keeps_shape(name: str) -> Callable[[Match], bool]:
    """The condition that an operand has the shape of the result."""

    def when(match: Match) -> bool:
        kept = match.bound[name]
        others = [tensor for tensor in match.root.inputs if tensor is not kept]
        return all(broadcasts_into(tensor.shape, kept.shape) for tensor in others)

    return when


_X = keeps_shape("x")

RULES = (
    rounding("add zero", lambda x: x + 0, lambda x: x, _X, is_number),
    Rule("add minus zero", lambda x: x + -0.0, lambda x: x, _X, is_float),
    Rule("subtract zero", lambda x: x - 0, lambda x: x, _X, is_number),
    rounding("subtract from zero", lambda x: 0 - x, lambda x: -x, _X, is_number),
    Rule("multiply by one", lambda x: x * 1, lambda x: x, _X, is_real),
    Rule("multiply by minus one", lambda x: x * -1, lambda x: -x, _X, is_real),
    Rule("multiply integers by zero", lambda x: x * 0, op.ZerosLike, _X, is_integer),
    Rule("divide by one", lambda x: x / 1, lambda x: x, _X, is_float),
    Rule("divide by minus one", lambda x: x / -1, lambda x: -x, _X, is_float),
    Rule("divide one", lambda x: 1 / x, op.Reciprocal, _X, is_float),
    Rule("floor-divide by one", lambda x: op.FloorDiv(x, 1), lambda x: x, _X, is_integer),
    Rule("subtract itself", lambda x: x - x, op.ZerosLike, dtypes=is_integer),
    Rule("power one", lambda x: op.Pow(x, 1), lambda x: x, _X, is_real),
    Rule("power zero", lambda x: op.Pow(x, 0), op.OnesLike, _X, is_real),
    Rule("and true", lambda x: op.LogicalAnd(x, 1), lambda x: x, _X, is_boolean),
    Rule("or false", lambda x: op.LogicalOr(x, 0), lambda x: x, _X, is_boolean),
    Rule("and false", lambda x: op.LogicalAnd(x, 0), op.ZerosLike, _X, is_boolean),
    Rule("or true", lambda x: op.LogicalOr(x, 1), op.OnesLike, _X, is_boolean),
    Rule("and itself", lambda x: op.LogicalAnd(x, x), lambda x: x, dtypes=is_boolean),
    Rule("or itself", lambda x: op.LogicalOr(x, x), lambda x: x, dtypes=is_boolean),
    Rule("maximum of itself", lambda x: op.Maximum(x, x), lambda x: x, dtypes=is_real),
    Rule("minimum of itself", lambda x: op.Minimum(x, x), lambda x: x, dtypes=is_real),
    rounding(
        "bias zero",
        lambda x: op.BiasAdd(x, 0),
        lambda x: x,
        dtypes=is_number,
        sample=lambda rng: {"x": rng.normal(size=(2, 3)), "literal": (3,)},
    ),
)
