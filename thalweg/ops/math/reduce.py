"""Reductions over axes: sums, products, extremes, means, logical ones, and functions of these.

Axes are numbers, lists or tensors, by any of the argument's older names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, scalar, unknown_shape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, call
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.arrays import joining, scan, transposing
from thalweg.ops.core import basic, broadcast, casting, choosing, filling, shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.math import arithmetic, compare, complexes, division, transcendental
from thalweg.ops.math.summing import summed
from thalweg.platform.arrays import Array
from thalweg.platform.docstrings import NAME, composed
from thalweg.platform.dtype_traits import bounds, widened
from thalweg.public import public


class Reduction(Op, abstract=True):
    """y = the combination of x over the given axes."""

    signature = "input: T, reduction_indices: Tidx -> output: T; T: numeric, Tidx: index"
    function: ClassVar[Any]  # the NumPy reduction
    combine: ClassVar[str]  # the loop reduction
    keep_dims: bool = False

    def shape(self, input: Tensor, reduction_indices: Tensor) -> TensorShape:
        axes, sizes = constant_value(reduction_indices), input.shape.sizes
        if (reduction_indices.shape.rank or 0) > 1:
            raise ValueError(
                f"The axes must be at most rank 1 but are rank {reduction_indices.shape.rank}"
            )
        if isinstance(reduction_indices.op.op, AllAxes) and not self.keep_dims:
            return scalar()
        if sizes is None or axes is None:
            kept = sizes is not None and self.keep_dims
            return unknown_shape(len(sizes) if kept else None)  # pyright: ignore[reportArgumentType] - kept implies sizes
        reduced = set(normal_axes(axes, len(sizes)))
        if self.keep_dims:
            return TensorShape.of(tuple(1 if i in reduced else s for i, s in enumerate(sizes)))
        return TensorShape.of(tuple(s for i, s in enumerate(sizes) if i not in reduced))

    def numpy(self, input: Array, reduction_indices: Array) -> Array:
        axes = normal_axes(reduction_indices, np.ndim(input))
        return type(self).function(np.asarray(input), axis=axes, keepdims=self.keep_dims)

    def loop(self, at: IndexTuple, input: Operand, reduction_indices: Operand) -> Expr:
        return _reduced(
            self, at, input, normal_axes(reduction_indices.constant(), input.rank), self.inner
        )

    def inner(self, x: Expr) -> Expr:
        """The function of each element that is combined."""
        return x


def _reduced(
    op: Reduction,
    at: IndexTuple,
    input: Operand,
    axes: tuple[int, ...],
    inner: Callable[[Expr], Expr],
) -> Expr:
    """The combination over axes of `inner` of each element."""
    kept = [axis for axis in range(input.rank) if op.keep_dims or axis not in axes]
    outer = dict(zip(kept, at, strict=True))

    def element(*reduced: Expr) -> Expr:
        places = outer | dict(zip(axes, reduced, strict=True))
        return inner(input[[places[axis] for axis in range(input.rank)]])

    return loop.reduce(op.combine, [input.shape[axis] for axis in axes], element)


def normal_axes(axes: Array, rank: int) -> tuple[int, ...]:
    """Axes as distinct numbers in [0, rank)."""
    found: list[int] = []
    for axis in np.ravel(axes).tolist():
        if not -rank <= axis < rank:
            raise ValueError(f"Invalid reduction dimension {axis} for input with {rank} dimensions")
        found.append(axis % rank)
    return tuple(dict.fromkeys(found))


_ARGUMENTS = {
    "input_tensor": "the tensor to reduce.",
    "axis": "an axis, a list of axes or a tensor of them; negative ones count from the last. "
    "None: all.",
    "keepdims": "True keeps the reduced axes, with size 1.",
    "name": NAME,
    "reduction_indices": "the old name of `axis`.",
    "keep_dims": "the old name of `keepdims`.",
}
_RETURNS = "A tensor of the same dtype, without the reduced axes."


def reduction(kind: type[Reduction], *names: str) -> Callable[..., Tensor]:
    """The public function of a reduction."""

    def function(
        input_tensor: Any,
        axis: Any = None,
        keepdims: bool | None = None,
        name: str | None = None,
        reduction_indices: Any = None,
        keep_dims: bool | None = None,
    ) -> Tensor:
        value = convert_to_tensor(input_tensor, kind.parsed.inputs[0].fixed, name="input_tensor")
        x, axes, keep = arguments(value, axis, reduction_indices, keep_dims, keepdims)
        return kind(keep_dims=keep)(x, axes, name=name)

    function.__doc__ = composed(kind.__doc__, _ARGUMENTS, _RETURNS)
    function.__name__ = function.__qualname__ = names[0]
    function.__module__ = kind.__module__
    return public(*names)(function)


def arguments(
    input_tensor: Any,
    axis: Any,
    reduction_indices: Any,
    keep_dims: bool | None,
    keepdims: bool | None,
) -> tuple[Tensor, Tensor, bool]:
    """The input, the axes as a tensor, and whether to keep them, from arguments by any name."""
    if axis is not None and reduction_indices is not None:
        raise ValueError("Can't specify both axis and reduction_indices.")
    if keep_dims is not None and keepdims is not None:
        raise ValueError("Cannot specify both 'keep_dims' and 'keepdims'.")
    x = convert_to_tensor(input_tensor, name="input_tensor")
    given = axis if axis is not None else reduction_indices
    keep = bool(keep_dims if keepdims is None else keepdims)
    if given is None:
        return x, _all_axes(x), keep
    return x, shaping.index_tensor(given, name="reduction_indices"), keep


def _all_axes(x: Tensor) -> Tensor:
    if x.shape.rank is not None:
        return convert_to_tensor(np.arange(x.shape.rank, dtype=np.int32), name="Const")
    return AllAxes()(x)


class AllAxes(Op):
    """0, 1, …, rank(x) - 1"""

    private = True
    signature = "input: T -> output: int32"
    of_shapes = True
    not_differentiable = True

    def shape(self, input: Tensor) -> TensorShape:
        return TensorShape.of((input.shape.rank,))

    def known_value(self, input: Tensor) -> Array | None:
        rank = input.shape.rank
        return None if rank is None else np.arange(rank, dtype=np.int32)

    def numpy(self, input: Array) -> Array:
        return np.arange(np.ndim(input), dtype=np.int32)


class Sum(Reduction):
    """The sum of elements over `axis`

    Example:
        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> sess.run([tf.reduce_sum(x), tf.reduce_sum(x, axis=0)])
        [np.float32(10.0), array([4., 6.], dtype=float32)]
    """

    function = staticmethod(summed)
    combine = "sum"

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [stretch(node, dy), None]


def stretch(node: Node, dy: Tensor) -> Tensor:
    """Broadcast a reduction's gradient (or output) back over the reduced axes."""
    x, axes = node.inputs
    static = x.shape.is_fully_defined()
    input_shape = shaping.shape_tensor(x.shape.as_list()) if static else shaping.shape(x)
    kept = _kept_sizes(x, axes)
    column = shaping.reshape(dy, reduced_shape(input_shape, axes) if kept is None else kept)
    return broadcast.BroadcastTo()(column, input_shape)


def _kept_sizes(x: Tensor, axes: Tensor) -> list[int] | None:
    """The sizes of x with the reduced ones set to 1, if at most one (then -1) is unknown."""
    sizes, known = x.shape.sizes, constant_value(axes)
    if sizes is None or known is None:
        return None
    reduced = set(normal_axes(known, len(sizes)))
    kept = [1 if i in reduced else (-1 if s is None else s) for i, s in enumerate(sizes)]
    clear = kept.count(-1) == 0 or (kept.count(-1) == 1 and 0 not in kept)
    return kept if clear else None


class KeptShape(Op):
    """A shape with the given axes set to 1, as by `keep_dims`."""

    private = True
    signature = "shape: T, axes: I -> output: T; T: index, I: index"
    of_shapes = True
    not_differentiable = True

    def shape(self, shape: Tensor, axes: Tensor) -> TensorShape:
        return shape.shape

    def numpy(self, shape: Array, axes: Array) -> Array:
        kept = shape.copy()
        kept[list(normal_axes(axes, len(shape)))] = 1
        return kept


def reduced_shape(input_shape: Any, axes: Any) -> Tensor:
    """The shape of a reduction over `axes` with `keepdims`."""
    return KeptShape()(input_shape, shaping.index_tensor(axes))


reduce_sum = reduction(Sum, "reduce_sum", "math.reduce_sum")


def _averaged(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    count = int(np.prod([x.shape[i] for i in axis], dtype=np.int64))
    if x.dtype.kind in "iu":
        total = np.sum(x, axis=axis, keepdims=keepdims, dtype=_sum_type(x.dtype, count))
        size = total.dtype.type(_divisor(count, x.dtype))
        return division.TruncateDiv().numpy(total, size).astype(x.dtype)
    total = summed(widened(x), axis, keepdims)
    kind = dtypes.as_dtype(total.dtype).real_dtype.as_numpy_dtype
    return (total / np.asarray(_divisor(count, x.dtype), kind)).astype(x.dtype)


def _divisor(count: int, dtype: Any) -> int:
    """The divisor of a mean: without elements it is NaN for floats, zero for other dtypes."""
    return count if dtypes.as_dtype(dtype).is_floating else max(count, 1)


def _sum_type(dtype: Any, count: int) -> Any:
    """The dtype in which integers are summed: the sum may exceed the range of the mean."""
    size = 4 if 8 * dtype.itemsize + count.bit_length() <= 32 else 8
    return np.dtype(f"{dtype.kind}{size}")


class Mean(Reduction):
    """The mean of elements over `axis`; that of integers is rounded towards zero

    Example:
        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> sess.run(tf.reduce_mean(x, axis=1, keepdims=True))
        array([[1.5],
               [3.5]], dtype=float32)
    """

    function = staticmethod(_averaged)
    combine = "sum"

    def loop(self, at: IndexTuple, input: Operand, reduction_indices: Operand) -> Expr:
        axes = normal_axes(reduction_indices.constant(), input.rank)
        count = int(np.prod([input.shape[axis] for axis in axes], dtype=np.int64))
        dtype = np.dtype(input.dtype)
        if dtype.kind in "iu":
            wide = _sum_type(dtype, count)
            total = _reduced(self, at, input, axes, lambda x: x.cast(wide))
            size = call("cast", _divisor(count, dtype), wide)
            return division.truncated_quotient(total, size).cast(dtype)
        total = _reduced(self, at, input, axes, lambda x: loop.widened(x, dtype))
        kind = np.float64 if dtype.itemsize > 4 else np.float32
        return (total / call("cast", _divisor(count, dtype), kind)).cast(dtype)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        sizes = [tensor.shape.num_elements() for tensor in (node.inputs[0], node.output)]
        if sizes[0] and sizes[1]:
            return [stretch(node, dy / (sizes[0] // sizes[1])), None]
        count: Tensor = ReducedSize()(shaping.shape(node.inputs[0]), node.inputs[1])
        return [stretch(node, dy / casting.cast(count, dy.dtype)), None]


class ReducedSize(Op):
    """The number of elements reduced to each element"""

    private = True
    signature = "shape: T, axes: I -> output: T; T: index, I: index"
    of_shapes = True
    not_differentiable = True

    def shape(self, shape: Tensor, axes: Tensor) -> TensorShape:
        return scalar()

    def numpy(self, shape: Array, axes: Array) -> Array:
        return np.prod(shape[list(normal_axes(axes, len(shape)))], dtype=shape.dtype)


reduce_mean = reduction(Mean, "reduce_mean", "math.reduce_mean")


def _multiplied(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


class Prod(Reduction):
    """The product of elements over `axis`

    Example:
        >>> sess.run(tf.reduce_prod([[1, 2], [3, 4]], axis=-1))
        array([ 2, 12], dtype=int32)
    """

    function = staticmethod(_multiplied)
    combine = "prod"

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [stretch(node, dy) * _product_of_others(node), None]


def _product_of_others(node: Node) -> Tensor:
    """The product of the other reduced elements, for each; a division would fail at zeros."""
    x, axes = node.inputs
    shape = shaping.shape(x)
    order, inverse = ReducedFirst()(shape, axes)
    moved = transposing.transpose(matmul.conjugate(x), order)
    rows = joining.stack([ReducedSize()(shape, axes), shaping.size(node.output)])
    lines = shaping.reshape(moved, rows)
    others = scan.cumprod(lines, exclusive=True) * scan.cumprod(lines, exclusive=True, reverse=True)
    return transposing.transpose(shaping.reshape(others, shaping.shape(moved)), inverse)


class ReducedFirst(Op):
    """The permutation that moves reduced axes to the front, and its inverse"""

    private = True
    signature = "shape: T, axes: I -> order: int32, inverse: int32; T: index, I: index"
    of_shapes = True
    not_differentiable = True

    def shape(self, shape: Tensor, axes: Tensor) -> list[TensorShape]:
        return [shape.shape, shape.shape]

    def numpy(self, shape: Array, axes: Array) -> tuple[Array, Array]:
        reduced = normal_axes(axes, len(shape))
        kept = [axis for axis in range(len(shape)) if axis not in reduced]
        order = np.array([*reduced, *kept], np.int32)
        return order, np.argsort(order).astype(np.int32)


reduce_prod = reduction(Prod, "reduce_prod", "math.reduce_prod")


class Extreme(Reduction, abstract=True):
    """The gradient of a maximum or minimum is shared by the elements that attain it."""

    signature = "input: T, reduction_indices: Tidx -> output: T; T: real, Tidx: index"

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        x, axes = node.inputs
        reached = compare.equal(stretch(node, node.output), x)
        share = casting.cast(reached, dy.dtype)
        count = Sum(keep_dims=self.keep_dims)(share, axes)
        return [share * stretch(node, dy / count), None]


def _largest(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.max(x, axis=axis, keepdims=keepdims, initial=bounds(x.dtype)[0])


def _smallest(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.min(x, axis=axis, keepdims=keepdims, initial=bounds(x.dtype)[1])


class Max(Extreme):
    """The maximum of elements over `axis`

    Example:
        >>> sess.run(tf.reduce_max([[1.0, 5.0], [3.0, 4.0]], axis=0))
        array([3., 5.], dtype=float32)
    """

    function = staticmethod(_largest)
    combine = "max"


reduce_max = reduction(Max, "reduce_max", "math.reduce_max")


class Min(Extreme):
    """The minimum of elements over `axis`

    Example:
        >>> sess.run(tf.reduce_min([[1.0, 5.0], [3.0, 4.0]], axis=0))
        array([1., 4.], dtype=float32)
    """

    function = staticmethod(_smallest)
    combine = "min"


reduce_min = reduction(Min, "reduce_min", "math.reduce_min")


class All(Reduction):
    """Whether all elements over `axis` are true

    Example:
        >>> sess.run(tf.reduce_all([[True, False], [True, True]], axis=1))
        array([False,  True])
    """

    signature = "input: bool, reduction_indices: Tidx -> output: bool; Tidx: index"
    function = staticmethod(np.all)
    combine = "all"
    not_differentiable = True


reduce_all = reduction(All, "reduce_all", "math.reduce_all")


class AnyOf(Reduction, name="Any"):
    """Whether any element over `axis` is true

    Example:
        >>> sess.run(tf.reduce_any([[True, False], [False, False]], axis=1))
        array([ True, False])
    """

    signature = "input: bool, reduction_indices: Tidx -> output: bool; Tidx: index"
    function = staticmethod(np.any)
    combine = "any"
    not_differentiable = True


reduce_any = reduction(AnyOf, "reduce_any", "math.reduce_any")


def _length(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    squares = np.abs(widened(x)) ** 2
    return np.sqrt(summed(squares, axis, keepdims)).astype(x.dtype)


class EuclideanNorm(Reduction):
    """The square root of the sum of squares over `axis`"""

    function = staticmethod(_length)
    combine = "sum"

    def loop(self, at: IndexTuple, input: Operand, reduction_indices: Operand) -> Expr:
        return super().loop(at, input, reduction_indices).sqrt().cast(input.dtype)

    def inner(self, x: Expr) -> Expr:
        return x.abs() * x.abs()

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [node.inputs[0] * stretch(node, dy / node.output), None]


@public("math.reduce_euclidean_norm")
def reduce_euclidean_norm(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The square root of the sum of squares over `axis` (all axes if None)."""
    x, axes, keep = arguments(input_tensor, axis, None, None, keepdims)
    return EuclideanNorm(keep_dims=keep)(x, axes, name=name)


@public("reduce_logsumexp", "math.reduce_logsumexp")
def reduce_logsumexp(
    input_tensor: Any,
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: Any = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """log(Σ exp(x)) over axes, without overflow: the maximum is subtracted first.

    Args:
        input_tensor: a floating tensor.
        axis: an axis, a list of axes or a tensor of them; None: all.
        keepdims: True keeps the reduced axes, with size 1.
        name: the name of the nodes.
        reduction_indices, keep_dims: the old names of `axis` and `keepdims`.

    Returns:
        A tensor of the same dtype, without the reduced axes.

    Example:
        >>> sess.run(tf.reduce_logsumexp([1000.0, 1000.0]))
        np.float32(1000.6931)
    """
    x, axes, keep = arguments(input_tensor, axis, reduction_indices, keep_dims, keepdims)
    with name_scope(name, "ReduceLogSumExp", [x]) as scope:
        largest = reduce_max(x, axes, keepdims=True)
        finite = choosing.where(compare.is_finite(largest), largest, filling.zeros_like(largest))
        offset = basic.stop_gradient(finite)
        logarithm = transcendental.log(
            reduce_sum(transcendental.exp(x - offset), axes, keepdims=keep)
        )
        if not keep:
            offset = shaping.reshape(offset, shaping.shape(logarithm))
        return arithmetic.add(logarithm, offset, name=scope)


@public("count_nonzero", "math.count_nonzero")
def count_nonzero(
    input_tensor: Any = None,
    axis: Any = None,
    keepdims: bool | None = None,
    dtype: Any = dtypes.int64,
    name: str | None = None,
    reduction_indices: Any = None,
    keep_dims: bool | None = None,
    input: Any = None,
) -> Tensor:
    """The number of elements that are not zero (for strings: not empty) over axes.

    Args:
        input_tensor: a numeric, bool or string tensor.
        axis: an axis, a list of axes or a tensor of them; None: all.
        keepdims: True keeps the reduced axes, with size 1.
        dtype: the dtype of the result.
        name: the name of the nodes.
        reduction_indices, keep_dims: the old names of `axis` and `keepdims`.
        input: another name of `input_tensor`.

    Returns:
        A tensor of `dtype`, without the reduced axes.

    Example:
        >>> sess.run(tf.count_nonzero([[0, 1], [2, 3]], axis=1))
        array([1, 2])
    """
    given = input_tensor if input is None else input
    x, axes, keep = arguments(given, axis, reduction_indices, keep_dims, keepdims)
    with name_scope(name, "count_nonzero", [x]):
        different = compare.not_equal(x, filling.zeros((), x.dtype))
        return casting.cast(
            reduce_sum(casting.cast(different, dtypes.int64), axes, keepdims=keep), dtype
        )


@public("math.reduce_variance")
def reduce_variance(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The mean squared distance from the mean over `axis`."""
    x, axes, keep = arguments(input_tensor, axis, None, None, keepdims)
    if not (x.dtype.is_floating or x.dtype.is_complex):
        raise TypeError(f"Input must be a floating or complex type, not {x.dtype.name}.")
    with name_scope(name, "reduce_variance", [x]):
        distance = x - reduce_mean(x, axes, keepdims=True)
        squared = (
            complexes.real(distance * complexes.conj(distance))
            if x.dtype.is_complex
            else (arithmetic.square(distance))
        )
        return reduce_mean(squared, axes, keepdims=keep)


@public("math.reduce_std")
def reduce_std(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The square root of the variance over `axis`."""
    with name_scope(name, "reduce_std", [input_tensor]):
        return transcendental.sqrt(reduce_variance(input_tensor, axis, keepdims))
