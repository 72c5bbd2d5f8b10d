"""The error function by polynomials.

In float32, erf x = x + x·P(x²) where |x| < 1, and 1 - 2^(t·Q(t)) with t = |x| elsewhere. In double,
the latter is an expansion of exp(x²) erfc(x). Polynomials are minimax.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from thalweg.ir.functions.exponential import LN2, SINGLE, exponential, format_of
from thalweg.ir.functions.register import Register

#: erf(x) / x - 1 for |x| < 1, in powers of x².
_NEAR_SINGLE = (
    0.12837912142276764,
    -0.37612324953079224,
    0.11280179768800735,
    -0.02671130932867527,
    0.004917549435049295,
    -0.0005631414242088795,
)
#: log2(erfc(t)) / t for 1 <= t < 4. The last one is negative, so that erfc goes to 0 beyond.
_FAR_SINGLE = (
    -1.6256965398788452,
    -0.9255009293556213,
    -0.14050821959972382,
    0.02548515610396862,
    -0.0021955561824142933,
)

#: erf(x) / x - 1 for |x| < 1, in powers of x², of doubles.
NEAR = (
    0.12837916709551256,
    -0.37612638903183543,
    0.11283791670945043,
    -0.02686617064324478,
    0.0052239776071780165,
    -0.0008548325978393123,
    0.00012055294993983928,
    -1.4924738584918961e-05,
    1.6447444826773815e-06,
    -1.6208632954336863e-07,
    1.3720687113383235e-08,
    -7.79701812253727e-10,
)
#: exp(x²) erfc(x) for x in [1, 28], in powers of u = FAR_SCALE / (3 + x) - FAR_SHIFT.
FAR = (
    0.1342775375361851,
    0.17021428983342501,
    0.07930430128308434,
    0.031106875976440466,
    0.009931937544776316,
    0.0024066366975871996,
    0.00036175658054928185,
    -1.9767074302491553e-06,
    -1.5797234975923526e-05,
    -2.6313298603564933e-06,
    4.638785509397854e-07,
    2.0609753019931541e-07,
    -1.0664440236233234e-08,
    -1.4450464206485499e-08,
    1.3688713895626977e-10,
    1.039071402368149e-09,
    -6.063795494797211e-13,
    -6.050308115947529e-11,
)
FAR_SCALE, FAR_SHIFT = 9.185185185185185, 1.2962962962962963
FAR_END = 28.0  # where both erfc and exp(-x²) are 0

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Any) -> Any:
    """The error function of an array."""
    given = np.asarray(x)
    return np.asarray(_erf(given.astype(np.float64))).astype(given.dtype)


def error_function(x: Register) -> Register:
    """2/√π ∫₀ˣ exp(-t²) dt"""
    size = x.absolute()
    near, far = (_NEAR_SINGLE, _far) if format_of(x) is SINGLE else (NEAR, _far_double)
    inside = (x * x).polynomial(near).fused(x, x)
    return (size < 1.0).choose(inside, (1.0 - far(size)).with_sign(x))


def _far(size: Register) -> Register:
    exponent = size.polynomial(_FAR_SINGLE) * size
    if "normal_exp2" in size.approximations:
        return exponent.approximated("normal_exp2")
    return exponential(exponent * LN2)


def _far_double(size: Register) -> Register:
    end = (size.like(FAR_END) < size).choose(size.like(FAR_END), size)
    scaled = (FAR_SCALE / (end + 3.0) - FAR_SHIFT).polynomial(FAR)
    return exponential(-(end * end)) * scaled
