"""TensorProto: what is written can be read."""

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

import thalweg as tf
from thalweg import protos
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


@pytest.mark.parametrize("name", [name for name in VALUES if name not in ("text", "nothing")])
def test_a_large_array_of_one_value_is_written_as_one_element(name: str) -> None:
    values, dtype = VALUES[name]
    one = make_ndarray(make_tensor_proto(values, dtype)).reshape(-1)[:1]
    uniform = np.repeat(one, 1 << 14).reshape(2, -1)
    proto = make_tensor_proto(uniform)
    np.testing.assert_array_equal(make_ndarray(proto), uniform)
    assert proto.ByteSize() < 100 or "float8" in name  # whose elements are bytes
    uniform[1, -1] = np.zeros(1, one.dtype)[0]
    np.testing.assert_array_equal(make_ndarray(make_tensor_proto(uniform)), uniform)


def test_zeros_of_both_signs_are_not_the_same() -> None:
    zeros = np.zeros(1 << 14, np.float32)
    zeros[-1] = -0.0
    assert np.signbit(make_ndarray(make_tensor_proto(zeros))[-1])


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


def proto_of(text: str) -> Any:
    return text_format.Parse(text, protos.TensorProto())


def test_a_proto_without_values_is_filled_with_zeros() -> None:
    proto = proto_of("dtype: DT_FLOAT tensor_shape { dim { size: 2 } dim { size: 3 } }")
    assert make_ndarray(proto).tolist() == [[0, 0, 0], [0, 0, 0]]
    proto = proto_of("dtype: DT_STRING tensor_shape { dim { size: 2 } }")
    assert make_ndarray(proto).tolist() == [b"", b""]
    assert make_ndarray(proto_of("dtype: DT_INT32 tensor_shape { }")).tolist() == 0


HOSTILE = {
    "a huge shape": "dtype: DT_FLOAT tensor_shape { dim { size: 1000000000000 } } float_val: 1",
    "many sizes": "dtype: DT_INT8 " + "tensor_shape { dim { size: 100000 } dim { size: 100000 } }",
    "a negative size": "dtype: DT_FLOAT tensor_shape { dim { size: -2 } }",
    "an unknown rank": "dtype: DT_FLOAT tensor_shape { unknown_rank: true }",
    "half an element": "dtype: DT_FLOAT tensor_shape { dim { size: 1 } } tensor_content: 'abc'",
    "too few bytes": "dtype: DT_FLOAT tensor_shape { dim { size: 2 } } tensor_content: 'abcd'",
    "too many values": "dtype: DT_INT32 tensor_shape { dim { size: 1 } } int_val: 1 int_val: 2",
    "bytes of text": "dtype: DT_STRING tensor_shape { dim { size: 1 } } tensor_content: 'abcdefgh'",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_array_can_be_made_of(name: str) -> None:
    with pytest.raises(ValueError, match="A TensorProto"):
        make_ndarray(proto_of(HOSTILE[name]))
