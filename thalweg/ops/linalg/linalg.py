"""Inverses, determinants and linear systems, of innermost matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Size, Sizes, TensorShape, unknown_shape
from thalweg.ops.arrays import diagonal, transposing
from thalweg.ops.core import shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.linalg.matmul import adjoint_of
from thalweg.ops.math import complexes
from thalweg.platform import blas
from thalweg.platform.arrays import Array
from thalweg.public import public

#: The dtypes of factorisations
TYPES = "float32|float64|complex"


def matrix_sizes(tensor: Tensor) -> Sizes | None:
    """The sizes of a tensor of matrices, if its rank is known."""
    sizes = tensor.shape.sizes
    if sizes is not None and len(sizes) < 2:
        raise ValueError(f"Shape must be at least rank 2 but is rank {len(sizes)}")
    return sizes


def square_shape(tensor: Tensor) -> TensorShape:
    """The shape of a tensor of square matrices."""
    sizes = matrix_sizes(tensor)
    if sizes is None:
        return unknown_shape()
    side = same_size(sizes[-2], sizes[-1])
    return TensorShape.of((*sizes[:-2], side, side))


def same_size(one: Size, other: Size) -> Size:
    """The known one of two sizes that must be equal."""
    if one is not None and other is not None and one != other:
        raise ValueError(f"Dimensions must be equal, but are {one} and {other}")
    return other if one is None else one


def check_square(array: Array) -> None:
    """Raise unless an array holds square matrices."""
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise ValueError(f"Input matrix must be square, got shape {list(array.shape)}")


@public("linalg.adjoint")
def adjoint(matrix: Any, name: str | None = None) -> Tensor:
    """The conjugate transposes of the innermost matrices."""
    with name_scope(name, "adjoint", [matrix]):
        return transposing.matrix_transpose(convert_to_tensor(matrix), conjugate=True)


def lower_half(x: Tensor) -> Tensor:
    """The lower triangle with half the diagonal: Φ(x) + Φ(x)ᴴ = x for Hermitian x."""
    halved = diagonal.matrix_set_diag(x, diagonal.matrix_diag_part(x) * 0.5)
    return diagonal.matrix_band_part(halved, -1, 0)


class MatrixInverse(Op):
    """y = x⁻¹, or its adjoint"""

    signature = f"input: T -> output: T; T: {TYPES}"
    host_only = True
    adjoint: bool = False

    def shape(self, input: Tensor) -> TensorShape:
        return square_shape(input)

    def numpy(self, input: Array) -> Array:
        check_square(input)
        try:
            inverse = blas.inv(input)
        except np.linalg.LinAlgError:
            raise ValueError("Input is not invertible.") from None
        return adjoint_of(inverse) if self.adjoint else inverse

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        y = node.output
        if self.adjoint:
            return -matmul.matmul(y, matmul.matmul(dy, y, adjoint_a=True))
        return -matmul.matmul(y, matmul.matmul(dy, y, adjoint_b=True), adjoint_a=True)


@public("matrix_inverse", "linalg.inv", "batch_matrix_inverse")
def matrix_inverse(input: Any, adjoint: bool = False, name: str | None = None) -> Tensor:
    """The inverses of the innermost matrices.

    Args:
        input: [..., n, n], float32, float64 or complex.
        adjoint: return the conjugate transposes of the inverses.
        name: the name of the node.

    Returns:
        A tensor of the shape and dtype of `input`.

    Raises:
        InvalidArgumentError: if a matrix has no inverse.

    Example:
        >>> sess.run(tf.matrix_inverse([[2.0, 0.0], [0.0, 4.0]]))
        array([[0.5 , 0.  ],
               [0.  , 0.25]], dtype=float32)
    """
    return MatrixInverse(adjoint=adjoint)(input, name=name)


class MatrixDeterminant(Op):
    """y = det x"""

    signature = f"input: T -> output: T; T: {TYPES}"
    host_only = True

    def shape(self, input: Tensor) -> TensorShape:
        return square_shape(input)[:-2]

    def numpy(self, input: Array) -> Array:
        check_square(input)
        result = blas.det(input)
        if not np.all(np.isfinite(result)):
            raise ValueError("The determinant is not finite.")
        return result

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return _times_inverse(dy * matmul.conjugate(node.output), node.inputs[0])


def _times_inverse(factor: Tensor, matrix: Tensor) -> Tensor:
    """One factor per matrix times the adjoint of its inverse."""
    stretched = shaping.expand_dims(shaping.expand_dims(factor, -1), -1)
    return stretched * matrix_inverse(matrix, adjoint=True)


@public("matrix_determinant", "linalg.det", "batch_matrix_determinant")
def matrix_determinant(input: Any, name: str | None = None) -> Tensor:
    """The determinants of the innermost matrices.

    Args:
        input: [..., n, n], float32, float64 or complex.
        name: the name of the node.

    Returns:
        A tensor of the shape of `input` without its last two axes.

    Example:
        >>> sess.run(tf.matrix_determinant([[2.0, 0.0], [0.0, 3.0]]))
        np.float32(6.0)
    """
    return MatrixDeterminant()(input, name=name)


class LogMatrixDeterminant(Op):
    """det x = sign · exp(log_abs_determinant)"""

    signature = f"input: T -> sign: T, log_abs_determinant: T; T: {TYPES}"
    host_only = True

    def shape(self, input: Tensor) -> list[TensorShape]:
        batch = square_shape(input)[:-2]
        return [batch, batch]

    def numpy(self, input: Array) -> tuple[Array, Array]:
        check_square(input)
        sign, logarithm = blas.slogdet(input)
        return np.asarray(sign), np.asarray(logarithm).astype(input.dtype)

    def gradient(self, node: Node, dsign: Tensor, dlogarithm: Tensor) -> Tensor:
        if not dsign.dtype.is_complex:
            return _times_inverse(dlogarithm, node.inputs[0])
        # A complex sign rotates by the imaginary part of trace(x⁻¹ dx).
        phase = complexes.imag(complexes.conj(node.outputs[0]) * dsign)
        factor = complexes.complex_number(complexes.real(dlogarithm), phase)
        return _times_inverse(factor, node.inputs[0])


@public("linalg.slogdet", "log_matrix_determinant")
def slogdet(input: Any, name: str | None = None) -> Any:
    """The determinants of the innermost matrices, as (sign, log_abs_determinant)."""
    return LogMatrixDeterminant()(input, name=name)


class MatrixSolve(Op):
    """The x with matrix x = rhs, or with the adjoint of matrix"""

    signature = f"matrix: T, rhs: T -> output: T; T: {TYPES}"
    host_only = True
    adjoint: bool = False

    def shape(self, matrix: Tensor, rhs: Tensor) -> TensorShape:
        return _solution_shape(square_shape(matrix), rhs)

    def numpy(self, matrix: Array, rhs: Array) -> Array:
        check_square(matrix)
        return solved(adjoint_of(matrix) if self.adjoint else matrix, rhs)

    def gradient(self, node: Node, dx: Tensor) -> list[Tensor]:
        matrix, x = node.inputs[0], node.output
        drhs = MatrixSolve(adjoint=not self.adjoint)(matrix, dx)
        return [_matrix_gradient(drhs, x, self.adjoint), drhs]


def check_fit(matrix: Array, rhs: Array) -> None:
    """Raise unless the right side has a row for each column of the matrix."""
    if rhs.ndim < 2 or rhs.shape[-2] != matrix.shape[-1]:
        raise ValueError(
            f"Input matrix and rhs are incompatible: shapes {list(matrix.shape)} and "
            f"{list(rhs.shape)}"
        )


def solved(matrix: Array, rhs: Array) -> Array:
    """The solution of (batches of) linear systems."""
    check_fit(matrix, rhs)
    try:
        return blas.solve(matrix, rhs)
    except np.linalg.LinAlgError:
        raise ValueError("Input matrix is not invertible.") from None


def _matrix_gradient(drhs: Tensor, x: Tensor, adjoint: bool) -> Tensor:
    """The gradient of the matrix of a linear system, from that of its right side."""
    if adjoint:
        return -matmul.matmul(x, drhs, adjoint_b=True)
    return -matmul.matmul(drhs, x, adjoint_b=True)


def _solution_shape(matrix: TensorShape, rhs: Tensor) -> TensorShape:
    sizes, right = matrix.sizes, matrix_sizes(rhs)
    if sizes is None or right is None:
        return unknown_shape(len(right or ()) or matrix.rank)
    batch = TensorShape.of(sizes[:-2]).merge_with(TensorShape.of(right[:-2]))
    return batch.concatenate(TensorShape.of((same_size(sizes[-1], right[-2]), right[-1])))


@public("matrix_solve", "linalg.solve", "batch_matrix_solve")
def matrix_solve(matrix: Any, rhs: Any, adjoint: bool = False, name: str | None = None) -> Tensor:
    """The solutions x of `matrix` x = `rhs`.

    Args:
        matrix: [..., n, n], float32, float64 or complex.
        rhs: [..., n, k].
        adjoint: use the conjugate transposes of the matrices.
        name: the name of the node.

    Returns:
        A tensor [..., n, k].

    Raises:
        InvalidArgumentError: if a matrix has no inverse.

    Example:
        >>> sess.run(tf.matrix_solve([[2.0, 0.0], [0.0, 4.0]], [[2.0], [2.0]]))
        array([[1. ],
               [0.5]], dtype=float32)
    """
    return MatrixSolve(adjoint=adjoint)(matrix, rhs, name=name)


class MatrixTriangularSolve(Op):
    """The x with matrix x = rhs, where one triangle of matrix is treated as zeros"""

    signature = f"matrix: T, rhs: T -> output: T; T: {TYPES}"
    host_only = True
    lower: bool = True
    adjoint: bool = False

    def shape(self, matrix: Tensor, rhs: Tensor) -> TensorShape:
        return _solution_shape(square_shape(matrix), rhs)

    def numpy(self, matrix: Array, rhs: Array) -> Array:
        check_square(matrix)
        check_fit(matrix, rhs)
        if np.any(np.diagonal(matrix, axis1=-2, axis2=-1) == 0):
            raise ValueError("Input matrix is not invertible.")
        triangle = adjoint_of(matrix) if self.adjoint else matrix
        return substituted(triangle, rhs, self.lower is not self.adjoint)

    def gradient(self, node: Node, dx: Tensor) -> list[Tensor]:
        matrix, x = node.inputs[0], node.output
        drhs = MatrixTriangularSolve(lower=self.lower, adjoint=not self.adjoint)(matrix, dx)
        full = _matrix_gradient(drhs, x, self.adjoint)
        widths = (-1, 0) if self.lower else (0, -1)
        return [diagonal.matrix_band_part(full, *widths), drhs]


def substituted(triangle: Array, rhs: Array, lower: bool) -> Array:
    """The solution of triangular systems row by row: far more accurate than by pivoting."""
    x = rhs.copy()
    side = triangle.shape[-1]
    for row in range(side) if lower else reversed(range(side)):
        known = slice(row) if lower else slice(row + 1, None)
        x[..., row, :] -= blas.matmul(triangle[..., row : row + 1, known], x[..., known, :])[
            ..., 0, :
        ]
        x[..., row, :] /= triangle[..., row, row, None]
    return x


@public("matrix_triangular_solve", "linalg.triangular_solve", "batch_matrix_triangular_solve")
def matrix_triangular_solve(
    matrix: Any, rhs: Any, lower: bool = True, adjoint: bool = False, name: str | None = None
) -> Tensor:
    """The solutions x of `matrix` x = `rhs` for triangular matrices; the other half is not read."""
    return MatrixTriangularSolve(lower=lower, adjoint=adjoint)(matrix, rhs, name=name)
