"""Rows of the op table: arithmetic, division, and what Python's operators do to tensors."""

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import assert_close, check
from thalweg.ops.math.division import Div, Mod

R = np.random.default_rng(0)
X, Y = R.normal(size=(3, 4)), R.normal(size=(3, 4))
POSITIVE = np.abs(X) + 0.5
C = X[0] + 1j * Y[0]
D = Y[1] - 1j * X[2]
INTEGERS = np.array([[-7, -3, 0], [4, 5, 9]], np.int32)
DIVISORS = np.array([2, -3, 5], np.int32)
EMPTY = np.zeros((0, 3))
HALF = X.astype(np.float16)
BRAIN = X.astype(ml_dtypes.bfloat16)

ROWS = {
    "add": (tf.add, [X, Y], np.add),
    "add broadcast": (tf.add, [X, Y[:, :1]], np.add),
    "add scalar": (lambda x: x + 1.5, [X], lambda x: x + 1.5),
    "add empty": (tf.add, [EMPTY, Y[0, :3]], np.add),
    "add complex": (tf.add, [C, D], np.add),
    "subtract": (tf.subtract, [X, Y[0]], np.subtract),
    "subtract from scalar": (lambda x: 2 - x, [X], lambda x: 2 - x),
    "multiply": (tf.multiply, [X, Y[0]], np.multiply),
    "multiply complex": (tf.multiply, [C, D], np.multiply),
    "scalar_mul": (lambda x: tf.scalar_mul(3.0, x), [X], lambda x: 3 * x),
    "negative": (tf.negative, [X], np.negative),
    "square": (tf.square, [X], np.square),
    "square complex": (tf.square, [C], np.square),
    "squared_difference": (tf.squared_difference, [X, Y[0]], lambda x, y: (x - y) ** 2),
    "abs": (tf.abs, [X], np.abs),
    "abs complex": (tf.abs, [C], np.abs),
    "sign": (tf.sign, [X], np.sign),
    "sign complex": (tf.sign, [C], lambda x: x / np.abs(x)),
    "reciprocal": (tf.reciprocal, [POSITIVE], np.reciprocal),
    "reciprocal complex": (tf.reciprocal, [C], np.reciprocal),
    "maximum": (tf.maximum, [X, Y[0]], np.maximum),
    "minimum": (tf.minimum, [X, Y[:, 1:2]], np.minimum),
    "clip_by_value": (lambda x: tf.clip_by_value(x, -0.5, 0.5), [X], lambda x: x.clip(-0.5, 0.5)),
    "pow": (tf.pow, [POSITIVE, Y[0]], np.power),
    "pow complex": (tf.pow, [C, D], np.power),
    "pow integer": (lambda x: x**3, [INTEGERS], lambda x: x**3),
    "add_n": (lambda *x: tf.add_n(x), [X, Y, X], lambda a, b, c: a + b + c),
    "accumulate_n": (lambda *x: tf.accumulate_n(x), [X, Y, X], lambda a, b, c: a + b + c),
    "cross": (tf.cross, [X[:, :3], Y[:, 1:]], np.cross),
    "truediv": (tf.truediv, [X, POSITIVE[0]], np.divide),
    "truediv complex": (tf.truediv, [C, D], np.divide),
    "truediv integers": (tf.truediv, [INTEGERS, DIVISORS], np.divide),
    "div integers": (tf.div, [INTEGERS, DIVISORS], np.floor_divide),
    "div floats": (tf.div, [X, POSITIVE], np.divide),
    "divide": (tf.divide, [X, POSITIVE], np.divide),
    "realdiv": (tf.realdiv, [X, POSITIVE], np.divide),
    "floordiv": (tf.floordiv, [INTEGERS, DIVISORS], np.floor_divide),
    "floordiv floats": (lambda x, y: x // y, [X, POSITIVE], np.floor_divide),
    "truncatediv": (tf.truncatediv, [INTEGERS, DIVISORS], [[-3, 1, 0], [2, -1, 1]]),
    "floormod": (tf.floormod, [INTEGERS, DIVISORS], np.remainder),
    "floormod floats": (tf.mod, [X, POSITIVE], np.remainder),
    "truncatemod": (tf.truncatemod, [INTEGERS, DIVISORS], np.fmod),
    "truncatemod floats": (tf.truncatemod, [X, POSITIVE], np.fmod),
    "div_no_nan": (tf.div_no_nan, [X, POSITIVE], np.divide),
    "multiply_no_nan": (tf.math.multiply_no_nan, [X, Y[0]], np.multiply),
    "polyval": (lambda x: tf.math.polyval([2.0, -1.0, 3.0], x), [X], lambda x: 2 * x * x - x + 3),
    "add half": (tf.add, [HALF, HALF], np.add),
    "multiply bfloat16": (tf.multiply, [BRAIN, BRAIN], np.multiply),
    "pow bfloat16": (tf.pow, [np.abs(BRAIN), BRAIN], np.power),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    expected = np.array(expect) if isinstance(expect, list) else expect
    smooth = all(np.asarray(i).dtype.kind in "fc" for i in inputs) and inputs[0] is not HALF
    check(build, *inputs, expect=expected, gradient=smooth)


def value(tensor):
    with tf.Session(graph=tensor.graph) as session:
        return session.run(tensor)


def test_guarded_division_gives_zero_at_zero():
    assert_close(value(tf.div_no_nan([1.0, 0.0, 3.0], [0.0, 0.0, 2.0])), [0, 0, 1.5])
    assert_close(value(tf.math.multiply_no_nan([np.inf, 2.0], [0.0, 2.0])), [0, 4])
    assert_close(value(tf.math.reciprocal_no_nan([0.0, 2.0])), [0, 0.5])


@pytest.mark.parametrize("divide", [tf.floordiv, tf.truncatediv, tf.mod, tf.truncatemod, tf.div])
def test_integer_division_by_zero_is_an_error(divide):
    with pytest.raises(tf.errors.InvalidArgumentError, match="Integer division by zero"):
        value(divide(tf.placeholder_with_default([1, 2], [2]), [1, 0]))


def test_negative_integer_powers_are_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError, match="negative integer powers"):
        value(tf.pow(tf.placeholder_with_default([2], [1]), [-1]))


OPERATORS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "truediv": lambda x, y: x / y,
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "pow": lambda x, y: x**y,
}


@pytest.mark.parametrize("symbol", OPERATORS)
def test_operators_take_python_and_numpy_operands_on_both_sides(symbol):
    operate, x = OPERATORS[symbol], np.array([1.0, 2.5, 3.0], np.float32)
    for other in (2.0, np.float32(2), np.array([2.0, 4.0, 5.0], np.float32), [2.0, 4.0, 5.0]):
        plain = np.asarray(other, np.float32)
        assert_close(value(operate(tf.constant(x), other)), operate(x, plain))
        assert_close(value(operate(other, tf.constant(x))), operate(plain, x))


@pytest.mark.parametrize("symbol", OPERATORS)
def test_operators_name_their_nodes_and_refuse_mixed_dtypes(symbol):
    with tf.Graph().as_default():
        x = tf.constant([1.0])
        assert OPERATORS[symbol](x, 2.0).op.name == symbol
        assert OPERATORS[symbol](x, x).op.name == f"{symbol}_1"
        with pytest.raises(TypeError, match=r"float32.*int32"):
            OPERATORS[symbol](x, tf.constant([1]))
        with pytest.raises(TypeError, match=r"Operand y .* float32"):
            OPERATORS[symbol](x, "text")


def test_unary_operators():
    x = np.array([-1.5, 2.0])
    assert_close(value(-tf.constant(x)), -x)
    assert_close(value(abs(tf.constant(x))), abs(x))


def test_sparse_operands_map_their_values():
    sparse = tf.SparseTensor([[0, 1], [2, 0]], [-1.0, 4.0], [3, 2])
    for function, wanted in ((tf.abs, [1, 4]), (tf.negative, [1, -4]), (tf.square, [1, 16])):
        result = function(sparse)
        assert isinstance(result, tf.SparseTensor)
        assert_close(value(result.values), np.array(wanted))


def test_scalar_mul_scales_indexed_slices_and_refuses_vectors():
    slices = tf.IndexedSlices(tf.constant([[1.0, 2.0]]), tf.constant([3]))
    assert_close(value(tf.scalar_mul(2.0, slices).values), [[2, 4]])
    with pytest.raises(ValueError, match="Only scalar multiply"):
        tf.scalar_mul([1.0, 2.0], tf.constant([1.0, 2.0]))


def test_sums_require_equal_shapes_and_dtypes():
    with pytest.raises(ValueError, match="at least one Tensor"):
        tf.add_n([])
    with pytest.raises(ValueError, match=r"float32.*int32"):
        tf.add_n([tf.constant([1.0]), tf.constant([1])])
    with pytest.raises(ValueError):
        tf.add_n([tf.constant([1.0]), tf.constant([1.0, 2.0])])
    with pytest.raises(TypeError, match="tensor_dtype is int32"):
        tf.accumulate_n([tf.constant([1.0])], tensor_dtype=tf.int32)


def test_accumulate_n_takes_a_shape():
    parts = [tf.placeholder(tf.float32), tf.placeholder(tf.float32)]
    assert tf.accumulate_n(parts, shape=[2, 3]).shape.as_list() == [2, 3]


def test_cross_needs_three_vectors():
    with pytest.raises(ValueError):
        tf.cross(X, Y)


def test_incompatible_shapes_are_an_error_at_construction():
    with pytest.raises(ValueError):
        tf.add(tf.zeros([2, 3]), tf.zeros([4]))


def test_divisions_of_old_graphs():
    check(Div(), X, POSITIVE[0], expect=np.divide)
    check(Div(), C, D, expect=np.divide)
    check(Div(), INTEGERS, DIVISORS, expect=np.array([[-3, 1, 0], [2, -1, 1]]), gradient=False)
    check(Mod(), INTEGERS, DIVISORS, expect=np.fmod, gradient=False)
    check(Mod(), X, POSITIVE, expect=np.fmod)


def test_squared_difference_of_complex_numbers_is_their_distance_squared() -> None:
    check(tf.squared_difference, C, D, expect=lambda x, y: np.abs(x - y) ** 2 + 0j, gradient=False)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(C)
        (slope,) = tf.gradients(tf.real(tf.squared_difference(x, D)), [x])
        np.testing.assert_allclose(session.run(slope), 2 * (C - D))
