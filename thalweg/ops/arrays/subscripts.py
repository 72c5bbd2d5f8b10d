"""Subscripts of tensors, `x[2:-1, ..., None]`, read and assigned to.

A Python index is converted to the vectors and masks of a strided slice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Number
from typing import Any, cast

from thalweg.graph import dtypes
from thalweg.graph.convert import has_conversion
from thalweg.graph.node import Tensor, operator
from thalweg.graph.origin import user_line
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Dimension, as_shape
from thalweg.ops.arrays import joining
from thalweg.ops.arrays.slicing import StridedSlice, StridedSliceAssign, newaxis, strided_slice
from thalweg.ops.core import basic, casting


class _Spec:
    """The entries of an index, as the vectors and masks of a strided slice."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.begin: list[Any] = []
        self.end: list[Any] = []
        self.strides: list[Any] = []
        self.masks: dict[str, Any] = dict.fromkeys(StridedSlice.fields, 0)
        for part in parts:
            self._add(part)

    def _add(self, part: Any) -> None:
        if isinstance(part, slice):
            self._add_range(cast(Any, part))
        elif part is Ellipsis:
            self._append(0, 0, 1, "ellipsis_mask")
        elif part is newaxis:
            self._append(0, 0, 1, "new_axis_mask")
        else:
            _check_part(part)
            self._append(part, part + 1, 1, "shrink_axis_mask")

    def _add_range(self, part: slice[Any, Any, Any]) -> None:
        open_begin = part.start is None or part.start is sys.maxsize
        open_end = part.stop is None or part.stop is sys.maxsize
        masks = ["begin_mask"] * open_begin + ["end_mask"] * open_end
        self._append(
            0 if open_begin else part.start,
            0 if open_end else part.stop,
            1 if part.step is None else part.step,
            *masks,
        )

    def _append(self, begin: Any, end: Any, stride: Any, *masks: str) -> None:
        for mask in masks:
            self.masks[mask] |= 1 << len(self.begin)
        self.begin.append(begin)
        self.end.append(end)
        self.strides.append(stride)

    def vectors(self) -> list[Tensor]:
        """Begins, ends and strides as tensors of one dtype."""
        if not self.begin:
            return [basic.constant([], dtypes.int32)] * 3
        vectors = [joining.stack(part) for part in (self.begin, self.end, self.strides)]
        for vector in vectors:
            _check_index("begin", vector)
        if all(vector.dtype is vectors[0].dtype for vector in vectors):
            return vectors
        return [casting.cast(vector, dtypes.int64) for vector in vectors]


def _spec(key: Any) -> _Spec:
    return _Spec(list(cast("Sequence[Any]", key)) if isinstance(key, list | tuple) else [key])


def _check_index(parameter: str, tensor: Tensor) -> None:
    if tensor.dtype.base_dtype not in dtypes.INDEX:
        raise TypeError(
            f"Value passed to parameter '{parameter}' has DataType {tensor.dtype.name} not in "
            "list of allowed values: int32, int64"
        )


def _check_part(part: Any) -> None:
    """Raise for lists, arrays and Boolean masks, which slices do not support."""
    is_mask = isinstance(part, bool) or dtypes.bool == getattr(part, "dtype", None)
    rank = as_shape(getattr(part, "shape", ())).rank
    is_list = isinstance(part, list | tuple)
    is_number = isinstance(part, Number | Dimension) or has_conversion(part)
    if is_mask or is_list or not is_number or rank not in (None, 0):
        raise TypeError(
            f"{part!r} cannot index a tensor: only integers, slices (`:`), ellipsis (`...`), "
            "tf.newaxis (`None`) and scalar integer tensors can. Use tf.gather, tf.gather_nd or "
            "tf.boolean_mask to select elements"
        )


@operator("getitem")
def getitem(tensor: Tensor, key: Any) -> Tensor:
    """`tensor[key]`: integers, slices, `...`, `None`, and scalar tensors as bounds."""
    spec = _spec(key)
    with name_scope(None, "strided_slice", [tensor, *spec.begin, *spec.end, *spec.strides]) as name:
        begin, end, strides = spec.vectors()
        return strided_slice(tensor, begin, end, strides, **spec.masks, name=name)


@operator("slice_assign")
def slice_assign(slice_: Tensor, value: Any, name: str | None = None) -> Tensor:
    """Assign to the part of a variable that `slice_` (`variable[...]`) reads."""
    node = slice_.op
    ref = _reference(node.inputs[0]) if isinstance(node.op, StridedSlice) else None
    if ref is None:
        raise ValueError(
            "Sliced assignment is only supported for variables: 'StridedSliceAssign' Op requires "
            f"a slice of one, not {slice_!r} (at {user_line()})"
        )
    return StridedSliceAssign(**node.op.attributes)(ref, *node.inputs[1:], value, name=name)


@operator("assign_at")
def assign_at(ref: Tensor, key: Any, value: Any, name: str | None = None) -> Tensor:
    """`variable[key].assign(value)`, for the variable's reference."""
    spec = _spec(key)
    return StridedSliceAssign(**spec.masks)(ref, *spec.vectors(), value, name=name)


def _reference(tensor: Tensor) -> Tensor | None:
    """The variable's reference that a tensor is, or reads, even if a body captured it."""
    while not tensor.dtype.is_ref_dtype:
        outer = tensor.graph.outside(tensor)
        if outer is not None:
            tensor = outer
        elif isinstance(tensor.op.op, basic.Identity):
            tensor = tensor.op.inputs[0]
        else:
            return None
    return tensor
