"""Decoding frame-wise logits to label sequences: the best path, or beam search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.composite import SparseTensor
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, matrix, vector
from thalweg.ops.rare.ctc import check_lengths
from thalweg.platform.arrays import Array
from thalweg.public import public


def _sparse(sequences: Sequence[Sequence[int]]) -> tuple[Array, Array, Array]:
    """Indices, values and dense shape of rows of labels."""
    lengths = np.array([len(s) for s in sequences], np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    starts: Array = np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns: Array = np.arange(len(starts)) - starts
    values = np.array([label for s in sequences for label in s], np.int64)
    shape = np.array([len(lengths), lengths.max(initial=0)], np.int64)
    return np.stack([rows, columns], 1).astype(np.int64), values, shape


def _shapes(inputs: Tensor, sequence_length: Tensor) -> Any:
    """The static number of sequences."""
    batch = inputs.shape.with_rank(3)[1]
    return batch.merge_with(sequence_length.shape.with_rank(1)[0])


class CTCGreedyDecoder(Op):
    """The best class of each frame, without blanks; and the sum of the negated logits"""

    signature = (
        "inputs: T, sequence_length: int32 -> decoded_indices: int64, decoded_values: int64, "
        "decoded_shape: int64, log_probability: T; T: float32|float64"
    )
    host_only = True  # the size of the output depends on data
    not_differentiable = True
    merge_repeated: bool = False

    def shape(self, inputs: Tensor, sequence_length: Tensor) -> list[TensorShape]:
        batch = _shapes(inputs, sequence_length)
        return [matrix(None, 2), vector(None), vector(2), matrix(batch, 1)]

    def numpy(self, inputs: Array, sequence_length: Array) -> tuple[Array, ...]:
        check_lengths(inputs, sequence_length)
        best = inputs.argmax(-1)
        live = np.arange(len(inputs))[:, None] < sequence_length[None, :]
        total = -np.where(live, inputs.max(-1), 0).sum(0, dtype=inputs.dtype)
        kept = live & (best != inputs.shape[-1] - 1)
        if self.merge_repeated:
            kept[1:] &= best[1:] != best[:-1]
        decoded = [best[kept[:, row], row].tolist() for row in range(inputs.shape[1])]
        return (*_sparse(decoded), total[:, None])


@public("nn.ctc_greedy_decoder")
def ctc_greedy_decoder(
    inputs: Any, sequence_length: Any, merge_repeated: bool = True
) -> tuple[list[SparseTensor], Tensor]:
    """([the decoded labels], the negated sum of the best logits of each sequence)."""
    op = CTCGreedyDecoder(merge_repeated=bool(merge_repeated))
    indices, values, shape, log_probability = op(inputs, sequence_length)
    return [SparseTensor(indices, values, shape)], log_probability


class CTCBeamSearchDecoder(Op):
    """The most probable label sequences found by beam search over prefixes"""

    signature = (
        "inputs: T, sequence_length: int32 -> decoded_indices: top_paths*int64, "
        "decoded_values: top_paths*int64, decoded_shape: top_paths*int64, log_probability: T; "
        "T: float32|float64"
    )
    not_differentiable = True
    host_only = True  # beam search has no loop form
    beam_width: int
    top_paths: int
    merge_repeated: bool = True

    def shape(self, inputs: Tensor, sequence_length: Tensor) -> list[Any]:
        if self.top_paths > self.beam_width:
            raise ValueError(
                f"top_paths {self.top_paths} must be at most the beam_width {self.beam_width}"
            )
        count, batch = self.top_paths, _shapes(inputs, sequence_length)
        return [
            [matrix(None, 2)] * count,
            [vector(None)] * count,
            [vector(2)] * count,
            matrix(batch, count),
        ]

    def numpy(self, inputs: Array, sequence_length: Array) -> list[Array]:
        check_lengths(inputs, sequence_length)
        paths: list[list[list[int]]] = []
        scores: list[list[float]] = []
        for row, length in enumerate(sequence_length.tolist()):
            found = self._search(inputs[:length, row].astype(np.float64))
            paths.append([path for path, _ in found])
            scores.append([score for _, score in found])
        decoded = [_sparse([row[rank] for row in paths]) for rank in range(self.top_paths)]
        by_part = [part for parts in zip(*decoded, strict=True) for part in parts]
        table = np.array(scores, inputs.dtype).reshape(len(scores), self.top_paths)
        return [*by_part, table]

    def _search(self, logits: Array) -> list[tuple[list[int], float]]:
        beam = Beam(self.beam_width)
        for frame in logits - logits.max(-1, keepdims=True, initial=-np.inf):
            beam.step(frame - np.log(np.exp(frame).sum()))
        found = beam.best(self.top_paths)
        if len(found) < self.top_paths:
            raise errors.invalid(
                f"Less leaves in the beam search than requested: {len(found)} of {self.top_paths}"
            )
        return [(_merged(path) if self.merge_repeated else path, score) for path, score in found]


def _merged(path: list[int]) -> list[int]:
    return [label for i, label in enumerate(path) if i == 0 or label != path[i - 1]]


class Beam:
    """The most probable prefixes so far, with the probabilities that they end in a blank or not.

    Prefixes are nodes of a tree: each knows its parent and whether that is in the beam, too.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._parents, self._labels = [-1], [-1]
        self._children: dict[tuple[int, int], int] = {}
        self._nodes = np.zeros(1, np.int64)
        self._blank, self._label = np.zeros(1), np.full(1, -np.inf)

    def step(self, log_y: Array) -> None:
        """Process a frame of log probabilities; the blank's is last."""
        total = np.logaddexp(self._blank, self._label)
        last = np.array([self._labels[node] for node in self._nodes.tolist()])
        spoken = np.flatnonzero(last >= 0)
        grown = total[:, None] + log_y[None, :-1]
        # A repeated label is a new one only after a blank.
        grown[spoken, last[spoken]] = (self._blank + log_y[last])[spoken]
        blank = total + log_y[-1]
        label = np.where(last >= 0, self._label + log_y[last], -np.inf)
        for place, parent in self._parents_in_beam():
            label[place] = np.logaddexp(label[place], grown[parent, last[place]])
            grown[parent, last[place]] = -np.inf
        self._keep_best(blank, label, grown)

    def _parents_in_beam(self) -> list[tuple[int, int]]:
        """Pairs of positions in the beam: a prefix, and its parent if that is in the beam."""
        nodes = self._nodes.tolist()
        places = {node: place for place, node in enumerate(nodes)}
        pairs = ((place, places.get(self._parents[node])) for place, node in enumerate(nodes))
        return [(place, parent) for place, parent in pairs if parent is not None]

    def _keep_best(self, blank: Array, label: Array, grown: Array) -> None:
        count = len(blank)
        scores = np.concatenate([np.logaddexp(blank, label), grown.ravel()])
        best = np.argsort(-scores, kind="stable")[: self._width]
        best = best[scores[best] > -np.inf]
        old, new = best[best < count], best[best >= count] - count
        branches = [
            self._child(int(self._nodes[i]), int(j))
            for i, j in zip(new // grown.shape[1], new % grown.shape[1], strict=True)
        ]
        self._nodes = np.concatenate([self._nodes[old], np.array(branches, np.int64)])
        self._blank = np.concatenate([blank[old], np.full(len(new), -np.inf)])
        self._label = np.concatenate([label[old], grown.ravel()[new]])

    def _child(self, parent: int, label: int) -> int:
        node = self._children.setdefault((parent, label), len(self._parents))
        if node == len(self._parents):
            self._parents.append(parent)
            self._labels.append(label)
        return node

    def best(self, count: int) -> list[tuple[list[int], float]]:
        """The most probable prefixes, best first, with their log probabilities."""
        total = np.logaddexp(self._blank, self._label)
        order = np.argsort(-total, kind="stable")[:count]
        return [(self._path(int(self._nodes[i])), float(total[i])) for i in order]

    def _path(self, node: int) -> list[int]:
        path: list[int] = []
        while self._parents[node] >= 0:
            path.append(self._labels[node])
            node = self._parents[node]
        return path[::-1]


@public("nn.ctc_beam_search_decoder")
def ctc_beam_search_decoder(
    inputs: Any,
    sequence_length: Any,
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
) -> tuple[list[SparseTensor], Tensor]:
    """(the `top_paths` best label sequences, their log probabilities)."""
    op = CTCBeamSearchDecoder(
        beam_width=int(beam_width), top_paths=int(top_paths), merge_repeated=bool(merge_repeated)
    )
    indices, values, shapes, log_probability = op(inputs, sequence_length)
    parts = zip(indices, values, shapes, strict=True)
    return [SparseTensor(*part) for part in parts], log_probability


@public("nn.ctc_beam_search_decoder_v2")
def ctc_beam_search_decoder_v2(
    inputs: Any, sequence_length: Any, beam_width: int = 100, top_paths: int = 1
) -> tuple[list[SparseTensor], Tensor]:
    """`ctc_beam_search_decoder` without merging repeated labels."""
    return ctc_beam_search_decoder(inputs, sequence_length, beam_width, top_paths, False)
