"""Type aliases of arguments that public functions convert to a tensor, dtype, shape or structure.

Three of them are `Any`; each says why.
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
    """An object that NumPy can convert to an array: an array, a NumPy scalar, a data frame."""

    def __array__(self) -> NDArray[Any]:
        """The elements."""
        ...


class HoldsTensor(Protocol):
    """A variable or another object with a current value."""

    def value(self) -> Tensor:
        """The value as a tensor."""
        ...


#: None inside lists is an unknown size beside tensors.
TensorLike: TypeAlias = "Tensor | HoldsTensor | HoldsArray | complex | str | bytes | IndexedSlices | TensorShape | Dimension | Sequence[TensorLike | None]"  # fmt: skip # noqa: E501 - one string
DTypeLike: TypeAlias = DType | str | int | type[Any] | np.dtype[Any]
ShapeLike: TypeAlias = TensorShape | SupportsIndex | Iterable[SupportsIndex | None] | None
#: An integer, or one for each axis.
IntsLike: TypeAlias = SupportsIndex | Iterable[SupportsIndex]
SparseLike: TypeAlias = SparseTensor | SparseTensorValue
#: Tensors in lists, tuples and dicts.
TensorStructure: TypeAlias = "TensorLike | SparseLike | Sequence[TensorStructure] | Mapping[Any, TensorStructure]"  # fmt: skip # noqa: E501 - one string
#: What a step can fetch: tensors, operations, their names, and structures of them.
FetchLike: TypeAlias = "Tensor | Node | HoldsTensor | SparseTensor | IndexedSlices | str | Sequence[FetchLike] | Mapping[Any, FetchLike]"  # fmt: skip # noqa: E501 - one string
#: A device by its name, or a function that names one for each operation.
DeviceLike: TypeAlias = "str | DeviceSpec | Callable[[Node], str | DeviceSpec | None] | None"
#: The index in `tensor[index]`.
IndexLike: TypeAlias = "SupportsIndex | slice[Any, Any, Any] | EllipsisType | Tensor | HoldsTensor | HoldsArray | Sequence[IndexLike] | None"  # fmt: skip # noqa: E501 - one string
#: An operation, or an output of one.
NodeLike: TypeAlias = Node | Tensor | HoldsTensor | SparseTensor | IndexedSlices
#: Operations and tensors, in any structure.
NodesLike: TypeAlias = "Node | Tensor | Iterable[NodesLike]"
#: The names of collections.
Collections: TypeAlias = Iterable[Hashable] | None

#: A result that is None only in cases that callers exclude, so that a check would be noise.
MaybeNone: TypeAlias = Any
#: Lists, tuples and dicts of the user's, or the result of a user's function.
Structure: TypeAlias = Any
#: An object of the user's, kept and returned unchanged.
UserObject: TypeAlias = Any
