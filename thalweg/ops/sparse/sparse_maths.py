"""Arithmetic of sparse tensors with sparse and dense ones.

Gradients flow to the values of sparse operands, never to their indices or shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add, ge, le, mul
from typing import Any, ClassVar, overload

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.composite import SparseTensor, SparseTensorValue
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import SparseLike, TensorLike
from thalweg.graph.node import Node, Tensor, operator
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, matrix, vector
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck, Scatter
from thalweg.ops.arrays import indexing, segment, transposing
from thalweg.ops.core import casting, shaping
from thalweg.ops.linalg import matmul
from thalweg.ops.math import reduce
from thalweg.ops.sparse.sparse import (
    as_sparse,
    check_indices,
    component_shapes,
    flat_places,
    index_row,
    matching,
    picked,
    row_major,
    static_count,
    static_rank,
    values_at,
)
from thalweg.ops.sparse.sparse_pieces import carried
from thalweg.platform.arrays import Array
from thalweg.public import public

# Sums


class SparseAdd(Op):
    """The sum of two sparse tensors, without elements below a threshold"""

    signature = (
        "a_indices: int64, a_values: T, a_shape: int64, b_indices: int64, b_values: T, "
        "b_shape: int64, thresh: Treal -> sum_indices: int64, sum_values: T, sum_shape: int64; "
        "T: numeric, Treal: real"
    )
    host_only = True

    def shape(self, a_indices: Tensor, a_values: Tensor, a_shape: Tensor, *_: Tensor) -> Any:
        return component_shapes(None, static_rank(a_indices, a_shape))

    def numpy(
        self,
        a_indices: Array,
        a_values: Array,
        a_shape: Array,
        b_indices: Array,
        b_values: Array,
        b_shape: Array,
        thresh: Array,
    ) -> tuple[Array, Array, Array]:
        _check_alike(a_shape, b_shape)
        rows = np.concatenate([a_indices, b_indices])
        rows, values = combined(np.add, rows, np.concatenate([a_values, b_values]))
        kept = np.abs(values) >= thresh
        return rows[kept], values[kept], a_shape

    def gradient(self, node: Node, _: Any, dy: Tensor, __: Any) -> list[Tensor | None]:
        a_indices, b_indices = node.inputs[0], node.inputs[3]
        da, db = SparseAddGrad()(dy, a_indices, b_indices, node.outputs[0])
        return [None, da, None, None, db, None, None]


def _check_alike(a_shape: Array, b_shape: Array) -> None:
    if len(a_shape) != len(b_shape):
        raise ValueError(
            f"Operands do not have the same ranks; got shapes: {a_shape.tolist()} and "
            f"{b_shape.tolist()}"
        )
    if not np.array_equal(a_shape, b_shape):
        raise ValueError(
            f"Operands' shapes do not match: got {a_shape.tolist()} and {b_shape.tolist()}"
        )


def combined(ufunc: Any, rows: Array, values: Array) -> tuple[Array, Array]:
    """Values of equal indices combined; the resulting indices are in row-major order."""
    if not len(rows):
        return rows, values
    order = row_major(rows)
    rows, values = rows[order], values[order]
    starts = np.flatnonzero(np.concatenate([[True], np.any(rows[1:] != rows[:-1], axis=1)]))
    return rows[starts], ufunc.reduceat(values, starts, dtype=values.dtype)


class SparseAddGrad(Op):
    """The gradient of each operand's values: that of the sparse sum at the same index"""

    signature = (
        "backprop_val_grad: T, a_indices: int64, b_indices: int64, sum_indices: int64 "
        "-> a_val_grad: T, b_val_grad: T; T: numeric"
    )
    host_only = True

    def shape(
        self, dy: Tensor, a_indices: Tensor, b_indices: Tensor, sum_indices: Tensor
    ) -> list[TensorShape]:
        return [vector(rows.shape.with_rank(2)[0]) for rows in (a_indices, b_indices)]

    def numpy(
        self, dy: Array, a_indices: Array, b_indices: Array, sum_indices: Array
    ) -> tuple[Array, Array]:
        found = [picked(dy, matching(rows, sum_indices)) for rows in (a_indices, b_indices)]
        return found[0], found[1]

    def gradient(self, node: Node, da: Tensor, db: Tensor) -> list[Tensor | None]:
        _, a_indices, b_indices, sum_indices = node.inputs
        sums = [
            SparseAddGrad()(dx, sum_indices, sum_indices, rows)[0]
            for dx, rows in ((da, a_indices), (db, b_indices))
        ]
        return [sums[0] + sums[1], None, None, None]


class SparseTensorDenseAdd(Op):
    """y = the dense b with the values of the sparse a added at their indices"""

    signature = (
        "a_indices: Tindices, a_values: T, a_shape: Tindices, b: T -> output: T; "
        "T: numeric, Tindices: index"
    )

    def shape(self, a_indices: Tensor, a_values: Tensor, a_shape: Tensor, b: Tensor) -> TensorShape:
        return b.shape.merge_with(shaping.known_shape(a_shape))

    def numpy(self, a_indices: Array, a_values: Array, a_shape: Array, b: Array) -> Array:
        if tuple(a_shape.tolist()) != np.shape(b):
            raise ValueError(
                f"a has shape {a_shape.tolist()}, b {list(np.shape(b))}: must be equal"
            )
        check_indices(a_indices, a_shape, ordered=False)
        total = np.array(b, order="C")
        np.add.at(total.reshape(-1), flat_places(a_indices, a_shape), a_values)
        return total

    def loop(
        self, at: IndexTuple, a_indices: Operand, a_values: Operand, a_shape: Operand, b: Operand
    ) -> Expr | Scatter:
        if a_indices.shape != (a_values.size, b.rank) or a_shape.shape != (b.rank,):
            raise ValueError(f"indices of shape {a_indices.shape} into {b.rank} dimensions")
        if not at.rank:
            return b[at] + loop.reduce("sum", a_values.shape, a_values.__getitem__)

        def write(k: Expr) -> tuple[tuple[Expr, ...], Expr]:
            return index_row(a_indices, k), a_values[k]

        return loop.scatter("sum", a_values.shape, write, b[at])

    def requires(
        self, a_indices: Operand, a_values: Operand, a_shape: Operand, b: Operand
    ) -> list[RuntimeCheck]:
        return [RuntimeCheck((), a_shape[axis].eq(size)) for axis, size in enumerate(b.shape)]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [None, values_at(dy, node.inputs[0]), None, dy]


@overload
def sparse_add(  # pyright: ignore[reportOverlappingOverload] - the second is for the other cases
    a: SparseLike,
    b: SparseLike,
    threshold: TensorLike | None = None,
    thresh: TensorLike | None = None,
) -> SparseTensor: ...
@overload
def sparse_add(
    a: TensorLike | SparseLike,
    b: TensorLike | SparseLike,
    threshold: TensorLike | None = None,
    thresh: TensorLike | None = None,
) -> Tensor: ...
@public("sparse_add", "sparse.add")
def sparse_add(
    a: TensorLike | SparseLike,
    b: TensorLike | SparseLike,
    threshold: TensorLike | None = None,
    thresh: TensorLike | None = None,
) -> Tensor | SparseTensor:
    """The sum of two tensors, one at least sparse: sparse if both are, else dense.

    Elements of a sparse sum with magnitude below `threshold` are dropped.
    """
    sparse_kinds = (SparseTensor, SparseTensorValue)
    if not isinstance(a, sparse_kinds) and not isinstance(b, sparse_kinds):
        raise TypeError("At least one input should be SparseTensor; do you mean to use tf.add()?")
    if not (isinstance(a, sparse_kinds) and isinstance(b, sparse_kinds)):
        sparse, dense = (a, b) if isinstance(a, sparse_kinds) else (b, a)
        return SparseTensorDenseAdd()(*as_sparse(sparse).components(), dense)
    left, right = as_sparse(a), as_sparse(b)
    given = thresh if threshold is None else threshold
    limit = convert_to_tensor(
        0 if given is None else given, left.values.dtype.base_dtype.real_dtype, name="thresh"
    )
    left.values.shape.assert_has_rank(1)
    return SparseTensor(*SparseAdd()(*left.components(), *right.components(), limit))


# Elementwise with a dense tensor that is broadcast to the sparse one


class BroadcastPlaces(Op):
    """The indices of a dense tensor, broadcast to a sparse one, for each index of the latter"""

    private = True
    signature = "indices: int64, shape: int64, dense_shape: int64 -> places: int64"
    not_differentiable = True
    host_only = True

    def shape(self, indices: Tensor, shape: Tensor, dense_shape: Tensor) -> TensorShape:
        return matrix(indices.shape.with_rank(2)[0], dense_shape.shape.with_rank(1)[0])

    def numpy(self, indices: Array, shape: Array, dense_shape: Array) -> Array:
        return broadcast_places(indices, shape, dense_shape)


def broadcast_places(indices: Array, shape: Array, dense_shape: Array) -> Array:
    """`indices` without the dimensions that the dense tensor lacks, and 0 where its size is 1."""
    missing = len(shape) - len(dense_shape)
    if missing < 0 or np.any((dense_shape != 1) & (dense_shape != shape[max(missing, 0) :])):
        raise ValueError(
            "SparseDenseBinaryOpShared broadcasts dense to sparse only; got incompatible shapes: "
            f"{np.asarray(shape).tolist()} vs. {np.asarray(dense_shape).tolist()}"
        )
    return np.where(dense_shape == 1, 0, indices[:, missing:])


def _places_of(node: Node) -> Tensor:
    indices, _, shape, dense = node.inputs
    return BroadcastPlaces()(indices, shape, shaping.shape(dense, out_type=dtypes.int64))


def _dense_element(k: Expr, indices: Operand, shape: Operand, dense: Operand) -> Expr:
    """The element of a dense tensor, broadcast to a sparse one, at index k of the latter."""
    if indices.shape[1] != shape.size or dense.rank > shape.size:
        raise ValueError(f"indices of shape {indices.shape} beside a tensor of {dense.shape}")
    return dense.broadcast(index_row(indices, k))


class SparseDenseCwise(Op, abstract=True):
    """The values of a sparse tensor combined with the dense elements at their indices"""

    signature = (
        "sp_indices: int64, sp_values: T, sp_shape: int64, dense: T -> output: T; T: numeric"
    )
    function: ClassVar[Any]

    def shape(
        self, sp_indices: Tensor, sp_values: Tensor, sp_shape: Tensor, dense: Tensor
    ) -> TensorShape:
        return vector(static_count(sp_indices, sp_values))

    def numpy(self, sp_indices: Array, sp_values: Array, sp_shape: Array, dense: Array) -> Array:
        check_indices(sp_indices, sp_shape, ordered=False)
        places = broadcast_places(sp_indices, sp_shape, np.array(np.shape(dense), np.int64))
        return type(self).function(sp_values, np.asarray(dense)[tuple(places.T)])

    def loop(
        self,
        at: IndexTuple,
        sp_indices: Operand,
        sp_values: Operand,
        sp_shape: Operand,
        dense: Operand,
    ) -> Expr:
        element = _dense_element(at[0], sp_indices, sp_shape, dense)
        return type(self).function(sp_values[at], element)

    def requires(
        self, sp_indices: Operand, sp_values: Operand, sp_shape: Operand, dense: Operand
    ) -> list[RuntimeCheck]:
        known = [sp_shape[axis] for axis in range(sp_shape.size)]
        sizes = enumerate(dense.shape, sp_shape.size - dense.rank)
        fits = [RuntimeCheck((), known[axis].eq(size)) for axis, size in sizes if size != 1]
        return [*indexing.are_coordinates(sp_indices, known), *fits]

    def spread(self, node: Node, places: Tensor, gradient: Tensor) -> Tensor:
        """A gradient of values, summed to the shape of the dense operand."""
        dense = node.inputs[3]
        if dense.shape.rank == 0:
            return reduce.reduce_sum(gradient)
        return indexing.scatter_nd(places, gradient, shaping.shape(dense, out_type=dtypes.int64))


class SparseDenseCwiseAdd(SparseDenseCwise):
    """values + dense, at the indices of the values"""

    function = staticmethod(add)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [None, dy, None, self.spread(node, _places_of(node), dy)]


class SparseDenseCwiseMul(SparseDenseCwise):
    """values · dense, at the indices of the values"""

    function = staticmethod(mul)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        _, values, _, dense = node.inputs
        places = _places_of(node)
        dense_gradient = self.spread(node, places, dy * values)
        return [None, dy * values_at(dense, places), None, dense_gradient]


def _quotient(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu":
        if np.any(y == 0):
            raise ValueError("Integer division by zero")
        return (np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))).astype(x.dtype)
    return np.divide(x, y)


class SparseDenseCwiseDiv(SparseDenseCwise):
    """values / dense, at the indices of the values; integer quotients are truncated"""

    function = staticmethod(_quotient)

    def loop(
        self,
        at: IndexTuple,
        sp_indices: Operand,
        sp_values: Operand,
        sp_shape: Operand,
        dense: Operand,
    ) -> Expr:
        x, y = sp_values[at], _dense_element(at[0], sp_indices, sp_shape, dense)
        if sp_values.dtype.kind not in "iu":
            return x / y
        return x.abs() // y.abs() * x.sign() * y.sign()

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        _, values, _, dense = node.inputs
        places = _places_of(node)
        divisor = values_at(dense, places)
        dense_gradient = self.spread(node, places, -dy * values / (divisor * divisor))
        return [None, dy / divisor, None, dense_gradient]


def _cwise(kind: type[Op], sp_t: Any, dense_t: Any, name: str | None) -> SparseTensor:
    sparse = as_sparse(sp_t)
    values = kind()(*sparse.components(), dense_t, name=name)
    return SparseTensor(sparse.indices, values, sparse.dense_shape)


def sparse_dense_cwise_add(sp_t: Any, dense_t: Any, name: str | None = None) -> SparseTensor:
    """Add a dense tensor, broadcast, to the values of a SparseTensor."""
    return _cwise(SparseDenseCwiseAdd, sp_t, dense_t, name)


@operator("sparse_mul")
def sparse_dense_cwise_mul(sp_t: Any, dense_t: Any, name: str | None = None) -> SparseTensor:
    """Multiply a SparseTensor by a dense tensor, broadcast."""
    return _cwise(SparseDenseCwiseMul, sp_t, dense_t, name)


@operator("sparse_div")
def sparse_dense_cwise_div(sp_t: Any, dense_t: Any, name: str | None = None) -> SparseTensor:
    """Divide the values of a SparseTensor by a dense tensor, broadcast."""
    return _cwise(SparseDenseCwiseDiv, sp_t, dense_t, name)


@operator("sparse_truediv")
def sparse_dense_truediv(sp_t: Any, dense_t: Any, name: str | None = None) -> SparseTensor:
    """Divide the values of a SparseTensor by a dense tensor; integers become floats."""
    sparse = as_sparse(sp_t)
    kind = sparse.values.dtype.base_dtype
    dense = convert_to_tensor(dense_t, kind, name="y")
    if kind.is_integer:
        wide = dtypes.float32 if kind.size < 4 else dtypes.float64
        sparse, dense = casting.cast(sparse, wide), casting.cast(dense, wide)
    return _cwise(SparseDenseCwiseDiv, sparse, dense, name)


# Extremes


class SparseExtreme(Op, abstract=True):
    """The larger (smaller) of two sparse tensors; missing elements are zero."""

    signature = (
        "a_indices: int64, a_values: T, a_shape: int64, b_indices: int64, b_values: T, "
        "b_shape: int64 -> output_indices: int64, output_values: T; T: real"
    )
    host_only = True
    function: ClassVar[Any]
    keeps_left: ClassVar[Callable[..., Tensor]]  # whether the result is the left operand

    def shape(self, a_indices: Tensor, a_values: Tensor, a_shape: Tensor, *_: Tensor) -> Any:
        return component_shapes(None, static_rank(a_indices, a_shape))[:2]

    def numpy(
        self,
        a_indices: Array,
        a_values: Array,
        a_shape: Array,
        b_indices: Array,
        b_values: Array,
        b_shape: Array,
    ) -> tuple[Array, Array]:
        _check_alike(a_shape, b_shape)
        rows = np.unique(np.concatenate([a_indices, b_indices]), axis=0)
        a = picked(a_values, matching(rows, a_indices))
        b = picked(b_values, matching(rows, b_indices))
        return rows, type(self).function(a, b)

    def gradient(self, node: Node, _: Any, dy: Tensor) -> list[Tensor | None]:
        a_rows, a_values, _, b_rows, b_values, _ = node.inputs
        rows = node.outputs[0]
        a, b = carried(a_values, a_rows, rows), carried(b_values, b_rows, rows)
        left = casting.cast(type(self).keeps_left(a, b), dy.dtype)
        da = carried(dy * left, rows, a_rows)
        return [None, da, None, None, carried(dy - dy * left, rows, b_rows), None]


class SparseSparseMaximum(SparseExtreme):
    """z = max(x, y)"""

    function = np.maximum
    keeps_left = staticmethod(ge)


class SparseSparseMinimum(SparseExtreme):
    """z = min(x, y)"""

    function = np.minimum
    keeps_left = staticmethod(le)


def _extreme(kind: type[Op], sp_a: Any, sp_b: Any, name: str | None, scope: str) -> SparseTensor:
    a, b = as_sparse(sp_a), as_sparse(sp_b)
    with name_scope(name, scope, [a, b]) as full:
        indices, values = kind()(*a.components(), *b.components(), name=full)
    return SparseTensor(indices, values, a.dense_shape)


@public("sparse_maximum", "sparse.maximum")
def sparse_maximum(sp_a: SparseLike, sp_b: SparseLike, name: str | None = None) -> SparseTensor:
    """The larger of two SparseTensors, element by element; missing elements are zero."""
    return _extreme(SparseSparseMaximum, sp_a, sp_b, name, "SparseSparseMaximum")


@public("sparse_minimum", "sparse.minimum")
def sparse_minimum(sp_a: SparseLike, sp_b: SparseLike, name: str | None = None) -> SparseTensor:
    """The smaller of two SparseTensors, element by element; missing elements are zero."""
    return _extreme(SparseSparseMinimum, sp_a, sp_b, name, "SparseSparseMinimum")


# Products


class SparseTensorDenseMatMul(Op):
    """The product of a sparse and a dense matrix, or of their adjoints"""

    signature = (
        "a_indices: Tindices, a_values: T, a_shape: int64, b: T -> product: T; "
        "T: numeric, Tindices: index"
    )
    adjoint_a: bool = False
    adjoint_b: bool = False

    def shape(self, a_indices: Tensor, a_values: Tensor, a_shape: Tensor, b: Tensor) -> TensorShape:
        static_count(a_indices, a_values)
        left = shaping.known_shape(a_shape).with_rank(2)
        right = b.shape.with_rank(2)
        rows, inner = (left[1], left[0]) if self.adjoint_a else (left[0], left[1])
        depth, columns = (right[1], right[0]) if self.adjoint_b else (right[0], right[1])
        if not inner.is_compatible_with(depth):
            raise ValueError(f"Dimensions must be equal, but are {inner} and {depth}")
        return matrix(rows, columns)

    def numpy(self, a_indices: Array, a_values: Array, a_shape: Array, b: Array) -> Array:
        rows, columns = a_indices[:, 0], a_indices[:, 1]
        sizes, values = a_shape.tolist(), a_values
        if self.adjoint_a:
            rows, columns, sizes, values = columns, rows, sizes[::-1], np.conj(values)
        dense = np.conj(b).T if self.adjoint_b else b
        if sizes[1] != len(dense):
            raise ValueError(f"Cannot multiply A and B: inner sizes {sizes[1]} and {len(dense)}")
        check_indices(np.stack([rows, columns], 1), np.array(sizes), ordered=False)
        order = np.argsort(rows, kind="stable")
        products = values[order, None] * dense[columns[order]]
        return segment.combine(np.add, products, rows[order], sizes[0], 0)

    def loop(
        self, at: IndexTuple, a_indices: Operand, a_values: Operand, a_shape: Operand, b: Operand
    ) -> Scatter:
        is_complex = b.dtype.kind == "c"

        def write(k: Expr, column: Expr) -> tuple[tuple[Expr, Expr], Expr]:
            row, inner = a_indices[k, 0], a_indices[k, 1]
            value = a_values[k]
            if self.adjoint_a:
                row, inner = inner, row
                value = value.conj() if is_complex else value
            element = b[column, inner] if self.adjoint_b else b[inner, column]
            if self.adjoint_b and is_complex:
                element = element.conj()
            return (row, column), value * element

        return loop.scatter("sum", [*a_values.shape, at.shape[1]], write, 0)

    def requires(
        self, a_indices: Operand, a_values: Operand, a_shape: Operand, b: Operand
    ) -> list[RuntimeCheck]:
        return indexing.are_coordinates(a_indices, [a_shape[0], a_shape[1]])

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        indices, values, shape, b = node.inputs
        flipped = SparseTensorDenseMatMul(adjoint_a=not self.adjoint_a)
        db = flipped(indices, values, shape, dy)
        if self.adjoint_b:
            db = transposing.matrix_transpose(db, conjugate=True)
        rows, columns = indices[:, 0], indices[:, 1]
        if self.adjoint_a:
            rows, columns = columns, rows
        dense = transposing.matrix_transpose(b, conjugate=True) if self.adjoint_b else b
        products = indexing.gather(dy, rows) * matmul.conjugate(indexing.gather(dense, columns))
        da = reduce.reduce_sum(products, 1)
        return [None, matmul.conjugate(da) if self.adjoint_a else da, None, db]


@public("sparse_tensor_dense_matmul", "sparse.matmul", "sparse.sparse_dense_matmul")
def sparse_tensor_dense_matmul(
    sp_a: SparseLike,
    b: TensorLike,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """The product of a sparse and a dense matrix, or of their adjoints.

    Args:
        sp_a: a SparseTensor of rank 2.
        b: a matrix of the same dtype.
        adjoint_a, adjoint_b: whether to use the conjugate transpose.
        name: the name of the node.

    Returns:
        A matrix.

    Example:
        >>> a = tf.SparseTensor([[0, 1]], [2.0], [2, 2])
        >>> sess.run(tf.sparse_tensor_dense_matmul(a, [[1.0], [3.0]]))
        array([[6.],
               [0.]], dtype=float32)
    """
    a = as_sparse(sp_a)
    with name_scope(name, "SparseTensorDenseMatMul", [*a.components(), b]) as scope:
        op = SparseTensorDenseMatMul(adjoint_a=adjoint_a, adjoint_b=adjoint_b)
        return op(*a.components(), convert_to_tensor(b, name="b"), name=scope)
