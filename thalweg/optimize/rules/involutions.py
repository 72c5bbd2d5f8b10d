"""Involutions and idempotent functions: a second application cancels or changes nothing."""

from __future__ import annotations

from thalweg.optimize.facts import is_boolean, is_complex, is_float, is_integer, is_number, is_real
from thalweg.optimize.pattern import op
from thalweg.optimize.rule import Rule, rounding

#: The negation of each comparison of numbers that are ordered.
NEGATED = {
    "Greater": "LessEqual",
    "GreaterEqual": "Less",
    "Less": "GreaterEqual",
    "LessEqual": "Greater",
}

RULES = (
    Rule("negation twice", lambda x: op.Neg(op.Neg(x)), lambda x: x, dtypes=is_number),
    Rule("not twice", lambda x: op.LogicalNot(op.LogicalNot(x)), lambda x: x),
    Rule("bits inverted twice", lambda x: op.Invert(op.Invert(x)), lambda x: x),
    Rule("conjugate twice", lambda x: op.Conj(op.Conj(x)), lambda x: x, dtypes=is_complex),
    rounding(
        "reciprocal twice", lambda x: op.Reciprocal(op.Reciprocal(x)), lambda x: x, dtypes=is_float
    ),
    Rule("relu twice", lambda x: op.Relu(op.Relu(x)), op.Relu, dtypes=is_real),
    Rule("relu6 after relu", lambda x: op.Relu6(op.Relu(x)), op.Relu6, dtypes=is_real),
    Rule("absolute value twice", lambda x: op.Abs(op.Abs(x)), op.Abs, dtypes=is_real),
    Rule("absolute value of minus", lambda x: op.Abs(-x), op.Abs, dtypes=is_float),
    Rule("square of minus", lambda x: op.Square(-x), op.Square, dtypes=is_real),
    Rule("square of absolute value", lambda x: op.Square(op.Abs(x)), op.Square, dtypes=is_real),
    Rule("cosine of minus", lambda x: op.Cos(-x), op.Cos, dtypes=is_float),
    Rule("sign twice", lambda x: op.Sign(op.Sign(x)), op.Sign, dtypes=is_real),
    Rule("floor twice", lambda x: op.Floor(op.Floor(x)), op.Floor, dtypes=is_float),
    Rule("ceil twice", lambda x: op.Ceil(op.Ceil(x)), op.Ceil, dtypes=is_float),
    Rule("round twice", lambda x: op.Round(op.Round(x)), op.Round, dtypes=is_float),
    Rule("rint twice", lambda x: op.Rint(op.Rint(x)), op.Rint, dtypes=is_float),
    Rule("not equal", lambda x, y: op.LogicalNot(op.Equal(x, y)), lambda x, y: op.NotEqual(x, y)),
    Rule(
        "not different", lambda x, y: op.LogicalNot(op.NotEqual(x, y)), lambda x, y: op.Equal(x, y)
    ),
    # For a NaN, neither x > y nor x <= y holds: only for integers.
    *(
        Rule(
            f"not {kind}",
            lambda x, y, kind=kind: op.LogicalNot(getattr(op, kind)(x, y)),
            lambda x, y, other=other: getattr(op, other)(x, y),
            lambda match: is_integer(match.bound["x"].dtype),
            is_boolean,
        )
        for kind, other in NEGATED.items()
    ),
)
