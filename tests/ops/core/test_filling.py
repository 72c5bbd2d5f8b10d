"""Rows of the op table: fills, zeros and ones, ranges, grids and sequence masks."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check


def value_of(tensor: Any) -> Any:
    with tf.Session() as session:
        return session.run(tensor)


def test_fill() -> None:
    check(lambda v: tf.fill([2, 3], v), np.array(1.5), expect=np.full((2, 3), 1.5))
    check(lambda v: tf.fill([], v), np.array(1.5), expect=np.array(1.5))
    check(tf.fill, np.array([2, 0], np.int64), np.array(1.5), expect=np.zeros((2, 0)))
    assert value_of(tf.fill([2], "a")).tolist() == [b"a", b"a"]


def test_fill_wrong() -> None:
    with pytest.raises(ValueError, match=">= 0"):
        tf.fill([-1], 1)
    with pytest.raises(ValueError, match="rank 0"):
        tf.fill([2], [1, 2])
    with pytest.raises(ValueError, match="rank 1"):
        tf.fill([[2]], 1)
    dims = tf.placeholder(tf.int32, [1])
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=">= 0"):
        session.run(tf.fill(dims, 1), {dims: [-1]})


DTYPES = [tf.float32, tf.float16, tf.float8_e4m3fn, tf.int8, tf.uint64, tf.complex64, tf.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [[], [2, 0], [3], [40, 40]])
def test_zeros_and_ones(dtype: tf.DType, shape: list[int]) -> None:
    kind = dtype.as_numpy_dtype
    for make, expected in ((tf.zeros, np.zeros(shape, kind)), (tf.ones, np.ones(shape, kind))):
        for given in (shape, tf.constant(shape, tf.int32)):
            tensor = make(given, dtype)
            result = np.asarray(value_of(tensor))
            assert tensor.shape.as_list() == shape and result.dtype == kind
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [None, tf.int32, tf.bool])
def test_like(dtype: tf.DType | None) -> None:
    x = np.array([[1.5, 2.5]])
    for make, wanted in ((tf.zeros_like, 0), (tf.ones_like, 1)):
        check(
            lambda v, make=make: make(v, dtype), x, expect=np.full((1, 2), wanted), gradient=False
        )
        check(
            lambda v, make=make: make(v, dtype, optimize=False),
            x,
            expect=np.full((1, 2), wanted),
            gradient=False,
        )


def test_zeros_of_strings() -> None:
    assert value_of(tf.zeros([2], tf.string)).tolist() == [b"", b""]
    assert value_of(tf.zeros_like(tf.placeholder_with_default(["a"], [None]))).tolist() == [b""]


RANGES: dict[str, tuple[Any, ...]] = {
    "count": (5,),
    "bounds": (2, 6),
    "step": (1, 10, 3),
    "down": (5, -1, -2),
    "nothing": (3, 3),
    "floats": (0.0, 1.0, 0.25),
    "int64": (np.int64(1), np.int64(4), np.int64(1)),
}


@pytest.mark.parametrize("name", RANGES)
def test_range(name: str) -> None:
    bounds = RANGES[name]
    tensor = tf.range(*bounds)
    expected = np.arange(*bounds)
    np.testing.assert_allclose(value_of(tensor), expected)
    assert tensor.shape.as_list() == [len(expected)]
    check(lambda: tf.range(*bounds), expect=expected, gradient=False)


def test_range_dtypes() -> None:
    assert tf.range(3).dtype == tf.int32
    assert tf.range(0, 3.0).dtype == tf.float32
    assert tf.range(tf.constant(3, tf.int64)).dtype == tf.int64
    assert tf.range(3, dtype=tf.float64).dtype == tf.float64
    limit = tf.placeholder(tf.int32, [])
    assert tf.range(limit).shape.as_list() == [None]


def test_range_wrong() -> None:
    with pytest.raises(ValueError, match="delta != 0"):
        tf.range(0, 3, 0)
    with pytest.raises(ValueError, match="start <= limit when delta > 0: 3/0"):
        tf.range(3, 0)
    with pytest.raises(ValueError, match="rank 0"):
        tf.range([1, 2])


def test_lin_space() -> None:
    check(
        lambda a, b: tf.linspace(a, b, 5),
        *(np.float32(1), np.float32(2)),
        expect=np.linspace(1, 2, 5),
        gradient=False,
    )
    check(lambda: tf.lin_space(3.0, 9.0, 1), expect=np.array([3.0]), gradient=False)
    with pytest.raises(ValueError, match="num > 0: 0"):
        tf.linspace(0.0, 1.0, 0)


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_meshgrid(indexing: Any, count: int) -> None:
    vectors = [np.arange(2.0), np.arange(3.0) + 5, np.arange(4.0) - 1][:count]
    check(
        lambda *v: tf.meshgrid(*v, indexing=indexing),
        *vectors,
        expect=lambda *v: list(np.meshgrid(*v, indexing=indexing)),
    )


def test_meshgrid_wrong() -> None:
    with pytest.raises(ValueError, match="either 'xy' or 'ij'"):
        tf.meshgrid([1], indexing="yx")
    with pytest.raises(TypeError, match="invalid keyword argument"):
        tf.meshgrid([1], order="ij")


@pytest.mark.parametrize("lengths", [[1, 3, 0], [[2], [1]], 2])
@pytest.mark.parametrize("longest", [None, 4])
def test_sequence_mask(lengths: Any, longest: int | None) -> None:
    sizes = np.array(lengths, np.int64)
    count = sizes.max() if longest is None else longest
    check(
        lambda n: tf.sequence_mask(n, longest, tf.float32),
        sizes,
        expect=(np.arange(count) < sizes[..., None]).astype(np.float32),
        gradient=False,
    )


def test_sequence_mask_wrong() -> None:
    with pytest.raises(ValueError, match="maxlen must be scalar"):
        tf.sequence_mask([1], [1, 2])
