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
from thalweg.optimize.rule import Exactness, Match, rule

EXACT, ROUNDING = Exactness.EXACT, Exactness.ROUNDING


def keeps_shape(name: str) -> Callable[[Match], bool]:
    """The condition that an operand has the shape of the result."""

    def when(match: Match) -> bool:
        kept = match.bound[name]
        others = [tensor for tensor in match.root.inputs if tensor is not kept]
        return all(broadcasts_into(tensor.shape, kept.shape) for tensor in others)

    return when


_X = keeps_shape("x")

RULES = (
    rule("add zero", ROUNDING, lambda x: x + 0, lambda x: x, _X, is_number),
    rule("add minus zero", EXACT, lambda x: x + -0.0, lambda x: x, _X, is_float),
    rule("subtract zero", EXACT, lambda x: x - 0, lambda x: x, _X, is_number),
    rule("subtract from zero", ROUNDING, lambda x: 0 - x, lambda x: -x, _X, is_number),
    rule("multiply by one", EXACT, lambda x: x * 1, lambda x: x, _X, is_real),
    rule("multiply by minus one", EXACT, lambda x: x * -1, lambda x: -x, _X, is_real),
    rule("multiply integers by zero", EXACT, lambda x: x * 0, op.ZerosLike, _X, is_integer),
    rule("divide by one", EXACT, lambda x: x / 1, lambda x: x, _X, is_float),
    rule("divide by minus one", EXACT, lambda x: x / -1, lambda x: -x, _X, is_float),
    rule("divide one", EXACT, lambda x: 1 / x, op.Reciprocal, _X, is_float),
    rule("floor-divide by one", EXACT, lambda x: op.FloorDiv(x, 1), lambda x: x, _X, is_integer),
    rule("subtract itself", EXACT, lambda x: x - x, op.ZerosLike, dtypes=is_integer),
    rule("power one", EXACT, lambda x: op.Pow(x, 1), lambda x: x, _X, is_real),
    rule("power zero", EXACT, lambda x: op.Pow(x, 0), op.OnesLike, _X, is_real),
    rule("and true", EXACT, lambda x: op.LogicalAnd(x, 1), lambda x: x, _X, is_boolean),
    rule("or false", EXACT, lambda x: op.LogicalOr(x, 0), lambda x: x, _X, is_boolean),
    rule("and false", EXACT, lambda x: op.LogicalAnd(x, 0), op.ZerosLike, _X, is_boolean),
    rule("or true", EXACT, lambda x: op.LogicalOr(x, 1), op.OnesLike, _X, is_boolean),
    rule("and itself", EXACT, lambda x: op.LogicalAnd(x, x), lambda x: x, dtypes=is_boolean),
    rule("or itself", EXACT, lambda x: op.LogicalOr(x, x), lambda x: x, dtypes=is_boolean),
    rule("maximum of itself", EXACT, lambda x: op.Maximum(x, x), lambda x: x, dtypes=is_real),
    rule("minimum of itself", EXACT, lambda x: op.Minimum(x, x), lambda x: x, dtypes=is_real),
    rule(
        "bias zero",
        ROUNDING,
        lambda x: op.BiasAdd(x, 0),
        lambda x: x,
        dtypes=is_number,
        sample=lambda rng: {"x": rng.normal(size=(2, 3)), "literal": (3,)},
    ),
)
