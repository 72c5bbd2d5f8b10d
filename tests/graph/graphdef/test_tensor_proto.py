"""TensorProto: what is written can be read."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.graph.graphdef.tensor_proto import make_ndarray, make_tensor_proto

VALUES: dict[str, Any] = {
    "float": (1.5, None),
    "floats": ([[1.5, 2.5]], None),
    "double": (np.array([1.5]), None),
    "half": (np.array([1.5, 2.5], np.float16), None),
    "bfloat16": ([1.5, 2.5], tf.bfloat16),
    "float8": ([1.5, 2.5], tf.float8_e4m3fn),
    "one float8": (1.5, tf.float8_e5m2),
    "int": ([1, 2], None),
    "large int": (2**40, None),
    "small ints": ([1, 2], tf.uint16),
    "unsigned": (2**63, tf.uint64),
    "bool": ([True, False], None),
    "complex": ([1 + 2j, 3j], tf.complex64),
    "wide complex": (1 + 2j, None),
    "text": (["a", b"bc"], None),
    "quantized": ([(1,), (2,)], tf.quint8),
    "one quantized": ((5,), tf.qint32),
    "nothing": ([], None),
}


@pytest.mark.parametrize("name", VALUES)
def test_round_trip(name: str) -> None:
    value, dtype = VALUES[name]
    array = tf.constant(value, dtype).op.op.value
    read = make_ndarray(make_tensor_proto(value, dtype))
    assert read.dtype == array.dtype
    assert read.shape == array.shape
    assert read.tolist() == array.tolist()


def test_last_element_is_repeated() -> None:
    proto = make_tensor_proto([1, 2], shape=[2, 2])
    assert make_ndarray(proto).tolist() == [[1, 2], [2, 2]]
    assert list(make_tensor_proto(3.0, shape=[5]).float_val) == [3.0]


def test_proto_of_a_proto() -> None:
    proto = make_tensor_proto(1)
    assert make_tensor_proto(proto) is proto


def test_wrong() -> None:
    with pytest.raises(ValueError, match="Too many elements"):
        make_tensor_proto([1, 2], shape=[1])
    with pytest.raises(TypeError, match="Expected Tensor's shape"):
        make_tensor_proto([1, 2], shape=[2, 1], verify_shape=True)
    with pytest.raises(ValueError, match="not both"):
        make_tensor_proto(1, verify_shape=True, allow_broadcast=True)
