"""Rules for finite numbers: zero absorbs, inverse functions cancel, comparisons are negated.

They may hide a NaN or an infinity that the program would compute, so they run only if
`arithmetic_optimization` is AGGRESSIVE.
"""

from __future__ import annotations

from thalweg.optimize.facts import is_boolean, is_float
from thalweg.optimize.pattern import op
from thalweg.optimize.rule import Exactness, rule
from thalweg.optimize.rules.involutions import NEGATED
from thalweg.optimize.rules.neutral import keeps_shape

FINITE = Exactness.FINITE

_X = keeps_shape("x")

RULES = (
    rule("multiply by zero", FINITE, lambda x: x * 0, op.ZerosLike, _X, is_float),
    rule("zero divided", FINITE, lambda x: 0 / x, op.ZerosLike, _X, is_float),
    rule("difference to itself", FINITE, lambda x: x - x, op.ZerosLike, dtypes=is_float),
    rule("divide by itself", FINITE, lambda x: x / x, op.OnesLike, dtypes=is_float),
    rule(
        "multiply by the reciprocal", FINITE, lambda x, y: x * op.Reciprocal(y), lambda x, y: x / y
    ),
    rule("exponential of a logarithm", FINITE, lambda x: op.Exp(op.Log(x)), lambda x: x),
    rule("logarithm of an exponential", FINITE, lambda x: op.Log(op.Exp(x)), lambda x: x),
    rule("square of a root", FINITE, lambda x: op.Square(op.Sqrt(x)), lambda x: x, dtypes=is_float),
    rule("root of a square", FINITE, lambda x: op.Sqrt(op.Square(x)), op.Abs, dtypes=is_float),
    rule(
        "product of exponentials",
        FINITE,
        lambda x, y: op.Exp(x) * op.Exp(y),
        lambda x, y: op.Exp(x + y),
        dtypes=is_float,
        single_use=True,
    ),
    *(
        rule(
            f"not {kind} of floats",
            FINITE,
            lambda x, y, kind=kind: op.LogicalNot(getattr(op, kind)(x, y)),
            lambda x, y, other=other: getattr(op, other)(x, y),
            lambda match: is_float(match.bound["x"].dtype),
            is_boolean,
        )
        for kind, other in NEGATED.items()
    ),
)
