"""Conversion of Python and NumPy values to arrays of a `DType`, and its errors.

Python floats become float32 and ints int32 (int64 where they do not fit), NumPy arrays keep their
dtype, text becomes bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.shapes import Dimension, TensorShape, as_shape
from thalweg.platform.arrays import Array
from thalweg.platform.compat import as_bytes


def make_array(
    value: Any, dtype: DType | None = None, shape: Any = None, verify_shape: bool = False
) -> Array:
    """`value` as an array of `dtype`, padded with its last element to `shape`."""
    array = _to_array(value, None if dtype is None else dtype.base_dtype)
    return array if shape is None else _fill_to(array, as_shape(shape), verify_shape)


def _to_array(value: Any, dtype: DType | None) -> Array:
    if isinstance(value, np.ndarray | np.generic):
        return _from_numpy(np.asarray(cast(Any, value)), dtype)
    if isinstance(value, TensorShape):
        return np.array(value.as_list(), (dtype or dtypes.int32).as_numpy_dtype)
    if dtype is not None and dtype.is_quantized:
        return _quantized(value, dtype)
    if not hasattr(value, "__array__") and _has_array_interface(value):
        return _from_numpy(np.asarray(value), dtype)
    _check_elements(value, dtype)
    if dtype is None:
        return _from_python(value)
    array = _dense(value, dtype.as_numpy_dtype)
    return to_bytes(array) if dtype is dtypes.string else array


def _has_array_interface(value: Any) -> bool:
    """Whether a value implements NumPy's array interface, as an image of Pillow does."""
    return hasattr(value, "__array_interface__") and not isinstance(value, type)


def _from_numpy(array: Array, dtype: DType | None) -> Array:
    if array.dtype.kind in "USO":
        if dtype is not None and dtype is not dtypes.string:
            raise TypeError(f"Expected {dtype.name}, got an array of {array.dtype} instead.")
        return to_bytes(array.astype(object))
    target = as_dtype(array.dtype) if dtype is None else dtype
    if target.is_quantized and not array.dtype.fields:
        return _quantized_integers(array, target)
    return np.asarray(array, dtype=target.as_numpy_dtype)


def _quantized_integers(array: Array, dtype: DType) -> Array:
    """Integers reinterpreted as quantized elements of the same width."""
    structured = np.dtype(dtype.as_numpy_dtype)
    return np.asarray(array, structured[0].base)[..., np.newaxis].view(structured)[..., 0]


def plain_integers(value: Any) -> Array:
    """Quantized elements reinterpreted as integers; other arrays unchanged."""
    array = np.asarray(value)
    if not array.dtype.fields:
        return array
    return array.view(array.dtype[0].base).reshape(array.shape)


def _quantized(value: Any, dtype: DType) -> Array:
    first = value
    while isinstance(first, list) and first:
        first = cast("list[Any]", first)[0]
    if not isinstance(first, tuple | list):
        raise TypeError(f"Expected {dtype.name}, a tuple of one integer, got {_short_repr(first)}")
    return np.array(value, dtype=dtype.as_numpy_dtype)


def _from_python(value: Any) -> Array:
    """An array of 32-bit numbers where the values fit, else of 64 bits."""
    array = _dense(value, None)
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], int):
        raise ValueError(f"{_short_repr(value)} does not fit in 64 bits")
    if array.dtype.kind in "USO":
        return to_bytes(_dense(value, object))
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.int64 and np.array_equal(narrow := array.astype(np.int32), array):
        return narrow
    return array


_integers_wrap = False


def wrap_integers() -> None:
    """Wrap integers that do not fit their dtype from now on, as NumPy 1 did."""
    global _integers_wrap
    _integers_wrap = True


def _dense(value: Any, dtype: Any) -> Array:
    try:
        return np.array(value, dtype=dtype)
    except OverflowError as error:
        if _integers_wrap and np.dtype(dtype).kind in "iu" and np.asarray(value).dtype == np.int64:
            return np.asarray(value).astype(dtype)
        raise ValueError(f"{_short_repr(value)} does not fit its dtype: {error}") from error
    except ValueError as error:
        raise ValueError(
            f"Argument must be a dense tensor (every row of the same length): {error}"
        ) from error


def to_bytes(array: Array) -> Array:
    """An object array of text or bytes, with text encoded."""
    flat = np.empty(array.size, dtype=object)
    for index, item in enumerate(cast("Sequence[Any]", array.ravel())):
        if not isinstance(item, str | bytes):
            raise TypeError(
                f"Expected string, got {item!r} of type '{type(item).__name__}' instead."
            )
        flat[index] = as_bytes(item)
    return flat.reshape(array.shape)


def _fill_to(array: Array, shape: TensorShape, verify_shape: bool) -> Array:
    target = cast("tuple[int, ...]", tuple(shape.as_list()))
    if array.shape == target:
        return array
    if verify_shape:
        raise TypeError(f"Expected Tensor's shape: {target}, got {array.shape}.")
    size = shape.num_elements() or 0
    if size == 0:
        return np.empty(target, array.dtype)
    if array.size > size:
        raise ValueError(
            f"Too many elements provided. Needed at most {size}, but received {array.size}"
        )
    if array.size == 0:
        raise ValueError(f"Cannot fill the shape {target} from no elements")
    return np.pad(array.ravel(), (0, size - array.size), mode="edge").reshape(target)


# Which Python values a dtype accepts, by TensorFlow's rules: no float as an int, no number as text.

_integers = (int, np.integer, Dimension)
_floats = (*_integers, float, np.floating)
_complexes = (*_floats, complex, np.complexfloating)
_ACCEPTED: dict[str, tuple[type, ...]] = {
    "float": _floats,
    "complex": _complexes,
    "bool": (bool, np.bool_),
    "string": (str, bytes),
    "any": (*_complexes, bool, np.bool_, str, bytes),
}


def _check_elements(value: Any, dtype: DType | None) -> None:
    accepted = _ACCEPTED.get("any" if dtype is None else dtype.traits.dtype_class, _integers)
    takes_bool = bool in accepted  # Python's bool is a subclass of int, but no number here
    for item in _leaves(value):
        if not isinstance(item, accepted) or (isinstance(item, bool) and not takes_bool):
            raise _type_error(item, dtype)


def _type_error(item: Any, dtype: DType | None) -> Exception:
    if item is None:
        return ValueError("None values not supported.")
    type_name = type(item).__name__
    if dtype is None:
        return TypeError(f"{_short_repr(item)} of type '{type_name}' cannot be a tensor.")
    return TypeError(
        f"Expected {dtype.name}, got {_short_repr(item)} of type '{type_name}' instead."
    )


def _short_repr(item: Any) -> str:
    text = repr(item)
    return text if len(text) < 80 else text[:77] + "..."


def _leaves(value: Any) -> Iterator[Any]:
    """The elements of nested sequences; of a numeric array, the first stands for all."""
    if isinstance(value, list | tuple | range):
        for inner in cast("Sequence[Any]", value):
            yield from _leaves(inner)
    elif isinstance(value, np.ndarray):
        array = cast("Array", value)
        if array.size and array.dtype.kind not in "USO":
            yield array.ravel()[0]
    elif hasattr(value, "__array__") and not isinstance(value, np.generic):
        yield from _leaves(np.asarray(value))
    else:
        yield value
