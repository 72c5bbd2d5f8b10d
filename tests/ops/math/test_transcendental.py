"""Rows of the op table: exponentials, roots, trigonometry, rounding and complex numbers."""

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS, assert_close, check, rounding

R = np.random.default_rng(1)
X = R.uniform(-0.9, 0.9, size=(3, 5))
Y = R.uniform(-0.9, 0.9, size=(3, 5))
POSITIVE = R.uniform(0.3, 3, size=(2, 3))
ABOVE_ONE = POSITIVE + 1
C = X[0] + 1j * R.uniform(0.2, 1, size=5)
EMPTY = np.zeros((0, 2))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


EVERYWHERE = {
    "exp": np.exp,
    "expm1": np.expm1,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "atanh": np.arctanh,
    "log1p": np.log1p,
    "sigmoid": sigmoid,
}
POSITIVE_ONLY = {"log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x)}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_function(name):
    function = getattr(tf, name)
    check(function, X, expect=EVERYWHERE[name])
    check(function, C, expect=EVERYWHERE[name])
    check(function, EMPTY, expect=EVERYWHERE[name])
    check(function, X.astype(np.float32), expect=EVERYWHERE[name], gradient=False)


@pytest.mark.parametrize("name", POSITIVE_ONLY)
def test_function_of_positive_numbers(name):
    check(getattr(tf, name), POSITIVE, expect=POSITIVE_ONLY[name])
    check(getattr(tf, name), C, expect=POSITIVE_ONLY[name])


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal"])
def test_loops_of_gradients(name):
    function = getattr(tf, name)
    check(lambda x: tf.gradients(function(x), x)[0], POSITIVE, gradient=False)


def test_acosh():
    check(tf.acosh, ABOVE_ONE, expect=np.arccosh)


def test_atan2():
    check(tf.atan2, X, Y, expect=np.arctan2)
    check(tf.atan2, X, Y[:, :1], expect=np.arctan2)


@pytest.mark.parametrize("name", [*EVERYWHERE, *POSITIVE_ONLY])
@pytest.mark.parametrize("kind", NARROW_FLOATS)
def test_narrow_floats_keep_their_dtype(name, kind):
    formula = (EVERYWHERE | POSITIVE_ONLY)[name]
    x = np.array([0.25, 0.5, 0.75], kind)
    check(
        getattr(tf, name),
        x,
        expect=formula(x.astype(float)),
        rtol=2 * rounding(kind),
        gradient=False,
    )


def test_xlogy_and_xdivy_are_zero_where_x_is():
    check(tf.math.xlogy, X, POSITIVE[0, 0:1] * np.ones((3, 1)), expect=lambda x, y: x * np.log(y))
    check(tf.math.xdivy, X, POSITIVE[0, 0:1] * np.ones((3, 1)), expect=np.divide)
    with tf.Session() as session:
        zero = tf.constant([0.0, 0.0])
        assert_close(session.run(tf.math.xlogy(zero, [0.0, np.nan])), [0, 0])
        assert_close(session.run(tf.math.xdivy(zero, [0.0, np.nan])), [0, 0])


def test_names_of_networks_are_the_same_functions():
    assert tf.nn.sigmoid is tf.sigmoid is tf.math.sigmoid
    assert tf.nn.tanh is tf.tanh is tf.math.tanh


ROUNDED = np.array([-2.5, -1.5, -0.4, 0.0, 0.5, 1.5, 2.5, 3.7])


@pytest.mark.parametrize(
    ("name", "formula"),
    [("floor", np.floor), ("ceil", np.ceil), ("rint", np.rint), ("round", np.round)],
)
def test_rounding(name, formula):
    check(getattr(tf, name), ROUNDED, expect=formula, gradient=False)
    check(getattr(tf, name), ROUNDED.astype(ml_dtypes.bfloat16), gradient=False)


def test_round_leaves_integers_alone():
    x = tf.constant([1, 2])
    assert tf.round(x) is x


def test_nextafter():
    check(tf.math.nextafter, X, Y, expect=np.nextafter)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_nextafter_at_the_ends(kind):
    largest = np.finfo(kind).max
    x = np.array([0, -0.0, np.inf, -largest, 1, 1, np.nan, 5, np.inf], kind)[:, None]
    y = np.array([0, 1, -1, np.inf, -np.inf, np.nan], kind)
    check(tf.math.nextafter, x, y, gradient=False)
    bits = np.int32 if kind is np.float32 else np.int64
    check(lambda x, y: tf.bitcast(tf.math.nextafter(x, y), bits), x, y[:4], gradient=False)


def test_infinite_parts():
    part = np.array([1.0, np.inf, -np.inf, np.nan])
    expected = np.empty(4, complex)
    expected.real, expected.imag = part[::-1], part
    check(tf.complex, part[::-1].copy(), part, expect=expected, gradient=False)


def test_complex_parts():
    check(tf.complex, X, Y, expect=lambda x, y: x + 1j * y)
    check(tf.complex, X, Y[:, :1], expect=lambda x, y: x + 1j * y)
    check(tf.real, C, expect=np.real)
    check(tf.imag, C, expect=np.imag)
    check(tf.conj, C, expect=np.conj)
    check(tf.angle, C, expect=np.angle)
    check(tf.real, C.astype(np.complex64), expect=np.real, gradient=False)


def test_parts_of_real_tensors():
    x = tf.constant([1.0, -2.0])
    assert tf.real(x) is x and tf.conj(x) is x
    with tf.Session() as session:
        assert_close(session.run([tf.imag(x), tf.angle(x)]), [[0, 0], [0, 0]])


def test_complex_numbers_need_floats_of_one_width():
    with pytest.raises(TypeError, match="incorrect types: float32 float64"):
        tf.complex(np.float32(1), np.float64(1))
    with pytest.raises(TypeError, match="incorrect types: int32 int32"):
        tf.complex(1, 1)
    with pytest.raises(TypeError, match="numeric"):
        tf.conj(tf.constant("text"))
