"""Positive definite systems: Cholesky factors, their solutions, and least squares."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ops.arrays import diagonal
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.linalg import linalg, matmul
from thalweg.ops.linalg.linalg import TYPES
from thalweg.ops.linalg.matmul import adjoint_of
from thalweg.ops.math import complexes, reduce, transcendental
from thalweg.platform import blas
from thalweg.platform.arrays import Array
from thalweg.public import public


class Cholesky(Op):
    """The lower triangular y with x = y yᴴ; only the lower half of x is read"""

    signature = f"input: T -> output: T; T: {TYPES}"
    host_only = True

    def shape(self, input: Tensor) -> TensorShape:
        return linalg.square_shape(input)

    def numpy(self, input: Array) -> Array:
        linalg.check_square(input)
        try:
            return blas.cholesky(input)
        except np.linalg.LinAlgError:
            raise ValueError(
                "LLT decomposition was not successful. The input might not be valid."
            ) from None

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        """y⁻ᴴ Φ(yᴴ dy) y⁻¹ made Hermitian; Φ is the lower triangle with half the diagonal."""
        y = node.output
        middle = linalg.lower_half(matmul.matmul(y, dy, adjoint_a=True))
        half = linalg.matrix_triangular_solve(y, middle, adjoint=True)
        both = linalg.matrix_triangular_solve(y, linalg.adjoint(half), adjoint=True)
        return (both + linalg.adjoint(both)) * 0.5


@public("cholesky", "linalg.cholesky", "batch_cholesky")
def cholesky(input: Any, name: str | None = None) -> Tensor:
    """The lower triangular Cholesky factors of the innermost matrices.

    Args:
        input: [..., n, n], symmetric and positive definite; only lower triangles are read.
        name: the name of the node.

    Returns:
        A tensor L of the same shape with L Lᵀ = input.

    Raises:
        InvalidArgumentError: if a matrix is not positive definite.

    Example:
        >>> sess.run(tf.cholesky([[4.0, 0.0], [0.0, 9.0]]))
        array([[2., 0.],
               [0., 3.]], dtype=float32)
    """
    return Cholesky()(input, name=name)


@public("cholesky_solve", "linalg.cholesky_solve", "batch_cholesky_solve")
def cholesky_solve(chol: Any, rhs: Any, name: str | None = None) -> Tensor:
    """The solutions of systems whose matrices are given by their Cholesky factors."""
    with name_scope(name, "cholesky_solve", [chol, rhs]):
        half = linalg.matrix_triangular_solve(chol, rhs)
        return linalg.matrix_triangular_solve(chol, half, adjoint=True)


@public("linalg.logdet")
def logdet(matrix: Any, name: str | None = None) -> Tensor:
    """The logarithms of the determinants of Hermitian positive definite matrices."""
    with name_scope(name, "logdet", [matrix]):
        roots = diagonal.matrix_diag_part(cholesky(matrix))
        real = complexes.real(roots) if roots.dtype.is_complex else roots
        return reduce.reduce_sum(transcendental.log(real), [-1]) * 2.0


class MatrixSolveLs(Op):
    """The x that minimises |matrix x - rhs|² + l2 |x|², the smallest one if it is not unique"""

    signature = f"matrix: T, rhs: T, l2_regularizer: float64 -> output: T; T: {TYPES}"
    host_only = True
    fast: bool = True

    def shape(self, matrix: Tensor, rhs: Tensor, l2_regularizer: Tensor) -> TensorShape:
        left, right = linalg.matrix_sizes(matrix), linalg.matrix_sizes(rhs)
        if left is None or right is None:
            return unknown_shape()
        linalg.same_size(left[-2], right[-2])
        batch = TensorShape.of(left[:-2]).merge_with(TensorShape.of(right[:-2]))
        return batch.concatenate(TensorShape.of((left[-1], right[-1])))

    def numpy(self, matrix: Array, rhs: Array, l2_regularizer: Array) -> Array:
        solve = _by_normal_equations if self.fast else _by_pseudo_inverse
        return solve(matrix, rhs, float(l2_regularizer)).astype(matrix.dtype)

    def gradient(self, node: Node, dx: Tensor) -> list[Tensor | None]:
        sizes = node.inputs[0].shape.sizes
        if sizes is None or sizes[-1] is None or sizes[-2] is None:
            return [*_any_gradient(node, dx, self), None]
        tall = sizes[-2] >= sizes[-1]
        return [*(_tall_gradient if tall else _wide_gradient)(node, dx), None]


def _by_normal_equations(matrix: Array, rhs: Array, l2: float) -> Array:
    """(AᴴA + l2)⁻¹ Aᴴ b, or Aᴴ (AAᴴ + l2)⁻¹ b, whichever has the smaller matrix."""
    flipped = adjoint_of(matrix)
    rows, columns = matrix.shape[-2:]
    if rows >= columns:
        return _definite_solve(blas.matmul(flipped, matrix), blas.matmul(flipped, rhs), l2)
    return blas.matmul(flipped, _definite_solve(blas.matmul(matrix, flipped), rhs, l2))


def _definite_solve(matrix: Array, rhs: Array, shift: float) -> Array:
    shifted = matrix + (shift * np.eye(matrix.shape[-1])).astype(matrix.dtype)
    try:
        factor = blas.cholesky(shifted)
    except np.linalg.LinAlgError:
        raise ValueError(
            "Input matrix was rank deficient or ill-conditioned. Try setting fast=False or provide "
            "a larger l2_regularizer > 0."
        ) from None
    half = linalg.substituted(factor, rhs, lower=True)
    return linalg.substituted(adjoint_of(factor), half, lower=False)


def _by_pseudo_inverse(matrix: Array, rhs: Array, l2: float) -> Array:
    cutoff = np.finfo(matrix.dtype).eps * max(matrix.shape[-2:], default=1)
    return blas.matmul(blas.pinv(matrix, rcond=cutoff), rhs)


def _shifted_factor(gram: Tensor, l2: Tensor) -> Tensor:
    shift = casting.cast(l2, gram.dtype) * diagonal.eye(_side(gram), dtype=gram.dtype)
    return cholesky(gram + shift)


def _side(gram: Tensor) -> Any:
    known = gram.shape.as_list()[-1] if gram.shape.rank is not None else None
    return shaping.shape(gram)[-1] if known is None else known


def _tall_gradient(node: Node, dx: Tensor) -> list[Tensor]:
    """With at least as many rows as columns: x = (AᴴA + l2)⁻¹ Aᴴ b"""
    a, b, l2 = node.inputs
    x = node.output
    factor = _shifted_factor(matmul.matmul(a, a, adjoint_a=True), l2)
    z = cholesky_solve(factor, dx)
    crossed = matmul.matmul(x, z, adjoint_b=True)
    pulled = matmul.matmul(a, crossed + linalg.adjoint(crossed))
    return [matmul.matmul(b, z, adjoint_b=True) - pulled, matmul.matmul(a, z)]


def _wide_gradient(node: Node, dx: Tensor) -> list[Tensor]:
    """With fewer rows than columns: x = Aᴴ w, w = (AAᴴ + l2)⁻¹ b"""
    a, b, l2 = node.inputs
    factor = _shifted_factor(matmul.matmul(a, a, adjoint_b=True), l2)
    w = cholesky_solve(factor, b)
    db = cholesky_solve(factor, matmul.matmul(a, dx))
    outside = dx - matmul.matmul(a, db, adjoint_a=True)
    through_x = matmul.matmul(db, matmul.matmul(a, w, adjoint_a=True), adjoint_b=True)
    return [matmul.matmul(w, outside, adjoint_b=True) - through_x, db]


def _any_gradient(node: Node, dx: Tensor, solve: MatrixSolveLs) -> list[Tensor]:
    """For all sizes, with P the map from b to x: db = Pᴴ dx, which solves Aᴴ db = dx.

    Without l2, one of the residuals of the columns (b - A x) and the rows (dx - Aᴴ db) of A is 0;
    for the other, (AᴴA)⁻¹ dx = P db and (AAᴴ)⁻¹ b = Pᴴ x.
    """
    a, b, l2 = node.inputs
    x = node.output
    flipped = linalg.adjoint(a)
    db = solve(flipped, dx, l2)
    residual = b - matmul.matmul(a, x)
    through_x = matmul.matmul(db, x, adjoint_b=True)
    shifted = _shifted_factor(matmul.matmul(flipped, a), choosing.where(l2 > 0, l2, l2 + 1.0))
    z = choosing.where_v2(l2 > 0, cholesky_solve(shifted, dx), solve(a, db, l2))
    w = solve(flipped, x, l2)
    outside = choosing.where_v2(l2 > 0, filling.zeros_like(dx), dx - matmul.matmul(flipped, db))
    beside = matmul.matmul(residual, z, adjoint_b=True) + matmul.matmul(w, outside, adjoint_b=True)
    return [beside - through_x, db]


@public("matrix_solve_ls", "linalg.lstsq", "batch_matrix_solve_ls")
def matrix_solve_ls(
    matrix: Any, rhs: Any, l2_regularizer: Any = 0.0, fast: bool = True, name: str | None = None
) -> Tensor:
    """The least squares solutions of `matrix` x = `rhs`; `fast=False` supports any rank, not l2."""
    l2 = casting.cast(convert_to_tensor(l2_regularizer), dtypes.float64)
    return MatrixSolveLs(fast=fast)(matrix, rhs, l2, name=name)
