"""`tf.TensorSpec`: the dtype and static shape of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.graph.convert import has_conversion
from thalweg.graph.dtypes import DType, as_dtype, float32
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.variables.variable import Variable


@public("TensorSpec", "contrib.framework.TensorSpec")
class TensorSpec:
    """A dtype and a shape: `tf.TensorSpec([None, 10], tf.float32, name="x")`."""

    __slots__ = ("_dtype", "_name", "_shape")

    def __init__(self, shape: Any, dtype: Any = float32, name: str | None = None) -> None:
        self._shape = as_shape(shape)
        self._dtype = as_dtype(dtype)
        self._name = name

    @classmethod
    def from_spec(cls, spec: TensorSpec, name: str | None = None) -> TensorSpec:
        """The same dtype and shape, under another name if one is given."""
        return cls(spec.shape, spec.dtype, name or spec.name)

    @classmethod
    def from_tensor(cls, tensor: Tensor | Variable, name: str | None = None) -> TensorSpec:
        """The dtype and static shape of a tensor."""
        return cls(tensor.shape, tensor.dtype, name or tensor.op.name)

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return self._shape

    @property
    def dtype(self) -> DType:
        """The dtype."""
        return self._dtype

    @property
    def name(self) -> str | None:
        """The name of the argument; None if there is none."""
        return self._name

    def is_compatible_with(self, spec_or_tensor: Any) -> bool:
        """Whether a spec, a tensor or an array has a compatible dtype and shape."""
        other = spec_of(spec_or_tensor)
        return self._dtype.is_compatible_with(other.dtype) and self._shape.is_compatible_with(
            other.shape
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TensorSpec)
            and self._dtype == other._dtype
            and self._shape.sizes == other._shape.sizes
            and self._name == other._name
        )

    def __hash__(self) -> int:
        return hash((self._shape.sizes, self._dtype))

    def __repr__(self) -> str:
        name = None if self._name is None else repr(self._name)
        return f"TensorSpec(shape={self._shape}, dtype={self._dtype!r}, name={name})"


def spec_of(value: Any) -> TensorSpec:
    """The spec of a spec, a tensor, a variable, an array or a number."""
    if isinstance(value, TensorSpec):
        return value
    if has_conversion(value) and hasattr(value, "dtype"):
        return TensorSpec(value.shape, as_dtype(value.dtype).base_dtype)
    array = np.asarray(value)
    return TensorSpec(array.shape, as_dtype(array.dtype))
