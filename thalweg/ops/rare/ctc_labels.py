"""Preparation of label rows for CTC: without repeats, or as distinct labels and indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.platform.arrays import Array
from thalweg.public import public


class CollapseRepeated(Op):
    """Label rows without repeats of the previous label, and the new lengths"""

    private = True
    signature = "labels: T, seq_length: I -> collapsed_labels: T, new_seq_length: I; T: index"
    host_only = True  # the size of the output depends on data
    not_differentiable = True

    def shape(self, labels: Tensor, seq_length: Tensor) -> list[TensorShape]:
        rows = labels.shape.with_rank(2)[:1].merge_with(seq_length.shape)
        return [rows.concatenate([None]), rows]

    def numpy(self, labels: Array, seq_length: Array) -> tuple[Array, Array]:
        kept = np.arange(int(labels.shape[1])) < seq_length[:, None]
        kept[:, 1:] &= labels[:, 1:] != labels[:, :-1]
        lengths = kept.sum(1)
        result = np.zeros((len(labels), int(lengths.max(initial=0))), labels.dtype)
        result[np.arange(len(result.T)) < lengths[:, None]] = labels[kept]
        return result, lengths.astype(seq_length.dtype)


@public("nn.collapse_repeated")
def collapse_repeated(
    labels: Any, seq_length: Any, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """(rows of labels without repeats of the previous one, padded with zeros; their lengths)."""
    op = CollapseRepeated()
    collapsed, lengths = op(labels, seq_length, name=name or "collapse_repeated_labels")
    return collapsed, lengths


class CTCUniqueLabels(Op):
    """The distinct labels of each row in order of appearance, and the index of each label"""

    private = True
    signature = "labels: T -> unique: int64, idx: int32; T: index"
    not_differentiable = True

    def shape(self, labels: Tensor) -> list[TensorShape]:
        return [labels.shape.with_rank(2)] * 2

    def numpy(self, labels: Array) -> tuple[Array, Array]:
        same = labels[:, :, None] == labels[:, None, :]
        first = same.argmax(2)  # the first position of each label
        is_first = first == np.arange(int(labels.shape[1]))
        rank = np.cumsum(is_first, 1) - 1
        unique = np.zeros(labels.shape, np.int64)
        rows, columns = np.nonzero(is_first)
        unique[rows, rank[rows, columns]] = labels[rows, columns]
        return unique, np.take_along_axis(rank, first, 1).astype(np.int32)

    def loop(self, at: IndexTuple, labels: Operand) -> Expr | loop.Scatter:
        if at.output == 1:
            return _rank(labels, at[0], at[1]).cast(np.int32)

        def part(row: Expr, place: Expr) -> tuple[Sequence[Any], Expr]:
            # Repeated labels are written nowhere.
            is_first = _first(labels, row, place).eq(place)
            target = select(is_first, _rank(labels, row, place), -1)
            return (row, target), labels[row, place].cast(np.int64)

        return loop.scatter("set", labels.shape, part, 0)


def _first(labels: Operand, row: Expr, place: Expr) -> Expr:
    """The first position of a label in its row."""
    here = labels[row, place]

    def same(k: Expr) -> Expr:
        return labels[row, k].eq(here)

    return loop.reduce("argmax", labels.shape[1:], same)


def _rank(labels: Operand, row: Expr, place: Expr) -> Expr:
    """The number of distinct labels that appear before the label at a position does."""
    first = _first(labels, row, place)

    def counts(k: Expr) -> Expr:
        return ((k < first) & _first(labels, row, k).eq(k)).cast(labels.dtype)

    return loop.reduce("sum", labels.shape[1:], counts)


@public("nn.ctc_unique_labels")
def ctc_unique_labels(labels: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
    """(the distinct labels of each row, padded with zeros; the index of each label in them)."""
    unique, places = CTCUniqueLabels()(labels, name=name or "ctc_unique_labels")
    return unique, places
