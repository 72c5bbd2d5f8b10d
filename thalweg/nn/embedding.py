"""Embedding tables: rows of (possibly sharded) parameters looked up by id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import int32
from thalweg.graph.likes import SparseLike, TensorLike
from thalweg.graph.nest import as_list
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import colocate_with, name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ops.arrays import counting, indexing, joining, partitioning, segment
from thalweg.ops.core import basic, casting, choosing, filling, shaping
from thalweg.ops.math import arithmetic, compare, division, reduce, transcendental
from thalweg.ops.sparse import sparse, sparse_pieces, sparse_segment
from thalweg.public import public
from thalweg.variables.partitioned import PartitionedVariable

Transform = Callable[[Tensor], Tensor]


@public("nn.embedding_lookup")
def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Tensor:
    """Rows of a table by their ids.

    Args:
        params: a table [rows, ...], or a list of tensors that are one table in shards.
        ids: row numbers, int32 or int64, of any shape.
        partition_strategy: of n shards, "mod" keeps id i as row i // n of shard i % n; "div" keeps
            consecutive ids together.
        name: the name of the node.
        validate_indices: taken for old programs; ids are always checked.
        max_norm: rows with a longer L2 norm are scaled down to it.

    Returns:
        A tensor of the shape of `ids` followed by that of a row.

    Raises:
        InvalidArgumentError: where an id is no row.

    Example:
        >>> table = tf.constant([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
        >>> sess.run(tf.nn.embedding_lookup(table, [2, 0]))
        array([[2., 2.],
               [0., 0.]], dtype=float32)
    """
    return lookup(params, ids, partition_strategy, name, max_norm)


def lookup(
    params: Any,
    ids: Any,
    partition_strategy: str,
    name: str | None,
    max_norm: float | None = None,
    transform: Transform | None = None,
) -> Tensor:
    """`embedding_lookup`, with a function of the rows that is applied where they are kept."""
    shards = shards_of(params)
    with name_scope(name, "embedding_lookup", [*shards, ids]) as scope:
        ids = convert_to_tensor(ids, name="ids")
        if len(shards) > 1:
            return _lookup_sharded(shards, ids, partition_strategy, max_norm, transform, scope)
        with colocate_with(_node(shards[0])):
            rows = _clip(indexing.gather(shards[0], ids), ids, max_norm)
            rows = rows if transform is None else transform(rows)
            return basic.identity(rows, name=scope)


def shards_of(params: Any) -> list[Any]:
    """The tensors or variables that a table is cut into; of a table that is whole, itself."""
    if isinstance(params, PartitionedVariable):
        params = list(params)
    shards = as_list(params)
    if not shards or shards[0] is None:
        raise ValueError("Need at least one param")
    return [shard if hasattr(shard, "op") else convert_to_tensor(shard) for shard in shards]


def _node(shard: Any) -> Any:
    return shard.op


def _lookup_sharded(
    shards: list[Any],
    ids: Tensor,
    partition_strategy: str,
    max_norm: float | None,
    transform: Transform | None,
    name: str,
) -> Tensor:
    flat = shaping.reshape(ids, [-1])
    places = filling.range(shaping.size(flat))
    shard_of, row_of = _assign(flat, shards, partition_strategy)
    shard_of = casting.cast(shard_of, int32)
    rows_by_shard = partitioning.dynamic_partition(row_of, shard_of, len(shards))
    places_by_shard = partitioning.dynamic_partition(places, shard_of, len(shards))
    found: list[Tensor] = []
    for shard, rows in zip(shards, rows_by_shard, strict=True):
        with colocate_with(_node(shard)):
            values = _clip(indexing.gather(shard, rows), rows, max_norm)
            found.append(values if transform is None else transform(values))
    stitched = partitioning.parallel_dynamic_stitch(places_by_shard, found)
    return _as_ids(stitched, ids, _row_shape(shards, transform), name)


def _row_shape(shards: list[Any], transform: Transform | None) -> TensorShape:
    if transform is not None:
        return TensorShape(None)
    shape = shards[0].shape[1:]
    for shard in shards[1:]:
        shape = shape.merge_with(shard.shape[1:])
    return shape


def _as_ids(values: Tensor, ids: Tensor, row_shape: TensorShape, name: str) -> Tensor:
    """Rows in one list, in the shape of the ids they were looked up by."""
    row = (
        convert_to_tensor(row_shape.as_list(), int32)
        if row_shape.rank and row_shape.is_fully_defined()
        else shaping.shape(values)[1:]
    )
    full = joining.concat([shaping.shape(ids), row], 0)
    result = shaping.reshape(values, full, name=name)
    result.set_shape(ids.shape.concatenate(values.shape[1:].merge_with(row_shape)))
    return result


def _assign(flat: Tensor, shards: list[Any], partition_strategy: str) -> tuple[Tensor, Tensor]:
    """For each id, its shard and its row there."""
    count = len(shards)
    if partition_strategy == "mod":
        return flat % count, flat // count
    if partition_strategy != "div":
        raise ValueError(f"Unrecognized partition strategy: {partition_strategy}")
    total = casting.cast(_total_rows(shards), flat.dtype)
    each = total // count
    larger = total % count  # the first shards hold one row more
    shard_of = arithmetic.maximum(flat // (each + 1), (flat - larger) // each)
    rows = choosing.where(compare.less(shard_of, larger), flat % (each + 1), (flat - larger) % each)
    return shard_of, rows


def _total_rows(shards: list[Any]) -> TensorLike:
    sizes = [shard.shape[0].value for shard in shards]
    if None not in sizes:
        return convert_to_tensor(sum(sizes))
    return arithmetic.add_n([shaping.shape(shard)[0] for shard in shards])


def _clip(rows: Tensor, ids: Tensor, max_norm: Any) -> Tensor:
    """Rows scaled down to a norm of at most `max_norm`."""
    if max_norm is None:
        return rows
    rank, ids_rank = rows.shape.rank, ids.shape.rank
    if rank is not None and ids_rank is not None:
        axes: Any = list(range(ids_rank, rank))
    else:
        axes = filling.range(shaping.rank(ids), shaping.rank(rows))
    squares = reduce.reduce_sum(rows * rows, axes, keepdims=True)
    norms = transcendental.sqrt(squares)
    limit = convert_to_tensor(max_norm, rows.dtype)  # at once: float32 would lose digits
    return rows * limit / arithmetic.maximum(norms, limit)


_COMBINERS = ("mean", "sqrtn", "sum")


@public("nn.embedding_lookup_sparse")
def embedding_lookup_sparse(
    params: Any,
    sp_ids: SparseLike,
    sp_weights: SparseLike | None,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
) -> Tensor:
    """For each row of sparse ids, a combination of their embeddings.

    Args:
        params: a table [rows, ...], or a list of shards of it.
        sp_ids: a SparseTensor of int64 ids [batch, any].
        sp_weights: a SparseTensor of weights like it, or None for 1.
        partition_strategy: "mod" or "div", as for `tf.nn.embedding_lookup`.
        name: the name of the nodes.
        combiner: "mean" (the default), "sum" or "sqrtn".
        max_norm: rows with a longer L2 norm are scaled down to it.

    Returns:
        A tensor [batch, ...].

    Example:
        >>> table = tf.constant([[1.0], [2.0], [4.0]])
        >>> ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], np.array([0, 1, 2]), [2, 2])
        >>> sess.run(tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum"))
        array([[3.],
               [4.]], dtype=float32)
    """
    combiner = "mean" if combiner is None else combiner
    if combiner not in _COMBINERS:
        raise ValueError(f"combiner must be one of 'mean', 'sqrtn' or 'sum', not {combiner!r}")
    if not isinstance(sp_ids, SparseTensor):
        raise TypeError("sp_ids must be SparseTensor")
    _check_weights(sp_ids, sp_weights)
    shards = shards_of(params)
    with name_scope(name, "embedding_lookup_sparse", [*shards, sp_ids]) as scope:
        rows = casting.cast(sp_ids.indices[:, 0], int32)
        distinct, places = counting.unique(sp_ids.values)
        embeddings = embedding_lookup(shards, distinct, partition_strategy, max_norm=max_norm)
        if sp_weights is None:
            return _combined(embeddings, places, rows, combiner, scope)
        gathered = indexing.gather(embeddings, places)
        weights = casting.cast(sp_weights.values, gathered.dtype)
        return _weighted(gathered, weights, rows, combiner, scope)


def _check_weights(sp_ids: SparseTensor, sp_weights: Any) -> None:
    if sp_weights is None:
        return
    if not isinstance(sp_weights, SparseTensor):
        raise TypeError("sp_weights must be either None or SparseTensor")
    sp_ids.values.shape.assert_is_compatible_with(sp_weights.values.shape)
    sp_ids.indices.shape.assert_is_compatible_with(sp_weights.indices.shape)
    sp_ids.dense_shape.shape.assert_is_compatible_with(sp_weights.dense_shape.shape)


def _combined(embeddings: Tensor, places: Tensor, rows: Tensor, combiner: str, name: str) -> Tensor:
    if combiner == "sum":
        return sparse_segment.sparse_segment_sum(embeddings, places, rows, name=name)
    if combiner == "mean":
        return sparse_segment.sparse_segment_mean(embeddings, places, rows, name=name)
    return sparse_segment.sparse_segment_sqrt_n(embeddings, places, rows, name=name)


def _weighted(
    embeddings: Tensor, weights: Tensor, rows: Tensor, combiner: str, name: str
) -> Tensor:
    column = shaping.reshape(weights, _column_shape(embeddings))
    column.set_shape([None] + [1] * ((embeddings.shape.rank or 1) - 1))
    total = segment.segment_sum(embeddings * column, rows, name=name if combiner == "sum" else None)
    if combiner == "sum":
        return total
    if combiner == "mean":
        return division.divide(total, segment.segment_sum(column, rows), name=name)
    squares = segment.segment_sum(column * column, rows)
    return division.divide(total, transcendental.sqrt(squares), name=name)


def _column_shape(embeddings: Tensor) -> Any:
    """[-1, 1, …]: weights as a column that broadcasts over the embeddings."""
    rank = embeddings.shape.rank
    if rank is not None:
        return [-1] + [1] * (rank - 1)
    ones = filling.fill(shaping.reshape(shaping.rank(embeddings) - 1, [1]), 1)
    return joining.concat([convert_to_tensor([-1]), ones], 0)


@public("nn.safe_embedding_lookup_sparse", "contrib.layers.safe_embedding_lookup_sparse")
def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: SparseLike,
    sparse_weights: SparseLike | None = None,
    combiner: str = "mean",
    default_id: int | None = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: float | None = None,
) -> Tensor:
    """`embedding_lookup_sparse` that leaves out negative ids and weights that are not positive.

    Rows without ids get the embedding of `default_id`, or zeros. Ids of more than two dimensions
    are combined along the last one.

    Args:
        embedding_weights: the table, or a list of its shards.
        sparse_ids: an int64 SparseTensor [..., ids].
        sparse_weights: what each id counts; None: 1.
        combiner: "mean", "sqrtn" or "sum".
        default_id: the id of rows without any.
        name: the name of the nodes.
        partition_strategy: "div" or "mod": how ids are spread over shards.
        max_norm: the greatest length of an embedding.

    Returns:
        A tensor [..., size].

    Example:
        >>> ids = tf.SparseTensor([[0, 0], [0, 1]], tf.constant([1, -1], tf.int64), [2, 2])
        >>> table = tf.constant([[1.0], [2.0]])
        >>> sess.run(tf.contrib.layers.safe_embedding_lookup_sparse([table], ids))
        array([[2.],
               [0.]], dtype=float32)
    """
    with name_scope(name, "embedding_lookup", [sparse_ids]) as scope:
        given = SparseTensor.from_value(sparse_ids)
        outer = given.dense_shape[:-1]
        ids = _as_matrix(given)
        weights = None
        if sparse_weights is not None:
            weights = SparseTensor(ids.indices, sparse_weights.values, ids.dense_shape)
        ids, weights = _valid(ids, weights, combiner)
        ids, is_empty = sparse_pieces.sparse_fill_empty_rows(ids, default_id or 0)
        if weights is not None:
            weights, _ = sparse_pieces.sparse_fill_empty_rows(weights, 1.0)
        result = embedding_lookup_sparse(
            embedding_weights, ids, weights, partition_strategy, None, combiner, max_norm
        )
        if default_id is None:
            result = choosing.where(is_empty, filling.zeros_like(result), result)
        row = shaping.shape(result)[1:]
        full = shaping.reshape(
            result, joining.concat([casting.cast(outer, int32), row], 0), name=scope
        )
        known = shaping.known_shape(sparse_ids.dense_shape)
        if known.rank is not None:
            full.set_shape(known[:-1].concatenate(result.shape[1:]))
        return full


def _as_matrix(ids: SparseTensor) -> SparseTensor:
    """[all examples, ids of an example]"""
    shape = ids.dense_shape
    rows = reduce.reduce_prod(shape[:-1])
    return sparse.sparse_reshape(ids, joining.stack([rows, shape[-1]]))


def _valid(ids: SparseTensor, weights: Any, combiner: str) -> tuple[SparseTensor, Any]:
    keep = compare.greater_equal(ids.values, 0)
    if weights is None:
        return sparse_pieces.sparse_retain(ids, keep), None
    if combiner != "sum":  # sums may have weights of any sign
        keep = compare.logical_and(keep, compare.greater(weights.values, 0))
    return sparse_pieces.sparse_retain(ids, keep), sparse_pieces.sparse_retain(weights, keep)
