"""Operators that hold a matrix: full, lower triangular, or zero."""

from __future__ import annotations

from typing import Any

from thalweg.graph.dtypes import as_dtype, float32
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.linear_operators import matrices
from thalweg.linear_operators.base import LinearOperator, cholesky_of
from thalweg.ops.arrays import diagonal, joining
from thalweg.ops.core import checks, filling, shaping
from thalweg.ops.linalg import cholesky as cholesky_ops
from thalweg.ops.linalg import linalg, matmul
from thalweg.ops.math import arithmetic, reduce, transcendental
from thalweg.public import public


@public("linalg.LinearOperatorFullMatrix")
class LinearOperatorFullMatrix(LinearOperator):
    """An operator that is a matrix.

    Args:
        matrix: [batch..., rows, columns].
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> operator = tf.linalg.LinearOperatorFullMatrix([[1.0, 2.0], [3.0, 4.0]])
        >>> sess.run(operator.matvec([1.0, 1.0])), operator.shape
        (array([3., 7.], dtype=float32), TensorShape([Dimension(2), Dimension(2)]))
    """

    def __init__(
        self,
        matrix: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorFullMatrix",
    ) -> None:
        self._matrix: Any = matrices.convert_nonref_to_tensor(matrix, name="matrix")
        matrices.check_batch_matrix(self._matrix)
        super().__init__(
            self._matrix.dtype,
            [self._matrix],
            is_non_singular,
            is_self_adjoint,
            is_positive_definite,
            is_square,
            name,
        )

    def _shape(self) -> TensorShape:
        return self._matrix.shape

    def _shape_tensor(self) -> Tensor:
        return shaping.shape(self._matrix)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        left, right = matrices.broadcast_batches([self._matrix, x])
        return matmul.matmul(left, right, adjoint_a=adjoint, adjoint_b=adjoint_arg)

    def _to_dense(self) -> Any:
        return self._matrix


@public("linalg.LinearOperatorLowerTriangular")
class LinearOperatorLowerTriangular(LinearOperator):
    """An operator that is the lower triangle of a matrix, with its diagonal.

    Args:
        tril: [batch..., n, n]; what is above the diagonal does not count.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> operator = tf.linalg.LinearOperatorLowerTriangular([[2.0, 9.0], [1.0, 4.0]])
        >>> sess.run(operator.solvevec([2.0, 5.0])), sess.run(operator.determinant())
        (array([1., 1.], dtype=float32), np.float32(8.0))
    """

    def __init__(
        self,
        tril: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorLowerTriangular",
    ) -> None:
        if is_square is False:
            raise ValueError("Only square lower triangular operators supported at this time.")
        self._tril: Any = matrices.convert_nonref_to_tensor(tril, name="tril")
        matrices.check_batch_matrix(self._tril)
        super().__init__(
            self._tril.dtype,
            [self._tril],
            is_non_singular,
            is_self_adjoint,
            is_positive_definite,
            is_square=True,
            name=name,
        )

    def _shape(self) -> TensorShape:
        return self._tril.shape

    def _shape_tensor(self) -> Tensor:
        return shaping.shape(self._tril)

    def _to_dense(self) -> Any:
        return diagonal.matrix_band_part(self._tril, -1, 0)

    def _diag_part(self) -> Any:
        return diagonal.matrix_diag_part(self._tril)

    def _assert_non_singular(self) -> Node | None:
        return matrices.assert_no_entries_with_modulus_zero(
            self._diag_part(),
            message="Singular operator:  Diagonal contained zero values.",
        )

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        left, right = matrices.broadcast_batches([self._to_dense(), x])
        return matmul.matmul(left, right, adjoint_a=adjoint, adjoint_b=adjoint_arg)

    def _determinant(self) -> Any:
        return reduce.reduce_prod(self._diag_part(), axis=[-1])

    def _log_abs_determinant(self) -> Any:
        sizes = arithmetic.absolute(self._diag_part())
        return reduce.reduce_sum(transcendental.log(sizes), axis=[-1])

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        right = linalg.adjoint(rhs) if adjoint_arg else rhs
        return matrices.triangular_solve(self._to_dense(), right, lower=True, adjoint=adjoint)


@cholesky_of.register(LinearOperator)
def _(operator: Any) -> LinearOperator:
    return LinearOperatorLowerTriangular(
        cholesky_ops.cholesky(operator.to_dense()), is_non_singular=True, is_square=True
    )


@public("linalg.LinearOperatorZeros")
class LinearOperatorZeros(LinearOperator):
    """An operator of which all entries are zero.

    Args:
        num_rows: the number of rows.
        num_columns: the number of columns; that of rows if None.
        batch_shape: the shape of the batch.
        dtype: the dtype of the entries.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        assert_proper_shapes: taken for old programs; shapes are always checked.
        name: the name of the nodes.

    Example:
        >>> sess.run(tf.linalg.LinearOperatorZeros(1, 2).matvec([3.0, 4.0]))
        array([0.], dtype=float32)
    """

    def __init__(
        self,
        num_rows: TensorLike,
        num_columns: TensorLike | None = None,
        batch_shape: TensorLike | None = None,
        dtype: DTypeLike | None = None,
        is_non_singular: bool = False,
        is_self_adjoint: bool = True,
        is_positive_definite: bool = False,
        is_square: bool = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorZeros",
    ) -> None:
        if is_non_singular or is_positive_definite:
            raise ValueError("A zero operator is always singular and not positive definite.")
        columns: Any = num_rows if num_columns is None else num_columns
        batch: Any = [] if batch_shape is None else batch_shape
        # An operator of which nothing is asked but its shape: zeros that are never computed.
        sizes = [shaping.reshape(part, [-1]) for part in (num_rows, columns)]
        parts = [shaping.reshape(shaping.shape_tensor(batch), [-1]), *sizes]
        kind = as_dtype(dtype or float32)
        self._zeros = filling.zeros(joining.concat(parts, 0), kind)
        is_same = num_columns is None or num_columns is num_rows or num_columns == num_rows
        super().__init__(
            kind,
            None,
            False,
            is_self_adjoint and is_same,
            False,
            is_square and is_same,
            name,
        )

    def _shape(self) -> TensorShape:
        return self._zeros.shape

    def _shape_tensor(self) -> Tensor:
        return shaping.shape(self._zeros)

    def _to_dense(self) -> Any:
        return self._zeros

    def _assert_non_singular(self) -> Node | None:
        return checks.Assert(False, ["Zero operators are always non-invertible."])

    def _assert_positive_definite(self) -> Node | None:
        return checks.Assert(False, ["Zero operators are not positive definite."])

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        left, right = matrices.broadcast_batches([self._zeros, x])
        return matmul.matmul(left, right, adjoint_a=adjoint, adjoint_b=adjoint_arg)

    def _determinant(self) -> Any:
        return self._zeros[..., 0, 0]

    def _diag_part(self) -> Any:
        return diagonal.matrix_diag_part(self._zeros)
