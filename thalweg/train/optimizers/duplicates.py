"""Sparse gradients whose indices repeat, made into ones whose indices do not."""

from __future__ import annotations

from thalweg.graph.composite import IndexedSlices
from thalweg.ops.arrays import counting, segment
from thalweg.ops.core import shaping


def deduplicate(slices: IndexedSlices) -> IndexedSlices:
    """The same gradient with the rows of equal indices summed."""
    distinct, position = counting.unique(slices.indices)
    summed = segment.unsorted_segment_sum(slices.values, position, shaping.shape(distinct)[0])
    return IndexedSlices(summed, distinct, slices.dense_shape)
