"""Operators that are another one's adjoint or inverse, or one with an update of low rank."""

from __future__ import annotations

import functools
from typing import Any

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.linear_operators import matrices
from thalweg.linear_operators.base import LinearOperator, adjoint_of, inverse_of
from thalweg.linear_operators.diagonals import LinearOperatorDiag, LinearOperatorIdentity
from thalweg.ops.arrays import joining
from thalweg.ops.core import broadcast, filling, shaping
from thalweg.ops.linalg import linalg, matmul
from thalweg.ops.math import complexes, reduce
from thalweg.public import public


class _OfOne(LinearOperator):
    """An operator that is derived of another one."""

    def __init__(self, operator: LinearOperator, hints: dict[str, Any], name: str) -> None:
        self._operator = operator
        merged = {
            hint: matrices.merged_hint(
                operator,
                hint,
                given,
                f"The operator and its {type(self).__name__} differ in {hint}.",
            )
            for hint, given in hints.items()
        }
        super().__init__(operator.dtype, operator.graph_parents, name=name, **merged)

    @property
    def operator(self) -> LinearOperator:
        """The operator that it is derived of."""
        return self._operator


@public("linalg.LinearOperatorAdjoint")
class LinearOperatorAdjoint(_OfOne):
    """The adjoint of an operator.

    Args:
        operator: the operator.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> operator = tf.linalg.LinearOperatorFullMatrix([[1.0, 2.0], [3.0, 4.0]])
        >>> sess.run(tf.linalg.LinearOperatorAdjoint(operator).to_dense())
        array([[1., 3.],
               [2., 4.]], dtype=float32)
    """

    def __init__(
        self,
        operator: LinearOperator,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str | None = None,
    ) -> None:
        hints = {
            "is_non_singular": is_non_singular,
            "is_self_adjoint": is_self_adjoint,
            "is_positive_definite": is_positive_definite,
            "is_square": is_square,
        }
        super().__init__(operator, hints, name or f"{operator.name}_adjoint")

    def _shape(self) -> TensorShape:
        shape = self._operator.shape
        if shape.rank is None:
            return shape
        return shape[:-2].concatenate(TensorShape([shape[-1], shape[-2]]))

    def _shape_tensor(self) -> Tensor:
        sizes = self._operator.shape_tensor()
        return joining.concat([sizes[:-2], [sizes[-1], sizes[-2]]], 0)

    def _assert_non_singular(self) -> Node | None:
        return self._operator.assert_non_singular()

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.matmul(x, adjoint=not adjoint, adjoint_arg=adjoint_arg)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.solve(rhs, adjoint=not adjoint, adjoint_arg=adjoint_arg)

    def _determinant(self) -> Any:
        return _conjugate(self._operator.determinant(), self.dtype)

    def _log_abs_determinant(self) -> Any:
        return self._operator.log_abs_determinant()

    def _trace(self) -> Any:
        return _conjugate(self._operator.trace(), self.dtype)

    def _diag_part(self) -> Any:
        return _conjugate(self._operator.diag_part(), self.dtype)

    def _to_dense(self) -> Any:
        return linalg.adjoint(self._operator.to_dense())


def _conjugate(value: Any, dtype: Any) -> Any:
    return complexes.conj(value) if dtype.is_complex else value


@adjoint_of.register(LinearOperator)
def _adjoint(operator: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return LinearOperatorAdjoint(operator)


@adjoint_of.register(LinearOperatorAdjoint)
def _adjoint_twice(operator: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return operator.operator


@public("linalg.LinearOperatorInversion")
class LinearOperatorInversion(_OfOne):
    """The inverse of an operator.

    Args:
        operator: the operator.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> operator = tf.linalg.LinearOperatorFullMatrix([[2.0, 0.0], [0.0, 4.0]])
        >>> sess.run(tf.linalg.LinearOperatorInversion(operator).matvec([1.0, 1.0]))
        array([0.5 , 0.25], dtype=float32)
    """

    def __init__(
        self,
        operator: LinearOperator,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str | None = None,
    ) -> None:
        if operator.is_square is False or is_square is False:
            raise ValueError("LinearOperatorInversion is always square.")
        if operator.is_non_singular is False or is_non_singular is False:
            raise ValueError("LinearOperatorInversion is always non-singular.")
        hints = {
            "is_self_adjoint": is_self_adjoint,
            "is_positive_definite": is_positive_definite,
            "is_square": True,
        }
        super().__init__(operator, hints, name or f"{operator.name}_inv")
        self._is_non_singular = True

    def _shape(self) -> TensorShape:
        return self._operator.shape

    def _shape_tensor(self) -> Tensor:
        return self._operator.shape_tensor()

    def _assert_non_singular(self) -> Node | None:
        return self._operator.assert_non_singular()

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.solve(x, adjoint=adjoint, adjoint_arg=adjoint_arg)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._operator.matmul(rhs, adjoint=adjoint, adjoint_arg=adjoint_arg)

    def _determinant(self) -> Any:
        return 1.0 / self._operator.determinant()

    def _log_abs_determinant(self) -> Any:
        return -self._operator.log_abs_determinant()


@inverse_of.register(LinearOperator)
def _inverse(operator: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return LinearOperatorInversion(operator)


@inverse_of.register(LinearOperatorInversion)
def _inverse_twice(operator: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return operator.operator


@public("linalg.LinearOperatorHouseholder")
class LinearOperatorHouseholder(LinearOperator):
    """A reflection: I - 2 v vᴴ / (vᴴ v).

    Args:
        reflection_axis: v, [batch..., n].
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> operator = tf.linalg.LinearOperatorHouseholder([1.0, 0.0])
        >>> sess.run(operator.matvec([3.0, 4.0]))
        array([-3.,  4.], dtype=float32)
    """

    def __init__(
        self,
        reflection_axis: TensorLike,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorHouseholder",
    ) -> None:
        self._axis: Any = matrices.convert_nonref_to_tensor(reflection_axis, name="reflection_axis")
        if self._axis.shape.rank is not None and self._axis.shape.rank < 1:
            raise ValueError("Argument reflection_axis must have at least 1 dimension.")
        for hint, what in (
            (is_self_adjoint, "self adjoint"),
            (is_non_singular, "non-singular"),
            (is_square, "square"),
        ):
            if hint is False:
                raise ValueError(f"A Householder operator is always {what}.")
        if is_positive_definite is True:
            raise ValueError("A Householder operator is always non-positive definite.")
        super().__init__(self._axis.dtype, [self._axis], True, True, False, True, name)

    @property
    def reflection_axis(self) -> Tensor:
        """The vector that the operator reflects."""
        return self._axis

    def _shape(self) -> TensorShape:
        return self._axis.shape.concatenate(self._axis.shape[-1:])

    def _shape_tensor(self) -> Tensor:
        sizes = shaping.shape(self._axis)
        return joining.concat([sizes, sizes[-1:]], 0)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        given = linalg.adjoint(x) if adjoint_arg else x
        column = shaping.expand_dims(self._axis, -1)
        norm = reduce.reduce_sum(column * _conjugate(column, self.dtype), -2, keepdims=True)
        column, given = matrices.broadcast_batches([column, given])
        return given - 2 * column * matmul.matmul(column, given, adjoint_a=True) / norm

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        return self._matmul(rhs, adjoint, adjoint_arg)

    def _determinant(self) -> Any:
        return -filling.ones(self.batch_shape_tensor(), self.dtype)

    def _log_abs_determinant(self) -> Any:
        return filling.zeros(self.batch_shape_tensor(), self.dtype)


@public("linalg.LinearOperatorLowRankUpdate")
class LinearOperatorLowRankUpdate(LinearOperator):
    """An operator plus one of low rank: L + U D Vᴴ.

    Args:
        base_operator: L.
        u: U, [batch..., m, k].
        diag_update: the diagonal of D, [batch..., k]; the identity if None.
        v: V, [batch..., n, k]; U if None.
        is_diag_update_positive: whether D is positive definite, if that is known.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> base = tf.linalg.LinearOperatorDiag([1.0, 1.0])
        >>> operator = tf.linalg.LinearOperatorLowRankUpdate(base, [[1.0], [2.0]])
        >>> sess.run(operator.to_dense())
        array([[2., 2.],
               [2., 5.]], dtype=float32)
    """

    def __init__(
        self,
        base_operator: LinearOperator,
        u: TensorLike,
        diag_update: TensorLike | None = None,
        v: TensorLike | None = None,
        is_diag_update_positive: bool | None = None,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str = "LinearOperatorLowRankUpdate",
    ) -> None:
        self._base_operator = base_operator
        convert = functools.partial(matrices.convert_nonref_to_tensor, dtype=base_operator.dtype)
        self._u: Any = convert(u, name="u")
        self._v: Any = self._u if v is None else convert(v, name="v")
        self._given_diag: Any = convert(diag_update, name="diag_update")
        rank = self._u.shape[-1].value
        ones = LinearOperatorIdentity(
            shaping.shape(self._u)[-1] if rank is None else rank, dtype=base_operator.dtype
        )
        self._diag_operator: LinearOperator = (
            ones
            if diag_update is None
            else LinearOperatorDiag(self._given_diag, is_positive_definite=is_diag_update_positive)
        )
        is_symmetric = base_operator.is_self_adjoint and self._diag_operator.is_self_adjoint
        if v is None and is_symmetric:
            is_self_adjoint = True
            positive = is_diag_update_positive or diag_update is None
            if base_operator.is_positive_definite and positive:
                is_positive_definite = True
        parts = [*base_operator.graph_parents, self._u]
        super().__init__(
            base_operator.dtype,
            parts,
            is_non_singular,
            is_self_adjoint,
            is_positive_definite,
            is_square,
            name,
        )

    @property
    def base_operator(self) -> LinearOperator:
        """L"""
        return self._base_operator

    @property
    def u(self) -> Tensor:
        """U"""
        return self._u

    @property
    def v(self) -> Tensor:
        """V"""
        return self._v

    @property
    def diag_update(self) -> Tensor:
        """The diagonal of D, as it was given."""
        return self._given_diag

    @property
    def diag_operator(self) -> LinearOperator:
        """D"""
        return self._diag_operator

    def _shape(self) -> TensorShape:
        batch = broadcast.broadcast_static_shape(
            self._base_operator.batch_shape, self._u.shape[:-2]
        )
        return batch.concatenate(self._base_operator.shape[-2:])

    def _shape_tensor(self) -> Tensor:
        batch = broadcast.broadcast_dynamic_shape(
            self._base_operator.batch_shape_tensor(), shaping.shape(self._u)[:-2]
        )
        return joining.concat([batch, self._base_operator.shape_tensor()[-2:]], 0)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        left, right = (self._v, self._u) if adjoint else (self._u, self._v)
        given = linalg.adjoint(x) if adjoint_arg else x
        inner = _product(right, given, adjoint=True)
        update = _product(left, self._diag_operator.matmul(inner, adjoint=adjoint))
        return self._base_operator.matmul(given, adjoint=adjoint) + update

    def _capacitance(self) -> Any:
        """C = D⁻¹ + Vᴴ L⁻¹ U, of the formulas of Woodbury and of the determinant."""
        solved = _product(self._v, self._base_operator.solve(self._u), adjoint=True)
        return self._diag_operator.inverse().add_to_tensor(solved)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        base = self._base_operator
        left, right = (self._v, self._u) if adjoint else (self._u, self._v)
        given = linalg.adjoint(rhs) if adjoint_arg else rhs
        first = base.solve(given, adjoint=adjoint)
        inner = matrices.solve(
            self._capacitance(), _product(right, first, adjoint=True), adjoint=adjoint
        )
        return first - base.solve(_product(left, inner), adjoint=adjoint)

    def _determinant(self) -> Any:
        capacitance = linalg.matrix_determinant(self._capacitance())
        parts = self._diag_operator.determinant() * self._base_operator.determinant()
        return capacitance * parts

    def _log_abs_determinant(self) -> Any:
        capacitance = linalg.slogdet(self._capacitance())[1]
        diag = self._diag_operator.log_abs_determinant()
        return capacitance + diag + self._base_operator.log_abs_determinant()


def _product(matrix: Any, x: Any, adjoint: bool = False) -> Any:
    left, right = matrices.broadcast_batches([matrix, x])
    return matmul.matmul(left, right, adjoint_a=adjoint)
