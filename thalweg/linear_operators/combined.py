"""Operators made of others: products, blocks on a diagonal, Kronecker products."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.linear_operators import matrices
from thalweg.linear_operators.base import LinearOperator, adjoint_of, composed_of, inverse_of
from thalweg.ops.arrays import joining, padding, splitting, transposing
from thalweg.ops.core import basic, broadcast, casting, shaping
from thalweg.ops.linalg import linalg
from thalweg.ops.math import arithmetic
from thalweg.public import public


def _all(operators: Sequence[LinearOperator], hint: str) -> bool | None:
    """True where a hint holds for all operators, else None."""
    return True if all(getattr(operator, hint) for operator in operators) else None


def _sum(values: Sequence[Any]) -> Any:
    """The sum of values whose batches broadcast."""
    return functools.reduce(arithmetic.add, values)


def _check(operators: Sequence[Any]) -> list[LinearOperator]:
    listed = list(operators)
    if not listed:
        raise ValueError("Expected a non-empty list of operators. Found: []")
    kinds = {operator.dtype for operator in listed}
    if len(kinds) > 1:
        raise TypeError(
            f"Expected all operators to have the same dtype.  Found {sorted(map(str, kinds))}"
        )
    return listed


class _OfOperators(LinearOperator):
    """An operator made of a list of others."""

    joiner = "_o_"

    def __init__(
        self, operators: Sequence[Any], hints: dict[str, bool | None], name: str | None
    ) -> None:
        self._operators = _check(operators)
        parents = [parent for operator in self._operators for parent in operator.graph_parents]
        title = name or self.joiner.join(operator.name for operator in self._operators)
        super().__init__(self._operators[0].dtype, parents, name=title, **hints)

    @property
    def operators(self) -> list[LinearOperator]:
        """The operators."""
        return self._operators

    def _batch_static(self) -> TensorShape:
        batches = [operator.batch_shape for operator in self._operators]
        return functools.reduce(broadcast.broadcast_static_shape, batches)

    def _batch_dynamic(self) -> Tensor:
        batches = [operator.batch_shape_tensor() for operator in self._operators]
        return functools.reduce(broadcast.broadcast_dynamic_shape, batches)

    def _determinant(self) -> Any:
        return functools.reduce(
            arithmetic.multiply, [operator.determinant() for operator in self._operators]
        )

    def _log_abs_determinant(self) -> Any:
        return _sum([op.log_abs_determinant() for op in self._operators])

    def _assert_non_singular(self) -> Node:
        found = [operator.assert_non_singular() for operator in self._operators]
        return basic.group(*[check for check in found if check is not None])


@public("linalg.LinearOperatorComposition")
class LinearOperatorComposition(_OfOperators):
    """A product of operators: the last is applied first.

    Args:
        operators: the operators.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> two, three = tf.linalg.LinearOperatorDiag([2.0]), tf.linalg.LinearOperatorDiag([3.0])
        >>> sess.run(tf.linalg.LinearOperatorComposition([two, three]).matvec([1.0]))
        array([6.], dtype=float32)
    """

    def __init__(
        self,
        operators: Sequence[LinearOperator],
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str | None = None,
    ) -> None:
        listed = _check(operators)
        if _all(listed, "is_non_singular"):
            if is_non_singular is False:
                raise ValueError(
                    "The composition of non-singular operators is always non-singular."
                )
            is_non_singular = True
        for left, right in itertools.pairwise(listed):
            left.domain_dimension.assert_is_compatible_with(right.range_dimension)
        hints = {
            "is_non_singular": is_non_singular,
            "is_self_adjoint": is_self_adjoint,
            "is_positive_definite": is_positive_definite,
            "is_square": is_square,
        }
        super().__init__(listed, hints, name)

    def _shape(self) -> TensorShape:
        first, last = self._operators[0], self._operators[-1]
        size = TensorShape([first.range_dimension, last.domain_dimension])
        return self._batch_static().concatenate(size)

    def _shape_tensor(self) -> Tensor:
        first, last = self._operators[0], self._operators[-1]
        sizes = [first.range_dimension_tensor(), last.domain_dimension_tensor()]
        return joining.concat([self._batch_dynamic(), sizes], 0)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        ordered = self._operators if adjoint else self._operators[::-1]
        result = ordered[0].matmul(x, adjoint=adjoint, adjoint_arg=adjoint_arg)
        for operator in ordered[1:]:
            result = operator.matmul(result, adjoint=adjoint)
        return result

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        ordered = self._operators[::-1] if adjoint else self._operators
        result = ordered[0].solve(rhs, adjoint=adjoint, adjoint_arg=adjoint_arg)
        for operator in ordered[1:]:
            result = operator.solve(result, adjoint=adjoint)
        return result


@composed_of.register(LinearOperator)
def _composed(left: Any, right: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return LinearOperatorComposition([left, right])


@public("linalg.LinearOperatorBlockDiag")
class LinearOperatorBlockDiag(_OfOperators):
    """Operators as blocks on a diagonal, with zeros around them.

    Args:
        operators: the operators.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> one = tf.linalg.LinearOperatorFullMatrix([[1.0, 2.0], [3.0, 4.0]])
        >>> both = tf.linalg.LinearOperatorBlockDiag([one, tf.linalg.LinearOperatorDiag([5.0])])
        >>> sess.run(both.matvec([1.0, 1.0, 1.0]))
        array([3., 7., 5.], dtype=float32)
    """

    joiner = "_ds_"

    def __init__(
        self,
        operators: Sequence[LinearOperator],
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = True,
        name: str | None = None,
    ) -> None:
        given = {
            "is_non_singular": is_non_singular,
            "is_self_adjoint": is_self_adjoint,
            "is_positive_definite": is_positive_definite,
        }
        listed = _check(operators)
        hints = {hint: _merged(listed, hint, value) for hint, value in given.items()}
        super().__init__(listed, hints | {"is_square": is_square}, name)

    def _shape(self) -> TensorShape:
        rows = [operator.range_dimension.value for operator in self._operators]
        columns = [operator.domain_dimension.value for operator in self._operators]
        size = TensorShape([_total(rows), _total(columns)])
        return self._batch_static().concatenate(size)

    def _shape_tensor(self) -> Tensor:
        rows = [operator.range_dimension_tensor() for operator in self._operators]
        columns = [operator.domain_dimension_tensor() for operator in self._operators]
        sizes = [arithmetic.add_n(rows), arithmetic.add_n(columns)]
        return joining.concat([self._batch_dynamic(), sizes], 0)

    def _blocks(self, x: Any, by_rows: bool) -> list[Any]:
        """The parts of a matrix that meet the blocks."""
        sizes = [
            operator.range_dimension_tensor() if by_rows else operator.domain_dimension_tensor()
            for operator in self._operators
        ]
        return splitting.split(x, joining.stack(sizes), axis=-2, num=len(sizes))

    def _joined(self, parts: Sequence[Any]) -> Any:
        return joining.concat(matrices.broadcast_batches(parts), -2)

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        given = linalg.adjoint(x) if adjoint_arg else x
        pairs = zip(self._operators, self._blocks(given, adjoint), strict=True)
        return self._joined([operator.matmul(part, adjoint=adjoint) for operator, part in pairs])

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        given = linalg.adjoint(rhs) if adjoint_arg else rhs
        pairs = zip(self._operators, self._blocks(given, not adjoint), strict=True)
        return self._joined([operator.solve(part, adjoint=adjoint) for operator, part in pairs])

    def _diag_part(self) -> Any:
        parts = [shaping.expand_dims(operator.diag_part(), -1) for operator in self._operators]
        return shaping.squeeze(self._joined(parts), [-1])

    def _trace(self) -> Any:
        return _sum([operator.trace() for operator in self._operators])

    def _to_dense(self) -> Any:
        rows: list[Any] = []
        before: Any = 0
        total = self.domain_dimension_tensor()
        blocks = matrices.broadcast_batches([op.to_dense() for op in self._operators])
        for block in blocks:
            width = shaping.shape(block)[-1]
            pads = [[0, 0]] * ((block.shape.rank or 2) - 1) + [[before, total - before - width]]
            rows.append(padding.pad(block, pads))
            before = before + width
        result = joining.concat(rows, -2)
        result.set_shape(self.shape)
        return result


def _merged(operators: Sequence[LinearOperator], hint: str, given: bool | None) -> bool | None:
    """What the operators say of the whole; a contradiction is a ValueError."""
    if not _all(operators, hint):
        return given
    if given is False:
        what = hint.removeprefix("is_").replace("_", " ")
        raise ValueError(f"The direct sum of {what} operators is always {what}.")
    return True


def _total(sizes: Sequence[int | None]) -> int | None:
    return None if None in sizes else sum(size or 0 for size in sizes)


@public("linalg.LinearOperatorKronecker")
class LinearOperatorKronecker(_OfOperators):
    """The Kronecker product of operators.

    Args:
        operators: the operators.
        is_non_singular, is_self_adjoint, is_positive_definite, is_square: what is known of it.
        name: the name of the nodes.

    Example:
        >>> two = tf.linalg.LinearOperatorFullMatrix([[1.0, 2.0], [3.0, 4.0]])
        >>> both = tf.linalg.LinearOperatorKronecker([tf.linalg.LinearOperatorIdentity(2), two])
        >>> sess.run(both.matvec([1.0, 1.0, 1.0, 0.0]))
        array([3., 7., 1., 3.], dtype=float32)
    """

    joiner = "_x_"

    def __init__(
        self,
        operators: Sequence[LinearOperator],
        is_non_singular: bool | None = None,
        is_self_adjoint: bool | None = None,
        is_positive_definite: bool | None = None,
        is_square: bool | None = None,
        name: str | None = None,
    ) -> None:
        listed = _check(operators)
        given = {
            "is_non_singular": is_non_singular,
            "is_self_adjoint": is_self_adjoint,
            "is_positive_definite": is_positive_definite,
            "is_square": is_square,
        }
        super().__init__(
            listed, {hint: _merged(listed, hint, value) for hint, value in given.items()}, name
        )

    def _shape(self) -> TensorShape:
        rows: Any = [operator.range_dimension for operator in self._operators]
        columns: Any = [operator.domain_dimension for operator in self._operators]
        product = functools.partial(functools.reduce, _times)
        return self._batch_static().concatenate(TensorShape([product(rows), product(columns)]))

    def _shape_tensor(self) -> Tensor:
        rows = [operator.range_dimension_tensor() for operator in self._operators]
        columns = [operator.domain_dimension_tensor() for operator in self._operators]
        sizes = [functools.reduce(arithmetic.multiply, side) for side in (rows, columns)]
        return joining.concat([self._batch_dynamic(), sizes], 0)

    def _to_dense(self) -> Any:
        return functools.reduce(_kronecker, [op.to_dense() for op in self._operators])

    def _matmul(self, x: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        given = linalg.adjoint(x) if adjoint_arg else x
        return self._applied(given, adjoint, LinearOperator.matmul)

    def _solve(self, rhs: Tensor, adjoint: bool = False, adjoint_arg: bool = False) -> Any:
        given = linalg.adjoint(rhs) if adjoint_arg else rhs
        return self._applied(given, adjoint, LinearOperator.solve)

    def _applied(self, x: Any, adjoint: bool, function: Any) -> Any:
        """(A ⊗ B) X: each operator is applied to its own axis of X, one after another."""
        result = x
        for operator in self._operators:
            forwards = function is LinearOperator.matmul
            into = operator.range_dimension_tensor()
            out_of = operator.domain_dimension_tensor()
            took = into if forwards == adjoint else out_of
            sizes = shaping.shape(result)
            batch, rows, columns = sizes[:-2], sizes[-2], sizes[-1]
            rest = rows // took
            folded = shaping.reshape(
                result, joining.concat([batch, joining.stack([took, rest * columns])], 0)
            )
            made = function(operator, folded, adjoint=adjoint)
            gave = shaping.shape(made)[-2]
            batch = shaping.shape(made)[:-2]
            # The axis that is done moves behind the others, so that the next one is in front.
            split = shaping.reshape(
                made, joining.concat([batch, joining.stack([gave, rest, columns])], 0)
            )
            rank = (split.shape.rank or (x.shape.rank or 2) + 1) - 3
            swapped = transposed(split, [*range(rank), rank + 1, rank, rank + 2])
            result = shaping.reshape(
                swapped, joining.concat([batch, joining.stack([rest * gave, columns])], 0)
            )
        if self.shape.rank is not None and x.shape.rank is not None:
            size = self.domain_dimension if adjoint else self.range_dimension
            rank = result.shape.rank or x.shape.rank
            result.set_shape([*[None] * (rank - 2), size, x.shape[-1]])
        return result

    def _determinant(self) -> Any:
        total = self.domain_dimension_tensor()
        found: list[Any] = []
        for operator in self._operators:
            power = casting.cast(total // operator.domain_dimension_tensor(), self.dtype)
            found.append(arithmetic.power(operator.determinant(), power))
        return functools.reduce(arithmetic.multiply, found)

    def _log_abs_determinant(self) -> Any:
        total = self.domain_dimension_tensor()
        found: list[Any] = []
        for operator in self._operators:
            times = casting.cast(total // operator.domain_dimension_tensor(), self.dtype)
            found.append(operator.log_abs_determinant() * times)
        return _sum(found)

    def _trace(self) -> Any:
        return functools.reduce(arithmetic.multiply, [op.trace() for op in self._operators])


def transposed(x: Any, order: Sequence[int]) -> Tensor:
    """A tensor with its axes in another order."""
    return transposing.transpose(x, list(order))


def _times(one: Any, other: Any) -> Any:
    return one * other


def _kronecker(one: Any, other: Any) -> Tensor:
    """The Kronecker product of two batches of matrices."""
    left, right = matrices.broadcast_batches([one, other])
    product = left[..., :, None, :, None] * right[..., None, :, None, :]
    sizes, more = shaping.shape(left), shaping.shape(right)
    full = joining.concat([sizes[:-2], sizes[-2:] * more[-2:]], 0)
    return shaping.reshape(product, full)


@adjoint_of.register(LinearOperatorBlockDiag)
@adjoint_of.register(LinearOperatorKronecker)
def _adjoint_parts(operator: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return type(operator)([part.adjoint() for part in operator.operators])


@inverse_of.register(LinearOperatorBlockDiag)
@inverse_of.register(LinearOperatorKronecker)
def _inverse_parts(operator: Any) -> LinearOperator:  # pyright: ignore[reportUnusedFunction] - registered
    return type(operator)([part.inverse() for part in operator.operators])
