"""Operators of one value on each diagonal: circulant ones, by Fourier transforms, and Toeplitz."""

from __future__ import annotations

import math
from typing import Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype, complex64, complex128
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.linear_operators import matrices
from thalweg.linear_operators.base import LinearOperator
from thalweg.ops.arrays import indexing, joining, transposing
from thalweg.ops.core import broadcast, casting, filling, shaping
from thalweg.ops.linalg import linalg
from thalweg.ops.linalg import matmul as matmul_ops
from thalweg.ops.math import arithmetic, complexes, reduce, transcendental
from thalweg.ops.signal import fft
from thalweg.public import public

_FORWARD = {1: fft.fft, 2: fft.fft2d, 3: fft.fft3d}
_BACKWARD = {1: fft.ifft, 2: fft.ifft2d, 3: fft.ifft3d}


class _Circulant(LinearOperator):
    """F⁻¹ diag(spectrum) F, for transforms of 1, 2 or 3 axes."""

    depth = 1

    def __init__(
        self,
        spectrum: TensorLike,
        input_output_dtype: DTypeLike = complex64,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = True,
        name: str | None = None,
    ) -> None:
        self._spectrum: Any = matrices.convert_nonref_to_tensor(spectrum, name="spectrum")
        rank = self._spectrum.shape.rank
        if rank is not None and rank < self.depth:
            raise ValueError(f"Argument spectrum must have at least {self.depth} dimensions.")
        if not self._spectrum.dtype.is_complex:
            if is_self_adjoint is False:
                raise ValueError("A real spectrum always corresponds to a self-adjoint operator.")
            is_self_adjoint = True
        if is_square is False:
            raise ValueError("A [[nested] block] circulant operator is always square.")
        super().__init__(
            as_dtype(input_output_dtype),
            [self._spectrum],
            is_non_singular,
            is_self_adjoint,
            is_positive_definite,
            True,
            name or type(self).__name__,
        )

    @property
    def spectrum(self) -> Tensor:
        """The eigenvalues."""
        return self._spectrum

    @property
    def block_depth(self) -> int:
        """How many axes are transformed."""
        return self.depth

    @property
    def block_shape(self) -> TensorShape:
        """The sizes of these axes."""
        return self._spectrum.shape[-self.depth :]

    def _shape(self) -> TensorShape:
        blocks = self.block_shape.as_list()
        size = None if None in blocks else math.prod(block or 0 for block in blocks)
        return self._spectrum.shape[: -self.depth].concatenate(TensorShape([size, size]))

    def _shape_tensor(self) -> Tensor:
        sizes = shaping.shape(self._spectrum)
        size = reduce.reduce_prod(sizes[-self.depth :])
        return joining.concat([sizes[: -self.depth], [size, size]], 0)

    def _assert_non_singular(self) -> Node | None:
        return matrices.assert_no_entries_with_modulus_zero(
            self._spectrum, message="Singular operator:  spectrum contained zero."
        )

    def _complex_spectrum(self) -> Any:
        if self.dtype.is_complex:
            kind = self.dtype
        else:
            kind = complex128 if self.dtype.size == 8 else complex64
        return casting.cast(convert_to_tensor(self._spectrum), kind)

    def _filtered(self, x: Tensor, spectrum: Any, adjoint_arg: bool) -> Any:
        """Each column of x, with its transform multiplied by a spectrum."""
        given = linalg.adjoint(x) if adjoint_arg else x
        rows = transposing.matrix_transpose(given)
        sizes = shaping.shape(rows)
        blocks = shaping.shape(self._spectrum)[-self.depth :]
        folded = shaping.reshape(rows, joining.concat([sizes[:-1], blocks], 0))
        transformed = _FORWARD[self.depth](casting.cast(folded, spectrum.dtype))
        scaled = transformed * shaping.expand_dims(spectrum, -self.depth - 1)
        back = _BACKWARD[self.depth](scaled)
        flat = shaping.reshape(back, joining.concat([shaping.shape(back)[: -self.depth], [-1]], 0))
        made = transposing.matrix_transpose(flat)
        kept = made if self.dtype.is_complex else complexes.real(made)
        if given.shape.rank is not None and kept.shape.rank is not None:
            outer: list[Any] = [None] * (kept.shape.rank - 2)
            kept.set_shape([*outer, self.range_dimension.value, given.shape[-1].value])
        return casting.cast(kept, self.dtype)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        spectrum = self._complex_spectrum()
        return self._filtered(x, complexes.conj(spectrum) if adjoint else spectrum, adjoint_arg)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        spectrum = self._complex_spectrum()
        chosen = complexes.conj(spectrum) if adjoint else spectrum
        return self._filtered(rhs, arithmetic.reciprocal(chosen), adjoint_arg)

    def _axes(self) -> list[int]:
        return list(range(-self.depth, 0))

    def _determinant(self) -> Any:
        product = reduce.reduce_prod(self._complex_spectrum(), axis=self._axes())
        return self._as_own(product)

    def _log_abs_determinant(self) -> Any:
        sizes = transcendental.log(arithmetic.absolute(self._spectrum))
        return casting.cast(reduce.reduce_sum(sizes, axis=self._axes()), self.dtype)

    def _trace(self) -> Any:
        return self._as_own(reduce.reduce_sum(self._complex_spectrum(), axis=self._axes()))

    def _diag_part(self) -> Any:
        size = self.domain_dimension_tensor()
        mean = self._trace() / casting.cast(size, self.dtype)
        return shaping.expand_dims(mean, -1) * filling.ones([size], self.dtype)

    def _as_own(self, value: Any) -> Any:
        kept = value if self.dtype.is_complex else complexes.real(value)
        return casting.cast(kept, self.dtype)


@public("linalg.LinearOperatorCirculant")
class LinearOperatorCirculant(_Circulant):
    """A circulant matrix: each row is the one before, moved by one.

    Args:
        spectrum: the eigenvalues, the transform of the first column, [batch..., n].
        input_output_dtype: the dtype of what it is applied to.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> spectrum = tf.signal.fft(tf.constant([1.0, 2.0, 3.0], tf.complex64))
        >>> operator = tf.linalg.LinearOperatorCirculant(spectrum, tf.float32)
        >>> sess.run(operator.to_dense()).round(3)
        array([[1., 3., 2.],
               [2., 1., 3.],
               [3., 2., 1.]], dtype=float32)
    """

    depth = 1


@public("linalg.LinearOperatorCirculant2D")
class LinearOperatorCirculant2D(_Circulant):
    """A block circulant matrix of circulant blocks.

    Args:
        spectrum: the eigenvalues, [batch..., n0, n1].
        input_output_dtype: the dtype of what it is applied to.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> operator = tf.linalg.LinearOperatorCirculant2D(tf.ones([2, 3]), tf.float32)
        >>> operator.shape.as_list()
        [6, 6]
    """

    depth = 2


@public("linalg.LinearOperatorCirculant3D")
class LinearOperatorCirculant3D(_Circulant):
    """A nested block circulant matrix.

    Args:
        spectrum: the eigenvalues, [batch..., n0, n1, n2].
        input_output_dtype: the dtype of what it is applied to.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> operator = tf.linalg.LinearOperatorCirculant3D(tf.ones([2, 2, 2]), tf.float32)
        >>> operator.shape.as_list()
        [8, 8]
    """

    depth = 3


@public("linalg.LinearOperatorToeplitz")
class LinearOperatorToeplitz(LinearOperator):
    """A Toeplitz matrix: each diagonal has one value.

    Args:
        col: the first column, [batch..., n].
        row: the first row, [batch..., n]; its first entry is that of the column.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> operator = tf.linalg.LinearOperatorToeplitz([1.0, 2.0, 3.0], [1.0, 4.0, 5.0])
        >>> sess.run(operator.to_dense())
        array([[1., 4., 5.],
               [2., 1., 4.],
               [3., 2., 1.]], dtype=float32)
    """

    def __init__(
        self,
        col: TensorLike,
        row: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorToeplitz",
    ) -> None:
        self._col: Any = matrices.convert_nonref_to_tensor(col, name="col")
        self._row: Any = matrices.convert_nonref_to_tensor(row, name="row")
        for vector in (self._col, self._row):
            if vector.shape.rank is not None and vector.shape.rank < 1:
                raise ValueError("Arguments col and row must have at least 1 dimension.")
        if is_square is False:
            raise ValueError("Only square Toeplitz operators currently supported.")
        super().__init__(
            self._row.dtype,
            [self._row, self._col],
            is_non_singular,
            is_self_adjoint,
            is_positive_definite,
            True,
            name,
        )

    @property
    def col(self) -> Tensor:
        """The first column."""
        return self._col

    @property
    def row(self) -> Tensor:
        """The first row."""
        return self._row

    def _shape(self) -> TensorShape:
        vector = broadcast.broadcast_static_shape(self._row.shape, self._col.shape)
        return vector.concatenate(vector[-1:])

    def _shape_tensor(self) -> Tensor:
        sizes = broadcast.broadcast_dynamic_shape(
            shaping.shape(self._row), shaping.shape(self._col)
        )
        return joining.concat([sizes, sizes[-1:]], 0)

    def _diagonals(self) -> tuple[Any, Any]:
        """(The column backwards and the row without its start, the number of rows)."""
        full = self._shape_tensor()[:-1]
        column = broadcast.broadcast_to(self._col, full)
        row = broadcast.broadcast_to(self._row, full)
        return joining.concat([transposing.reverse(column, [-1]), row[..., 1:]], -1), full[-1]

    def _to_dense(self) -> Any:
        values, count = self._diagonals()
        places = filling.range(count)
        # Row i has the entries of `values` from count - 1 - i on.
        at = shaping.expand_dims(count - 1 - places, 1) + places
        result = indexing.gather(values, at, axis=-1)
        result.set_shape(self.shape)
        return result

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        left, right = matrices.broadcast_batches([self._to_dense(), x])
        return matmul_ops.matmul(left, right, adjoint_a=adjoint, adjoint_b=adjoint_arg)

    def _diag_part(self) -> Any:
        shape = self._shape_tensor()[:-1]
        return broadcast.broadcast_to(self._col[..., :1], shape)
