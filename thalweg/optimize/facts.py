"""What rules ask about tensors: values of constants, static shapes, permutations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.graph.dtypes import DType
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.basic import Const

Array = NDArray[Any]

#: the ops whose output may have one value everywhere
FILLED = frozenset({"Const", "Fill", "ZerosLike", "OnesLike"})


def value_of(tensor: Tensor) -> Array | None:
    """The value of a constant that waits for nothing."""
    node = tensor.op
    return node.op.numpy() if isinstance(node.op, Const) and not node.controls else None


def integers(tensor: Tensor) -> list[int] | None:
    """The elements of an integer constant."""
    value = value_of(tensor)
    if value is None or value.dtype.kind not in "iu":
        return None
    return [int(each) for each in value.ravel()]


def is_filled(tensor: Tensor, number: float) -> bool:
    """Whether every element is a number, with its sign where that is zero."""
    node = tensor.op
    kind = node.op.type_name
    if node.controls or kind not in FILLED:
        return False
    if kind == "Const":
        return _is_everywhere(node.op.numpy(), number)
    if kind == "ZerosLike":
        return number == 0 and not np.signbit(number)
    return number == 1 if kind == "OnesLike" else is_filled(node.inputs[1], number)


def _is_everywhere(value: Array, number: float) -> bool:
    if not (value.dtype.kind in "fiucb" or value.dtype.name == "bfloat16") or value.size == 0:
        return False
    if value.flat[0] != number:  # most end here
        return False
    wide = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
    if not np.all(wide == number):
        return False
    if number != 0 or value.dtype.kind in "iub":
        return True
    signs = np.signbit(wide.real if value.dtype.kind == "c" else wide)
    return bool(np.all(signs == np.signbit(number))) and not np.any(np.signbit(wide.imag))


def is_float(dtype: DType) -> bool:
    """Whether numbers of a dtype are real and rounded."""
    return dtype.base_dtype.is_floating


def is_integer(dtype: DType) -> bool:
    """Whether numbers of a dtype wrap around and are never NaN."""
    return dtype.base_dtype.is_integer


def is_number(dtype: DType) -> bool:
    """Whether a dtype has arithmetic."""
    base = dtype.base_dtype
    return base.is_floating or base.is_integer or base.is_complex


def is_real(dtype: DType) -> bool:
    """Whether a dtype has arithmetic and an order."""
    return is_float(dtype) or is_integer(dtype)


def is_complex(dtype: DType) -> bool:
    """Whether a dtype is of complex numbers."""
    return dtype.base_dtype.is_complex


def is_boolean(dtype: DType) -> bool:
    """Whether a dtype is that of truth values."""
    return dtype.base_dtype.is_bool


def last_size(tensor: Tensor) -> int | None:
    """The static size of the last axis."""
    sizes = tensor.shape.sizes
    return sizes[-1] if sizes else None


def same_shape(one: TensorShape, other: TensorShape) -> bool:
    """Whether two static shapes are known to be one."""
    return one.is_fully_defined() and one == other


def broadcasts_into(small: TensorShape, large: TensorShape) -> bool:
    """Whether broadcasting a tensor against a larger one is known to give the larger shape."""
    if small.rank == 0:
        return True
    if small.rank is None or large.rank is None or small.rank > large.rank:
        return False
    sizes = large.as_list()[large.rank - small.rank :]
    pairs = zip(small.as_list(), sizes, strict=True)
    return all(own == 1 or (own is not None and own == other) for own, other in pairs)
