"""What callers may pass where a tensor, a dtype or a shape is meant.

Public functions convert such arguments first thing; these names say in a signature that they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from thalweg.graph.composite import IndexedSlices
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import Dimension, TensorShape


class HoldsArray(Protocol):
    """An array, a scalar of NumPy's, a data frame: what NumPy can make an array of."""

    def __array__(self) -> NDArray[Any]:
        """The elements."""
        ...


class HoldsTensor(Protocol):
    """A variable, or what else has a current value."""

    def value(self) -> Tensor:
        """The value as a tensor."""
        ...


#: Sizes that may be unknown stand in lists beside tensors, hence None there.
TensorLike: TypeAlias = "Tensor | HoldsTensor | HoldsArray | complex | str | bytes | IndexedSlices | TensorShape | Dimension | Sequence[TensorLike | None]"  # fmt: skip # noqa: E501 - one string
#: A result that is None only in cases that callers rule out: a check would be noise to them.
MaybeNone: TypeAlias = Any
DTypeLike: TypeAlias = DType | str | int | type[Any] | np.dtype[Any]
ShapeLike: TypeAlias = TensorShape | SupportsIndex | Iterable[SupportsIndex | None] | None
