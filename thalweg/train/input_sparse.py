"""Sparse tensors on their way through a queue: the session keeps them, the queue holds their
numbers, and the batch is put together from what the numbers stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from thalweg.graph import dtypes
from thalweg.graph.composite import SparseTensor
from thalweg.graph.node import Node, Tensor
from thalweg.ops.arrays import indexing, joining, scan
from thalweg.ops.core import casting, shaping
from thalweg.ops.io.serializing import (
    add_many_sparse_to_tensors_map,
    add_sparse_to_tensors_map,
    take_many_sparse_from_tensors_map,
)
from thalweg.ops.math import reduce
from thalweg.ops.sparse.sparse_pieces import sparse_retain


class SparseKind(NamedTuple):
    """Where the sparse tensors of a component are kept, and their rank if it is known."""

    keeper: Node
    rank: int | None


Kinds = list[SparseKind | None]  # None: the component is dense


def store(
    tensors: Sequence[Any], many: bool, shared: Sequence[Node | None] | None = None
) -> tuple[list[Tensor], Kinds]:
    """The tensors with numbers in place of sparse ones, kept by nodes of their own or as others."""
    stored: list[Tensor] = []
    kinds: Kinds = []
    for tensor, keeper in zip(tensors, shared or [None] * len(tensors), strict=True):
        if not isinstance(tensor, SparseTensor):
            stored.append(tensor)
            kinds.append(None)
            continue
        add = add_many_sparse_to_tensors_map if many else add_sparse_to_tensors_map
        number = add(tensor, shared_name=None if keeper is None else keeper.name)
        # A number is a vector of one, as in TensorFlow: `shapes` given by users say so.
        stored.append(shaping.expand_dims(number, -1))
        kinds.append(SparseKind(keeper or number.op, _rank(tensor, many)))
    return stored, kinds


def _rank(tensor: SparseTensor, many: bool) -> int | None:
    """The rank of one element."""
    rank = tensor.dense_shape.shape.with_rank(1)[0].value
    return None if rank is None else rank - many


def store_all(lists: Sequence[Sequence[Any]], many: bool) -> tuple[list[list[Tensor]], Kinds]:
    """As `store` for several lists, which share where their sparse tensors are kept."""
    first, kinds = store(lists[0], many)
    stored = [first]
    shared = [None if kind is None else kind.keeper for kind in kinds]
    for tensors in lists[1:]:
        more, others = store(tensors, many, shared)
        if not all(map(_fit, kinds, others)):
            raise ValueError(f"Inconsistent SparseTensors list: {lists[0]} vs. {tensors}")
        stored.append(more)
    return stored, kinds


def _fit(kind: SparseKind | None, other: SparseKind | None) -> bool:
    if kind is None or other is None:
        return kind is other
    return kind.rank is None or other.rank is None or kind.rank == other.rank


def restore(batch: Sequence[Tensor], kinds: Kinds) -> list[Any]:
    """The tensors of a batch with sparse ones in place of their numbers."""
    return [
        tensor
        if kind is None
        else take_many_sparse_from_tensors_map(kind.keeper, shaping.squeeze(tensor, [1]), kind.rank)
        for tensor, kind in zip(batch, kinds, strict=True)
    ]


def sparse_rows(sparse: SparseTensor, keep: Tensor) -> SparseTensor:
    """The rows of a sparse tensor for which `keep` is true, moved up to where others were."""
    kept = sparse_retain(sparse, indexing.gather(keep, sparse.indices[:, 0]))
    ones = casting.cast(keep, dtypes.int64)
    places = scan.cumsum(ones, exclusive=True)
    rows = indexing.gather(places, kept.indices[:, 0])
    indices = joining.concat([shaping.expand_dims(rows, 1), kept.indices[:, 1:]], 1)
    count = shaping.expand_dims(reduce.reduce_sum(ones), 0)
    shape = joining.concat([count, kept.dense_shape[1:]], 0)
    shape.set_shape(sparse.dense_shape.shape)
    return SparseTensor(indices, kept.values, shape)
