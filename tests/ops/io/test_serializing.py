"""Serialized tensors and sparse tensors, and maps of sparse tensors."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check
from tests.ops.sparse.test_sparse import PLACES, SHAPE, VALUES, sparse
from thalweg.graph import dtypes
from thalweg.ops.io import serializing
from thalweg.ops.io.serializing import from_bytes, to_bytes

ARRAYS: list[Any] = [
    np.array(3, np.int64),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.zeros((0, 4), np.uint8),
    np.array([1 + 2j], np.complex64),
    np.array([True, False]),
    np.array([[b"a", b""], [b"\x00" * 200, b"end"]], object),
]


@pytest.mark.parametrize("array", ARRAYS)
def test_bytes_round_trip(array: Any) -> None:
    again = from_bytes(to_bytes(array))
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)


@pytest.mark.parametrize("array", ARRAYS)
def test_bytes_are_a_tensor_proto(array: Any) -> None:
    protos = pytest.importorskip("tensorboard.compat.proto.tensor_pb2")
    proto = protos.TensorProto.FromString(to_bytes(array))
    assert proto.dtype == tf.as_dtype(array.dtype).as_datatype_enum
    assert [dimension.size for dimension in proto.tensor_shape.dim] == list(array.shape)


def test_strings_in_repeated_fields_are_read() -> None:
    protos = pytest.importorskip("tensorboard.compat.proto.tensor_pb2")
    proto = protos.TensorProto(dtype=7, string_val=[b"a", b"bc"])
    proto.tensor_shape.dim.add(size=2)
    assert from_bytes(proto.SerializeToString()).tolist() == [b"a", b"bc"]


@pytest.mark.parametrize(
    "dtype",
    sorted(dtypes.NUMERIC | {tf.bool}, key=int),
    ids=repr,
)
def test_repeated_fields_are_read(dtype: Any) -> None:
    value = np.array(-3 if dtype.is_integer and not dtype.is_unsigned else 3).astype(
        dtype.as_numpy_dtype
    )
    pytest.importorskip("tensorboard.compat.proto.tensor_pb2")
    alone = from_bytes(tf.make_tensor_proto(value, dtype).SerializeToString())
    repeated = from_bytes(tf.make_tensor_proto(value, dtype, shape=[2, 3]).SerializeToString())
    for found, expected in ((alone, value), (repeated, np.full((2, 3), value))):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_missing_elements_repeat_the_last_one_or_are_zero() -> None:
    protos = pytest.importorskip("tensorboard.compat.proto.tensor_pb2")
    proto = protos.TensorProto(dtype=9, int64_val=[1, -2])
    proto.tensor_shape.dim.add(size=4)
    assert from_bytes(proto.SerializeToString()).tolist() == [1, -2, -2, -2]
    del proto.int64_val[:]
    assert from_bytes(proto.SerializeToString()).tolist() == [0] * 4
    proto = protos.TensorProto(dtype=7, string_val=[b"a"])
    proto.tensor_shape.dim.add(size=2)
    assert from_bytes(proto.SerializeToString()).tolist() == [b"a", b"a"]


@pytest.mark.parametrize("size", [1 << 20, 1 << 40, (1 << 63) - 1, -1])
def test_shapes_beyond_two_gigabytes_are_rejected(size: int) -> None:
    protos = pytest.importorskip("tensorboard.compat.proto.tensor_pb2")
    proto = protos.TensorProto(dtype=1, float_val=[1.0])
    for _ in range(2):
        proto.tensor_shape.dim.add(size=size)
    with pytest.raises(ValueError, match="too large"):
        from_bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    "data",
    [b"", b"\x08", b"\x22\x05ab", b"\x0d1234", b"\x08\x7f", b"\x08\x01\x22\x01a", b"\x0a\x01\x01"],
)
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        from_bytes(data)


def test_serialize_and_parse() -> None:
    x = np.arange(3.0)
    check(
        lambda t: tf.parse_tensor(tf.serialize_tensor(t), tf.float64), x, expect=x, gradient=False
    )
    with tf.Graph().as_default(), tf.Session() as session:
        wrong = tf.io.parse_tensor(tf.io.serialize_tensor([1]), tf.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"Type mismatch.*int32"):
            session.run(wrong)


@pytest.mark.parametrize("kind", [tf.string, tf.variant])
def test_many_sparse_round_trip(kind: tf.DType) -> None:
    def build(values: Any) -> Any:
        rows = tf.serialize_many_sparse(sparse(values), out_type=kind)
        return tf.deserialize_many_sparse(rows, tf.float64, rank=1)

    check(build, VALUES, expect=[PLACES, VALUES, np.array(SHAPE)], gradient=False)


def test_single_sparse_are_stacked() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        one = tf.serialize_sparse(tf.SparseTensor([[1]], ["a"], [2]))
        two = tf.serialize_sparse(tf.SparseTensor([[4]], ["b"], [5]))
        assert one.shape.as_list() == [3]
        value = session.run(tf.deserialize_many_sparse(tf.stack([one, two]), tf.string))
    assert value.indices.tolist() == [[0, 1], [1, 4]]
    assert value.values.tolist() == [b"a", b"b"]
    assert value.dense_shape.tolist() == [2, 5]


BAD: dict[str, Any] = {
    "dtype": ([tf.SparseTensorValue([[0]], [1], [2])], "Requested SparseTensor of type float32"),
    "rank": (
        [tf.SparseTensorValue([[0]], [1.0], [2]), tf.SparseTensorValue([[0, 0]], [1.0], [2, 2])],
        "Inconsistent rank",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_values_fail_the_step(name: str) -> None:
    values, message = BAD[name]
    with tf.Graph().as_default(), tf.Session() as session:
        rows = tf.stack([tf.serialize_sparse(value) for value in values])
        node = tf.deserialize_many_sparse(rows, tf.float32)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(node)


def test_errors_name_invalid_bytes() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        node = tf.deserialize_many_sparse([["", "", ""]], tf.float32)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"Could not parse serialized_sparse\[0, 0\]"
        ):
            session.run(node)


def test_a_tensor_can_be_taken_from_a_map_once() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        handles = serializing.add_many_sparse_to_tensors_map(sparse(tf.constant(VALUES)))
        wanted = tf.placeholder(tf.int64, [None])
        taken = serializing.take_many_sparse_from_tensors_map(handles.op, wanted, rank=1)
        numbers = session.run(handles)
        value = session.run(taken, {wanted: numbers[::-1]})
        assert value.values.tolist() == [-2, 3, 1.5]
        with pytest.raises(tf.errors.InvalidArgumentError, match="Unable to find SparseTensor"):
            session.run(taken, {wanted: numbers})
        single = serializing.add_sparse_to_tensors_map(sparse(tf.constant(VALUES)))
        assert session.run(single) == 0
        with pytest.raises(TypeError, match="AddSparseToTensorsMap"):
            serializing.take_many_sparse_from_tensors_map(wanted.op, wanted)
