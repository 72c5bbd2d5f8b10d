"""Rewrites dynamic partitions and stitches so that most of the work can be compiled.

The sizes of the parts are known only when a step runs, so no kernel can compute them. A kernel
computes the destination of each row: the concatenation of all parts has a known size, and the host
only splits it. A stitch that puts the parts back needs no partition of the indices then, has a
known size, and is compiled with its readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from thalweg.graph.dtypes import DType, string
from thalweg.graph.node import Node, Tensor
from thalweg.ops.arrays.partitioning import (
    DynamicPartition,
    PartitionPlaces,
    Parts,
    PutRows,
    StitchParts,
)
from thalweg.ops.core.filling import Range
from thalweg.optimize.facts import open_value
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph

_STITCHES = "DynamicStitch", "ParallelDynamicStitch"
_ROOTS = frozenset({"DynamicPartition", *_STITCHES})
_MAX_PARTITIONS = 64  # each counts all elements


def place_partitions(graph: StepGraph) -> None:
    """Rewrite partitions, and stitches that undo them."""

    def rewrite(node: Node) -> Sequence[Tensor] | None:
        if not is_free(node):
            return None
        return _partition(node, graph) if node.type == "DynamicPartition" else _stitch(node, graph)

    graph.rewrite(rewrite, _ROOTS)


def _partition(node: Node, graph: StepGraph) -> Sequence[Tensor] | None:
    data, partitions = node.inputs
    count = cast("DynamicPartition", node.op).num_partitions
    is_vector = partitions.shape.rank == 1 and data.shape.rank is not None
    is_compiled = all(_is_compiled(tensor.dtype) for tensor in node.inputs)
    if not is_vector or count > _MAX_PARTITIONS or not is_compiled:
        return None
    return graph.rebuilt("places of a partition", node, lambda: _parts(data, partitions, count))


def _parts(data: Tensor, partitions: Tensor, count: int) -> list[Tensor]:
    places, counts = PartitionPlaces(num_partitions=count)(partitions)
    return Parts(num_partitions=count)(PutRows()(data, places), counts)


def _stitch(node: Node, graph: StepGraph) -> Sequence[Tensor] | None:
    """Match `dynamic_stitch(dynamic_partition(range(n), …), rows)`, which has one row per index."""
    half = len(node.inputs) // 2
    cut, rows = [*node.inputs[:half]], [*node.inputs[half:]]
    parts = cut[0].op
    if not isinstance(parts.op, Parts) or cut != [*parts.outputs]:
        return None
    put, counts = parts.inputs
    if not all(map(graph.is_open, (*cut, put, counts))) or not isinstance(put.op.op, PutRows):
        return None
    data, places = put.op.inputs
    if not _is_range(data, graph) or not _is_compiled(rows[0].dtype):
        return None
    return graph.rebuilt("stitch of a partition", node, lambda: StitchParts()(places, counts, rows))


def _is_compiled(dtype: DType) -> bool:
    """Whether kernels can compute with a dtype. References are read where they are used."""
    return dtype.is_numpy_compatible and dtype is not string and not dtype.is_ref_dtype


def _is_range(tensor: Tensor, graph: StepGraph) -> bool:
    """Whether a tensor is [0, 1, 2, …]."""
    value = open_value(tensor, graph)
    if value is not None:
        return value.ndim == 1 and np.array_equal(value, np.arange(len(value)))
    if not isinstance(tensor.op.op, Range) or not graph.is_open(tensor):
        return False
    start, _, step = (open_value(t, graph) for t in tensor.op.inputs)
    return start is not None and step is not None and (int(start), int(step)) == (0, 1)
