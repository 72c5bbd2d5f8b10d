"""Rows of the op table: reductions over axes."""

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS, check

R = np.random.default_rng(2)
X = R.normal(size=(2, 3, 2))
ZEROS = np.array([[1.5, 0.0, -2.0], [0.0, 0.0, 3.0], [2.0, 1.0, 0.5]])
TIES = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]])
COMPLEX = R.normal(size=(2, 3)) + 1j * R.normal(size=(2, 3))


def _logsumexp(x: np.ndarray, axis: object = None, keepdims: bool = False) -> np.ndarray:
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


def _norm(x: np.ndarray, axis: object = None, keepdims: bool = False) -> np.ndarray:
    return np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))


PAIRS = {
    "sum": (tf.reduce_sum, np.sum),
    "mean": (tf.reduce_mean, np.mean),
    "prod": (tf.reduce_prod, np.prod),
    "max": (tf.reduce_max, np.max),
    "min": (tf.reduce_min, np.min),
    "logsumexp": (tf.reduce_logsumexp, _logsumexp),
    "euclidean_norm": (tf.math.reduce_euclidean_norm, _norm),
    "variance": (tf.math.reduce_variance, np.var),
    "std": (tf.math.reduce_std, np.std),
}


@pytest.mark.parametrize("axis", [None, 1, -1, (0, 2), (2, 0), ()])
@pytest.mark.parametrize("name", PAIRS)
def test_axes(name: str, axis: object) -> None:
    ours, numpys = PAIRS[name]
    if axis == () and name in ("std", "variance", "euclidean_norm"):
        return  # not smooth at zero
    given = list(axis) if isinstance(axis, tuple) else axis
    check(lambda x: ours(x, given), X, expect=lambda x: numpys(x, axis=axis))


@pytest.mark.parametrize("name", PAIRS)
def test_kept_axes(name: str) -> None:
    ours, numpys = PAIRS[name]
    check(lambda x: ours(x, 1, True), X, expect=lambda x: numpys(x, axis=1, keepdims=True))


ROWS = {
    "axes as a tensor": (
        lambda x, axes: tf.reduce_sum(x, axes),
        [X, np.array([0, 2])],
        lambda x, axes: x.sum((0, 2)),
    ),
    "product by a tensor of axes": (
        lambda x, axes: tf.reduce_prod(x, axes, keepdims=True),
        [X, np.array([2, 0])],
        lambda x, axes: x.prod((0, 2), keepdims=True),
    ),
    "product with zeros": (lambda x: tf.reduce_prod(x, 1), [ZEROS], lambda x: x.prod(1)),
    "sum of complex": (tf.reduce_sum, [COMPLEX], np.sum),
    "mean of complex": (lambda x: tf.reduce_mean(x, 0), [COMPLEX], lambda x: x.mean(0)),
    "product of complex": (lambda x: tf.reduce_prod(x, 1), [COMPLEX], lambda x: x.prod(1)),
    "sum of nothing": (lambda x: tf.reduce_sum(x, 0), [X[:0]], lambda x: x.sum(0)),
    "product of nothing": (lambda x: tf.reduce_prod(x, 0), [X[:0]], lambda x: x.prod(0)),
    "zero-size sum": (lambda x: tf.reduce_sum(x, 1), [X[:0]], lambda x: x.sum(1)),
}


@pytest.mark.parametrize("name", ROWS)
def test_op(name: str) -> None:
    build, inputs, expect = ROWS[name]
    check(build, *inputs, expect=expect)


INTEGERS = np.array([[3, -4, 5], [0, 7, -2]])

WITHOUT_GRADIENT = {
    "all": (lambda x: tf.reduce_all(x, 1), [X > 0], lambda x: np.all(x, 1)),
    "all of nothing": (lambda x: tf.reduce_all([]), [X], np.True_),
    "any": (lambda x: tf.reduce_any(x, [0, 1]), [X > 0], lambda x: np.any(x, (0, 1))),
    "count_nonzero": (
        lambda x: tf.count_nonzero(x, axis=1),
        [ZEROS],
        lambda x: np.count_nonzero(x, axis=1).astype(np.int64),
    ),
    "count_nonzero, int32": (
        lambda x: tf.count_nonzero(x, keepdims=True, dtype=tf.int32),
        [INTEGERS],
        lambda x: np.array([[5]], np.int32),
    ),
    "max of integers": (lambda x: tf.reduce_max(x, 0), [INTEGERS], lambda x: x.max(0)),
    "mean of integers": (tf.reduce_mean, [INTEGERS], lambda x: np.int64(1)),
    "max of nothing": (lambda x: tf.reduce_max(x, 0), [X[:0]], np.full((3, 2), -np.inf)),
    "min of nothing": (
        lambda x: tf.reduce_min(x, 0),
        [INTEGERS[:0]],
        np.full(3, np.iinfo(np.int64).max),
    ),
    "logsumexp of infinities": (
        lambda x: tf.reduce_logsumexp(x, 1),
        [np.array([[-np.inf, -np.inf], [1000.0, 1000.0], [np.inf, 0]])],
        np.array([-np.inf, 1000 + np.log(2), np.inf]),
    ),
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_value(name: str) -> None:
    build, inputs, expect = WITHOUT_GRADIENT[name]
    check(build, *inputs, expect=expect, gradient=False)


@pytest.mark.parametrize("dtype", [*NARROW_FLOATS, np.float32, np.int8, np.uint16])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean"])
def test_dtypes(name: str, dtype: type) -> None:
    ours, numpys = PAIRS[name]
    x = np.array([[1, 2, 3], [2, 0, 4]]).astype(dtype)
    check(lambda x: ours(x, 1), x, expect=lambda x: numpys(x.astype(float), axis=1), gradient=False)


def test_means_of_more_than_a_type_holds() -> None:
    for dtype in NARROW_FLOATS:
        check(tf.reduce_mean, np.full(70_000, 3, dtype), expect=np.float64(3), gradient=False)


@pytest.mark.parametrize(
    "dtype", [*NARROW_FLOATS, "float32", "float64", "int8", "uint64", "complex64"]
)
def test_means_of_nothing(dtype: object) -> None:
    empty = np.zeros((3, 0), dtype)
    nothing = np.full(3, np.nan if tf.as_dtype(empty.dtype).is_floating else 0)
    check(lambda x: tf.reduce_mean(x, 1), empty, expect=nothing.astype(dtype), gradient=False)


def test_sum_of_many_narrow_floats() -> None:
    check(tf.reduce_sum, np.ones(1000, ml_dtypes.bfloat16), expect=np.float64(1000), gradient=False)


def test_ties_share_the_gradient() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(TIES)
        gradient = session.run(tf.gradients(tf.reduce_max(x, 1), x)[0])
    np.testing.assert_allclose(gradient, [[0, 0.5, 0.5], [0.5, 0.5, 0]])


def test_old_spellings() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(X)
        for build in (
            lambda: tf.reduce_sum(x, reduction_indices=[1], keep_dims=True),
            lambda: tf.reduce_sum(x, axis=1, keepdims=True),
            lambda: tf.reduce_sum(x, 1, True),
        ):
            np.testing.assert_allclose(session.run(build()), X.sum(1, keepdims=True))


def test_wrong_arguments() -> None:
    x = tf.zeros([2, 3])
    with pytest.raises(ValueError, match="Invalid reduction dimension 2"):
        tf.reduce_sum(x, 2)
    with pytest.raises(ValueError, match="both axis and reduction_indices"):
        tf.reduce_max(x, 0, reduction_indices=1)
    with pytest.raises(ValueError, match="both 'keep_dims' and 'keepdims'"):
        tf.reduce_mean(x, keep_dims=True, keepdims=True)
    with pytest.raises((TypeError, ValueError), match="float32"):
        tf.reduce_all(x)
    with pytest.raises(ValueError, match="must be at most rank 1"):
        tf.reduce_sum(x, [[0], [1]])
    with pytest.raises(TypeError, match="floating or complex"):
        tf.math.reduce_variance([1, 2])


def test_length_of_complex_and_whole_numbers() -> None:
    norm = tf.math.reduce_euclidean_norm
    c = np.array([[3.0 + 4.0j, 12.0j], [1.0, 0.0]])
    check(lambda x: norm(x, 1), c, expect=np.array([13.0 + 0j, 1.0]), gradient=False)
    whole = np.array([[3, 4], [5, -5]], np.int32)
    check(lambda x: norm(x, 1), whole, expect=np.array([5, 7], np.int32), gradient=False)


def test_all_axes_of_an_unknown_rank_leave_a_scalar() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32)
        for reduced in (tf.reduce_sum(x), tf.reduce_logsumexp(x), tf.count_nonzero(x)):
            assert reduced.shape.as_list() == []
        assert tf.reduce_sum(x, keepdims=True).shape.rank is None
