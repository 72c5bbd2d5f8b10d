"""Norms of vectors and matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import transposing
from thalweg.ops.core import shaping
from thalweg.ops.linalg import decomposition
from thalweg.ops.math import arithmetic, complexes, reduce, transcendental
from thalweg.public import public

_EUCLIDEAN = ("fro", "euclidean")


@public("norm", "linalg.norm")
def norm(
    tensor: Any,
    ord: str | TensorLike = "euclidean",
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """The norm of vectors, matrices or whole tensors.

    Args:
        tensor: a floating or complex tensor.
        ord: "euclidean", a positive number or infinity; for matrices "fro", 1, 2 or infinity.
        axis: None for all elements as one vector, a number for vectors, a pair for matrices.
        keepdims: True keeps the reduced axes, with size 1.
        name: the name of the nodes.
        keep_dims: the old name of `keepdims`.

    Returns:
        A tensor without the reduced axes.

    Example:
        >>> sess.run(tf.norm([[3.0, 4.0], [6.0, 8.0]], axis=1))
        array([ 5., 10.], dtype=float32)
    """
    if keepdims is not None and keep_dims is not None:
        raise ValueError("Cannot specify both 'keep_dims' and 'keepdims'.")
    axes = _axes(axis)
    matrix = axes is not None and len(axes) == 2
    _check_order(ord, matrix)
    with name_scope(name, "norm", [tensor]):
        x = convert_to_tensor(tensor)
        result = (_matrix_norm if matrix else _vector_norm)(x, ord, axes)
        if bool(keep_dims if keepdims is None else keepdims):
            return result
        return shaping.squeeze(result, axes)


def _axes(axis: Any) -> list[int] | None:
    """The axis of vectors, or the two of matrices; None for all elements."""
    if axis is None:
        return None
    axes: list[int] = np.atleast_1d(axis).tolist()
    if len(axes) > 2 or len(axes) != len(set(axes)):
        raise ValueError("'axis' must be None, an integer, or a tuple of 2 unique integers")
    return axes


def _check_order(order: Any, matrix: bool) -> None:
    if matrix:
        if order not in (*_EUCLIDEAN, 1, 2, np.inf):
            raise ValueError(f"'ord' must be a supported matrix norm in {_EUCLIDEAN}, 1, 2, inf")
        return
    if order == "fro" or (isinstance(order, str) and order != "euclidean"):
        raise ValueError(f"'ord' must be 'euclidean' or a positive number, got {order!r}")
    if not isinstance(order, str) and not order > 0:
        raise ValueError(f"'ord' must be a positive number, got {order!r}")


def _vector_norm(x: Tensor, order: Any, axis: list[int] | None) -> Tensor:
    if order in ("euclidean", 2):
        return _root_of_squares(x, axis)
    sizes = arithmetic.absolute(x)
    if order == 1:
        return reduce.reduce_sum(sizes, axis, keepdims=True)
    if order == np.inf:
        return reduce.reduce_max(sizes, axis, keepdims=True)
    powers = reduce.reduce_sum(sizes ** float(order), axis, keepdims=True)
    return powers ** (1.0 / order)


def _matrix_norm(x: Tensor, order: Any, axes: Any) -> Tensor:
    if order in _EUCLIDEAN:
        return _root_of_squares(x, axes)
    if order == 2:
        return _largest_singular_value(x, axes)
    rows, columns = axes if order == 1 else axes[::-1]
    sums = reduce.reduce_sum(arithmetic.absolute(x), rows, keepdims=True)
    return reduce.reduce_max(sums, columns, keepdims=True)


def _root_of_squares(x: Tensor, axis: Any) -> Tensor:
    squares = x * complexes.conj(x) if x.dtype.is_complex else arithmetic.square(x)
    return transcendental.sqrt(reduce.reduce_sum(squares, axis, keepdims=True))


def _largest_singular_value(x: Tensor, axes: list[int]) -> Tensor:
    rank = x.shape.rank
    if rank is None:
        raise ValueError(f"The spectral norm needs a tensor of known rank, not {x}")
    places = [axis % rank for axis in axes]
    others = [axis for axis in range(rank) if axis not in places]
    matrices = transposing.transpose(x, others + places)
    values = decomposition.svd(matrices, compute_uv=False)
    largest = shaping.expand_dims(reduce.reduce_max(values, -1, keepdims=True), -1)
    return transposing.transpose(largest, np.argsort(others + places).tolist())


@public("linalg.normalize")
def normalize(
    tensor: Any, ord: str | TensorLike = "euclidean", axis: Any = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """`tensor` divided by its norm over `axis`, and that norm (with the axes kept)."""
    with name_scope(name, "normalize", [tensor]):
        x = convert_to_tensor(tensor)
        length = norm(x, ord, axis, keepdims=True)
        return x / length, length
