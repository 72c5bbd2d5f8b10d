"""TensorProto: arrays as protocol buffers, to and from."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg import protos
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.literal import make_array
from thalweg.graph.shapes import as_shape
from thalweg.public import public

Array = NDArray[Any]

_LARGEST = 1 << 31  # bytes, what a protocol buffer can hold
_MIN_UNIFORM = 4096  # bytes of an array that is written as one element, where all are the same


@public("make_tensor_proto", "contrib.util.make_tensor_proto")
def make_tensor_proto(
    values: ArrayLike | protos.TensorProto,
    dtype: Any = None,
    shape: Any = None,
    verify_shape: bool = False,
    allow_broadcast: bool = False,
) -> protos.TensorProto:
    """A TensorProto of a Python or NumPy value; fewer elements than `shape` has repeat the last.

    Args:
        values: a number, string, list or array; or a TensorProto, which is returned as it is.
        dtype: the dtype; by default that of the values.
        shape: the shape; by default that of the values.
        verify_shape: raise where the values have another shape.
        allow_broadcast: whether fewer values than the shape has may be given.

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
    return _written(array, as_dtype(array.dtype), sizes)


def _written(array: Array, dtype: DType, sizes: tuple[Any, ...]) -> Any:
    proto = protos.TensorProto(dtype=dtype.as_datatype_enum)
    proto.tensor_shape.SetInParent()  # a scalar has a shape too, one of no dimensions
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    field = dtype.traits.proto_field
    is_packed = isinstance(getattr(proto, field), bytes)
    if not is_packed and _is_uniform(array):
        array = array.ravel()[:1]  # as many as are missing are like the last
    if dtype.traits.bulk and array.size > 1 and array.size == np.prod(sizes):
        proto.tensor_content = array.tobytes()
    elif is_packed:
        setattr(proto, field, array.tobytes())
    else:
        getattr(proto, field).extend(array.ravel().view(_stored(dtype)).tolist())
    return proto


def _is_uniform(array: Array) -> bool:
    """Whether a large array has the same element everywhere, bit by bit."""
    if array.nbytes < _MIN_UNIFORM or array.dtype.hasobject or not array.flags.c_contiguous:
        return False
    content = array.reshape(-1).view(np.uint8)
    size = array.itemsize  # all bytes are as those of the element before, the first ones soon
    few = content[: _MIN_UNIFORM // 2]
    return bool(np.array_equal(few[size:], few[:-size])) and bool(
        np.array_equal(content[size:], content[:-size])
    )


def _stored(dtype: DType) -> Any:
    """The dtype of elements as the field holds them: narrow floats by their bits, complex numbers
    in two, quantized ones as integers."""
    if dtype.is_narrow_float:
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
    kind = np.dtype(dtype.as_numpy_dtype)
    sizes = _sizes(tensor, kind)
    if tensor.tensor_content:
        return _reshaped(np.frombuffer(_whole_items(tensor, kind), kind).copy(), sizes)
    if not dtype.traits.proto_field:
        raise TypeError(f"Unsupported tensor type: {dtype.name}")
    values = list(getattr(tensor, dtype.traits.proto_field))
    flat = np.array(values, _stored(dtype)).view(kind)
    missing = math.prod(sizes) - flat.size
    if missing > 0:
        last = flat[-1:] if flat.size else _default(dtype, kind)
        flat = np.concatenate([flat[:-1], np.repeat(last, missing + min(flat.size, 1))])
    return _reshaped(flat, sizes)


def _sizes(tensor: Any, kind: np.dtype[Any]) -> list[int]:
    """The sizes of a TensorProto, which must be those of an array that fits into one."""
    if tensor.tensor_shape.unknown_rank:
        raise ValueError("A TensorProto must have a known shape.")
    sizes = [int(dimension.size) for dimension in tensor.tensor_shape.dim]
    if any(size < 0 for size in sizes) or math.prod(sizes) * kind.itemsize > _LARGEST:
        raise ValueError(f"A TensorProto cannot have the shape {sizes} of {kind}.")
    return sizes


def _whole_items(tensor: Any, kind: np.dtype[Any]) -> bytes:
    content = tensor.tensor_content
    if kind.itemsize == 0 or len(content) % kind.itemsize or kind.hasobject:
        raise ValueError(f"A TensorProto has {len(content)} bytes of {kind}: not whole elements.")
    return content


def _reshaped(flat: Array, sizes: list[int]) -> Array:
    if flat.size != math.prod(sizes):
        raise ValueError(f"A TensorProto of the shape {sizes} has {flat.size} elements.")
    return flat.reshape(sizes)


def _default(dtype: DType, kind: np.dtype[Any]) -> Array:
    """What fills a TensorProto without a value."""
    return np.array([b""], kind) if dtype.name == "string" else np.zeros(1, kind)
