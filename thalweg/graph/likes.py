"""What callers may pass where a tensor, a dtype, a shape or a structure of them is meant.

Public functions convert such arguments first thing; these names say in a signature that they do.
Three names stand for `Any`, each for the reason that it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Protocol, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from thalweg.graph.composite import IndexedSlices, SparseTensor, SparseTensorValue
from thalweg.graph.device import DeviceSpec
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node, Tensor
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
DTypeLike: TypeAlias = DType | str | int | type[Any] | np.dtype[Any]
ShapeLike: TypeAlias = TensorShape | SupportsIndex | Iterable[SupportsIndex | None] | None
#: A whole number, or one for each axis.
IntsLike: TypeAlias = SupportsIndex | Iterable[SupportsIndex]
SparseLike: TypeAlias = SparseTensor | SparseTensorValue
#: Tensors in lists, tuples and dicts.
TensorStructure: TypeAlias = "TensorLike | SparseLike | Sequence[TensorStructure] | Mapping[Any, TensorStructure]"  # fmt: skip # noqa: E501 - one string
#: What a step can be asked for: tensors, operations, their names, and structures of them.
FetchLike: TypeAlias = "Tensor | Node | HoldsTensor | SparseTensor | IndexedSlices | str | Sequence[FetchLike] | Mapping[Any, FetchLike]"  # fmt: skip # noqa: E501 - one string
#: A device by its name, or a function that names one for each operation.
DeviceLike: TypeAlias = "str | DeviceSpec | Callable[[Node], str | DeviceSpec | None] | None"
#: What stands in brackets behind a tensor.
IndexLike: TypeAlias = "SupportsIndex | slice[Any, Any, Any] | EllipsisType | Tensor | HoldsTensor | HoldsArray | Sequence[IndexLike] | None"  # fmt: skip # noqa: E501 - one string
#: An operation, or what an operation makes.
NodeLike: TypeAlias = Node | Tensor | HoldsTensor | SparseTensor | IndexedSlices
#: Operations and tensors, in any structure.
NodesLike: TypeAlias = "Node | Tensor | Iterable[NodesLike]"
#: The names of collections.
Collections: TypeAlias = Iterable[Hashable] | None

#: A result that is None only in cases that callers rule out: a check would be noise to them.
MaybeNone: TypeAlias = Any
#: Lists, tuples and dicts as the program made them, or what its own function returned.
Structure: TypeAlias = Any
#: An object of the program's own, which is kept and handed back as it is.
UserObject: TypeAlias = Any
