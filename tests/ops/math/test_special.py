"""Rows of the op table: special functions, held to SciPy's."""

import numpy as np
import pytest
import scipy.special as oracle

import thalweg as tf
from tests.ops.harness import assert_close, check
from thalweg.ops.math import special_math
from thalweg.ops.math.special import IgammaGradA

R = np.random.default_rng(2)
X = np.array([[-3.2, -1.4, -0.6, 0.3], [0.9, 1.1, 2.6, 7.5]])
POSITIVE = R.uniform(0.2, 4, size=(2, 3))
OTHER = R.uniform(0.3, 5, size=(2, 3))
UNIT = R.uniform(0.1, 0.9, size=(2, 3))


def lbeta(x):
    return oracle.gammaln(x).sum(-1) - oracle.gammaln(x.sum(-1))


UNARY = {
    "erf": (tf.erf, oracle.erf, X),
    "erfc": (tf.erfc, oracle.erfc, X),
    "lgamma": (tf.lgamma, oracle.gammaln, X),
    "digamma": (tf.digamma, oracle.psi, X),
    "bessel_i0e": (tf.math.bessel_i0e, oracle.i0e, X),
    "bessel_i1e": (tf.math.bessel_i1e, oracle.i1e, X),
    "bessel_i0": (tf.math.bessel_i0, oracle.i0, X),
    "bessel_i1": (tf.math.bessel_i1, oracle.i1, X),
    "lbeta": (tf.lbeta, lbeta, POSITIVE),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    function, formula, x = UNARY[name]
    check(function, x, expect=formula, rtol=1e-10, atol=1e-13)
    check(function, x.astype(np.float32), expect=formula, rtol=1e-5, gradient=False)


def test_short_floats():
    short = X.astype(np.float16)
    for function, formula in ((tf.erf, oracle.erf), (tf.erfc, oracle.erfc)):
        with tf.Session() as session:
            result = session.run(function(short))
        assert result.dtype == np.float16
        assert_close(result, formula(short.astype(float)), rtol=1e-3, atol=1e-3)


def test_zeta_and_polygamma():
    check(tf.zeta, POSITIVE + 1.5, OTHER, expect=oracle.zeta, gradient=[1])
    order = np.array([[0.0, 1, 2], [3, 4, 1]])
    check(tf.polygamma, order, POSITIVE, expect=oracle.polygamma, gradient=[1])


def test_incomplete_gamma():
    check(tf.igamma, POSITIVE, OTHER, expect=oracle.gammainc, second=False)
    check(tf.igamma, POSITIVE, OTHER, gradient=[1], second=True)
    check(tf.igammac, POSITIVE, OTHER, expect=oracle.gammaincc, second=False)
    check(tf.igamma, np.float64(2.0), OTHER, expect=oracle.gammainc, gradient=[1])


def test_incomplete_beta():
    check(tf.betainc, POSITIVE, OTHER, UNIT, expect=oracle.betainc, gradient=[2])
    check(tf.betainc, np.float64(2), np.float64(3), UNIT, expect=oracle.betainc, gradient=[2])
    with pytest.raises(ValueError):
        tf.betainc(np.ones((2, 2)), np.ones(3), np.ones((2, 2)))


def close(actual, wanted):
    assert_close(actual, wanted, rtol=1e-10, atol=1e-12)


def test_wide_ranges():
    with np.errstate(all="ignore"):
        x = np.concatenate([np.linspace(-30, 30, 241), [1e-12, 1e6, np.nan, np.inf, -np.inf]])
        close(special_math.erf(x), oracle.erf(x))
        close(special_math.erfc(x), oracle.erfc(x))
        close(special_math.lgamma(x[:-1]), oracle.gammaln(x[:-1]))
        off_pole = x[x != 0][:-1]
        close(special_math.digamma(off_pole), oracle.psi(off_pole))
        close(special_math.bessel_i0e(x[:-3]), oracle.i0e(x[:-3]))
        a, b = 10 ** R.uniform(-2, 3, 200), 10 ** R.uniform(-2, 3, 200)
        close(special_math.igamma(a, b), oracle.gammainc(a, b))
        close(special_math.betainc(a, b, a / (a + b)), oracle.betainc(a, b, a / (a + b)))
        close(special_math.zeta(b + 1.01, a), oracle.zeta(b + 1.01, a))


def test_outside_their_domains():
    with np.errstate(all="ignore"):
        assert np.isnan(special_math.igamma([-1.0, 1.0], [1.0, -1.0])).all()
        assert special_math.igamma(1.0, np.inf) == 1 and special_math.igammac(2.0, 0.0) == 1
        assert np.isnan(special_math.betainc(1.0, 2.0, [-0.5, 1.5])).all()
        for a, b in ((0.0, 1.5), (1.5, 0.0), (0.0, 0.0), (-1.0, 1.0)):
            assert np.isnan(special_math.betainc(a, b, [0.0, 0.5, 1.0])).all()
        assert np.isnan(special_math.zeta(0.5, 1.0)) and special_math.zeta(1.0, 1.0) == np.inf
        assert special_math.zeta(2.0, -3.0) == np.inf
        assert np.isnan(special_math.polygamma(1.5, 1.0))
        assert special_math.lgamma(-3.0) == np.inf


def test_second_derivatives_of_incomplete_gamma():
    check(tf.igammac, POSITIVE, OTHER, gradient=[1])
    slope = IgammaGradA()
    check(lambda x: slope(POSITIVE, x), OTHER)
    with tf.Graph().as_default():
        a = tf.constant(POSITIVE)
        (slope_in_a,) = tf.gradients(tf.igamma(a, OTHER), a)
        with pytest.raises(LookupError, match="second derivative of igamma"):
            tf.gradients(slope_in_a, a)


def test_bessel_functions_keep_their_digits_near_zero():
    x = 10.0 ** np.linspace(-12, 1, 40)
    with tf.Session() as session:
        for ours, theirs in ((tf.math.bessel_i0e, oracle.i0e), (tf.math.bessel_i1e, oracle.i1e)):
            np.testing.assert_allclose(session.run(ours(x)), theirs(x), rtol=4e-15)


def test_erfc_keeps_its_digits_where_erf_nears_one():
    x = np.linspace(0.5, 6, 200)
    np.testing.assert_allclose(special_math.erfc(x), oracle.erfc(x), rtol=6e-15)


@pytest.mark.parametrize(
    ("x", "exact"),
    [
        (1.459053775040531, -0.12148307146476743),
        (1.5, -0.12078223763524522),
        (2.5, 0.2846828704729192),
        (1 + 2.0**-30, -5.37573978431104446e-10),
        (2 - 2.0**-40, -3.84520112764379389e-13),
        (1e-200, 460.517018598809137),
        (9.75, 12.2422049400507626),
    ],
)
def test_lgamma_is_exact_where_it_is_small(x: float, exact: float) -> None:
    assert special_math.lgamma(x) == pytest.approx(exact, rel=1e-15, abs=0)
