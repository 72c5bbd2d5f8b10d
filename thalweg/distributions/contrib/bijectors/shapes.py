"""Bijectors that move elements about: permutations, other shapes, triangles of matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from thalweg.distributions.contrib.bijectors.base import Bijector
from thalweg.distributions.contrib.bijectors.combined import Chain
from thalweg.distributions.contrib.bijectors.elementwise import AffineScalar, Softplus
from thalweg.distributions.parameters import after
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value, constant_value_as_shape
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ops.arrays import diagonal, indexing, joining, scan, searching, transposing
from thalweg.ops.core import casting, checks, choosing, filling, shaping
from thalweg.ops.linalg import cholesky as cholesky_ops
from thalweg.ops.linalg import matmul
from thalweg.ops.math import reduce, transcendental
from thalweg.ops.nn import softmax
from thalweg.public import public


@public("contrib.distributions.bijectors.Permute")
class Permute(Bijector):
    """y[..., i] = x[..., permutation[i]]

    Args:
        permutation: the numbers from 0 to k - 1 in some order.
        validate_args: whether the step checks that it is one, where that is not known before.
        name: the scope of the nodes.

    Example:
        >>> permuted = tf.contrib.distributions.bijectors.Permute([2, 0, 1])
        >>> sess.run(permuted.forward([10.0, 20.0, 30.0]))
        array([30., 10., 20.], dtype=float32)
    """

    def __init__(
        self, permutation: TensorLike, validate_args: bool = False, name: str = "permute"
    ) -> None:
        order = convert_to_tensor(permutation, name="permutation")
        if not order.dtype.is_integer:
            raise TypeError(f"permutation.dtype ({order.dtype.name}) should be `int`-like.")
        message = "Permutation over `d` must contain exactly one of each of `{0, 1, ..., d}`."
        known = constant_value(order)
        if known is not None:
            if not np.array_equal(np.sort(known), np.arange(known.size)):
                raise ValueError(message)
        elif validate_args:
            right = filling.range(shaping.size(order))
            fine = checks.assert_equal(
                searching.sort(order), casting.cast(right, order.dtype), message=message
            )
            order = after([fine], order)
        self._permutation = order
        super().__init__(
            graph_parents=[order],
            is_constant_jacobian=True,
            validate_args=validate_args,
            forward_min_event_ndims=1,
            name=name,
        )

    @property
    def permutation(self) -> Tensor:
        """From where each element comes."""
        return self._permutation

    def _forward(self, x: Tensor) -> Tensor:
        return indexing.gather(x, self._permutation, axis=-1)

    def _inverse(self, y: Tensor) -> Tensor:
        back = transposing.invert_permutation(casting.cast(self._permutation, dtypes.int32))
        return indexing.gather(y, back, axis=-1)

    def _forward_log_det_jacobian(self, x: Tensor) -> Any:
        return 0.0


@public("contrib.distributions.bijectors.Reshape")
class Reshape(Bijector):
    """Events of one shape as events of another with as many elements

    Args:
        event_shape_out: the shape after `forward`; one size may be -1.
        event_shape_in: the shape before it; (-1,) is any vector.
        validate_args: whether the step checks that sizes fit.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        event_shape_out: TensorLike,
        event_shape_in: TensorLike = (-1,),
        validate_args: bool = False,
        name: str = "reshape",
    ) -> None:
        self._out = _sizes(event_shape_out, "event_shape_out")
        self._in = _sizes(event_shape_in, "event_shape_in")
        known = [constant_value(sizes) for sizes in (self._in, self._out)]
        counts = [None if k is None or -1 in k else math.prod(k.tolist()) for k in known]
        if None not in counts and counts[0] != counts[1]:
            raise ValueError("Input/output `event_size`s do not match.")
        super().__init__(
            is_constant_jacobian=True,
            validate_args=validate_args,
            forward_min_event_ndims=_axes(self._in),
            inverse_min_event_ndims=_axes(self._out),
            name=name,
        )

    def _moved(self, value: Tensor, before: Tensor, after_: Tensor) -> Tensor:
        outer = shaping.shape(value)[: shaping.rank(value) - _axes(before)]
        result = shaping.reshape(value, joining.concat([outer, after_], 0))
        if value.shape.rank is not None:
            static = value.shape[: value.shape.rank - _axes(before)]
            result.set_shape(static.concatenate(_static(after_)))
        return result

    def _forward(self, x: Tensor) -> Tensor:
        return self._moved(x, self._in, self._out)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._moved(y, self._out, self._in)

    def _forward_log_det_jacobian(self, x: Tensor) -> Any:
        return 0.0

    def _forward_event_shape(self, input_shape: TensorShape) -> TensorShape:
        return _exchanged(input_shape, self._in, self._out)

    def _inverse_event_shape(self, output_shape: TensorShape) -> TensorShape:
        return _exchanged(output_shape, self._out, self._in)

    def _forward_event_shape_tensor(self, input_shape: Tensor) -> Tensor:
        return _exchanged_tensor(input_shape, self._in, self._out)

    def _inverse_event_shape_tensor(self, output_shape: Tensor) -> Tensor:
        return _exchanged_tensor(output_shape, self._out, self._in)


def _sizes(shape: Any, what: str) -> Tensor:
    sizes = convert_to_tensor(shape, dtypes.int32, name=what)
    if sizes.shape.rank != 1 or sizes.shape[0].value is None:
        raise ValueError(f"{what} must be a vector of known length, got shape {sizes.shape}")
    known = constant_value(sizes)
    if known is not None and (np.sum(known == -1) > 1 or np.any(known < -1)):
        raise ValueError(f"{what} must have at most one `-1` and no other negative size: {known}")
    return sizes


def _axes(sizes: Tensor) -> int:
    return sizes.shape[0].value or 0


def _static(sizes: Tensor) -> TensorShape:
    """The sizes that are known; -1 is not."""
    known = constant_value(sizes)
    if known is None:
        return constant_value_as_shape(sizes)
    return TensorShape([None if size < 0 else int(size) for size in known])


def _exchanged(shape: TensorShape, before: Tensor, after_: Tensor) -> TensorShape:
    if shape.rank is None:
        return TensorShape(None)
    if shape.rank < _axes(before):
        raise ValueError(f"An event of shape {shape} has fewer than {_axes(before)} axes.")
    outer, inner = shape[: shape.rank - _axes(before)], shape[shape.rank - _axes(before) :]
    if not inner.is_compatible_with(_static(before)):
        raise ValueError(f"An event of shape {inner} does not fit {_static(before)}.")
    result = _static(after_)
    sizes = result.as_list() if result.rank else []
    count = inner.num_elements()
    if count is not None and sizes.count(None) == 1:
        known = math.prod(size for size in sizes if size is not None)
        sizes[sizes.index(None)] = count // max(known, 1)
        result = TensorShape(sizes)
    return outer.concatenate(result)


def _exchanged_tensor(shape: Tensor, before: Tensor, after_: Tensor) -> Tensor:
    split = shaping.size(shape) - _axes(before)
    count = reduce.reduce_prod(shape[split:])
    # The product with the one size of -1 is the other sizes' with its sign changed.
    others = abs(reduce.reduce_prod(after_))
    filled = choosing.where_v2(after_ < 0, count // others, after_)
    return joining.concat([shape[:split], filled], 0)


@public("contrib.distributions.fill_triangular")
def fill_triangular(x: TensorLike, upper: bool = False, name: str | None = None) -> Tensor:
    """Lower (or upper) triangles from vectors of their elements, in the order of TensorFlow.

    Args:
        x: vectors [..., n (n + 1) / 2].
        upper: whether the triangles are upper ones.
        name: the name of the nodes.

    Returns:
        Matrices [..., n, n].

    Example:
        >>> sess.run(tf.contrib.distributions.fill_triangular([1, 2, 3, 4, 5, 6]))
        array([[4, 0, 0],
               [6, 5, 0],
               [3, 2, 1]], dtype=int32)
    """
    with name_scope(name, "fill_triangular", [x]):
        given = convert_to_tensor(x, name="x")
        n = _side(given.shape.with_rank_at_least(1)[-1].value)
        # The vector without its first n elements, then the whole backwards (or the other way
        # round) has just the triangle's elements in its places.
        ends = [given, transposing.reverse(given[..., n:], [-1])]
        if not upper:
            ends = [given[..., n:], transposing.reverse(given, [-1])]
        sizes = joining.concat([shaping.shape(given)[:-1], [n, n]], 0)
        square = shaping.reshape(joining.concat(ends, -1), sizes)
        square.set_shape(given.shape[:-1].concatenate([n, n]))
        return diagonal.matrix_band_part(square, 0 if upper else -1, -1 if upper else 0)


@public("contrib.distributions.fill_triangular_inverse")
def fill_triangular_inverse(x: TensorLike, upper: bool = False, name: str | None = None) -> Tensor:
    """The vectors that `fill_triangular` makes triangles of.

    Args:
        x: matrices [..., n, n].
        upper: whether their upper triangles count.
        name: the name of the nodes.

    Returns:
        Vectors [..., n (n + 1) / 2].
    """
    with name_scope(name, "fill_triangular_inverse", [x]):
        given = convert_to_tensor(x, name="x")
        n = given.shape.with_rank_at_least(2)[-1].value
        if n is None:
            raise ValueError("The size of the matrices must be known.")
        sizes = joining.concat([shaping.shape(given)[:-2], [n * n]], 0)
        flat = shaping.reshape(given, sizes)
        count = n * (n + 1) // 2
        order = _triangle_order(n, upper)
        result = indexing.gather(flat, order, axis=-1)
        result.set_shape(given.shape[:-2].concatenate([count]))
        return result


def _triangle_order(n: int, upper: bool) -> np.ndarray[Any, Any]:
    """Where in the flat matrix each element of the vector lies."""
    count = n * (n + 1) // 2
    vector = np.arange(count)
    ends = [vector, vector[n:][::-1]] if upper else [vector[n:], vector[::-1]]
    square = np.concatenate(ends).reshape(n, n)
    inside = np.triu(np.ones((n, n), bool)) if upper else np.tril(np.ones((n, n), bool))
    order = np.zeros(count, np.int32)
    order[square[inside]] = np.flatnonzero(inside)
    return order


def _side(count: int | None) -> int:
    """n of n (n + 1) / 2"""
    if count is None:
        raise ValueError("The number of elements of a triangle must be known.")
    n = (math.isqrt(8 * count + 1) - 1) // 2
    if n * (n + 1) // 2 != count:
        raise ValueError(f"{count} elements do not make a triangular matrix.")
    return n


@public("contrib.distributions.bijectors.FillTriangular")
class FillTriangular(Bijector):
    """Vectors of n (n + 1) / 2 elements as triangles of n × n

    Args:
        upper: whether the triangles are upper ones.
        validate_args: whether the step checks values.
        name: the scope of the nodes.
    """

    def __init__(
        self, upper: bool = False, validate_args: bool = False, name: str = "fill_triangular"
    ) -> None:
        self._upper = upper
        super().__init__(
            is_constant_jacobian=True,
            validate_args=validate_args,
            forward_min_event_ndims=1,
            inverse_min_event_ndims=2,
            name=name,
        )

    def _forward(self, x: Tensor) -> Tensor:
        return fill_triangular(x, upper=self._upper)

    def _inverse(self, y: Tensor) -> Tensor:
        return fill_triangular_inverse(y, upper=self._upper)

    def _forward_log_det_jacobian(self, x: Tensor) -> Any:
        return 0.0

    def _forward_event_shape(self, input_shape: TensorShape) -> TensorShape:
        shape = input_shape.with_rank_at_least(1)
        count = shape[-1].value
        n = None if count is None else _side(count)
        return shape[:-1].concatenate([n, n])

    def _inverse_event_shape(self, output_shape: TensorShape) -> TensorShape:
        shape = output_shape.with_rank_at_least(2)
        rows, columns = shape[-2].value, shape[-1].value
        if None not in (rows, columns) and rows != columns:
            raise ValueError("Matrix must be square.")
        return shape[:-2].concatenate([None if rows is None else rows * (rows + 1) // 2])

    def _forward_event_shape_tensor(self, input_shape: Tensor) -> Tensor:
        count = casting.cast(input_shape[-1], dtypes.float64)
        side = (transcendental.sqrt(8 * count + 1) - 1) / 2
        n = shaping.reshape(casting.cast(side + 0.5, dtypes.int32), [1])
        return joining.concat([input_shape[:-1], n, n], 0)

    def _inverse_event_shape_tensor(self, output_shape: Tensor) -> Tensor:
        n = output_shape[-1:]
        return joining.concat([output_shape[:-2], n * (n + 1) // 2], 0)


@public("contrib.distributions.bijectors.TransformDiagonal")
class TransformDiagonal(Bijector):
    """A bijector of the diagonals of matrices; all else stays

    Args:
        diag_bijector: a bijector of numbers or vectors that keeps their shape.
        validate_args: whether the step checks values.
        name: the scope of the nodes.
    """

    def __init__(
        self, diag_bijector: Bijector, validate_args: bool = False, name: str = "transform_diagonal"
    ) -> None:
        self._diag_bijector = diag_bijector
        super().__init__(
            graph_parents=diag_bijector.graph_parents,
            validate_args=validate_args,
            dtype=diag_bijector.dtype,
            forward_min_event_ndims=2,
            name=name,
        )

    def _forward(self, x: Tensor) -> Tensor:
        changed = self._diag_bijector.forward(diagonal.matrix_diag_part(x))
        return diagonal.matrix_set_diag(x, changed)

    def _inverse(self, y: Tensor) -> Tensor:
        changed = self._diag_bijector.inverse(diagonal.matrix_diag_part(y))
        return diagonal.matrix_set_diag(y, changed)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return self._diag_bijector.forward_log_det_jacobian(diagonal.matrix_diag_part(x), 1)

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return self._diag_bijector.inverse_log_det_jacobian(diagonal.matrix_diag_part(y), 1)


@public("contrib.distributions.bijectors.ScaleTriL")
class ScaleTriL(Chain):
    """Vectors as lower triangles with a positive diagonal

    Args:
        diag_bijector: what makes the diagonal positive; softplus for None.
        diag_shift: what is added to the diagonal then.
        validate_args: whether the step checks values.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        diag_bijector: Bijector | None = None,
        diag_shift: TensorLike | None = 1e-5,
        validate_args: bool = False,
        name: str = "scale_tril",
    ) -> None:
        positive = diag_bijector or Softplus(validate_args=validate_args)
        if diag_shift is not None:
            positive = Chain([AffineScalar(shift=diag_shift), positive])
        members = [TransformDiagonal(positive), FillTriangular()]
        super().__init__(members, validate_args, name)


@public("contrib.distributions.bijectors.CholeskyOuterProduct")
class CholeskyOuterProduct(Bijector):
    """Y = X Xᵀ, of lower triangles with a positive diagonal

    Args:
        validate_args: whether the step checks that diagonals are positive.
        name: the scope of the nodes.
    """

    def __init__(self, validate_args: bool = False, name: str = "cholesky_outer_product") -> None:
        super().__init__(validate_args=validate_args, forward_min_event_ndims=2, name=name)

    def _positive(self, x: Tensor) -> Tensor:
        if not self.validate_args:
            return x
        return after([checks.assert_positive(diagonal.matrix_diag_part(x))], x)

    def _forward(self, x: Tensor) -> Tensor:
        given = self._positive(x)
        return matmul.matmul(given, given, adjoint_b=True)

    def _inverse(self, y: Tensor) -> Tensor:
        return cholesky_ops.cholesky(y)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        """Σ (n - i) log xᵢᵢ + n log 2, with i from 0"""
        entries = diagonal.matrix_diag_part(self._positive(x))
        n = shaping.shape(entries)[-1]
        size = casting.cast(n, entries.dtype)
        powers = casting.cast(filling.range(n, 0, -1), entries.dtype)
        logs = reduce.reduce_sum(powers * transcendental.log(entries), axis=-1)
        return logs + size * math.log(2.0)


@public("contrib.distributions.bijectors.SoftmaxCentered")
class SoftmaxCentered(Bijector):
    """y = softmax([x, 0]): k numbers as k + 1 probabilities

    Args:
        validate_args: whether the step checks values.
        name: the scope of the nodes.
    """

    def __init__(self, validate_args: bool = False, name: str = "softmax_centered") -> None:
        super().__init__(validate_args=validate_args, forward_min_event_ndims=1, name=name)

    def _forward(self, x: Tensor) -> Tensor:
        return softmax.softmax(joining.concat([x, filling.zeros_like(x[..., :1])], -1))

    def _inverse(self, y: Tensor) -> Tensor:
        logs = transcendental.log(y)
        return logs[..., :-1] - logs[..., -1:]

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        """Σ log yᵢ: the volume in the first k probabilities, as that of a Dirichlet density"""
        size = casting.cast(shaping.shape(x)[-1], x.dtype)
        with_zero = joining.concat([x, filling.zeros_like(x[..., :1])], -1)
        normalization = reduce.reduce_logsumexp(with_zero, axis=-1)
        return reduce.reduce_sum(x, axis=-1) - (size + 1) * normalization

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return -reduce.reduce_sum(transcendental.log(y), axis=-1)

    def _forward_event_shape(self, input_shape: TensorShape) -> TensorShape:
        return _with_last(input_shape, 1)

    def _inverse_event_shape(self, output_shape: TensorShape) -> TensorShape:
        return _with_last(output_shape, -1)

    def _forward_event_shape_tensor(self, input_shape: Tensor) -> Tensor:
        return joining.concat([input_shape[:-1], input_shape[-1:] + 1], 0)

    def _inverse_event_shape_tensor(self, output_shape: Tensor) -> Tensor:
        return joining.concat([output_shape[:-1], output_shape[-1:] - 1], 0)


def _with_last(shape: TensorShape, more: int) -> TensorShape:
    """The shape with a last size that is `more` larger."""
    if shape.rank is None:
        return TensorShape(None)
    last = shape.with_rank_at_least(1)[-1].value
    return shape[:-1].concatenate([None if last is None else last + more])


@public("contrib.distributions.bijectors.Ordered")
class Ordered(Bijector):
    """Increasing vectors as any vectors: y₀ = x₀, yᵢ = log(xᵢ - xᵢ₋₁)

    Args:
        validate_args: whether the step checks that vectors increase.
        name: the scope of the nodes.
    """

    def __init__(self, validate_args: bool = False, name: str = "ordered") -> None:
        super().__init__(validate_args=validate_args, forward_min_event_ndims=1, name=name)

    def _forward(self, x: Tensor) -> Tensor:
        steps = x[..., 1:] - x[..., :-1]
        if self.validate_args:
            steps = after([checks.assert_positive(steps)], steps)
        return joining.concat([x[..., :1], transcendental.log(steps)], -1)

    def _inverse(self, y: Tensor) -> Tensor:
        steps = joining.concat([y[..., :1], transcendental.exp(y[..., 1:])], -1)
        return scan.cumsum(steps, axis=-1)

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return reduce.reduce_sum(y[..., 1:], axis=-1)
