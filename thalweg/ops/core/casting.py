"""Changes of dtype: by value (`cast`) and by bits (`bitcast`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.composite import IndexedSlices, SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.origin import user_line
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.functions import conversion
from thalweg.ir.loop import IndexTuple, NotLowered, Operand
from thalweg.ops.core.elementwise import Elementwise
from thalweg.ops.math import arithmetic
from thalweg.platform.arrays import Array
from thalweg.platform.dtype_traits import bounds
from thalweg.public import public


class Cast(Elementwise):
    """y = x as another dtype; of a complex number a real dtype takes the real part"""

    signature = "x: SrcT -> y: DstT; SrcT: numeric|bool, DstT: numeric|bool"
    DstT: DType

    def numpy(self, x: Array) -> Array:
        return conversion.cast(x, self.DstT.as_numpy_dtype)

    def element(self, x: Expr) -> Expr:
        return x.cast(self.DstT.as_numpy_dtype)

    def gradient(self, node: Node, dy: Tensor) -> Tensor | None:
        source = node.inputs[0].dtype.base_dtype
        both_smooth = all(d.is_floating or d.is_complex for d in (source, self.DstT))
        return cast(dy, source) if both_smooth else None


@overload
def cast(x: SparseTensor, dtype: DTypeLike, name: str | None = None) -> SparseTensor: ...
@overload
def cast(  # pyright: ignore[reportOverlappingOverload] - slices would do as a tensor, but stay
    x: IndexedSlices, dtype: DTypeLike, name: str | None = None
) -> IndexedSlices: ...
@overload
def cast(x: TensorLike, dtype: DTypeLike, name: str | None = None) -> Tensor: ...
@public("cast", "dtypes.cast")
def cast(
    x: TensorLike | SparseTensor, dtype: DTypeLike, name: str | None = None
) -> Tensor | SparseTensor | IndexedSlices:
    """`x` converted to `dtype`, element by element.

    Floats become integers by dropping the fraction; a complex number loses its imaginary part;
    False and True are 0 and 1.

    Args:
        x: a tensor, SparseTensor or IndexedSlices.
        dtype: the dtype to convert to.
        name: the name of the node.

    Returns:
        What `x` is, with the shape of `x` and the new dtype.

    Example:
        >>> sess.run(tf.cast([1.8, -1.8], tf.int32))
        array([ 1, -1], dtype=int32)
    """
    kind = as_dtype(dtype).base_dtype
    if isinstance(x, Tensor) and x.dtype.base_dtype is kind:
        return x
    if isinstance(x, SparseTensor):
        return SparseTensor(x.indices, cast(x.values, kind, name), x.dense_shape)
    if isinstance(x, IndexedSlices):
        return IndexedSlices(cast(x.values, kind, name), x.indices, x.dense_shape)
    tensor = convert_to_tensor(x, name="x")
    if tensor.dtype.base_dtype is kind:
        return tensor
    _check_castable(tensor.dtype.base_dtype, kind)
    return Cast(DstT=kind)(tensor, name=name)


def _check_castable(source: DType, target: DType) -> None:
    for kind in (source, target):
        if not (kind in dtypes.NUMERIC or kind.is_bool):
            raise errors.UnimplementedError(
                None,
                None,
                f"Cast {source.name} to {target.name} is not supported (at {user_line()})",
            )


_TO = """`x` converted to {dtype}: `tf.cast(x, tf.{dtype})`.

    Args:
        x: a tensor, SparseTensor or IndexedSlices.
        name: the name of the node.

    Returns:
        What `x` is, with the shape of `x` and dtype {dtype}.

    Example:
        >>> tf.{function}([1, 2]).dtype
        tf.{dtype}
    """


def _to(kind: DType, default_name: str, *names: str) -> Callable[..., Any]:
    """The public function that casts to one dtype."""

    def function(
        x: TensorLike | SparseTensor, name: str = default_name
    ) -> Tensor | SparseTensor | IndexedSlices:
        return cast(x, kind, name=name)

    function.__doc__ = _TO.format(function=names[0], dtype=kind.name)
    function.__name__ = function.__qualname__ = names[0]
    return public(*names)(function)


to_float = _to(dtypes.float32, "ToFloat", "to_float")
to_double = _to(dtypes.float64, "ToDouble", "to_double")
to_int32 = _to(dtypes.int32, "ToInt32", "to_int32")
to_int64 = _to(dtypes.int64, "ToInt64", "to_int64")
to_bfloat16 = _to(dtypes.bfloat16, "ToBFloat16", "to_bfloat16")
to_complex64 = _to(dtypes.complex64, "ToComplex64", "to_complex64")
to_complex128 = _to(dtypes.complex128, "ToComplex128", "to_complex128")


@public("saturate_cast", "dtypes.saturate_cast")
def saturate_cast(value: Any, dtype: Any, name: str | None = None) -> Tensor:
    """`value` clipped to the range of `dtype`, then converted to it; infinities become finite."""
    with name_scope(name, "saturate_cast", [value]) as scope:
        tensor = convert_to_tensor(value, name="value")
        target, source = as_dtype(dtype).base_dtype, tensor.dtype.base_dtype
        (low, high), (least, most) = _range(source), _range(target)
        if source.is_floating or low < least:
            tensor = arithmetic.maximum(tensor, _within(max(low, least), source, up=True))
        if source.is_floating or high > most:
            tensor = arithmetic.minimum(tensor, _within(min(high, most), source, up=False))
        return cast(tensor, target, name=scope)


def _range(kind: DType) -> tuple[Any, Any]:
    """The least and the greatest value as Python numbers, which compare exactly across types."""
    if kind.is_floating:
        return float(kind.min), float(kind.max)
    return int(kind.min), int(kind.max)


def _within(exact: Any, kind: DType, up: bool) -> Tensor:
    """A bound as a `kind`, rounded towards the inside of the range: the float nearest to 2³¹ - 1 is
    not an int32."""
    if not kind.is_floating:
        return convert_to_tensor(np.asarray(int(exact), kind.as_numpy_dtype))
    nearest = np.asarray(float(exact)).astype(kind.as_numpy_dtype)
    rounded = float(nearest)
    if rounded < exact if up else rounded > exact:
        nearest = np.nextafter(nearest, bounds(nearest.dtype)[up])
    return convert_to_tensor(nearest)


class Bitcast(Op):
    """The bytes of x read as another dtype; sizes that differ move into or out of the last axis."""

    signature = "input: T -> output: type"
    not_differentiable = True
    type: DType

    def shape(self, input: Tensor) -> TensorShape:
        sizes = input.shape.sizes
        if sizes is None:
            return TensorShape(None)
        source, target = input.dtype.size, self.type.size
        if source == target:
            return input.shape
        if source > target:
            return TensorShape.of((*sizes, source // target))
        if not sizes or (sizes[-1] is not None and sizes[-1] * source != target):
            raise ValueError(_bitcast_error(sizes, input.dtype, self.type))
        return TensorShape.of(sizes[:-1])

    def numpy(self, input: Array) -> Array:
        array = np.ascontiguousarray(input).reshape(np.shape(input))
        source, target = array.dtype.itemsize, self.type.size
        kind: Any = self.type.as_numpy_dtype
        if source == target:
            return array.view(kind)
        if source > target:
            return array[..., np.newaxis].view(kind)
        if array.shape[-1:] != (target // source,):
            message = _bitcast_error(array.shape, as_dtype(array.dtype), self.type)
            raise errors.invalid(message)
        return array.view(kind)[..., 0]

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        source, target = input.dtype.itemsize, self.type.size
        kind: Any = self.type.as_numpy_dtype
        if source == target:
            return input[at].bitcast(kind)
        small, large = _unsigned(min(source, target)), _unsigned(max(source, target))
        # Memory is little-endian: the first part has the lowest bits.
        bits = 8 * small.itemsize
        if source > target:
            shift = (at[-1] * bits).cast(large)
            return input[at[:-1]].bitcast(large).shift_right(shift).cast(small).bitcast(kind)

        def part(k: Expr) -> Expr:
            return input[(*at, k)].bitcast(small).cast(large).shift_left((k * bits).cast(large))

        return loop.reduce("sum", [target // source], part).bitcast(kind)


def _unsigned(size: int) -> np.dtype[Any]:
    if size > 8:
        raise NotLowered(f"no integer has the {size} bytes of an element")
    return np.dtype(f"u{size}")


def _bitcast_error(sizes: tuple[Any, ...], source: DType, target: DType) -> str:
    return (
        f"Cannot bitcast due to shape: from {source.name} to {target.name}, the last dimension of "
        f"{list(sizes)} must be {target.size // source.size}"
    )


@public("bitcast")
def bitcast(input: Any, type: Any, name: str | None = None) -> Tensor:
    """The bytes of a tensor read as another dtype."""
    return Bitcast(type=as_dtype(type).base_dtype)(input, name=name)
