"""Rules for finite numbers: zero absorbs, inverse functions cancel, comparisons are negated.

They may hide a NaN or an infinity that the program would compute, so they run only if
`arithmetic_optimization` is AGGRESSIVE.
"""

from __future__ import annotations

from thalweg.optimize.facts import is_boolean, is_float
from thalweg.optimize.pattern import op
from thalweg.optimize.rule import finite
from thalweg.optimize.rules.involutions import NEGATED
from thalweg.optimize.rules.neutral import keeps_shape

_X = keeps_shape("x")

RULES = (
    finite("multiply by zero", lambda x: x * 0, op.ZerosLike, _X, is_float),
    finite("zero divided", lambda x: 0 / x, op.ZerosLike, _X, is_float),
    finite("difference to itself", lambda x: x - x, op.ZerosLike, dtypes=is_float),
    finite("divide by itself", lambda x: x / x, op.OnesLike, dtypes=is_float),
    finite("multiply by the reciprocal", lambda x, y: x * op.Reciprocal(y), lambda x, y: x / y),
    finite("exponential of a logarithm", lambda x: op.Exp(op.Log(x)), lambda x: x),
    finite(
        "logarithm of an exponential", lambda x: op.Log(op.Exp(x)), lambda x: x, dtypes=is_float
    ),
    finite("square of a root", lambda x: op.Square(op.Sqrt(x)), lambda x: x, dtypes=is_float),
    finite("root of a square", lambda x: op.Sqrt(op.Square(x)), op.Abs, dtypes=is_float),
    finite(
        "product of exponentials",
        lambda x, y: op.Exp(x) * op.Exp(y),
        lambda x, y: op.Exp(x + y),
        dtypes=is_float,
        single_use=True,
    ),
    *(
        finite(
            f"not {kind} of floats",
            lambda x, y, kind=kind: op.LogicalNot(getattr(op, kind)(x, y)),
            lambda x, y, other=other: getattr(op, other)(x, y),
            lambda match: is_float(match.bound["x"].dtype),
            is_boolean,
        )
        for kind, other in NEGATED.items()
    ),
)
