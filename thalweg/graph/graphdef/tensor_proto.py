"""Conversion of arrays to and from TensorProtos."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from thalweg import protos
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.literal import make_array
from thalweg.graph.shapes import as_shape
from thalweg.platform.arrays import Array
from thalweg.public import public

_MAX_BYTES = 1 << 31  # of a protocol buffer
_MIN_UNIFORM = 4096  # bytes of an array that is written as one element, if all are equal


@public("make_tensor_proto", "contrib.util.make_tensor_proto")
def make_tensor_proto(
    values: ArrayLike | protos.TensorProto,
    dtype: Any = None,
    shape: Any = None,
    verify_shape: bool = False,
    allow_broadcast: bool = False,
) -> protos.TensorProto:
    """A TensorProto of a Python or NumPy value, padded with its last element to `shape`.

    Args:
        values: a number, string, list or array; or a TensorProto, which is returned unchanged.
        dtype: the dtype; by default that of the values.
        shape: the shape; by default that of the values.
        verify_shape: whether to raise if the values have another shape.
        allow_broadcast: whether there may be fewer values than the shape has.

    Returns:
        A `TensorProto`.

    Example:
        >>> proto = tf.contrib.util.make_tensor_proto([1.5, 2.5], shape=[1, 2])
        >>> tf.contrib.util.make_ndarray(proto)
        array([[1.5, 2.5]], dtype=float32)
    """
    if verify_shape and allow_broadcast:
        raise ValueError("allow_broadcast and verify_shape are not both allowed.")
    if protos.is_message(values, protos.TensorProto):
        return values
    array = make_array(values, None if dtype is None else as_dtype(dtype))
    sizes = array.shape if shape is None else tuple(as_shape(shape).as_list())
    if array.shape != sizes:
        make_array(array, shape=shape, verify_shape=verify_shape)  # raises unless it fits
    return _encode(array, as_dtype(array.dtype), sizes)


def _encode(array: Array, dtype: DType, sizes: tuple[Any, ...]) -> Any:
    shape = as_shape(sizes).as_proto()
    proto = protos.TensorProto(dtype=dtype.as_datatype_enum, tensor_shape=shape)
    field = dtype.traits.proto_field
    is_packed = isinstance(getattr(proto, field), bytes)
    if not is_packed and _is_uniform(array):
        array = array.ravel()[:1]  # readers repeat the last element
    if dtype.traits.bulk and array.size > 1 and array.size == np.prod(sizes):
        proto.tensor_content = array.tobytes()
    elif is_packed:
        setattr(proto, field, array.tobytes())
    else:
        getattr(proto, field).extend(array.ravel().view(_field_dtype(dtype)).tolist())
    return proto


def _is_uniform(array: Array) -> bool:
    """Whether all elements of a large array are equal, bit by bit."""
    if array.nbytes < _MIN_UNIFORM or array.dtype.hasobject or not array.flags.c_contiguous:
        return False
    content = array.reshape(-1).view(np.uint8)
    size = array.itemsize
    start = content[: _MIN_UNIFORM // 2]  # where most arrays already differ
    return all(np.array_equal(part[size:], part[:-size]) for part in (start, content))


def _field_dtype(dtype: DType) -> Any:
    """The NumPy dtype of elements in a TensorProto's field: narrow floats as their bits, a complex
    number as two floats, quantized elements as integers."""
    if dtype.traits.is_narrow_float:
        return np.dtype(f"u{dtype.size}")
    if dtype.is_quantized:
        return cast("Any", np.dtype(dtype.as_numpy_dtype)[0].base)
    return np.dtype(dtype.real_dtype.as_numpy_dtype)


@public("make_ndarray", "contrib.util.make_ndarray")
def make_ndarray(tensor: protos.TensorProto) -> Array:
    """The array of a TensorProto.

    Args:
        tensor: a `TensorProto`.

    Returns:
        A NumPy array.

    Example:
        >>> node = tf.constant([1, 2]).op.node_def
        >>> tf.contrib.util.make_ndarray(node.attr["value"].tensor)
        array([1, 2], dtype=int32)
    """
    dtype = as_dtype(tensor.dtype)
    numpy_dtype = np.dtype(dtype.as_numpy_dtype)
    sizes = _sizes(tensor, numpy_dtype)
    if tensor.tensor_content:
        content = _content(tensor, numpy_dtype)
        return _reshaped(np.frombuffer(content, numpy_dtype).copy(), sizes)
    if not dtype.traits.proto_field:
        raise TypeError(f"Unsupported tensor type: {dtype.name}")
    values = list(getattr(tensor, dtype.traits.proto_field))
    flat = np.array(values, _field_dtype(dtype)).view(numpy_dtype)
    missing = math.prod(sizes) - flat.size
    if missing > 0:
        last = flat[-1:] if flat.size else _default(dtype, numpy_dtype)
        flat = np.concatenate([flat[:-1], np.repeat(last, missing + min(flat.size, 1))])
    return _reshaped(flat, sizes)


def _sizes(tensor: Any, dtype: np.dtype[Any]) -> list[int]:
    """The sizes of a TensorProto; a ValueError if no TensorProto can hold such an array."""
    if tensor.tensor_shape.unknown_rank:
        raise ValueError("A TensorProto must have a known shape.")
    sizes = [int(dimension.size) for dimension in tensor.tensor_shape.dim]
    if any(size < 0 for size in sizes) or math.prod(sizes) * dtype.itemsize > _MAX_BYTES:
        raise ValueError(f"A TensorProto cannot have the shape {sizes} of {dtype}.")
    return sizes


def _content(tensor: Any, dtype: np.dtype[Any]) -> bytes:
    content = tensor.tensor_content
    if dtype.itemsize == 0 or len(content) % dtype.itemsize or dtype.hasobject:
        raise ValueError(f"A TensorProto has {len(content)} bytes of {dtype}: not whole elements.")
    return content


def _reshaped(flat: Array, sizes: list[int]) -> Array:
    if flat.size != math.prod(sizes):
        raise ValueError(f"A TensorProto of the shape {sizes} has {flat.size} elements.")
    return flat.reshape(sizes)


def _default(dtype: DType, numpy_dtype: np.dtype[Any]) -> Array:
    """The element of a TensorProto without values."""
    return np.array([b""], numpy_dtype) if dtype.name == "string" else np.zeros(1, numpy_dtype)
