"""`LinearOperator`: what all operators do, by default with the matrix that they stand for."""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, int32
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Dimension, TensorShape
from thalweg.linear_operators import matrices
from thalweg.nn.module import Module
from thalweg.ops.arrays import diagonal
from thalweg.ops.core import casting, checks, shaping
from thalweg.ops.linalg import cholesky as cholesky_ops
from thalweg.ops.linalg import decomposition, linalg
from thalweg.ops.math import reduce, transcendental
from thalweg.public import public


@functools.singledispatch
def adjoint_of(operator: Any) -> LinearOperator:
    """The adjoint of an operator; classes register their own."""
    raise NotImplementedError(f"No adjoint of {type(operator).__name__}")


@functools.singledispatch
def inverse_of(operator: Any) -> LinearOperator:
    """The inverse of an operator; classes register their own."""
    raise NotImplementedError(f"No inverse of {type(operator).__name__}")


@functools.singledispatch
def cholesky_of(operator: Any) -> LinearOperator:
    """The Cholesky factor of an operator; classes register their own."""
    raise NotImplementedError(f"No Cholesky factor of {type(operator).__name__}")


@functools.singledispatch
def composed_of(left: Any, right: Any) -> LinearOperator:
    """The operator that applies `right`, then `left`; classes register their own."""
    raise NotImplementedError(f"No composition with {type(left).__name__}")


def _is_number(dtype: DType) -> bool:
    return dtype.is_floating or dtype.is_complex or dtype.is_integer


@public("linalg.LinearOperator")
class LinearOperator(Module):
    """A batch of matrices that need not be stored: what they do is enough.

    A subclass gives `_shape`, `_shape_tensor` and `_matmul`, and what it can do faster than with
    a dense matrix: `_solve`, `_determinant`, `_log_abs_determinant`, `_to_dense`, `_diag_part`.

    Args:
        dtype: the dtype of the entries.
        graph_parents: the tensors that it is made of.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: hints: what is known of
            it; None where that is not.
        name: the name of the nodes.

    Example:
        >>> operator = tf.linalg.LinearOperatorDiag([2.0, 3.0])
        >>> sess.run(operator.matvec([1.0, 1.0])), sess.run(operator.determinant())
        (array([2., 3.], dtype=float32), np.float32(6.0))
        >>> isinstance(operator, tf.linalg.LinearOperator)
        True
    """

    def __init__(
        self,
        dtype: DTypeLike | None,
        graph_parents: Sequence[Any] | None = None,
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str | None = None,
    ) -> None:
        if is_positive_definite:
            if is_non_singular is False:
                raise ValueError("A positive definite matrix is always non-singular.")
            is_non_singular = True
        for what, hint in (("non-singular", is_non_singular), ("self-adjoint", is_self_adjoint)):
            if hint:
                if is_square is False:
                    raise ValueError(f"A {what} matrix is always square.")
                is_square = True
        super().__init__(name=None)
        self._dtype: Any = None if dtype is None else as_dtype(dtype).base_dtype
        if self._dtype is not None and not _is_number(self._dtype):
            raise TypeError(f"{name or type(self).__name__} must be of numbers, not {self._dtype}")
        self._graph_parents = list(graph_parents or ())
        self._is_square_hint = is_square
        self._is_non_singular, self._is_self_adjoint = is_non_singular, is_self_adjoint
        self._is_positive_definite = is_positive_definite
        self._name = name or type(self).__name__

    @contextlib.contextmanager
    def _scope(self, name: str) -> Generator[str]:
        with name_scope(f"{self._name}/{name}") as scope:
            yield scope

    # What it is

    @property
    def dtype(self) -> DType:
        """The dtype of the entries."""
        return self._dtype

    @property
    def name(self) -> str:
        """The name of the operator."""
        return self._name

    @property
    def graph_parents(self) -> list[Any]:
        """The tensors that it is made of."""
        return self._graph_parents

    @property
    def is_non_singular(self) -> bool | None:
        """Whether it has an inverse, if that is known."""
        return self._is_non_singular

    @property
    def is_self_adjoint(self) -> bool | None:
        """Whether it is its own adjoint, if that is known."""
        return self._is_self_adjoint

    @property
    def is_positive_definite(self) -> bool | None:
        """Whether x · A x > 0 for all x but 0, if that is known."""
        return self._is_positive_definite

    @property
    def is_square(self) -> bool | None:
        """Whether it has as many rows as columns, if that is known."""
        domain, range_ = self.domain_dimension.value, self.range_dimension.value
        seen = None if domain is None or range_ is None else domain == range_
        if self._is_square_hint is False and seen:
            raise ValueError("User set is_square hint to False, but the operator was square.")
        return seen if self._is_square_hint is None else self._is_square_hint

    @abc.abstractmethod
    def _shape(self) -> TensorShape:
        raise NotImplementedError("_shape is not implemented.")

    @abc.abstractmethod
    def _shape_tensor(self) -> Tensor:
        raise NotImplementedError("_shape_tensor is not implemented.")

    @property
    def shape(self) -> TensorShape:
        """[batch..., rows, columns]."""
        return self._shape()

    def shape_tensor(self, name: str = "shape_tensor") -> Tensor:
        """The shape, as a tensor."""
        with self._scope(name):
            sizes = self.shape.as_list() if self.shape.is_fully_defined() else None
            return self._shape_tensor() if sizes is None else convert_to_tensor(sizes, int32)

    @property
    def batch_shape(self) -> TensorShape:
        """The shape without rows and columns."""
        return self.shape[:-2]

    def batch_shape_tensor(self, name: str = "batch_shape_tensor") -> Tensor:
        """The batch shape, as a tensor."""
        with self._scope(name):
            if self.batch_shape.is_fully_defined():
                return convert_to_tensor(self.batch_shape.as_list(), int32)
            return self.shape_tensor()[:-2]

    @property
    def tensor_rank(self) -> int | None:
        """How many axes it has."""
        return self.shape.rank

    def tensor_rank_tensor(self, name: str = "tensor_rank_tensor") -> Tensor:
        """How many axes it has, as a tensor."""
        with self._scope(name):
            rank = self.tensor_rank
            return shaping.size(self.shape_tensor()) if rank is None else convert_to_tensor(rank)

    @property
    def domain_dimension(self) -> Dimension:
        """The number of columns."""
        return Dimension(None) if self.shape.rank is None else self.shape[-1]

    @property
    def range_dimension(self) -> Dimension:
        """The number of rows."""
        return Dimension(None) if self.shape.rank is None else self.shape[-2]

    def domain_dimension_tensor(self, name: str = "domain_dimension_tensor") -> Tensor:
        """The number of columns, as a tensor."""
        return self._size_tensor(self.domain_dimension, -1, name)

    def range_dimension_tensor(self, name: str = "range_dimension_tensor") -> Tensor:
        """The number of rows, as a tensor."""
        return self._size_tensor(self.range_dimension, -2, name)

    def _size_tensor(self, size: Dimension, axis: int, name: str) -> Tensor:
        with self._scope(name):
            known = size.value
            return self.shape_tensor()[axis] if known is None else convert_to_tensor(known)

    # What must hold

    def _assert_non_singular(self) -> Node | None:
        if self._can_use_cholesky():
            return self.assert_positive_definite()
        values = decomposition.svd(self.to_dense(), compute_uv=False)
        condition = reduce.reduce_max(values, axis=-1) / reduce.reduce_min(values, axis=-1)
        return checks.assert_less(
            condition,
            self._max_condition_number(),
            message="Singular matrix up to precision epsilon.",
        )

    def _max_condition_number(self) -> Tensor:
        kind = self.dtype.real_dtype
        sizes = [self.range_dimension_tensor(), self.domain_dimension_tensor()]
        largest = reduce.reduce_max(
            [casting.cast(100, kind), *(casting.cast(s, kind) for s in sizes)]
        )
        return 1.0 / (largest * float(np.finfo(kind.as_numpy_dtype).eps))

    def _assert_positive_definite(self) -> Node | None:
        if not self.is_self_adjoint:
            raise NotImplementedError("assert_positive_definite is not implemented.")
        return checks.assert_positive(
            diagonal.matrix_diag_part(cholesky_ops.cholesky(self.to_dense())),
            message="Matrix was not positive definite.",
        )

    def _assert_self_adjoint(self) -> Node | None:
        dense = self.to_dense()
        return checks.assert_equal(
            dense, linalg.adjoint(dense), message="Matrix was not equal to its adjoint."
        )

    def assert_non_singular(self, name: str = "assert_non_singular") -> Node | None:
        """An op that fails where it is singular."""
        with self._scope(name):
            return self._assert_non_singular()

    def assert_positive_definite(self, name: str = "assert_positive_definite") -> Node | None:
        """An op that fails where it is not positive definite."""
        with self._scope(name):
            return self._assert_positive_definite()

    def assert_self_adjoint(self, name: str = "assert_self_adjoint") -> Node | None:
        """An op that fails where it is not self-adjoint."""
        with self._scope(name):
            return self._assert_self_adjoint()

    # What it does

    @abc.abstractmethod
    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        raise NotImplementedError("_matmul is not implemented.")

    def matmul(
        self, x: Any, adjoint: bool = False, adjoint_arg: bool = False, name: str = "matmul"
    ) -> Any:
        """A X, or Aᴴ X with `adjoint`; Xᴴ for X with `adjoint_arg`; X may be an operator."""
        if isinstance(x, LinearOperator):
            left, right = self._operands(x, adjoint, adjoint_arg, "x")
            with self._scope(name):
                return composed_of(left, right)
        with self._scope(name):
            given = self._checked(x, "x")
            own, other = (-2 if adjoint else -1), (-1 if adjoint_arg else -2)
            self._check_size(given, own, other)
            return self._matmul(given, adjoint=adjoint, adjoint_arg=adjoint_arg)

    def _matvec(self, x: Tensor, adjoint: bool = False) -> Any:
        return shaping.squeeze(self.matmul(shaping.expand_dims(x, -1), adjoint=adjoint), [-1])

    def matvec(self, x: TensorLike, adjoint: bool = False, name: str = "matvec") -> Any:
        """A x, or Aᴴ x with `adjoint`."""
        with self._scope(name):
            given = self._checked(x, "x")
            self._check_size(given, -2 if adjoint else -1, -1)
            return self._matvec(given, adjoint=adjoint)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        right = linalg.adjoint(rhs) if adjoint_arg else rhs
        if self._can_use_cholesky():
            return matrices.cholesky_solve(cholesky_ops.cholesky(self.to_dense()), right)
        return matrices.solve(self.to_dense(), right, adjoint=adjoint)

    def solve(
        self, rhs: Any, adjoint: bool = False, adjoint_arg: bool = False, name: str = "solve"
    ) -> Any:
        """X with A X = rhs, or Aᴴ X = rhs with `adjoint`; `rhs` may be an operator."""
        for hint, what in (
            (self.is_non_singular, "be singular"),
            (self.is_square, "not be square"),
        ):
            if hint is False:
                raise NotImplementedError(
                    f"Exact solve not implemented for an operator that is expected to {what}."
                )
        if isinstance(rhs, LinearOperator):
            left, right = self._operands(rhs, adjoint, adjoint_arg, "rhs")
            with self._scope(name):
                return composed_of(left.inverse(), right)
        with self._scope(name):
            given = self._checked(rhs, "rhs")
            self._check_size(given, -1 if adjoint else -2, -1 if adjoint_arg else -2)
            return self._solve(given, adjoint=adjoint, adjoint_arg=adjoint_arg)

    def _solvevec(self, rhs: Tensor, adjoint: bool = False) -> Any:
        return shaping.squeeze(self.solve(shaping.expand_dims(rhs, -1), adjoint=adjoint), [-1])

    def solvevec(self, rhs: TensorLike, adjoint: bool = False, name: str = "solve") -> Any:
        """x with A x = rhs, or Aᴴ x = rhs with `adjoint`."""
        with self._scope(name):
            given = self._checked(rhs, "rhs")
            self._check_size(given, -1 if adjoint else -2, -1)
            return self._solvevec(given, adjoint=adjoint)

    def _determinant(self) -> Any:
        if self._can_use_cholesky():
            return transcendental.exp(self.log_abs_determinant())
        return linalg.matrix_determinant(self.to_dense())

    def determinant(self, name: str = "det") -> Tensor:
        """The determinant."""
        self._check_square("Determinant")
        with self._scope(name):
            return self._determinant()

    def _log_abs_determinant(self) -> Any:
        dense = self.to_dense()
        if self._can_use_cholesky():
            diag = diagonal.matrix_diag_part(cholesky_ops.cholesky(dense))
            return 2 * reduce.reduce_sum(transcendental.log(diag), axis=[-1])
        return linalg.slogdet(dense)[1]

    def log_abs_determinant(self, name: str = "log_abs_det") -> Tensor:
        """The logarithm of the absolute value of the determinant."""
        self._check_square("Determinant")
        with self._scope(name):
            return self._log_abs_determinant()

    def adjoint(self, name: str = "adjoint") -> LinearOperator:
        """The operator of the conjugate transpose."""
        if self.is_self_adjoint:
            return self
        with self._scope(name):
            return adjoint_of(self)

    @property
    def H(self) -> LinearOperator:
        """The adjoint."""
        return self.adjoint()

    def inverse(self, name: str = "inverse") -> LinearOperator:
        """The operator of the inverse."""
        if self.is_square is False:
            raise ValueError(
                "Cannot take the Inverse: This operator represents a non square matrix."
            )
        if self.is_non_singular is False:
            raise ValueError("Cannot take the Inverse: This operator represents a singular matrix.")
        with self._scope(name):
            return inverse_of(self)

    def cholesky(self, name: str = "cholesky") -> LinearOperator:
        """The operator of the Cholesky factor."""
        if not self._can_use_cholesky():
            raise ValueError(
                "Cannot take the Cholesky decomposition: Not a positive definite self adjoint "
                "matrix."
            )
        with self._scope(name):
            return cholesky_of(self)

    def _to_dense(self) -> Any:
        columns = self.domain_dimension.value
        count: Any = self.domain_dimension_tensor() if columns is None else columns
        static = self.batch_shape.is_fully_defined()
        batch: Any = self.batch_shape.as_list() if static else self.batch_shape_tensor()
        return self.matmul(diagonal.eye(count, batch_shape=batch, dtype=self.dtype))

    def to_dense(self, name: str = "to_dense") -> Tensor:
        """The matrix."""
        with self._scope(name):
            return self._to_dense()

    def _diag_part(self) -> Any:
        return diagonal.matrix_diag_part(self.to_dense())

    def diag_part(self, name: str = "diag_part") -> Any:
        """The diagonal."""
        with self._scope(name):
            return self._diag_part()

    def _trace(self) -> Any:
        return reduce.reduce_sum(self.diag_part(), axis=-1)

    def trace(self, name: str = "trace") -> Any:
        """The sum of the diagonal."""
        with self._scope(name):
            return self._trace()

    def _add_to_tensor(self, x: Tensor) -> Any:
        return self.to_dense() + x

    def add_to_tensor(self, x: TensorLike, name: str = "add_to_tensor") -> Tensor:
        """The matrix plus another."""
        with self._scope(name):
            return self._add_to_tensor(self._checked(x, "x"))

    # Checks

    def _can_use_cholesky(self) -> bool:
        return bool(self.is_self_adjoint and self.is_positive_definite)

    def _checked(self, value: Any, name: str) -> Tensor:
        tensor = convert_to_tensor(value, name=name)
        if tensor.dtype.base_dtype != self.dtype:
            raise TypeError(
                f"Expected argument to have dtype {self.dtype}.  Found: {tensor.dtype} in tensor "
                f"{tensor}"
            )
        return tensor

    def _check_size(self, given: Tensor, own: int, other: int) -> None:
        size = self.domain_dimension if own == -1 else self.range_dimension
        if given.shape.rank is not None:
            size.assert_is_compatible_with(given.shape[other])

    def _check_square(self, what: str) -> None:
        if self.is_square is False:
            raise NotImplementedError(
                f"{what} not implemented for an operator that is expected to not be square."
            )

    def _operands(
        self, other: LinearOperator, adjoint: bool, adjoint_arg: bool, name: str
    ) -> tuple[LinearOperator, LinearOperator]:
        left = self.adjoint() if adjoint else self
        right = other.adjoint() if adjoint_arg else other
        if not left.domain_dimension.is_compatible_with(right.range_dimension):
            raise ValueError(
                f"Operators are incompatible. Expected `{name}` to have dimension "
                f"{left.domain_dimension} but got {right.range_dimension}."
            )
        return left, right
