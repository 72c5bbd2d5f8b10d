"""Operators that are a diagonal: any, a multiple of the identity, the identity."""

from __future__ import annotations

from typing import Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype, float32
from thalweg.graph.known import constant_value
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.linear_operators import matrices
from thalweg.linear_operators.base import (
    LinearOperator,
    adjoint_of,
    cholesky_of,
    composed_of,
    inverse_of,
)
from thalweg.linear_operators.combined import LinearOperatorComposition
from thalweg.ops.arrays import diagonal, joining
from thalweg.ops.core import basic, casting, checks, filling, shaping
from thalweg.ops.linalg import linalg
from thalweg.ops.math import arithmetic, complexes, reduce, transcendental
from thalweg.public import public


@public("linalg.LinearOperatorDiag")
class LinearOperatorDiag(LinearOperator):
    """An operator that is a diagonal matrix.

    Args:
        diag: the diagonal, [batch..., n].
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> operator = tf.linalg.LinearOperatorDiag([1.0, 2.0])
        >>> sess.run(operator.to_dense())
        array([[1., 0.],
               [0., 2.]], dtype=float32)
    """

    def __init__(
        self,
        diag: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorDiag",
    ) -> None:
        self._diag: Any = matrices.convert_nonref_to_tensor(diag, name="diag")
        if self._diag.shape.rank is not None and self._diag.shape.rank < 1:
            raise ValueError("Argument diag must have at least 1 dimension.")
        if not self._diag.dtype.is_complex:
            if is_self_adjoint is False:
                raise ValueError("A real diagonal operator is always self adjoint.")
            is_self_adjoint = True
        if is_square is False:
            raise ValueError("Only square diagonal operators supported at this time.")
        super().__init__(
            self._diag.dtype,
            [self._diag],
            is_non_singular,
            is_self_adjoint,
            is_positive_definite,
            is_square=True,
            name=name,
        )

    @property
    def diag(self) -> Tensor:
        """The diagonal."""
        return self._diag

    def _shape(self) -> TensorShape:
        return self._diag.shape.concatenate(self._diag.shape[-1:])

    def _shape_tensor(self) -> Tensor:
        sizes = shaping.shape(self._diag)
        return joining.concat([sizes, sizes[-1:]], 0)

    def _assert_non_singular(self) -> Node | None:
        return matrices.assert_no_entries_with_modulus_zero(
            self._diag, message="Singular operator:  Diagonal contained zero values."
        )

    def _assert_positive_definite(self) -> Node | None:
        real = complexes.real(self._diag) if self.dtype.is_complex else self._diag
        return checks.assert_positive(
            real, message="Operator is not positive definite: its diagonal is not positive."
        )

    def _assert_self_adjoint(self) -> Node | None:
        return matrices.assert_zero_imag_part(
            self._diag, message="This diagonal operator is not self-adjoint: it is not real."
        )

    def _scaled(self, x: Tensor, diag: Any, adjoint_arg: bool) -> Any:
        given = linalg.adjoint(x) if adjoint_arg else x
        return shaping.expand_dims(diag, -1) * given

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        diag = complexes.conj(self._diag) if adjoint else self._diag
        return self._scaled(x, diag, adjoint_arg)

    def _matvec(self, x: Tensor, adjoint: bool = False) -> Any:
        return (complexes.conj(self._diag) if adjoint else self._diag) * x

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        diag = complexes.conj(self._diag) if adjoint else self._diag
        return self._scaled(rhs, arithmetic.reciprocal(diag), adjoint_arg)

    def _determinant(self) -> Any:
        return reduce.reduce_prod(self._diag, axis=[-1])

    def _log_abs_determinant(self) -> Any:
        logarithms = transcendental.log(arithmetic.absolute(self._diag))
        total = reduce.reduce_sum(logarithms, axis=[-1])
        return casting.cast(total, self.dtype) if self.dtype.is_complex else total

    def _to_dense(self) -> Any:
        return diagonal.matrix_diag(self._diag)

    def _diag_part(self) -> Any:
        return self.diag

    def _add_to_tensor(self, x: Tensor) -> Any:
        return diagonal.matrix_set_diag(x, diagonal.matrix_diag_part(x) + self._diag)


def _rows(value: Any) -> Tensor:
    """A number of rows as an int32, checked."""
    count = convert_to_tensor(value, name="num_rows")
    if not count.dtype.is_integer:
        raise TypeError(f"Argument num_rows must be integer type.  Found: {value}")
    known = constant_value(count)
    if known is not None and (known.ndim != 0 or known < 0):
        raise ValueError(f"Argument num_rows must be a non-negative 0-D Tensor.  Found: {known}")
    return casting.to_int32(count)


class _OfIdentity(LinearOperator):
    """What the identity and its multiples have in common: they are diagonal, of a known size."""

    _num_rows: Tensor

    def _batch(self) -> TensorShape:
        raise NotImplementedError

    def _batch_tensor(self) -> Tensor:
        raise NotImplementedError

    def _shape(self) -> TensorShape:
        known = constant_value(self._num_rows)
        size = None if known is None else int(known)
        return self._batch().concatenate(TensorShape([size, size]))

    def _shape_tensor(self) -> Tensor:
        return joining.concat([self._batch_tensor(), [self._num_rows, self._num_rows]], 0)


@public("linalg.LinearOperatorIdentity")
class LinearOperatorIdentity(_OfIdentity):
    """The identity.

    Args:
        num_rows: the number of rows.
        batch_shape: the shape of the batch.
        dtype: the dtype of the entries.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        assert_proper_shapes: taken for old programs; shapes are always checked.
        name: the name of the nodes.

    Example:
        >>> sess.run(tf.linalg.LinearOperatorIdentity(2).matvec([3.0, 4.0]))
        array([3., 4.], dtype=float32)
    """

    def __init__(
        self,
        num_rows: TensorLike,
        batch_shape: TensorLike | None = None,
        dtype: DTypeLike | None = None,
        is_non_singular: bool = True,
        is_self_adjoint: bool = True,
        is_positive_definite: bool = True,
        is_square: bool = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorIdentity",
    ) -> None:
        if not (is_self_adjoint and is_square and is_non_singular and is_positive_definite):
            raise ValueError(
                "An identity operator is always self adjoint, square, non-singular and positive "
                "definite."
            )
        self._num_rows = _rows(num_rows)
        self._given_batch = None if batch_shape is None else shaping.shape_tensor(batch_shape)
        kind = as_dtype(dtype or float32)
        super().__init__(kind, None, True, True, True, True, name)

    def _batch(self) -> TensorShape:
        if self._given_batch is None:
            return TensorShape([])
        return shaping.known_shape(self._given_batch)

    def _batch_tensor(self) -> Tensor:
        if self._given_batch is None:
            return basic.constant([], "int32")
        return casting.to_int32(self._given_batch)

    def _assert_non_singular(self) -> Node:
        return basic.no_op()

    _assert_positive_definite = _assert_self_adjoint = _assert_non_singular

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        given = linalg.adjoint(x) if adjoint_arg else x
        if self._given_batch is None:
            return basic.identity(given)
        zeros = filling.zeros(joining.concat([self._batch_tensor(), [1, 1]], 0), self.dtype)
        return given + zeros

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._matmul(rhs, adjoint, adjoint_arg)

    def _determinant(self) -> Any:
        return filling.ones(self.batch_shape_tensor(), self.dtype)

    def _log_abs_determinant(self) -> Any:
        return filling.zeros(self.batch_shape_tensor(), self.dtype)

    def _diag_part(self) -> Any:
        return filling.ones(self.shape_tensor()[:-1], self.dtype)

    def _trace(self) -> Any:
        ones = filling.ones(self.batch_shape_tensor(), self.dtype)
        return ones * casting.cast(self._num_rows, self.dtype)


@public("linalg.LinearOperatorScaledIdentity")
class LinearOperatorScaledIdentity(_OfIdentity):
    """A multiple of the identity.

    Args:
        num_rows: the number of rows.
        multiplier: the multiple, [batch...].
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        assert_proper_shapes: taken for old programs; shapes are always checked.
        name: the name of the nodes.

    Example:
        >>> sess.run(tf.linalg.LinearOperatorScaledIdentity(2, 3.0).matvec([1.0, 2.0]))
        array([3., 6.], dtype=float32)
    """

    def __init__(
        self,
        num_rows: TensorLike,
        multiplier: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = True,
        assert_proper_shapes: bool = False,
        name: str = "LinearOperatorScaledIdentity",
    ) -> None:
        self._multiplier: Any = matrices.convert_nonref_to_tensor(multiplier, name="multiplier")
        if not self._multiplier.dtype.is_complex:
            if is_self_adjoint is False:
                raise ValueError("A real multiple of the identity is always self adjoint.")
            is_self_adjoint = True
        if not is_square:
            raise ValueError("A ScaledIdentity operator is always square.")
        self._num_rows = _rows(num_rows)
        super().__init__(
            self._multiplier.dtype,
            [self._multiplier],
            is_non_singular,
            is_self_adjoint,
            is_positive_definite,
            is_square,
            name,
        )

    @property
    def multiplier(self) -> Tensor:
        """The multiple."""
        return self._multiplier

    def _batch(self) -> TensorShape:
        return self._multiplier.shape

    def _batch_tensor(self) -> Tensor:
        return shaping.shape(self._multiplier)

    def _assert_non_singular(self) -> Node | None:
        return matrices.assert_no_entries_with_modulus_zero(
            self._multiplier, message="Operator was singular: its multiplier is zero."
        )

    def _assert_positive_definite(self) -> Node | None:
        real = complexes.real(self._multiplier) if self.dtype.is_complex else self._multiplier
        return checks.assert_positive(real, message="LinearOperator was not positive definite.")

    def _assert_self_adjoint(self) -> Node | None:
        return matrices.assert_zero_imag_part(
            self._multiplier, message="LinearOperator was not self-adjoint"
        )

    def _multiple(self, adjoint: bool) -> Any:
        value = complexes.conj(self._multiplier) if adjoint else self._multiplier
        return shaping.expand_dims(shaping.expand_dims(value, -1), -1)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._multiple(adjoint) * (linalg.adjoint(x) if adjoint_arg else x)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return (linalg.adjoint(rhs) if adjoint_arg else rhs) / self._multiple(adjoint)

    def _determinant(self) -> Any:
        return arithmetic.power(self._multiplier, casting.cast(self._num_rows, self.dtype))

    def _log_abs_determinant(self) -> Any:
        size = casting.cast(self._num_rows, self.dtype.real_dtype)
        total: Tensor = size * transcendental.log(arithmetic.absolute(self._multiplier))
        return casting.cast(total, self.dtype) if self.dtype.is_complex else total

    def _diag_part(self) -> Any:
        ones = filling.ones([self._num_rows], self.dtype)
        return shaping.expand_dims(self._multiplier, -1) * ones

    def _trace(self) -> Any:
        return self._multiplier * casting.cast(self._num_rows, self.dtype)


@adjoint_of.register(LinearOperatorDiag)
def _adjoint_diag(operator: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return LinearOperatorDiag(complexes.conj(operator.diag), operator.is_non_singular)


@inverse_of.register(LinearOperatorDiag)
def _inverse_diag(operator: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return LinearOperatorDiag(
        arithmetic.reciprocal(operator.diag),
        operator.is_non_singular,
        operator.is_self_adjoint,
        operator.is_positive_definite,
    )


@cholesky_of.register(LinearOperatorDiag)
def _cholesky_diag(operator: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return LinearOperatorDiag(
        transcendental.sqrt(operator.diag), is_self_adjoint=True, is_positive_definite=True
    )


@inverse_of.register(LinearOperatorIdentity)
@cholesky_of.register(LinearOperatorIdentity)
def _same(operator: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return operator


@inverse_of.register(LinearOperatorScaledIdentity)
def _inverse_scaled(operator: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return LinearOperatorScaledIdentity(
        operator.range_dimension_tensor(),
        arithmetic.reciprocal(operator.multiplier),
        operator.is_non_singular,
        operator.is_self_adjoint,
        operator.is_positive_definite,
    )


@composed_of.register(LinearOperatorIdentity)
def _after_identity(left: Any, right: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return right


@composed_of.register(LinearOperatorDiag)
def _after_diag(left: Any, right: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    if isinstance(right, LinearOperatorDiag):
        return LinearOperatorDiag(left.diag * right.diag)
    if isinstance(right, LinearOperatorIdentity):
        return left
    return LinearOperatorComposition([left, right])
