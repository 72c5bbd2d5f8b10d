"""Involutions and idempotent functions: a second application cancels or changes nothing."""

from __future__ import annotations

from thalweg.optimize.facts import is_boolean, is_complex, is_float, is_integer, is_number, is_real
from thalweg.optimize.pattern import op
from thalweg.optimize.rule import Exactness, rule

EXACT, ROUNDING = Exactness.EXACT, Exactness.ROUNDING

#: The negation of each comparison of numbers that are ordered.
NEGATED = {
    "Greater": "LessEqual",
    "GreaterEqual": "Less",
    "Less": "GreaterEqual",
    "LessEqual": "Greater",
}

RULES = (
    rule("negation twice", EXACT, lambda x: op.Neg(op.Neg(x)), lambda x: x, dtypes=is_number),
    rule("not twice", EXACT, lambda x: op.LogicalNot(op.LogicalNot(x)), lambda x: x),
    rule("bits inverted twice", EXACT, lambda x: op.Invert(op.Invert(x)), lambda x: x),
    rule("conjugate twice", EXACT, lambda x: op.Conj(op.Conj(x)), lambda x: x, dtypes=is_complex),
    rule(
        "reciprocal twice",
        ROUNDING,
        lambda x: op.Reciprocal(op.Reciprocal(x)),
        lambda x: x,
        dtypes=is_float,
    ),
    rule("relu twice", EXACT, lambda x: op.Relu(op.Relu(x)), op.Relu, dtypes=is_real),
    rule("relu6 after relu", EXACT, lambda x: op.Relu6(op.Relu(x)), op.Relu6, dtypes=is_real),
    rule("absolute value twice", EXACT, lambda x: op.Abs(op.Abs(x)), op.Abs, dtypes=is_real),
    rule("absolute value of minus", EXACT, lambda x: op.Abs(-x), op.Abs, dtypes=is_float),
    rule("square of minus", EXACT, lambda x: op.Square(-x), op.Square, dtypes=is_number),
    rule(
        "square of absolute value", EXACT, lambda x: op.Square(op.Abs(x)), op.Square, dtypes=is_real
    ),
    rule("cosine of minus", EXACT, lambda x: op.Cos(-x), op.Cos, dtypes=is_float),
    rule("sign twice", EXACT, lambda x: op.Sign(op.Sign(x)), op.Sign, dtypes=is_real),
    rule("floor twice", EXACT, lambda x: op.Floor(op.Floor(x)), op.Floor, dtypes=is_float),
    rule("ceil twice", EXACT, lambda x: op.Ceil(op.Ceil(x)), op.Ceil, dtypes=is_float),
    rule("round twice", EXACT, lambda x: op.Round(op.Round(x)), op.Round, dtypes=is_float),
    rule("rint twice", EXACT, lambda x: op.Rint(op.Rint(x)), op.Rint, dtypes=is_float),
    rule(
        "not equal",
        EXACT,
        lambda x, y: op.LogicalNot(op.Equal(x, y)),
        lambda x, y: op.NotEqual(x, y),
    ),
    rule(
        "not different",
        EXACT,
        lambda x, y: op.LogicalNot(op.NotEqual(x, y)),
        lambda x, y: op.Equal(x, y),
    ),
    # For a NaN, neither x > y nor x <= y holds: only for integers.
    *(
        rule(
            f"not {kind}",
            EXACT,
            lambda x, y, kind=kind: op.LogicalNot(getattr(op, kind)(x, y)),
            lambda x, y, other=other: getattr(op, other)(x, y),
            lambda match: is_integer(match.bound["x"].dtype),
            is_boolean,
        )
        for kind, other in NEGATED.items()
    ),
)
