"""Matrices whose batches broadcast: products, solutions, checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import int32
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.nn.module import Module
from thalweg.ops.arrays import joining
from thalweg.ops.core import basic, broadcast, checks, shaping
from thalweg.ops.linalg import cholesky as cholesky_ops
from thalweg.ops.linalg import linalg
from thalweg.ops.math import arithmetic, complexes
from thalweg.variables.variable import Variable


def broadcast_batches(matrices: Iterable[Any], name: str | None = None) -> list[Tensor]:
    """Matrices with one batch shape."""
    with name_scope(name, "broadcast_matrix_batch_dims"):
        listed = [convert_to_tensor(matrix) for matrix in matrices]
        for matrix in listed:
            check_batch_matrix(matrix)
        if len(listed) < 2:
            return listed
        static = listed[0].shape[:-2]
        for matrix in listed[1:]:
            static = broadcast.broadcast_static_shape(static, matrix.shape[:-2])
        batch: Any = static.as_list() if static.is_fully_defined() else None
        if batch is None:
            batch = shaping.shape(listed[0])[:-2]
            for matrix in listed[1:]:
                batch = broadcast.broadcast_dynamic_shape(batch, shaping.shape(matrix)[:-2])
        elif all(matrix.shape[:-2].as_list() == batch for matrix in listed):
            return listed
        return [_with_batch(matrix, batch) for matrix in listed]


def _with_batch(matrix: Tensor, batch: Any) -> Tensor:
    sizes = shaping.shape(matrix)[-2:]
    full = joining.concat([convert_to_tensor(batch, int32), sizes], 0)
    return broadcast.broadcast_to(matrix, full)


def check_batch_matrix(tensor: Tensor) -> None:
    """Raise ValueError where it has fewer than two axes."""
    if tensor.shape.rank is not None and tensor.shape.rank < 2:
        raise ValueError(
            f"Expected [batch] matrix to have at least two dimensions.  Found: {tensor}"
        )


def solve(matrix: Any, rhs: Any, adjoint: bool = False, name: str | None = None) -> Tensor:
    """X with A X = rhs."""
    with name_scope(name, "MatrixSolveWithBroadcast"):
        left, right = broadcast_batches([matrix, rhs])
        return linalg.matrix_solve(left, right, adjoint=adjoint)


def triangular_solve(
    matrix: Any, rhs: Any, lower: bool = True, adjoint: bool = False, name: str | None = None
) -> Tensor:
    """X with A X = rhs, where A is triangular."""
    with name_scope(name, "MatrixTriangularSolve"):
        left, right = broadcast_batches([matrix, rhs])
        return linalg.matrix_triangular_solve(left, right, lower=lower, adjoint=adjoint)


def cholesky_solve(factor: Any, rhs: Any, name: str | None = None) -> Tensor:
    """X with L Lᴴ X = rhs."""
    with name_scope(name, "CholeskySolveWithBroadcast"):
        left, right = broadcast_batches([factor, rhs])
        return cholesky_ops.cholesky_solve(left, right)


# The names of TensorFlow's linear_operator_util, which libraries call.
broadcast_matrix_batch_dims = broadcast_batches
cholesky_solve_with_broadcast = cholesky_solve
matrix_solve_with_broadcast = solve
matrix_triangular_solve_with_broadcast = triangular_solve
assert_is_batch_matrix = check_batch_matrix


def is_ref(x: Any) -> bool:
    """Whether its value may change: a variable, or a module that has a dtype and a shape."""
    return isinstance(x, Variable) or (
        isinstance(x, Module) and hasattr(x, "dtype") and hasattr(x, "shape")
    )


def convert_nonref_to_tensor(
    value: Any, dtype: Any = None, dtype_hint: Any = None, name: str | None = None
) -> Any:
    """A value as a tensor, but for one that may change."""
    if value is None:
        return None
    if not is_ref(value):
        return convert_to_tensor(value, dtype, name, preferred_dtype=dtype_hint)
    if dtype is not None and value.dtype.base_dtype != dtype:
        raise TypeError(f'Mutable type must be of dtype "{dtype}" but is "{value.dtype}".')
    return value


def shape_tensor(shape: Any, name: str | None = None) -> Tensor:
    """A shape as a tensor; that of a scalar is int32."""
    return shaping.shape_tensor(shape) if name is None else basic.identity(shape, name=name)


def assert_no_entries_with_modulus_zero(
    x: Any, message: str | None = None, name: str = "assert_no_entries_with_modulus_zero"
) -> Node | None:
    """An op that fails where an entry is zero."""
    with name_scope(name):
        size = arithmetic.absolute(convert_to_tensor(x, name="x"))
        return checks.assert_positive(size, message=message)


def assert_zero_imag_part(
    x: Any, message: str | None = None, name: str = "assert_zero_imag_part"
) -> Node | None:
    """An op that fails where an entry is not real."""
    with name_scope(name):
        tensor = convert_to_tensor(x, name="x")
        if not tensor.dtype.is_complex:
            return basic.no_op()
        return checks.assert_equal(complexes.imag(tensor), 0, message=message)


def assert_compatible_matrix_dimensions(operator: Any, x: Any) -> Node | None:
    """An op that fails where an operator cannot be applied to a matrix."""
    return checks.assert_equal(
        shaping.shape(x)[-2],
        operator.domain_dimension_tensor(),
        message="Dimensions are not compatible: shape[-2] of the argument and the operator's",
    )


def merged_hint(operator: Any, name: str, given: bool | None, message: str) -> bool | None:
    """What the operator and the caller know of it; ValueError where they contradict each other."""
    known = getattr(operator, name)
    if known is not None and given is not None and known != given:
        raise ValueError(message)
    return given if known is None else known


use_operator_or_provided_hint_unless_contradicting = merged_hint
