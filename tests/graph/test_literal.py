"""Python and NumPy values as arrays: dtypes chosen, values refused."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.graph import literal
from thalweg.graph.literal import make_array


@pytest.fixture(autouse=True)
def as_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of old are given integers that wrap, for good: other tests may run some here."""
    monkeypatch.setattr(literal, "_integers_wrap", False)


CHOSEN: dict[str, Any] = {
    "int": (1, np.int32),
    "large int": (2**40, np.int64),
    "float": (1.5, np.float32),
    "complex": (1j, np.complex128),
    "bool": (True, np.bool_),
    "str": ("a", np.object_),
    "bytes": ([b"a", "b"], np.object_),
    "empty": ([], np.float32),
    "mixed numbers": ([1, 2.5], np.float32),
    "range": (range(3), np.int32),
    "numpy scalar": (np.float64(1), np.float64),
    "array": (np.zeros(2, np.int64), np.int64),
    "list of arrays": ([np.zeros(2), np.ones(2)], np.float32),
    "array of text": (np.array(["a", "bc"]), np.object_),
    "shape": (tf.TensorShape([2, 3]), np.int32),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_dtype(name: str) -> None:
    value, expected = CHOSEN[name]
    assert make_array(value).dtype == expected


GIVEN: dict[str, Any] = {
    "int as float": (1, tf.float64, 1.0),
    "int as half": ([1, 2], tf.float16, [1, 2]),
    "int as bfloat16": ([1, 2], tf.bfloat16, [1, 2]),
    "float as complex": (1.5, tf.complex64, 1.5),
    "text": (["a"], tf.string, [b"a"]),
    "array of another dtype": (np.array([1.5]), tf.int32, [1]),
    "reference": ([1], tf.float32_ref, [1]),
    "dimension": (tf.Dimension(3), tf.int64, 3),
    "quantized": ([(1,), (2,)], tf.qint8, [([1],), ([2],)]),
}


@pytest.mark.parametrize("name", GIVEN)
def test_given_dtype(name: str) -> None:
    value, dtype, wanted = GIVEN[name]
    array = make_array(value, dtype)
    assert array.dtype == dtype.as_numpy_dtype
    assert np.array_equal(array, np.array(wanted, array.dtype))


REFUSED: dict[str, Any] = {
    "float as int": (1.5, tf.int32, TypeError, "Expected int32, got 1.5 of type 'float' instead"),
    "bool as float": (True, tf.float32, TypeError, "Expected float32, got True"),
    "int as bool": ([1], tf.bool, TypeError, "Expected bool, got 1"),
    "int as text": (1, tf.string, TypeError, "Expected string, got 1"),
    "text as int": ("a", tf.int32, TypeError, "Expected int32, got 'a'"),
    "text and number": (["a", 1], None, TypeError, "Expected string, got 1"),
    "array of text as int": (np.array(["a"]), tf.int32, TypeError, "Expected int32"),
    "none": (None, None, ValueError, "None values not supported"),
    "none inside": ([1, None], tf.int32, ValueError, "None values not supported"),
    "object": (object(), None, TypeError, "cannot be a tensor"),
    "ragged": ([[1, 2], [3]], None, ValueError, "must be a dense tensor"),
    "too large": (300, tf.uint8, ValueError, "does not fit"),
    "quantized number": ([3], tf.qint8, TypeError, "tuple"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    value, dtype, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        make_array(value, dtype)


def test_fill_to_shape() -> None:
    assert make_array([1, 2], shape=[2, 2]).tolist() == [[1, 2], [2, 2]]
    assert make_array("a", shape=[2]).tolist() == [b"a", b"a"]
    assert make_array(1, shape=[2, 0]).shape == (2, 0)
    assert make_array([], shape=[0, 3]).shape == (0, 3)
    with pytest.raises(ValueError, match="Needed at most 1, but received 2"):
        make_array([1, 2], shape=[1])
    with pytest.raises(ValueError, match="from no elements"):
        make_array([], shape=[1])
    with pytest.raises(TypeError, match="Expected Tensor's shape"):
        make_array([1, 2], shape=[1, 2], verify_shape=True)
