"""The table of scalar functions of expressions: one row each, and the only list of them.

A new function is a row here, with its formula, and the op block that calls it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from thalweg.ir.functions import (
    arithmetic,
    conversion,
    division,
    error,
    exponential,
    integers,
    power,
    trigonometry,
)
from thalweg.ir.functions.arithmetic import (
    classification,
    extreme,
    float_or_integer,
    formula,
    instruction,
    rounding,
)
from thalweg.ir.functions.dtypes import of_common, of_complex, of_component, of_truths
from thalweg.ir.functions.function import Approximation, Comparison, Function
from thalweg.ir.functions.register import Register


def _comparison(name: str, numpy: Any, floating: str, holds: str) -> Function:
    """A comparison that holds for any of the relations `<`, `=` and `>` of its two sides."""
    where = Comparison("<" in holds, "=" in holds, ">" in holds)
    return Function(name, numpy, arithmetic.comparison(name, floating, where), comparison=where)


#: Mantissa bits of the formats that approximations serve. `div`: a quotient of bfloat16 numbers is
#: never within two float32 ulps, the error, of a rounding boundary. `tanh`: the error of 2⁻¹¹ is an
#: eighth of a bfloat16 ulp. The errors of the others are below the rounding of float16, too.
_BFLOAT16, _FLOAT16 = 7, 10


_ROWS = (
    Function("add", np.add, instruction("add", "fadd", "or")),
    Function("sub", np.subtract, instruction("sub", "fsub", "xor")),
    Function("mul", np.multiply, instruction("mul", "fmul", "and")),
    Function(
        "div",
        np.divide,
        instruction("", "fdiv"),
        cost=4,
        narrow=Approximation("div", _BFLOAT16, cost=2, exact_cost=12),
    ),
    Function(
        "floor_div",
        np.floor_divide,
        float_or_integer(division.floor_division, integers.floor_division),
        cost=8,
        divides=True,
    ),
    Function(
        "remainder",
        np.remainder,
        float_or_integer(division.remainder, integers.remainder),
        cost=8,
        divides=True,
    ),
    Function(
        "truncated_remainder",
        np.fmod,
        float_or_integer(division.truncated_remainder, integers.truncated_remainder),
        cost=8,
        divides=True,
    ),
    Function("max", np.maximum, extreme("max", "ogt", "or")),
    Function("min", np.minimum, extreme("min", "olt", "and")),
    Function("neg", np.negative, formula(Register.__neg__)),
    Function("abs", np.abs, arithmetic.absolute),
    Function("sign", np.sign, arithmetic.sign),
    Function("floor", np.floor, rounding("floor")),
    Function("ceil", np.ceil, rounding("ceil")),
    Function("rint", np.rint, rounding("rint")),
    Function("trunc", np.trunc, rounding("trunc")),
    Function(
        "sqrt",
        np.sqrt,
        formula(Register.square_root),
        cost=5,
        ulps=0.51,
        narrow=Approximation("sqrt", _FLOAT16, cost=2, exact_cost=12),
    ),
    # Exponentials and logarithms
    Function("pow", np.power, float_or_integer(power.power, integers.power), cost=40, ulps=1.1),
    Function(
        "exp",
        np.exp,
        formula(exponential.exponential),
        cost=12,
        ulps=1.1,
        narrow=Approximation("exp2", _FLOAT16, exponential.near_exponential, cost=2),
    ),
    Function("expm1", np.expm1, formula(exponential.exponential_minus_one), cost=20, ulps=2),
    Function("log", np.log, formula(exponential.logarithm), cost=14, ulps=1.1),
    Function("log1p", np.log1p, formula(exponential.logarithm_plus_one), cost=20, ulps=1.6),
    Function("sinh", np.sinh, formula(exponential.hyperbolic_sine), cost=25, ulps=2.5),
    Function("cosh", np.cosh, formula(exponential.hyperbolic_cosine), cost=25, ulps=1.7),
    Function(
        "tanh",
        np.tanh,
        formula(exponential.hyperbolic_tangent),
        cost=18,
        ulps=2.6,
        narrow=Approximation("tanh", _BFLOAT16),
    ),
    Function("asinh", np.arcsinh, formula(exponential.inverse_hyperbolic_sine), cost=30, ulps=2.1),
    Function(
        "acosh", np.arccosh, formula(exponential.inverse_hyperbolic_cosine), cost=30, ulps=2.1
    ),
    Function("atanh", np.arctanh, formula(exponential.inverse_hyperbolic_tangent), cost=30, ulps=2),
    Function("erf", error.erf, formula(error.error_function), of_common, cost=20, ulps=3),
    # Circular functions
    Function("sin", np.sin, formula(trigonometry.sine), cost=20, ulps=1.6),
    Function("cos", np.cos, formula(trigonometry.cosine), cost=20, ulps=1.6),
    Function("tan", np.tan, formula(trigonometry.tangent), cost=25, ulps=3),
    Function("asin", np.arcsin, formula(trigonometry.arcsine), cost=25, ulps=2.6),
    Function("acos", np.arccos, formula(trigonometry.arccosine), cost=25, ulps=1.6),
    Function("atan", np.arctan, formula(trigonometry.arctangent), cost=25, ulps=2.5),
    Function("atan2", np.arctan2, formula(trigonometry.arctangent_of_quotient), cost=30, ulps=2.5),
    # Comparisons and logic
    _comparison("lt", np.less, "olt", "<"),
    _comparison("le", np.less_equal, "ole", "<="),
    _comparison("gt", np.greater, "ogt", ">"),
    _comparison("ge", np.greater_equal, "oge", ">="),
    _comparison("eq", np.equal, "oeq", "="),
    _comparison("ne", np.not_equal, "une", "<>"),
    Function("and", np.logical_and, instruction("and"), of_truths),
    Function("or", np.logical_or, instruction("or"), of_truths),
    Function("xor", np.logical_xor, instruction("xor"), of_truths),
    Function("not", np.logical_not, formula(Register.__invert__), of_truths),
    Function("is_nan", np.isnan, classification(Register.is_nan, False)),
    Function("is_inf", np.isinf, classification(lambda x: x.absolute().equals(math.inf), False)),
    Function("is_finite", np.isfinite, classification(lambda x: x.absolute() < math.inf, True)),
    # Bits
    Function("bit_and", np.bitwise_and, instruction("and"), cost=0.5),
    Function("bit_or", np.bitwise_or, instruction("or")),
    Function("bit_xor", np.bitwise_xor, instruction("xor")),
    Function("bit_not", np.invert, formula(Register.__invert__)),
    Function("shift_left", np.left_shift, integers.shift_left),
    Function("shift_right", np.right_shift, integers.shift_right),
    # Complex numbers, which are not compiled
    Function("complex", conversion.complex_number, dtypes=of_complex),
    Function("conj", np.conj, arithmetic.unchanged),
    Function("real", np.real, arithmetic.unchanged, of_component),
    Function("imag", np.imag, arithmetic.zero, of_component),
    # Special forms
    Function("select", np.where, dtypes=of_common),
    Function("cast", conversion.cast),
    Function("bitcast", conversion.bitcast),
)

#: Every function by its name.
FUNCTIONS: dict[str, Function] = {row.name: row for row in _ROWS}
