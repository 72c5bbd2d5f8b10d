"""Facts about tensors that rules ask for: values of constants, dtypes, static shapes."""

from __future__ import annotations

import numpy as np

from thalweg.graph.dtypes import COMPLEX, FLOATING, INTEGER, NUMERIC, REAL, DType
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.basic import Const
from thalweg.optimize.step_graph import StepGraph
from thalweg.platform.arrays import Array

#: the ops whose output may have one value everywhere
FILLED = frozenset({"Const", "Fill", "ZerosLike", "OnesLike"})


def value_of(tensor: Tensor) -> Array | None:
    """The value of a constant without control inputs; None for other tensors."""
    node = tensor.op
    return node.op.numpy() if isinstance(node.op, Const) and not node.controls else None


def open_value(tensor: Tensor, graph: StepGraph) -> Array | None:
    """The value of a constant that is not fed in this step."""
    return value_of(tensor) if graph.is_open(tensor) else None


def integers(tensor: Tensor) -> list[int] | None:
    """The elements of an integer constant."""
    value = value_of(tensor)
    if value is None or value.dtype.kind not in "iu":
        return None
    return [int(element) for element in value.ravel()]


def is_filled(tensor: Tensor, number: float) -> bool:
    """Whether every element equals a number; zeros must have its sign."""
    node = tensor.op
    op_type = node.op.type_name
    if node.controls or op_type not in FILLED:
        return False
    if op_type == "Const":
        return _is_uniform(node.op.numpy(), number)
    if op_type == "ZerosLike":
        return number == 0 and not np.signbit(number)
    return number == 1 if op_type == "OnesLike" else is_filled(node.inputs[1], number)


def _is_uniform(value: Array, number: float) -> bool:
    if not (value.dtype.kind in "fiucb" or value.dtype.name == "bfloat16") or value.size == 0:
        return False
    if value.flat[0] != number:  # fails early for most constants
        return False
    wide = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
    if not np.all(wide == number):
        return False
    if number != 0 or value.dtype.kind in "iub":
        return True
    signs = np.signbit(wide.real if value.dtype.kind == "c" else wide)
    return bool(np.all(signs == np.signbit(number))) and not np.any(np.signbit(wide.imag))


#: Conditions of dtypes, by the groups of op signatures; integers wrap around and have no NaN.
is_float, is_integer, is_real = (group.__contains__ for group in (FLOATING, INTEGER, REAL))
is_complex, is_number = COMPLEX.__contains__, NUMERIC.__contains__


def is_boolean(dtype: DType) -> bool:
    """Whether a dtype is bool."""
    return dtype.is_bool


def last_size(tensor: Tensor) -> int | None:
    """The static size of the last axis."""
    sizes = tensor.shape.sizes
    return sizes[-1] if sizes else None


def same_shape(shape: TensorShape, other: TensorShape) -> bool:
    """Whether two static shapes are known and equal."""
    return shape.is_fully_defined() and shape == other


def broadcasts_into(small: TensorShape, large: TensorShape) -> bool:
    """Whether broadcasting a tensor against a larger one is known to give the larger shape."""
    if small.rank == 0:
        return True
    if small.rank is None or large.rank is None or small.rank > large.rank:
        return False
    sizes = large.as_list()[large.rank - small.rank :]
    pairs = zip(small.as_list(), sizes, strict=True)
    return all(size == 1 or (size is not None and size == large_size) for size, large_size in pairs)
