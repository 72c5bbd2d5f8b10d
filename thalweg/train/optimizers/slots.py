"""Slots: variables that an optimizer or average keeps beside another, named after it.

`create_slot(w, value, "Momentum")` makes the variable `w/Momentum` where `w` is; a slot of a part
of a partitioned variable is that part of a partitioned slot.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core import filling, shaping
from thalweg.variables.initializers import Zeros
from thalweg.variables.save_slice import SaveSliceInfo
from thalweg.variables.scope import get_variable, get_variable_scope, variable_scope
from thalweg.variables.variable import Variable


def create_slot(primary: Any, val: Any, name: str, colocate_with_primary: bool = True) -> Variable:
    """A slot that starts as the tensor `val`."""
    value = convert_to_tensor(val)
    validate = value.shape.is_fully_defined()
    return _make(primary, name, colocate_with_primary, value, None, None, validate)


def create_slot_with_initializer(
    primary: Any,
    initializer: Callable[..., Any],
    shape: TensorShape,
    dtype: DType,
    name: str,
    colocate_with_primary: bool = True,
) -> Variable:
    """A slot that starts as an initializer says."""
    validate = shape.is_fully_defined()
    return _make(primary, name, colocate_with_primary, initializer, shape, dtype, validate)


def create_zeros_slot(
    primary: Any, name: str, dtype: DType | None = None, colocate_with_primary: bool = True
) -> Variable:
    """A slot of the shape of `primary` that starts as zeros."""
    kind = (dtype or primary.dtype).base_dtype
    shape = primary.get_shape()
    if shape.is_fully_defined():
        return create_slot_with_initializer(
            primary, Zeros(), shape, kind, name, colocate_with_primary
        )
    source = primary.initialized_value() if isinstance(primary, Variable) else primary
    zeros = filling.zeros(shaping.shape(source), kind)
    return create_slot(primary, zeros, name, colocate_with_primary)


def _make(
    primary: Any,
    name: str,
    colocate: bool,
    initializer: Any,
    shape: TensorShape | None,
    dtype: DType | None,
    validate: bool,
) -> Variable:
    near: AbstractContextManager[Any] = (
        primary.graph.colocate_with(primary.op) if colocate else nullcontext()
    )
    with variable_scope(None, f"{primary.op.name}/{name}"), near:
        get_variable_scope().set_partitioner(None)
        slot = get_variable(
            "",
            initializer=initializer,
            trainable=False,
            shape=shape,
            dtype=dtype,
            validate_shape=validate,
        )
    whole = getattr(primary, "save_slice_info", None)
    if whole is not None:
        _slice_like(slot, primary, whole)
    return slot


def _slice_like(slot: Variable, primary: Any, whole: SaveSliceInfo) -> None:
    suffix = slot.op.name.removeprefix(f"{primary.op.name}/")
    info = SaveSliceInfo(
        f"{whole.full_name}/{suffix}", whole.full_shape, whole.var_offset, whole.var_shape
    )
    slot._set_save_slice_info(info)  # pyright: ignore[reportPrivateUsage] - as TensorFlow's savers know it
