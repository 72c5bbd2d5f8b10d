"""Concatenating, splitting and slicing sparse tensors, and selecting their elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.composite import IndexedSlices, SparseTensor, SparseTensorValue
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import SparseLike, TensorLike, UserObject
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, matrix, vector
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.arrays import counting, indexing, joining, segment
from thalweg.ops.core import basic, casting, choosing, filling, shaping
from thalweg.ops.math import arithmetic, reduce
from thalweg.ops.sparse.sparse import (
    as_sparse,
    check_indices,
    component_shapes,
    matching,
    picked,
    row_major,
    sparse_reorder,
    sparse_tensor_to_dense,
    static_count,
    static_rank,
)
from thalweg.platform.arrays import Array
from thalweg.public import public

# Concatenating and splitting


class SparseConcat(Op):
    """Sparse tensors concatenated along a dimension"""

    signature = (
        "indices: N*int64, values: N*T, shapes: N*int64 "
        "-> output_indices: int64, output_values: T, output_shape: int64"
    )
    host_only = True
    concat_dim: int

    def shape(
        self, indices: list[Tensor], values: list[Tensor], shapes: list[Tensor]
    ) -> list[TensorShape]:
        rank = vector(None)
        for rows, sizes in zip(indices, shapes, strict=True):
            rank = rank.merge_with(vector(static_rank(rows, sizes)))
        counts = [static_count(*pair).value for pair in zip(indices, values, strict=True)]
        total = None if None in counts else sum(counts)
        return component_shapes(total, rank[0])

    def numpy(
        self, indices: list[Array], values: list[Array], shapes: list[Array]
    ) -> tuple[Array, Array, Array]:
        axis = self.concat_dim % len(shapes[0])
        others = [np.delete(shape, axis).tolist() for shape in shapes]
        if any(other != others[0] for other in others):
            raise ValueError(f"Input shapes must match: got {[s.tolist() for s in shapes]}")
        starts = np.cumsum([0, *(shape[axis] for shape in shapes)])
        rows = np.concatenate([_shifted(i, axis, s) for i, s in zip(indices, starts, strict=False)])
        order = row_major(rows)
        shape = shapes[0].copy()
        shape[axis] = starts[-1]
        return rows[order], np.concatenate(values)[order], shape

    def gradient(self, node: Node, _: Any, dy: Tensor, __: Any) -> list[Tensor | None]:
        count = len(node.inputs) // 3
        indices, shapes = node.inputs[:count], node.inputs[2 * count :]
        starts = PieceStarts()(self.concat_dim, list(shapes))
        found = node.outputs[0]
        values = [
            SparseSliceGrad()(dy, rows, -start, found)
            for rows, start in zip(indices, starts, strict=True)
        ]
        return [*[None] * count, *values, *[None] * count]


class PieceStarts(Op):
    """The start of each piece in the concatenation of all along an axis"""

    private = True
    signature = "axis: int64, shapes: N*int64 -> starts: N*int64"
    not_differentiable = True

    def shape(self, axis: Tensor, shapes: list[Tensor]) -> list[TensorShape]:
        return [shape.shape for shape in shapes]

    def numpy(self, axis: Array, shapes: list[Array]) -> list[Array]:
        starts = np.zeros((len(shapes), len(shapes[0])), np.int64)
        starts[1:, int(axis)] = np.cumsum([shape[int(axis)] for shape in shapes[:-1]])
        return list(starts)

    def loop(self, at: IndexTuple, axis: Operand, shapes: list[Operand]) -> Expr:
        before: Any = sum(shape[at[0]] for shape in shapes[: at.output])
        return select(at[0].eq(axis[()] % at.shape[0]), before, 0).cast(np.int64)


def _shifted(indices: Array, axis: int, by: int) -> Array:
    moved = indices.copy()
    moved[:, axis] += by
    return moved


@public("sparse_concat", "sparse.concat")
def sparse_concat(
    axis: Any = None,
    sp_inputs: Sequence[Any] = (),
    name: str | None = None,
    expand_nonconcat_dim: bool = False,
    concat_dim: Any = None,
    expand_nonconcat_dims: bool | None = None,
) -> SparseTensor:
    """SparseTensors concatenated along `axis`; other dimensions may be expanded.

    Args:
        axis, concat_dim: the axis, by its new or old name.
        sp_inputs: the SparseTensors.
        name: the name of the node.
        expand_nonconcat_dim, expand_nonconcat_dims: whether other sizes may differ; the result has
            the largest.

    Returns:
        A SparseTensor.

    Example:
        >>> x = tf.SparseTensor([[0, 1]], [5], [1, 2])
        >>> sess.run(tf.sparse_tensor_to_dense(tf.sparse_concat(0, [x, x])))
        array([[0, 5],
               [0, 5]], dtype=int32)
    """
    place = int(concat_dim if axis is None else axis)
    inputs = [as_sparse(value) for value in sp_inputs]
    if len(inputs) == 1:
        return inputs[0]
    shapes = [sparse.dense_shape for sparse in inputs]
    if expand_nonconcat_dim or expand_nonconcat_dims:
        shapes = _expanded(shapes, place)
    rows = [sparse.indices for sparse in inputs]
    values = [sparse.values for sparse in inputs]
    return SparseTensor(*SparseConcat(concat_dim=place)(rows, values, shapes, name=name))


def _expanded(shapes: list[Tensor], axis: int) -> list[Tensor]:
    """Shapes expanded to the maximum of each dimension but one."""
    largest = reduce.reduce_max(joining.stack(shapes), 0)
    own = [shape[axis:] if axis == -1 else shape[axis : axis + 1] for shape in shapes]
    after = [] if axis == -1 else [largest[axis + 1 :]]
    return [joining.concat([largest[:axis], size, *after], 0) for size in own]


class SparseSplit(Op):
    """A sparse tensor split along a dimension; the first pieces get the remainder"""

    signature = (
        "split_dim: int64, indices: int64, values: T, shape: int64 -> output_indices: "
        "num_split*int64, output_values: num_split*T, output_shape: num_split*int64"
    )
    host_only = True
    num_split: int

    def shape(
        self, split_dim: Tensor, indices: Tensor, values: Tensor, shape: Tensor
    ) -> list[list[TensorShape]]:
        parts = component_shapes(None, static_rank(indices, shape))
        return [[part] * self.num_split for part in parts]

    def numpy(
        self, split_dim: Array, indices: Array, values: Array, shape: Array
    ) -> tuple[list[Array], list[Array], list[Array]]:
        axis, size = int(split_dim), int(shape[int(split_dim)])
        if not 1 <= self.num_split <= size:
            raise ValueError(f"Argument num_split must be in [1, {size}], got {self.num_split}")
        lengths = [
            size // self.num_split + (i < size % self.num_split) for i in range(self.num_split)
        ]
        starts = np.cumsum([0, *lengths])
        pieces = [
            _piece(axis, starts[i], starts[i + 1], indices, values, shape)
            for i in range(self.num_split)
        ]
        rows, parts, shapes = zip(*pieces, strict=True)
        return list(rows), list(parts), list(shapes)

    def gradient(self, node: Node, *dys: Any) -> list[Tensor | None]:
        count = self.num_split
        axis, indices = node.inputs[:2]
        rows, shapes = node.outputs[:count], node.outputs[2 * count :]
        starts = PieceStarts()(axis, list(shapes))
        pieces = zip(dys[count : 2 * count], starts, rows, strict=True)
        parts = [SparseSliceGrad()(dy, indices, start, found) for dy, start, found in pieces]
        return [None, None, arithmetic.add_n(parts), None]


def _piece(
    axis: int, start: int, stop: int, indices: Array, values: Array, shape: Array
) -> tuple[Array, Array, Array]:
    inside = (indices[:, axis] >= start) & (indices[:, axis] < stop)
    size = shape.copy()
    size[axis] = stop - start
    return _shifted(indices[inside], axis, -start), values[inside], size


@public("sparse_split", "sparse.split")
def sparse_split(
    keyword_required: UserObject = None,
    sp_input: SparseLike | None = None,
    num_split: int | None = None,
    axis: Any = None,
    name: str | None = None,
    split_dim: Any = None,
) -> list[SparseTensor]:
    """A SparseTensor split into `num_split` pieces along `axis`. Takes keywords only."""
    place = split_dim if axis is None else axis
    if keyword_required is not None:
        raise ValueError("Keyword arguments are required for this function.")
    for value, needed in ((sp_input, "sp_input"), (num_split, "num_split"), (place, "axis")):
        if value is None:
            raise ValueError(f"{needed} is required")
    sparse, count = as_sparse(sp_input), cast("int", num_split)
    parts = SparseSplit(num_split=count)(place, *sparse.components(), name=name)
    return [SparseTensor(*components) for components in zip(*parts, strict=True)]


class SparseSlice(Op):
    """The part of a sparse tensor inside a box, with indices relative to its corner"""

    signature = (
        "indices: int64, values: T, shape: int64, start: int64, size: int64 "
        "-> output_indices: int64, output_values: T, output_shape: int64"
    )
    host_only = True

    def shape(
        self, indices: Tensor, values: Tensor, shape: Tensor, start: Tensor, size: Tensor
    ) -> list[TensorShape]:
        return component_shapes(None, static_rank(indices, shape))

    def numpy(
        self, indices: Array, values: Array, shape: Array, start: Array, size: Array
    ) -> tuple[Array, Array, Array]:
        inside = np.all((indices >= start) & (indices - start < size), axis=1)
        cut = np.maximum(np.minimum(size, shape - start), 0)
        return indices[inside] - start, values[inside], cut

    def gradient(self, node: Node, _: Any, dy: Tensor, __: Any) -> list[Tensor | None]:
        indices, start = node.inputs[0], node.inputs[3]
        back = SparseSliceGrad()(dy, indices, start, node.outputs[0])
        return [None, back, None, None, None]


class SparseSliceGrad(Op):
    """The gradient of the values of a slice, at the positions of these values"""

    signature = (
        "backprop_val_grad: T, input_indices: int64, input_start: int64, output_indices: int64 "
        "-> val_grad: T; T: numeric"
    )
    host_only = True

    def shape(self, dy: Tensor, indices: Tensor, start: Tensor, found: Tensor) -> TensorShape:
        return vector(indices.shape.with_rank(2)[0])

    def numpy(self, dy: Array, indices: Array, start: Array, found: Array) -> Array:
        return picked(dy, matching(indices - start, found))

    def gradient(self, node: Node, dx: Tensor) -> list[Tensor | None]:
        _, indices, start, found = node.inputs
        places = MatchingRows()(indices - start, found)
        dy = segment.unsorted_segment_sum(dx, places, shaping.shape(found)[0])
        return [dy, None, None, None]


class MatchingRows(Op):
    """y[i] = the position of the index row rows[i] in the rows of `among`, or -1"""

    private = True
    signature = "rows: int64, among: int64 -> places: int64"
    not_differentiable = True
    host_only = True

    def shape(self, rows: Tensor, among: Tensor) -> TensorShape:
        return vector(rows.shape.with_rank(2)[0])

    def numpy(self, rows: Array, among: Array) -> Array:
        return matching(rows, among)


def carried(values: Tensor, rows: Tensor, to: Tensor) -> Tensor:
    """The values of index rows, looked up for other index rows; zero for missing ones."""
    return SparseSliceGrad()(values, to, np.zeros(1, np.int64), rows)


@public("sparse_slice", "sparse.slice")
def sparse_slice(
    sp_input: SparseLike, start: Any, size: Any, name: str | None = None
) -> SparseTensor:
    """The part of a SparseTensor in the box from `start` of the given `size`."""
    sparse = as_sparse(sp_input)
    with name_scope(name, "SparseSlice", [sparse]):
        corner = convert_to_tensor(start, dtypes.int64)
        lengths = convert_to_tensor(size, dtypes.int64)
        return SparseTensor(*SparseSlice()(*sparse.components(), corner, lengths))


# Selecting


@public("sparse_retain", "sparse.retain")
def sparse_retain(sp_input: SparseLike, to_retain: Any) -> SparseTensor:
    """A SparseTensor with only the values at which `to_retain` is true.

    Args:
        sp_input: a SparseTensor.
        to_retain: a bool vector, one for each value.

    Returns:
        A SparseTensor.

    Example:
        >>> x = tf.SparseTensor([[0, 0], [0, 1]], [5, 6], [1, 2])
        >>> sess.run(tf.sparse_retain(x, [False, True])).values
        array([6], dtype=int32)
    """
    sparse = as_sparse(sp_input)
    marks = convert_to_tensor(to_retain)
    marks.shape.assert_has_rank(1)
    sparse.values.shape.with_rank(1)[0].merge_with(marks.shape.with_rank(1)[0])
    kept = shaping.reshape(choosing.where(marks), [-1])
    return SparseTensor(
        indexing.gather(sparse.indices, kept),
        indexing.gather(sparse.values, kept),
        basic.identity(sparse.dense_shape),
    )


class SparseFillEmptyRows(Op):
    """A sparse tensor with a default value at the start of every empty row"""

    signature = (
        "indices: int64, values: T, dense_shape: int64, default_value: T -> output_indices: int64, "
        "output_values: T, empty_row_indicator: bool, reverse_index_map: int64"
    )
    host_only = True

    def shape(
        self, indices: Tensor, values: Tensor, dense_shape: Tensor, default_value: Tensor
    ) -> list[TensorShape]:
        default_value.shape.assert_has_rank(0)
        rank = static_rank(indices, dense_shape)
        rows = (shaping.known_shape(dense_shape).sizes or (None,))[0]
        count = static_count(indices, values)
        return [matrix(None, rank), vector(None), vector(rows), vector(count)]

    def numpy(
        self, indices: Array, values: Array, dense_shape: Array, default_value: Array
    ) -> tuple[Array, Array, Array, Array]:
        check_indices(indices[:, :1], dense_shape[:1], ordered=False)
        empty = np.ones(int(dense_shape[0]), bool)
        empty[indices[:, 0]] = False
        added = np.zeros((int(empty.sum()), indices.shape[1]), np.int64)
        added[:, 0] = np.flatnonzero(empty)
        rows = np.concatenate([indices, added])
        defaults = np.full(len(added), default_value, values.dtype)
        order = np.argsort(rows[:, 0], kind="stable")
        moved = np.argsort(order, kind="stable")[: len(indices)].astype(np.int64)
        return rows[order], np.concatenate([values, defaults])[order], empty, moved

    def gradient(self, node: Node, _: Any, dy: Tensor, *__: Any) -> list[Tensor | None]:
        values = indexing.gather(dy, node.outputs[3])
        return [None, values, None, reduce.reduce_sum(dy) - reduce.reduce_sum(values)]


@public("sparse_fill_empty_rows", "sparse.fill_empty_rows")
def sparse_fill_empty_rows(
    sp_input: SparseLike, default_value: Any, name: str | None = None
) -> tuple[SparseTensor, Tensor]:
    """A SparseTensor with `default_value` in its empty rows, and a mask of these rows."""
    sparse = as_sparse(sp_input)
    with name_scope(name, "SparseFillEmptyRows", [sparse]):
        default = convert_to_tensor(default_value, sparse.values.dtype.base_dtype)
        rows, values, empty, _ = SparseFillEmptyRows()(*sparse.components(), default)
        return SparseTensor(rows, values, sparse.dense_shape), empty


@public("sparse_merge", "sparse.merge")
def sparse_merge(
    sp_ids: SparseLike | Sequence[SparseLike],
    sp_values: SparseLike,
    vocab_size: TensorLike | Sequence[TensorLike],
    name: str | None = None,
    already_sorted: bool = False,
) -> SparseTensor:
    """Values at ids: the last dimension of the indices is replaced by the ids."""
    ids, sizes = [as_sparse(s) for s in _listed(sp_ids)], _listed(vocab_size)
    if len(ids) != len(sizes):
        raise ValueError("sp_ids and vocab_size have to have equal lengths.")
    values = as_sparse(sp_values)
    with name_scope(name, "SparseMerge", [*ids, values]):
        columns = [casting.cast(s.values, dtypes.int64) for s in ids]
        columns = [shaping.expand_dims(column, 1) for column in columns]
        rows = joining.concat([ids[0].indices[:, :-1], *columns], 1)
        limits = [casting.cast(convert_to_tensor(size), dtypes.int64) for size in sizes]
        shape = joining.concat([ids[0].dense_shape[:-1], joining.stack(limits)], 0)
        merged = SparseTensor(rows, values.values, shape)
        return merged if already_sorted else sparse_reorder(merged)


def _listed(value: Any) -> list[Any]:
    is_list = isinstance(value, list | tuple) and not isinstance(value, SparseTensorValue)
    return list(cast("Sequence[Any]", value)) if is_list else [value]


@public("sparse_mask", "sparse.mask")
def sparse_mask(a: IndexedSlices, mask_indices: Any, name: str | None = None) -> IndexedSlices:
    """Slices without those whose index is in `mask_indices`."""
    with name_scope(name, "sparse_mask", [a, mask_indices]) as scope:
        indices, kept = counting.setdiff1d(a.indices, mask_indices)
        return IndexedSlices(indexing.gather(a.values, kept, name=scope), indices, a.dense_shape)


@public("sparse_to_indicator", "sparse.to_indicator")
def sparse_to_indicator(
    sp_input: SparseLike, vocab_size: TensorLike, name: str | None = None
) -> Tensor:
    """A dense bool tensor, true at the ids in the values of each row.

    Args:
        sp_input: an int32 or int64 SparseTensor [..., n] of ids.
        vocab_size: the number of ids.
        name: the name of the nodes.

    Returns:
        A bool tensor [..., vocab_size].

    Example:
        >>> x = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([2, 0], tf.int64), [2, 1])
        >>> sess.run(tf.sparse_to_indicator(x, 3))
        array([[False, False,  True],
               [ True, False, False]])
    """
    sparse = as_sparse(sp_input)
    with name_scope(name, "SparseToIndicator", [sparse]) as scope:
        truth = filling.fill(shaping.shape(sparse.values), True)
        marks = SparseTensor(sparse.indices, truth, sparse.dense_shape)
        merged = sparse_merge(sparse, marks, vocab_size)
        return sparse_tensor_to_dense(merged, False, validate_indices=False, name=scope)
