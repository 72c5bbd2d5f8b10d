"""Static shapes of tensors: fully known, partly known or unknown.

A `TensorShape` is an immutable tuple of sizes in which `None` is an unknown size, or `None` for an
unknown rank. Users get sizes as `Dimension` objects, whose arithmetic and comparisons are unknown
if an operand is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, SupportsIndex, cast, overload

from thalweg import protos
from thalweg.graph.dtypes import DType
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.likes import ShapeLike

Size = int | None
Sizes = tuple[Size, ...]


Binary = Callable[["Dimension", "Dimension | SupportsIndex | None"], "Dimension"]


def _operator(operation: Callable[[int, int], int]) -> tuple[Binary, Binary]:
    """The methods of a binary operator: with the dimension on the left, and on the right."""

    def operate(left: Any, right: Any) -> Dimension:
        try:
            x, y = as_dimension(left).value, as_dimension(right).value
        except (TypeError, ValueError):
            return NotImplemented  # lets a tensor operand do the arithmetic
        return Dimension(None if x is None or y is None else operation(x, y))

    def operate_reflected(self: Dimension, other: Dimension | SupportsIndex | None) -> Dimension:
        return operate(other, self)

    return operate, operate_reflected


def _comparison(
    operation: Callable[[int, int], bool],
) -> Callable[[Dimension, Dimension | SupportsIndex | None], bool | None]:
    """The method of a comparison operator: its result is None if a size is unknown."""

    def compare(self: Dimension, other: Any) -> bool | None:
        x, y = self.value, as_dimension(other).value
        return None if x is None or y is None else operation(x, y)

    return compare


_equals = _comparison(int.__eq__)


@public("Dimension")
class Dimension:
    """The size of one axis, or `Dimension(None)` where it is unknown.

    Args:
        value: an integer, None, or another dimension.

    Example:
        >>> tf.zeros([2, 3]).shape[1].value
        3
        >>> (tf.Dimension(None) * 2).value is None
        True
    """

    __slots__ = ("_value",)

    def __init__(self, value: Dimension | SupportsIndex | None) -> None:
        self._value = _checked_size(value)

    @property
    def value(self) -> Size:
        """The size, or None if it is unknown."""
        return self._value

    def is_compatible_with(self, other: Dimension | SupportsIndex | None) -> bool:
        """Whether both could be the same size."""
        other_value = as_dimension(other)._value
        return self._value is None or other_value is None or self._value == other_value

    def assert_is_compatible_with(self, other: Dimension | SupportsIndex | None) -> None:
        """Raises ValueError unless both could be the same size."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Dimensions {self} and {other} are not compatible")

    def merge_with(self, other: Dimension | SupportsIndex | None) -> Dimension:
        """The dimension that is known if `self` or `other` is."""
        other = as_dimension(other)
        self.assert_is_compatible_with(other)
        return other if self._value is None else self

    __add__, __radd__ = _operator(int.__add__)
    __sub__, __rsub__ = _operator(int.__sub__)
    __mul__, __rmul__ = _operator(int.__mul__)
    __floordiv__, __rfloordiv__ = _operator(int.__floordiv__)
    __mod__, __rmod__ = _operator(int.__mod__)

    __lt__, __le__ = _comparison(int.__lt__), _comparison(int.__le__)
    __gt__, __ge__ = _comparison(int.__gt__), _comparison(int.__ge__)

    # Any, since the result is None for an unknown size, while object's methods return a bool.
    def __eq__(self, other: object) -> Any:
        try:
            return _equals(self, cast("Any", other))
        except (TypeError, ValueError):
            return NotImplemented

    def __ne__(self, other: object) -> Any:
        is_equal = self.__eq__(other)
        return is_equal if is_equal is None or is_equal is NotImplemented else not is_equal

    def __hash__(self) -> int:
        return hash(self._value)

    def __index__(self) -> int:
        if self._value is None:
            raise TypeError("An unknown Dimension has no integer value.")
        return self._value

    __int__ = __index__

    def __str__(self) -> str:
        return _size_text(self._value)

    def __repr__(self) -> str:
        return f"Dimension({self._value!r})"


def _checked_size(value: Any) -> Size:
    if value is None:
        return None
    if type(value) is Dimension:
        return value.value
    if isinstance(value, DType):
        raise TypeError(f"Cannot convert {value} to a Dimension")
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"Ambiguous dimension: {value}")
    size = int(value)
    if size != value and not isinstance(value, (str, bytes)):
        raise ValueError(f"Ambiguous dimension: {value}")
    if size < 0:
        raise ValueError(f"Dimension {size} must be >= 0")
    return size


def _size_text(size: Size) -> str:
    return "?" if size is None else str(size)


def as_dimension(value: Any) -> Dimension:
    """A Dimension unchanged, or a new one of another value."""
    return value if isinstance(value, Dimension) else Dimension(value)


@public("TensorShape")
class TensorShape:
    """The static shape of a tensor: unknown sizes are None, and the rank may be unknown.

    Args:
        dims: a list of sizes, an integer, another shape, or None for an unknown rank.

    Example:
        >>> shape = tf.TensorShape([None, 3])
        >>> shape.as_list(), shape.ndims, shape.is_fully_defined()
        ([None, 3], 2, False)
        >>> shape.merge_with([5, None]).as_list()
        [5, 3]
    """

    __slots__ = ("sizes",)

    sizes: Sizes | None  # None if the rank is unknown

    def __init__(self, dims: ShapeLike) -> None:
        self.sizes = _checked_sizes(dims)

    @classmethod
    def of(cls, sizes: Sizes | None) -> TensorShape:
        """The shape of sizes that are valid, without checking them."""
        if sizes is None:
            return _UNKNOWN
        shape = object.__new__(cls)
        shape.sizes = sizes
        return shape

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorShape.of, (self.sizes,)

    @property
    def whole(self) -> tuple[int, ...] | None:
        """The sizes as a tuple, or None unless all of them are known."""
        return cast("tuple[int, ...]", self.sizes) if self.is_fully_defined() else None

    @property
    def dims(self) -> list[Dimension] | None:
        """The sizes as a new list of Dimensions, or None if the rank is unknown."""
        return None if self.sizes is None else [Dimension(size) for size in self.sizes]

    _dims = dims  # the name that libraries for TensorFlow 1.x use

    @property
    def rank(self) -> Size:
        """The number of axes, or None if it is unknown."""
        return None if self.sizes is None else len(self.sizes)

    ndims = rank

    def as_list(self) -> list[Size]:
        """The sizes as a list, None where unknown; a ValueError if the rank is unknown."""
        if self.sizes is None:
            raise ValueError("as_list() is not defined on an unknown TensorShape.")
        return list(self.sizes)

    def as_proto(self) -> Any:
        """The shape as a TensorShapeProto; unknown sizes are -1."""
        proto = protos.TensorShapeProto(unknown_rank=self.sizes is None)
        for size in self.sizes or ():
            proto.dim.add(size=-1 if size is None else size)
        return proto

    def num_elements(self) -> Size:
        """The number of elements, or None if any size is unknown."""
        sizes = self.whole
        return None if sizes is None else math.prod(sizes)

    def is_fully_defined(self) -> bool:
        """Whether the rank and every size are known."""
        return self.sizes is not None and None not in self.sizes

    def assert_is_fully_defined(self) -> None:
        """Raises ValueError unless the rank and every size are known."""
        if not self.is_fully_defined():
            raise ValueError(f"Shape {self} is not fully defined")

    def is_compatible_with(self, other: Any) -> bool:
        """Whether some full shape fits both: equal where both are known."""
        mine, theirs = self.sizes, as_shape(other).sizes
        if mine is None or theirs is None or mine == theirs:
            return True
        if len(mine) != len(theirs):
            return False
        return all(x == y or x is None or y is None for x, y in zip(mine, theirs, strict=True))

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raises ValueError unless some full shape fits both."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {as_shape(other)} are incompatible")

    def merge_with(self, other: Any) -> TensorShape:
        """The shape with all sizes that `self` or `other` knows."""
        other = as_shape(other)
        if self.sizes == other.sizes:
            return self
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {other} are not compatible")
        if self.sizes is None or other.sizes is None:
            return other if self.sizes is None else self
        pairs = zip(self.sizes, other.sizes, strict=True)
        return TensorShape.of(tuple(y if x is None else x for x, y in pairs))

    def most_specific_compatible_shape(self, other: Any) -> TensorShape:
        """The most specific shape that both `self` and `other` are instances of."""
        mine, theirs = self.sizes, as_shape(other).sizes
        if mine is None or theirs is None or len(mine) != len(theirs):
            return _UNKNOWN
        pairs = zip(mine, theirs, strict=True)
        return TensorShape.of(tuple(x if x == y else None for x, y in pairs))

    def concatenate(self, other: Any) -> TensorShape:
        """The axes of `self`, then those of `other`; unknown if either rank is."""
        other = as_shape(other)
        if self.sizes is None or other.sizes is None:
            return _UNKNOWN
        return TensorShape.of(self.sizes + other.sizes)

    def assert_same_rank(self, other: Any) -> None:
        """Raises ValueError if both ranks are known and differ."""
        other = as_shape(other)
        if None not in (self.rank, other.rank) and self.rank != other.rank:
            raise ValueError(f"Shapes {self} and {other} must have the same rank")

    def assert_has_rank(self, rank: int | None) -> None:
        """Raises ValueError if the rank is known and not `rank`."""
        if rank is not None and self.rank not in (None, rank):
            raise ValueError(f"Shape {self} must have rank {rank}")

    def with_rank(self, rank: int | None) -> TensorShape:
        """This shape, or one of rank `rank` if its rank is unknown; a ValueError if it differs."""
        self.assert_has_rank(rank)
        return unknown_shape(rank) if self.sizes is None else self

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """This shape; a ValueError if its rank is known and below `rank`."""
        if self.sizes is not None and len(self.sizes) < rank:
            raise ValueError(f"Shape {self} must have rank at least {rank}")
        return self

    def with_rank_at_most(self, rank: int) -> TensorShape:
        """This shape; a ValueError if its rank is known and above `rank`."""
        if self.sizes is not None and len(self.sizes) > rank:
            raise ValueError(f"Shape {self} must have rank at most {rank}")
        return self

    def __len__(self) -> int:
        if self.sizes is None:
            raise ValueError("Cannot take the length of a shape with unknown rank.")
        return len(self.sizes)

    def __bool__(self) -> bool:
        return self.sizes is not None

    def __iter__(self) -> Iterator[Dimension]:
        if self.sizes is None:
            raise ValueError("Cannot iterate over a shape with unknown rank.")
        return map(Dimension, self.sizes)

    @overload
    def __getitem__(self, key: slice) -> TensorShape: ...

    @overload
    def __getitem__(self, key: int) -> Dimension: ...

    def __getitem__(self, key: slice | int) -> TensorShape | Dimension:
        if isinstance(key, slice):
            return TensorShape.of(_unknown_slice(key) if self.sizes is None else self.sizes[key])
        return Dimension(None if self.sizes is None else self.sizes[key])

    def __eq__(self, other: object) -> bool:
        try:
            theirs = as_shape(cast("Any", other)).sizes
        except (TypeError, ValueError):
            return NotImplemented
        # As with Dimension, two unknown sizes are not known to be equal.
        return self is other or (self.sizes == theirs and None not in (theirs or ()))

    def __ne__(self, other: object) -> bool:
        try:
            other = as_shape(cast("Any", other))
        except (TypeError, ValueError):
            return NotImplemented
        if self.sizes is None or other.sizes is None:
            raise ValueError("The inequality of unknown TensorShapes is undefined.")
        return not self == other

    def __hash__(self) -> int:
        return hash(self.sizes)

    def __str__(self) -> str:
        if self.sizes is None:
            return "<unknown>"
        text = ", ".join(map(_size_text, self.sizes))
        return f"({text},)" if len(self.sizes) == 1 else f"({text})"

    def __repr__(self) -> str:
        return f"TensorShape({self.dims!r})"


@public("compat.dimension_value", "dimension_value")
def dimension_value(dimension: Dimension | int | None) -> Size:
    """The integer value of a dimension, which may be a Dimension or an integer.

    Args:
        dimension: a Dimension, a number or None.

    Returns:
        A number, or None where the size is unknown.

    Example:
        >>> tf.compat.dimension_value(tf.TensorShape([None, 3])[1])
        3
    """
    return dimension.value if isinstance(dimension, Dimension) else dimension


@public("compat.dimension_at_index", "dimension_at_index")
def dimension_at_index(shape: TensorShape, index: int) -> Dimension:
    """One size of a shape; an unknown one where the rank is unknown.

    Args:
        shape: a shape.
        index: which size.

    Returns:
        A Dimension.

    Example:
        >>> tf.compat.dimension_at_index(tf.TensorShape([2, 3]), 1), tf.TensorShape(None).rank
        (Dimension(3), None)
    """
    return Dimension(None) if shape.rank is None else shape[index]


def _checked_sizes(dims: Any) -> Sizes | None:
    if dims is None:
        return None
    if isinstance(dims, TensorShape):
        return dims.sizes
    if hasattr(dims, "unknown_rank"):  # a TensorShapeProto
        sizes = tuple(None if d.size < 0 else int(d.size) for d in dims.dim)
        return None if dims.unknown_rank else sizes
    if isinstance(dims, (str, bytes)):
        raise TypeError(f"A string has ambiguous TensorShape, wrap it in a list: {dims!r}")
    try:
        iterator: Iterator[Any] = iter(dims)
    except TypeError:
        return (_checked_size(dims),)
    return tuple(map(_checked_size, iterator))


def _unknown_slice(key: slice) -> Sizes | None:
    """The sizes of a slice of a shape of unknown rank: known if both ends are non-negative."""
    if key.step is not None:
        raise ValueError("A shape of unknown rank cannot be sliced with a step.")
    start, stop = key.start or 0, key.stop
    if stop is None or start < 0 or stop < 0:
        return None
    return (None,) * (stop - start)


_UNKNOWN = TensorShape(None)


def as_shape(shape: ShapeLike) -> TensorShape:
    """A TensorShape unchanged, or a new one of other dimensions."""
    return shape if isinstance(shape, TensorShape) else TensorShape(shape)


def unknown_shape(ndims: int | None = None) -> TensorShape:
    """The shape of unknown rank, or one of rank `ndims` with no size known."""
    return _UNKNOWN if ndims is None else TensorShape.of((None,) * ndims)


def scalar() -> TensorShape:
    """The shape with no axes."""
    return TensorShape.of(())


def vector(length: Any) -> TensorShape:
    """The shape with one axis of size `length` (None if unknown)."""
    return TensorShape((length,))


def matrix(rows: Any, cols: Any) -> TensorShape:
    """The shape `(rows, cols)`, either None if unknown."""
    return TensorShape((rows, cols))


def broadcast_shapes(*shapes: TensorShape) -> TensorShape:
    """The static shape after NumPy broadcasting; a ValueError if the shapes do not broadcast.

    An unknown size paired with a known one other than 1 gives the known one.
    """
    return reduce(_broadcast_pair, shapes) if shapes else scalar()


def _broadcast_pair(left: TensorShape, right: TensorShape) -> TensorShape:
    if left.sizes is None or right.sizes is None:
        return _UNKNOWN
    if left.sizes == right.sizes:
        return left
    pairs = zip_longest(reversed(left.sizes), reversed(right.sizes), fillvalue=1)
    try:
        sizes = [_broadcast_size(x, y) for x, y in pairs]
    except ValueError:
        message = f"Dimensions must be equal to broadcast, but the shapes are {left} and {right}"
        raise ValueError(message) from None
    return TensorShape.of(tuple(reversed(sizes)))


def _broadcast_size(x: Size, y: Size) -> Size:
    if x == y or y == 1:
        return x
    if x == 1 or x is None:
        return y
    if y is None:
        return x
    raise ValueError(f"Sizes {x} and {y} do not broadcast")
