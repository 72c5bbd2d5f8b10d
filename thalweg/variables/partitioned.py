"""Partitioned variables: split along one axis, so that the parts can be on several devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from thalweg.graph.convert import register_tensor_conversion_function
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.ops.arrays import joining, splitting
from thalweg.ops.core import basic
from thalweg.public import public
from thalweg.variables.save_slice import SaveSliceInfo
from thalweg.variables.variable import Variable


class PartitionInfo:
    """The position of a part in the whole variable, for initializers that depend on it."""

    def __init__(self, full_shape: Sequence[int], var_offset: Sequence[int]) -> None:
        _check_sequence("full_shape", full_shape)
        _check_sequence("var_offset", var_offset)
        if len(var_offset) != len(full_shape):
            raise ValueError(
                f"Expected equal length, but `var_offset` is of length {len(var_offset)} while "
                f"full_shape is of length {len(full_shape)}."
            )
        for offset, size in zip(var_offset, full_shape, strict=True):
            if offset < 0 or offset >= size:
                raise ValueError(
                    f"Expected 0 <= offset < shape but found offset={offset}, shape={size} for "
                    f"var_offset={var_offset}, full_shape={full_shape}"
                )
        self._full_shape = full_shape
        self._var_offset = var_offset

    @property
    def full_shape(self) -> Sequence[int]:
        """The shape of the whole variable."""
        return self._full_shape

    @property
    def var_offset(self) -> Sequence[int]:
        """The offset of this part."""
        return self._var_offset

    def single_offset(self, shape: Sequence[int]) -> int:
        """The offset of a part of this shape along the axis that is split."""
        axis = self.single_slice_dim(shape)
        return 0 if axis is None else self._var_offset[axis]

    def single_slice_dim(self, shape: Sequence[int]) -> int | None:
        """The axis that is split, if a part has this shape."""
        _check_sequence("shape", shape)
        if len(shape) != len(self._full_shape):
            raise ValueError(
                f"Expected equal length, but received shape={shape} of length {len(shape)} while "
                f"self.full_shape={self._full_shape} is of length {len(self._full_shape)}."
            )
        for axis, size in enumerate(shape):
            if self._var_offset[axis] + size > self._full_shape[axis]:
                raise ValueError(
                    f"With self.var_offset={self._var_offset}, a partition of shape={shape} would "
                    f"exceed self.full_shape={self._full_shape} in dimension {axis}."
                )
        split = [a for a, size in enumerate(shape) if size != self._full_shape[a]]
        if len(split) > 1:
            raise ValueError(
                f"Cannot use single_slice_dim() with shape={shape} and self.full_shape="
                f"{self._full_shape} since slice dim could be either dimension {split[1]} or "
                f"{split[0]}."
            )
        return split[0] if split else None


#: The name that TensorFlow programs use to create one.
_PartitionInfo = PartitionInfo


def _check_sequence(name: str, value: Any) -> None:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(
            f"`{name}` must be a sequence (like tuple or list) instead of {type(value).__name__}"
        )


Part = tuple[list[int], list[int]]  # (offset, shape)


def slice_plan(shape: Sequence[int], slicing: Sequence[int]) -> tuple[int, list[Part]]:
    """The axis that is split, and the parts; the first parts are larger by one if needed."""
    for size, count in zip(shape, slicing, strict=True):
        if count <= 0 or size < count:
            raise ValueError(
                f"Cannot create {count} slices for size {size}. shape: {list(shape)}, slicing: "
                f"{list(slicing)}"
            )
    split = [axis for axis, count in enumerate(slicing) if count > 1]
    if len(split) > 1:
        raise ValueError(
            f"Can only slice a variable along one dimension: shape: {list(shape)}, slicing: "
            f"{list(slicing)}"
        )
    axis = split[0] if split else 0
    length, excess = divmod(shape[axis], slicing[axis])
    parts: list[Part] = []
    start = 0
    for index in range(slicing[axis]):
        size = length + (index < excess)
        parts.append((_replaced([0] * len(shape), axis, start), _replaced(shape, axis, size)))
        start += size
    return axis, parts


def _replaced(values: Sequence[int], axis: int, value: int) -> list[int]:
    return [*values[:axis], value, *values[axis + 1 :]]


@public("PartitionedVariable")
class PartitionedVariable:
    """A variable in parts, each a variable; it is converted to their concatenation."""

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: DType,
        variable_list: Sequence[Variable],
        partitions: Sequence[int],
    ) -> None:
        _check_parts(variable_list, partitions)
        if len(shape) != len(partitions):
            raise ValueError(f"len(shape) != len(partitions): {shape} vs. {partitions}")
        self._shape = TensorShape(shape)
        for variable in variable_list:
            whole = cast("SaveSliceInfo", variable.save_slice_info).full_shape
            if whole != self._shape.as_list():
                raise ValueError(
                    f"All variables' full shapes must match shape: {self._shape}; but full shapes "
                    f"were: {whole}"
                )
        self._parts = sorted(variable_list, key=_offset)
        self._name = name
        self._dtype = dtype
        self._partitions = list(partitions)

    @property
    def name(self) -> str:
        """The name of the whole."""
        return self._name

    @property
    def dtype(self) -> DType:
        """The dtype of the parts."""
        return self._dtype

    @property
    def shape(self) -> TensorShape:
        """The shape of the whole."""
        return self._shape

    def get_shape(self) -> TensorShape:
        """The shape of the whole."""
        return self._shape

    @property
    def graph(self) -> Graph:
        """The graph of the parts."""
        return self._parts[0].graph

    @property
    def origin(self) -> str:
        """`file:line` of the user's code that created the parts."""
        return self._parts[0].op.origin

    @property
    def partitions(self) -> list[int]:
        """The number of parts along each axis."""
        return self._partitions

    def as_tensor(self) -> Tensor:
        """The concatenated parts."""
        with self.graph.control_dependencies(None):
            return self._concat()

    def _concat(self) -> Tensor:
        graph = self.graph
        if len(self._parts) == 1:
            with graph.name_scope(None):
                return basic.identity(self._parts[0], name=self._name)
        axes = self._partition_axes()
        with graph.name_scope(f"{self._name}/ConcatPartitions/"):
            whole = joining.concat(self._parts, axes[0])
        with graph.name_scope(None):
            return basic.identity(whole, name=self._name)

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None) -> list[Any]:
        """Assign to the parts: `value` is a tensor of the whole shape, or one for each part."""
        pieces = self._pieces(value)
        return [
            part.assign(piece, use_locking, name)
            for part, piece in zip(self._parts, pieces, strict=True)
        ]

    def _pieces(self, value: Any) -> Sequence[Any]:
        if isinstance(value, list | tuple | PartitionedVariable):
            return list(cast("Sequence[Any]", value))
        axis = self._partition_axes()[0]
        sizes = [part.shape.as_list()[axis] for part in self._parts]
        return splitting.split(value, sizes, axis)

    def _partition_axes(self) -> list[int]:
        return [axis for axis, count in enumerate(self._partitions) if count > 1] or [0]

    def _get_variable_list(self) -> list[Variable]:
        return self._parts

    def _get_partitions(self) -> list[int]:
        return self._partitions

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._parts)

    def __len__(self) -> int:
        axes = self._partition_axes()
        if len(axes) > 1:
            raise ValueError(f"Cannot get a length for {len(axes)} > 1 partition axes")
        return len(self._parts)


def _offset(variable: Variable) -> list[int]:
    return cast("SaveSliceInfo", variable.save_slice_info).var_offset


def _check_parts(variable_list: Any, partitions: Any) -> None:
    if not isinstance(variable_list, list | tuple):
        raise TypeError(f"variable_list is not a list or tuple: {variable_list}")
    if not isinstance(partitions, list | tuple):
        raise TypeError(f"partitions is not a list or tuple: {partitions}")
    if not all(count >= 1 for count in cast("Sequence[int]", partitions)):
        raise ValueError(f"partition values must be positive: {partitions}")
    parts = cast("Sequence[Any]", variable_list)
    if not parts:
        raise ValueError("variable_list may not be empty")
    if not all(isinstance(part, Variable) for part in parts):
        raise TypeError(f"Not all entries in variable_list are variables: {parts}")
    if any(part.save_slice_info is None for part in parts):
        raise ValueError(
            f"All variables must have a save_slice_info available: {[p.name for p in parts]}"
        )


def _as_tensor(
    variable: PartitionedVariable,
    dtype: DType | None = None,
    name: str | None = None,
    as_ref: bool = False,
) -> Tensor:
    if dtype is not None and not dtype.is_compatible_with(variable.dtype):
        raise ValueError(
            f"Incompatible type conversion requested to type '{dtype.name}' for variable of type "
            f"'{variable.dtype.name}': {variable.name}"
        )
    if as_ref:
        raise TypeError(
            f"{variable.name} is partitioned: it has no one buffer to refer to. Change its parts."
        )
    return variable.as_tensor()


register_tensor_conversion_function(PartitionedVariable, _as_tensor)
