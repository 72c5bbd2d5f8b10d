"""Shapes as values, and ops that change the shape but not the elements."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.composite import SparseTensor, SparseTensorValue
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_value, constant_value_as_shape
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar, unknown_shape, vector
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck, reshaped
from thalweg.ops.core import casting
from thalweg.ops.math import reduce
from thalweg.platform.arrays import Array
from thalweg.public import public

known_shape = constant_value_as_shape


class Shape(Op):
    """The shape of x, as a vector."""

    signature = "input: T -> output: out_type; out_type: index"
    of_shapes = True
    not_differentiable = True
    out_type: DType = dtypes.int32

    def shape(self, input: Tensor) -> TensorShape:
        return vector(input.shape.rank)

    def known_value(self, input: Tensor) -> Array | None:
        if not input.shape.is_fully_defined():
            return None
        return np.array(input.shape.as_list(), self.out_type.as_numpy_dtype)

    def dimensions(self, input: Tensor) -> TensorShape:
        return input.shape

    def numpy(self, input: Array) -> Array:
        return np.array(np.shape(input), self.out_type.as_numpy_dtype)


@public("shape")
def shape(input: Any, name: str | None = None, out_type: Any = dtypes.int32) -> Tensor:
    """The shape of a tensor at run time, as an integer vector.

    The static shape is `x.shape`; sizes that vary are None there.

    Args:
        input: a tensor, or a SparseTensor, whose dense shape is returned.
        name: the name of the node.
        out_type: int32 or int64.

    Returns:
        A vector with a number for each axis of `input`.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 3])
        >>> x.shape.as_list(), sess.run(tf.shape(x), {x: np.zeros([5, 3])})
        ([None, 3], array([5, 3], dtype=int32))
    """
    if isinstance(input, SparseTensor | SparseTensorValue):
        return casting.cast(input.dense_shape, as_dtype(out_type), name=name)
    return Shape(out_type=as_dtype(out_type))(input, name=name)


class ShapeN(Op):
    """The shapes of several tensors, as vectors."""

    signature = "input: N*T -> output: N*out_type; out_type: index"
    of_shapes = True
    not_differentiable = True
    out_type: DType = dtypes.int32

    def shape(self, input: list[Tensor]) -> list[TensorShape]:
        return [vector(tensor.shape.rank) for tensor in input]

    def known_value(self, input: list[Tensor]) -> list[Array] | None:
        if not all(tensor.shape.is_fully_defined() for tensor in input):
            return None
        return [np.array(x.shape.as_list(), self.out_type.as_numpy_dtype) for x in input]

    def numpy(self, input: list[Array]) -> list[Array]:
        return [np.array(np.shape(x), self.out_type.as_numpy_dtype) for x in input]


@public("shape_n")
def shape_n(input: Any, out_type: Any = dtypes.int32, name: str | None = None) -> list[Tensor]:
    """The shapes of several tensors.

    Args:
        input: a list of tensors.
        out_type: int32 or int64.
        name: the name of the node.

    Returns:
        A list of vectors.

    Example:
        >>> sess.run(tf.shape_n([tf.zeros([2, 3]), tf.zeros([4])]))
        [array([2, 3], dtype=int32), array([4], dtype=int32)]
    """
    return ShapeN(out_type=as_dtype(out_type))(input, name=name)


class Size(Op):
    """The number of elements of x."""

    signature = "input: T -> output: out_type; out_type: index"
    of_shapes = True
    not_differentiable = True
    out_type: DType = dtypes.int32

    def shape(self, input: Tensor) -> TensorShape:
        return scalar()

    def known_value(self, input: Tensor) -> Array | None:
        size = input.shape.num_elements()
        return None if size is None else np.array(size, self.out_type.as_numpy_dtype)

    def numpy(self, input: Array) -> Array:
        return np.array(np.size(input), self.out_type.as_numpy_dtype)


@public("size")
def size(input: Any, name: str | None = None, out_type: Any = dtypes.int32) -> Tensor:
    """The number of elements of a tensor.

    Args:
        input: a tensor, or a SparseTensor, whose dense size is returned.
        name: the name of the node.
        out_type: int32 or int64.

    Returns:
        A scalar.

    Example:
        >>> sess.run(tf.size(tf.zeros([2, 3, 4])))
        np.int32(24)
    """
    if isinstance(input, SparseTensor | SparseTensorValue):
        elements = reduce.reduce_prod(input.dense_shape, 0, name=name)
        return casting.cast(elements, as_dtype(out_type))
    return Size(out_type=as_dtype(out_type))(input, name=name)


class Rank(Op):
    """The number of dimensions of x."""

    signature = "input: T -> output: int32"
    of_shapes = True
    not_differentiable = True

    def shape(self, input: Tensor) -> TensorShape:
        return scalar()

    def known_value(self, input: Tensor) -> Array | None:
        return None if input.shape.rank is None else np.array(input.shape.rank, np.int32)

    def numpy(self, input: Array) -> Array:
        return np.array(np.ndim(input), np.int32)


@public("rank")
def rank(input: Any, name: str | None = None) -> Tensor:
    """The number of axes of a tensor.

    Args:
        input: a tensor or SparseTensor.
        name: the name of the node.

    Returns:
        An int32 scalar.

    Example:
        >>> sess.run(tf.rank(tf.zeros([2, 3])))
        np.int32(2)
    """
    if isinstance(input, SparseTensor | SparseTensorValue):
        return size(input.dense_shape, name=name)
    return Rank()(input, name=name)


class Reshape(Op):
    """The elements of x, in order, in another shape; one size may be -1."""

    signature = "tensor: T, shape: Tshape -> output: T; Tshape: index"
    inexpensive = True

    def shape(self, tensor: Tensor, shape: Tensor) -> TensorShape:
        shape.shape.assert_has_rank(1)
        wanted = constant_value_as_shape(shape)
        if wanted.sizes is None:
            return unknown_shape()
        # Sizes that are unknown until the step runs, and -1, are both None here.
        exact = constant_value(shape)
        if exact is not None:
            _check_sizes(exact)
        elements = tensor.shape.num_elements()
        return TensorShape.of(_complete(wanted.sizes, elements, exact is not None))

    def numpy(self, tensor: Array, shape: Array) -> Array:
        _check_sizes(shape)
        sizes = tuple(np.asarray(shape).tolist())
        try:
            return np.reshape(tensor, sizes)
        except ValueError:
            raise errors.invalid(
                f"Input to reshape is a tensor with {np.size(tensor)} values, but the requested "
                f"shape {list(sizes)} does not hold that many"
            ) from None

    def loop(self, at: IndexTuple, tensor: Operand, shape: Operand) -> Expr:
        return tensor[reshaped(at, tensor.shape)]

    def requires(self, tensor: Operand, shape: Operand) -> list[RuntimeCheck]:
        if shape.value is not None:
            return []
        # A single unknown size may be a -1, or is determined by the others.
        sizes = [shape[axis] for axis in range(shape.size)]
        opens = sum(select(size < 0, 1, 0) for size in sizes)
        known = math.prod(select(size < 0, 1, size) for size in sizes)
        fits = call("eq", known, tensor.size) | call("eq", opens, 1)
        return [RuntimeCheck((), fits), *(RuntimeCheck((), size >= -1) for size in sizes)]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [reshape(dy, shape(node.inputs[0])), None]


def _check_sizes(shape: Array) -> None:
    if np.ndim(shape) != 1:
        raise ValueError(f"shape must be a vector, got {np.asarray(shape).tolist()}")
    sizes: list[int] = shape.tolist()
    if min(sizes, default=0) < -1:
        raise ValueError(f"Sizes must not be negative (but for one -1), got {sizes}")
    if sizes.count(-1) > 1:
        raise ValueError(f"Only one size may be -1, got {sizes}")


def _complete(
    sizes: tuple[int | None, ...], elements: int | None, exact: bool
) -> tuple[int | None, ...]:
    """Compute the one unknown size from the number of elements, and check the others."""
    unknown = sizes.count(None)
    known = int(np.prod([s for s in sizes if s is not None], dtype=np.int64))
    if elements is None or unknown > 1:
        return sizes
    if unknown == 0:
        if known != elements:
            raise ValueError(
                f"Cannot reshape a tensor with {elements} elements to shape {list(sizes)} "
                f"({known} elements)"
            )
        return sizes
    if known == 0 or elements % known:
        if exact:
            raise ValueError(
                f"Dimension size must be evenly divisible by {known} but is {elements}"
            )
        return sizes
    return tuple(elements // known if s is None else s for s in sizes)


@public("reshape")
def reshape(tensor: Any, shape: Any, name: str | None = None) -> Tensor:
    """The same elements, in row-major order, in another shape.

    Args:
        tensor: any tensor.
        shape: the new sizes, as a list or an integer vector; one may be -1, which is computed.
        name: the name of the node.

    Returns:
        A tensor of the same dtype and number of elements.

    Raises:
        ValueError: if the numbers of elements are known and differ.

    Example:
        >>> sess.run(tf.reshape([1, 2, 3, 4, 5, 6], [2, -1]))
        array([[1, 2, 3],
               [4, 5, 6]], dtype=int32)
    """
    return Reshape()(tensor, shape_tensor(shape), name=name)


def shape_tensor(shape: Any) -> Tensor:
    """A shape given by a user (list, tuple, TensorShape, tensor, array) as an index tensor."""
    if isinstance(shape, int | np.integer):
        raise ValueError(f"A shape must be a vector, not the scalar {shape}")
    return index_tensor(shape)


def index_tensor(value: Any, name: str | None = None) -> Tensor:
    """Sizes, axes or bounds given by a user as an index tensor, even `[]`, which has no dtype."""
    if isinstance(value, np.ndarray):
        value = _whole_numbers(cast("Array", value))
    preferred = None if hasattr(value, "dtype") else dtypes.int32
    return convert_to_tensor(value, name=name, preferred_dtype=preferred)


def _whole_numbers(array: Array) -> Array:
    """An array of floats with integral values as integers; other arrays unchanged."""
    is_whole = array.dtype.kind == "f" and bool(np.all(np.mod(array, 1) == 0))
    return array.astype(np.int32) if is_whole else array


class ExpandDims(Op):
    """x with a dimension of size 1 inserted at an axis"""

    signature = "input: T, dim: Tdim -> output: T; Tdim: index"

    def shape(self, input: Tensor, dim: Tensor) -> TensorShape:
        axis, sizes = constant_value(dim), input.shape.sizes
        if sizes is None or axis is None:
            return unknown_shape(None if sizes is None else len(sizes) + 1)
        place = _insertion(int(axis.item()), len(sizes))
        return TensorShape.of((*sizes[:place], 1, *sizes[place:]))

    def numpy(self, input: Array, dim: Array) -> Array:
        return np.expand_dims(input, _insertion(int(np.asarray(dim).item()), np.ndim(input)))

    def loop(self, at: IndexTuple, input: Operand, dim: Operand) -> Expr:
        place = _insertion(int(dim.constant().item()), input.rank)
        return input[(*at[:place], *at[place + 1 :])]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [reshape(dy, shape(node.inputs[0])), None]


def _insertion(axis: int, rank: int) -> int:
    if not -rank - 1 <= axis <= rank:
        raise ValueError(f"Dimension {axis} is not in the interval [{-rank - 1}, {rank}].")
    return axis + rank + 1 if axis < 0 else axis


@public("expand_dims")
def expand_dims(input: Any, axis: Any = None, name: str | None = None, dim: Any = None) -> Tensor:
    """`input` with an axis of size 1 inserted.

    Args:
        input: any tensor.
        axis: the position of the new axis in the result; -1 puts it last.
        name: the name of the node.
        dim: the old name of `axis`.

    Returns:
        A tensor with the elements of `input` and one more axis.

    Example:
        >>> x = tf.zeros([2, 3])
        >>> tf.expand_dims(x, 0).shape.as_list(), tf.expand_dims(x, -1).shape.as_list()
        ([1, 2, 3], [2, 3, 1])
    """
    if axis is not None and dim is not None:
        raise ValueError("can't specify both 'dim' and 'axis'")
    place = dim if axis is None else axis
    if place is None:
        raise ValueError("Must specify an axis argument to tf.expand_dims()")
    return ExpandDims()(input, place, name=name)


class Squeeze(Op):
    """x without its dimensions of size 1 (all of them, or those of `squeeze_dims`)"""

    signature = "input: T -> output: T"
    squeeze_dims: tuple[int, ...] = ()

    def shape(self, input: Tensor) -> TensorShape:
        sizes = input.shape.sizes
        if sizes is None or (None in sizes and not self.squeeze_dims):
            return unknown_shape()
        dropped = self._dropped(sizes)
        return TensorShape.of(tuple(s for i, s in enumerate(sizes) if i not in dropped))

    def _dropped(self, sizes: tuple[int | None, ...]) -> set[int]:
        if not self.squeeze_dims:
            return {axis for axis, size in enumerate(sizes) if size == 1}
        dropped = {axis_within(axis, len(sizes)) for axis in self.squeeze_dims}
        for axis in sorted(dropped):
            if sizes[axis] not in (1, None):
                raise ValueError(
                    f"Can not squeeze dim[{axis}], expected a dimension of 1, got {sizes[axis]}"
                )
        return dropped

    def numpy(self, input: Array) -> Array:
        return np.squeeze(input, tuple(self._dropped(np.shape(input))))

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        dropped, left = self._dropped(input.shape), iter(at)
        return input[[0 if axis in dropped else next(left) for axis in range(input.rank)]]

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return reshape(dy, shape(node.inputs[0]))


def axis_within(axis: int, rank: int) -> int:
    """A possibly negative axis counted from 0; raises if it is out of range."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is not in the range [{-rank}, {rank})")
    return axis % rank


def one_axis(rank: int, axis: int, size: int) -> list[int]:
    """The shape of a vector along one axis of a tensor: 1 along all others."""
    return [size if index == axis else 1 for index in range(rank)]


@public("squeeze")
def squeeze(
    input: Any, axis: Any = None, name: str | None = None, squeeze_dims: Any = None
) -> Tensor:
    """`input` without its axes of size 1: all of them, or those given.

    Args:
        input: any tensor.
        axis: an axis or a list of axes, each of size 1; None for all axes of size 1.
        name: the name of the node.
        squeeze_dims: the old name of `axis`.

    Returns:
        A tensor with the elements of `input` and fewer axes.

    Raises:
        ValueError: if a given axis is known to have another size.

    Example:
        >>> tf.squeeze(tf.zeros([1, 3, 1])).shape.as_list()
        [3]
        >>> tf.squeeze(tf.zeros([1, 3, 1]), axis=0).shape.as_list()
        [3, 1]
    """
    if axis is not None and squeeze_dims is not None:
        raise ValueError("Cannot specify both 'axis' and 'squeeze_dims'")
    given = squeeze_dims if axis is None else axis
    axes = () if given is None else tuple(np.atleast_1d(given).tolist())
    return Squeeze(squeeze_dims=axes)(input, name=name)


class EnsureShape(Op):
    """y = x; an error if x does not have the given shape"""

    signature = "input: T -> output: T"
    given_shape: TensorShape

    def shape(self, input: Tensor) -> TensorShape:
        return input.shape.merge_with(self.given_shape)

    def numpy(self, input: Array) -> Array:
        if not self.given_shape.is_compatible_with(np.shape(input)):
            raise errors.invalid(
                f"Shape of tensor {list(np.shape(input))} is not compatible with expected shape "
                f"{self.given_shape}"
            )
        return input

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        return input[at]

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy


@public("ensure_shape")
def ensure_shape(x: Any, shape: Any, name: str | None = None) -> Tensor:
    """`x` with the static shape `shape`: checked at construction if possible, and in every step."""
    return EnsureShape(given_shape=TensorShape(shape))(x, name=name)
