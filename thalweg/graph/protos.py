"""TensorProto: arrays as protocol buffers, to and from.

The message classes are tensorboard's and are imported on first use, so that a program that never
serialises an array needs no protobuf.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.literal import make_array
from thalweg.graph.shapes import as_shape
from thalweg.public import public

Array = NDArray[Any]

# Which field of a TensorProto holds elements of which dtype.
_FIELDS = {
    "half_val": (dtypes.float16, dtypes.bfloat16),
    "float_val": (dtypes.float32,),
    "double_val": (dtypes.float64,),
    "int_val": (
        *(dtypes.int8, dtypes.int16, dtypes.int32, dtypes.uint8, dtypes.uint16),
        *(dtypes.qint8, dtypes.qint16, dtypes.qint32, dtypes.quint8, dtypes.quint16),
    ),
    "int64_val": (dtypes.int64,),
    "uint32_val": (dtypes.uint32,),
    "uint64_val": (dtypes.uint64,),
    "bool_val": (dtypes.bool,),
    "string_val": (dtypes.string,),
    "scomplex_val": (dtypes.complex64,),
    "dcomplex_val": (dtypes.complex128,),
}
_FIELD_OF = {dtype: field for field, kinds in _FIELDS.items() for dtype in kinds}

# Several elements of these are written as their bytes, the rest one by one.
_AS_BYTES = (dtypes.QUANTIZED | dtypes.INTEGER | {dtypes.float32, dtypes.float64}) - {dtypes.uint16}


def message(module: str, name: str) -> Any:
    """A message class such as `message("tensor", "TensorProto")`."""
    try:
        found = importlib.import_module(f"tensorboard.compat.proto.{module}_pb2")
    except ImportError as error:
        raise ImportError(
            f"{name} is a protobuf of the package tensorboard: pip install 'thalweg[board]'"
        ) from error
    return getattr(found, name)


@public("make_tensor_proto", "contrib.util.make_tensor_proto")
def make_tensor_proto(
    values: Any,
    dtype: Any = None,
    shape: Any = None,
    verify_shape: bool = False,
    allow_broadcast: bool = False,
) -> Any:
    """A TensorProto of a Python or NumPy value; fewer elements than `shape` has repeat the last."""
    if verify_shape and allow_broadcast:
        raise ValueError("allow_broadcast and verify_shape are not both allowed.")
    if isinstance(values, message("tensor", "TensorProto")):
        return values
    array = make_array(values, None if dtype is None else as_dtype(dtype))
    sizes = array.shape if shape is None else tuple(as_shape(shape).as_list())
    if array.shape != sizes:
        make_array(array, shape=shape, verify_shape=verify_shape)  # raises unless it fits
    return _written(array, as_dtype(array.dtype), sizes)


def _written(array: Array, dtype: DType, sizes: tuple[Any, ...]) -> Any:
    proto = message("tensor", "TensorProto")(dtype=dtype.as_datatype_enum)
    proto.tensor_shape.SetInParent()  # a scalar has a shape too, one of no dimensions
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    if dtype in _AS_BYTES and array.size > 1 and array.size == np.prod(sizes):
        proto.tensor_content = array.tobytes()
    else:
        getattr(proto, _FIELD_OF[dtype]).extend(_elements(array.ravel(), dtype))
    return proto


def _elements(flat: Array, dtype: DType) -> list[Any]:
    """The elements as the field holds them: halves by their bits, complex numbers in two parts."""
    if dtype in _FIELDS["half_val"]:
        return flat.view(np.uint16).tolist()
    if dtype.is_complex:
        return flat.view(dtype.real_dtype.as_numpy_dtype).tolist()
    if dtype.is_quantized:
        return flat.view(_storage(dtype)).tolist()
    return flat.tolist()


def _storage(dtype: DType) -> Any:
    """The integers that quantized elements are kept as."""
    kind: Any = np.dtype(dtype.as_numpy_dtype)[0].base
    return kind


@public("make_ndarray", "contrib.util.make_ndarray")
def make_ndarray(tensor: Any) -> Array:
    """The array of a TensorProto."""
    dtype = as_dtype(tensor.dtype)
    sizes = [dimension.size for dimension in tensor.tensor_shape.dim]
    kind = np.dtype(dtype.as_numpy_dtype)
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, kind).copy().reshape(sizes)
    if dtype not in _FIELD_OF:
        raise TypeError(f"Unsupported tensor type: {dtype.name}")
    flat = _flat(getattr(tensor, _FIELD_OF[dtype]), dtype)
    missing = int(np.prod(sizes)) - flat.size
    if missing > 0 and flat.size:
        flat = np.concatenate([flat, np.repeat(flat[-1:], missing)])
    return flat.reshape(sizes)


def _flat(values: Any, dtype: DType) -> Array:
    kind = np.dtype(dtype.as_numpy_dtype)
    if dtype in _FIELDS["half_val"]:
        return np.array(values, np.uint16).view(kind)
    if dtype.is_complex:
        return np.array(values, dtype.real_dtype.as_numpy_dtype).view(kind)
    if dtype.is_quantized:
        return np.array(values, _storage(dtype)).view(kind)
    return np.array(list(values), kind)
