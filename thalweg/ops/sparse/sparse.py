"""Sparse tensors: construction, conversion, ordering and shapes.

A sparse tensor is (indices [n, rank], values [n], dense_shape [rank]). Ops preserve the row-major
order of indices. Arithmetic is in `sparse_maths`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.composite import SparseTensor, SparseTensorValue
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.likes import DTypeLike, SparseLike, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, as_shape, matrix, unknown_shape, vector
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck, Scatter
from thalweg.ops.arrays import indexing, joining, padding
from thalweg.ops.core import basic, broadcast, casting, checks, choosing, filling, shaping
from thalweg.ops.math import compare, reduce
from thalweg.platform import blas
from thalweg.platform.arrays import Array
from thalweg.public import public


def as_sparse(value: Any) -> SparseTensor:
    """A SparseTensor, or the SparseTensor of a SparseTensorValue."""
    if isinstance(value, SparseTensorValue):
        return SparseTensor.from_value(value)
    if not isinstance(value, SparseTensor):
        raise TypeError(f"Input must be a SparseTensor, got {value!r}")
    return value


# Index arithmetic


def row_major(indices: Array) -> Array:
    """The positions of index rows in row-major order."""
    if not indices.shape[1]:
        return np.arange(len(indices))
    return np.lexsort(indices.T[::-1])


def flat_places(indices: Array, shape: Sequence[int] | Array) -> Array:
    """The flat index of each index in a tensor of the given shape."""
    sizes = [int(size) for size in shape]
    strides = np.array([int(np.prod(sizes[i + 1 :])) for i in range(len(sizes))], np.int64)
    return blas.matmul(indices, strides) if len(sizes) else np.zeros(len(indices), np.int64)


def check_indices(indices: Array, shape: Array, ordered: bool) -> None:
    """Raise unless indices are in bounds and, if `ordered`, sorted and distinct."""
    outside = np.any((indices < 0) | (indices >= shape), axis=1)
    if outside.any():
        bad = int(np.argmax(outside))
        raise ValueError(
            f"indices[{bad}] = {_listed(indices[bad])} is out of bounds: need 0 <= index < "
            f"{_listed(shape)}"
        )
    if not ordered or len(indices) < 2:
        return
    steps = np.diff(flat_places(indices, shape))
    if np.any(steps <= 0):
        bad = int(np.argmax(steps <= 0)) + 1
        why = "repeated" if steps[bad - 1] == 0 else "out of order"
        raise ValueError(f"indices[{bad}] = {_listed(indices[bad])} is {why}")


def matching(rows: Array, among: Array) -> Array:
    """For each index row its position in `among`, or -1."""
    both = np.concatenate([among, rows])
    order = row_major(both)
    changes = np.any(np.diff(both[order], axis=0) != 0, axis=1)
    numbers = np.empty(len(both), np.int64)
    numbers[order] = np.cumsum(np.concatenate([[0], changes]))[: len(both)]
    positions = np.full(len(both) + 1, -1)
    positions[numbers[: len(among)]] = np.arange(len(among))
    return positions[numbers[len(among) :]]


def picked(values: Array, positions: Array) -> Array:
    """values[positions], with zero for position -1."""
    padded = np.concatenate([values, np.zeros(1, values.dtype)])
    return padded[positions]


def _listed(values: Any) -> str:
    return "[" + ",".join(str(int(v)) for v in values) + "]"


def component_shapes(count: Any, rank: Any) -> list[TensorShape]:
    """The static shapes of indices, values and dense shape."""
    return [matrix(count, rank), vector(count), vector(rank)]


def static_count(indices: Tensor, values: Tensor) -> Any:
    """The static number of values."""
    return indices.shape.with_rank(2)[0].merge_with(values.shape.with_rank(1)[0])


def static_rank(indices: Tensor, shape: Tensor) -> Any:
    """The static rank of the dense form."""
    return indices.shape.with_rank(2)[1].merge_with(shape.shape.with_rank(1)[0])


def values_at(dense: Tensor, places: Tensor) -> Tensor:
    """The elements of a dense tensor at rows of indices, which are empty for a scalar."""
    if dense.shape.rank:
        return indexing.gather_nd(dense, places)
    led = padding.pad(places, [[0, 0], [1, 0]])
    return indexing.gather_nd(shaping.expand_dims(dense, 0), led)


# Placeholders and conversions


@public("sparse_placeholder", "sparse.placeholder")
def sparse_placeholder(
    dtype: DTypeLike,
    shape: Tensor | Iterable[SupportsIndex | None] | None = None,
    name: str | None = None,
) -> SparseTensor:
    """A SparseTensor that each step feeds.

    Args:
        dtype: the dtype of the values.
        shape: the dense shape; None if it varies.
        name: the name of the nodes.

    Returns:
        A SparseTensor of placeholders.

    Example:
        >>> x = tf.sparse_placeholder(tf.float32)
        >>> value = tf.SparseTensorValue([[0, 1]], [5.0], [1, 3])
        >>> sess.run(tf.sparse_reduce_sum(x), {x: value})
        np.float32(5.0)
    """
    prefix = f"{name}/" if name else ""
    if shape is None:
        rank, dense_shape = None, basic.placeholder(dtypes.int64, [None], f"{prefix}shape")
    elif isinstance(shape, Tensor):
        rank, dense_shape = shape.shape[0].value, casting.cast(shape, dtypes.int64)
    else:
        sizes = as_shape([None if size in (None, -1) else size for size in shape]).as_list()
        rank = len(sizes)
        known = np.array([-1 if size is None else size for size in sizes], np.int64)
        dense_shape = convert_to_tensor(known, name=f"{prefix}shape")
    return SparseTensor(
        basic.placeholder(dtypes.int64, [None, rank], f"{prefix}indices"),
        basic.placeholder(as_dtype(dtype), [None], f"{prefix}values"),
        dense_shape,
    )


class SparseToDense(Op):
    """y = default_value, but y[sparse_indices[i]] = sparse_values[i]"""

    signature = (
        "sparse_indices: Tindices, output_shape: Tindices, sparse_values: T, default_value: T "
        "-> dense: T; Tindices: index"
    )
    validate_indices: bool = True

    def shape(
        self, sparse_indices: Tensor, output_shape: Tensor, sparse_values: Tensor, default: Tensor
    ) -> TensorShape:
        if output_shape.shape.rank not in (None, 1):
            raise ValueError(f"Shape must be rank 1 but is rank {output_shape.shape.rank}")
        return shaping.known_shape(output_shape)

    def numpy(
        self, sparse_indices: Array, output_shape: Array, sparse_values: Array, default: Array
    ) -> Array:
        shape = np.asarray(output_shape)
        rows = _index_rows(np.asarray(sparse_indices))
        values = np.asarray(sparse_values)
        if values.ndim and values.shape != (len(rows),):
            raise ValueError(
                f"sparse_values has incorrect shape {_listed(values.shape)}, should be [] or "
                f"[{len(rows)}]"
            )
        if np.ndim(default):
            raise ValueError("default_value should be a scalar")
        if rows.shape[1] != len(shape):
            raise ValueError(
                f"output_shape has {len(shape)} elements, but indices have {rows.shape[1]} columns"
            )
        check_indices(rows, shape, self.validate_indices)
        dense: Array = np.full(int(np.prod(shape)), default, values.dtype)
        dense[flat_places(rows, shape)] = values
        return dense.reshape(shape.tolist())

    def loop(
        self, at: IndexTuple, indices: Operand, shape: Operand, values: Operand, default: Operand
    ) -> Expr | Scatter:
        count = indices.shape[0] if indices.rank == 2 else indices.size
        if (indices.shape[1] if indices.rank == 2 else 1) != at.rank:
            raise ValueError(f"indices of shape {indices.shape} into {at.rank} dimensions")
        if values.shape not in ((), (count,)):
            raise ValueError(f"values of shape {values.shape} for {count} indices")
        if not at.rank:  # the last value wins
            return values.flat(values.size - 1) if count else default[()]

        def write(k: Expr) -> tuple[tuple[Expr, ...], Expr]:
            return _index_row(indices, k), values.broadcast([k])

        return loop.scatter("set", [count], write, default[()])

    def requires(
        self, indices: Operand, shape: Operand, values: Operand, default: Operand
    ) -> list[RuntimeCheck]:
        if not self.validate_indices:
            return []
        count = indices.shape[0] if indices.rank == 2 else indices.size
        sizes = [shape[axis] for axis in range(shape.size)]

        def rises(k: Expr) -> Expr:
            return _number(_index_row(indices, k), sizes) < _number(
                _index_row(indices, k + 1), sizes
            )

        return [loop.runtime_check([max(count - 1, 0)], rises)]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        indices, _, values, _ = node.inputs
        rows = values_at(dy, IndexRows()(indices))
        rest = reduce.reduce_sum(dy) - reduce.reduce_sum(rows)
        return [None, None, broadcast.reduce_to(rows, values, rows), rest]


def _index_rows(indices: Array) -> Array:
    """Indices as a matrix: a scalar or vector has rows of one index each."""
    return indices if indices.ndim == 2 else indices.reshape(-1, 1)


def _index_row(indices: Operand, k: Expr) -> tuple[Expr, ...]:
    """Row k of `_index_rows`."""
    if indices.rank != 2:
        return (indices.flat(k),)
    return index_row(indices, k)


def _number(row: Sequence[Expr], sizes: Sequence[Expr]) -> Any:
    """The flat index of an index."""
    number: Any = 0
    for index, size in zip(row, sizes, strict=True):
        number = number * size + index.cast(np.int64)
    return number


def index_row(indices: Operand, k: Expr) -> tuple[Expr, ...]:
    """Row k of a matrix of indices."""
    return tuple(indices[k, axis] for axis in range(indices.shape[1]))


def option(number: Expr, options: Sequence[Expr]) -> Expr:
    """The option with that number; any element if there are none, which is never read."""
    if not options:
        return number
    *others, chosen = options
    for place in reversed(range(len(others))):
        chosen = select(number.eq(place), others[place], chosen)
    return chosen


class IndexRows(Op):
    """Indices as a matrix: a scalar or vector has rows of one index each"""

    private = True
    signature = "indices: T -> rows: T; T: index"
    not_differentiable = True

    def shape(self, indices: Tensor) -> TensorShape:
        if indices.shape.rank == 2:
            return indices.shape
        return unknown_shape(2)

    def numpy(self, indices: Array) -> Array:
        return _index_rows(np.asarray(indices))

    def loop(self, at: IndexTuple, indices: Operand) -> Expr:
        return indices[at] if indices.rank == 2 else indices.flat(at[0])


@public("sparse_to_dense")
def sparse_to_dense(
    sparse_indices: Any,
    output_shape: Any,
    sparse_values: Any,
    default_value: Any = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """A dense tensor with given values at given indices.

    Args:
        sparse_indices: [count, rank], or [count] for a vector, or a scalar.
        output_shape: [rank].
        sparse_values: [count], or one value for all.
        default_value: the value elsewhere.
        validate_indices: raise unless the indices are in order and distinct.
        name: the name of the node.

    Returns:
        A tensor of `output_shape`.

    Example:
        >>> sess.run(tf.sparse_to_dense([1, 3], [5], 1))
        array([0, 1, 0, 1, 0], dtype=int32)
    """
    indices = convert_to_tensor(sparse_indices, preferred_dtype=dtypes.int32)
    values = convert_to_tensor(sparse_values)
    if not isinstance(default_value, Tensor):
        kind = values.dtype.base_dtype
        zero = b"" if kind is dtypes.string else False if kind.is_bool else 0
        given = zero if isinstance(default_value, int) and default_value == 0 else default_value
        default_value = convert_to_tensor(given, kind)
    sizes = output_shape.as_list() if isinstance(output_shape, TensorShape) else output_shape
    op = SparseToDense(validate_indices=validate_indices)
    return op(indices, sizes, values, default_value, name=name)


@public("sparse_tensor_to_dense", "sparse.to_dense")
def sparse_tensor_to_dense(
    sp_input: SparseLike,
    default_value: Any = None,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """The dense form of a SparseTensor.

    Args:
        sp_input: the SparseTensor.
        default_value: the value of missing elements; 0 or the empty string if None.
        validate_indices: raise unless the indices are in order and distinct.
        name: the name of the node.

    Returns:
        A tensor.

    Example:
        >>> sess.run(tf.sparse_tensor_to_dense(tf.SparseTensor([[1]], [5], [3])))
        array([0, 5, 0], dtype=int32)
    """
    sparse = as_sparse(sp_input)
    default = 0 if default_value is None else default_value
    return sparse_to_dense(
        sparse.indices, sparse.dense_shape, sparse.values, default, validate_indices, name
    )


@public("sparse.from_dense")
def from_dense(tensor: Any, name: str | None = None) -> SparseTensor:
    """The SparseTensor of the non-zero elements of a tensor."""
    with name_scope(name, "dense_to_sparse", [tensor]):
        dense = convert_to_tensor(tensor)
        indices = choosing.where(compare.not_equal(dense, filling.zeros_like(dense)))
        shape = shaping.shape(dense, out_type=dtypes.int64)
        return SparseTensor(indices, indexing.gather_nd(dense, indices), shape)


@public("sparse.eye")
def sparse_eye(
    num_rows: TensorLike,
    num_columns: TensorLike | None = None,
    dtype: Any = dtypes.float32,
    name: str | None = None,
) -> SparseTensor:
    """A sparse matrix with ones on its diagonal."""
    with name_scope(name, "eye", [num_rows, num_columns]):
        rows = casting.cast(num_rows, dtypes.int64)
        columns = rows if num_columns is None else casting.cast(num_columns, dtypes.int64)
        diagonal = filling.range(reduce.reduce_min(joining.stack([rows, columns])))
        ones = filling.ones([shaping.size(diagonal)], dtype)
        indices = joining.stack([diagonal, diagonal], axis=1)
        return SparseTensor(indices, ones, joining.stack([rows, columns]))


# Order and shape


class SparseReorder(Op):
    """The sparse tensor with its indices in row-major order"""

    signature = (
        "input_indices: int64, input_values: T, input_shape: int64 "
        "-> output_indices: int64, output_values: T"
    )
    host_only = True

    def shape(self, indices: Tensor, values: Tensor, shape: Tensor) -> list[TensorShape]:
        rows = matrix(static_count(indices, values), static_rank(indices, shape))
        return [rows, vector(static_count(indices, values))]

    def numpy(self, indices: Array, values: Array, shape: Array) -> tuple[Array, Array]:
        order = row_major(indices)
        return indices[order], values[order]

    def gradient(self, node: Node, _: Any, dy: Tensor) -> list[Tensor | None]:
        order = InverseOrder()(node.inputs[0])
        return [None, indexing.gather(dy, order), None]


class InverseOrder(Op):
    """y[i] = the position of row i of the indices in row-major order"""

    private = True
    signature = "indices: int64 -> order: int64"
    not_differentiable = True
    host_only = True

    def shape(self, indices: Tensor) -> TensorShape:
        return vector(indices.shape[0])

    def numpy(self, indices: Array) -> Array:
        return np.argsort(row_major(indices)).astype(np.int64)


@public("sparse_reorder", "sparse.reorder")
def sparse_reorder(sp_input: SparseLike, name: str | None = None) -> SparseTensor:
    """A SparseTensor with its indices in row-major order."""
    sparse = as_sparse(sp_input)
    indices, values = SparseReorder()(*sparse.components(), name=name)
    return SparseTensor(indices, values, basic.identity(sparse.dense_shape))


class SparseReshape(Op):
    """The indices of the same elements in another dense shape; one size may be -1"""

    signature = (
        "input_indices: int64, input_shape: int64, new_shape: int64 "
        "-> output_indices: int64, output_shape: int64"
    )
    not_differentiable = True
    host_only = True

    def shape(self, indices: Tensor, input_shape: Tensor, new_shape: Tensor) -> list[TensorShape]:
        static_rank(indices, input_shape)
        rank = new_shape.shape.with_rank(1)[0]
        return [matrix(indices.shape.with_rank(2)[0], rank), vector(rank)]

    def numpy(self, indices: Array, input_shape: Array, new_shape: Array) -> tuple[Array, Array]:
        shape = _completed(input_shape, new_shape)
        places = flat_places(indices, input_shape)
        rows = np.stack(np.unravel_index(places, shape), axis=1) if len(places) else None
        found = np.zeros((0, len(shape)), np.int64) if rows is None else rows.astype(np.int64)
        return found, np.array(shape, np.int64)


def _completed(old: Array, new: Array) -> tuple[int, ...]:
    """The new shape with its -1, if any, computed."""
    sizes: list[int] = new.tolist()
    elements = int(np.prod(old, dtype=np.int64))
    if sizes.count(-1) > 1:
        raise ValueError(f"only one output shape size may be -1, got {sizes}")
    known = int(np.prod([size for size in sizes if size != -1], dtype=np.int64))
    if -1 in sizes:
        if known == 0 or elements % known:
            raise ValueError(
                f"Input to reshape is a SparseTensor with {elements} dense values, but the "
                f"requested shape requires a multiple of {known}"
            )
        sizes[sizes.index(-1)] = elements // known
    elif known != elements:
        raise ValueError(
            f"Input to reshape is a tensor with {elements} dense values, but the requested shape "
            f"{sizes} has {known}"
        )
    return tuple(sizes)


@public("sparse_reshape", "sparse.reshape")
def sparse_reshape(
    sp_input: SparseLike, shape: TensorLike, name: str | None = None
) -> SparseTensor:
    """A SparseTensor in another dense shape; one size may be -1."""
    sparse = as_sparse(sp_input)
    wanted = casting.cast(shape, dtypes.int64)
    indices, sizes = SparseReshape()(sparse.indices, sparse.dense_shape, wanted, name=name)
    return SparseTensor(indices, basic.identity(sparse.values), sizes)


@public("sparse.expand_dims")
def sparse_expand_dims(
    sp_input: SparseLike, axis: Any = None, name: str | None = None
) -> SparseTensor:
    """A SparseTensor with a dimension of size 1 inserted at `axis` (at the end if None)."""
    sparse = as_sparse(sp_input)
    with name_scope(name, "expand_dims", [sparse]):
        rank = shaping.size(sparse.dense_shape)
        place = convert_to_tensor(-1 if axis is None else axis, dtypes.int32)
        place = choosing.where(place < 0, place + rank + 1, place)
        column = filling.zeros([shaping.shape(sparse.indices)[0], 1], dtypes.int64)
        before, after = sparse.indices[:, :place], sparse.indices[:, place:]
        sizes = sparse.dense_shape
        one = np.ones(1, np.int64)
        return SparseTensor(
            joining.concat([before, column, after], 1),
            basic.identity(sparse.values),
            joining.concat([sizes[:place], one, sizes[place:]], 0),
        )


@public("sparse_transpose", "sparse.transpose")
def sparse_transpose(
    sp_input: SparseLike, perm: Any = None, name: str | None = None
) -> SparseTensor:
    """A SparseTensor with its dimensions permuted (reversed if `perm` is None)."""
    sparse = as_sparse(sp_input)
    with name_scope(name, "SparseTranspose", [sparse]):
        if perm is None:
            rank = shaping.size(sparse.dense_shape)
            perm = rank - 1 - filling.range(rank)
        indices = indexing.gather(sparse.indices, perm, axis=1)
        shape = indexing.gather(sparse.dense_shape, perm)
        return sparse_reorder(SparseTensor(indices, sparse.values, shape))


@public("sparse_reset_shape", "sparse.reset_shape")
def sparse_reset_shape(sp_input: SparseLike, new_shape: Any = None) -> SparseTensor:
    """The same elements in a larger dense shape, or in the smallest one that contains them."""
    sparse = as_sparse(sp_input)
    indices, values, shape = (basic.identity(part) for part in sparse.components())
    if new_shape is None:
        return SparseTensor(indices, values, TightShape()(indices))
    wanted = convert_to_tensor(new_shape)
    wanted.shape.assert_has_rank(1)
    wanted = casting.cast(wanted, dtypes.int64)
    wanted.shape[0].merge_with(shape.shape[0])
    same_rank = checks.assert_equal(shaping.shape(shape), shaping.shape(wanted))
    wanted = basic.with_dependencies([same_rank], wanted)
    wanted = basic.with_dependencies([checks.assert_less_equal(shape, wanted)], wanted)
    return SparseTensor(indices, values, wanted)


class TightShape(Op):
    """The smallest dense shape that contains all indices"""

    private = True
    signature = "indices: int64 -> shape: int64"
    not_differentiable = True

    def shape(self, indices: Tensor) -> TensorShape:
        return vector(indices.shape.with_rank(2)[1])

    def numpy(self, indices: Array) -> Array:
        return np.max(indices, axis=0, initial=-1) + 1

    def loop(self, at: IndexTuple, indices: Operand) -> Expr:
        def coordinate(k: Expr) -> Expr:
            return indices[k, at[0]]

        return loop.reduce("max", indices.shape[:1], coordinate).max(-1) + 1
