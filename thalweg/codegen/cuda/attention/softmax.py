"""Online softmax: the weights of scores that are computed tile by tile, in one pass.

Exponentials are relative to the maximum of the row so far; when it grows, earlier sums are
rescaled. Four lanes share a row: they exchange the maxima of each tile, and add their sums of
exponentials at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thalweg.codegen.cuda.attention.weights import exponential
from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.llvm.builder import FLOAT, Value, constant

Scores = list[list[list[Value]]]

_NEGATIVE = -float(np.inf)


class OnlineSoftmax:
    """The rows of a lane, two per tile, with their maximum and sum of exponentials."""

    def __init__(self, frame: GridFrame, scale: float, lane: Value) -> None:
        """`scale`: the positive factor of all scores."""
        self._frame, self._scale = frame, scale
        self._neighbours = [frame.b.binary("xor", lane, frame.i32(n)) for n in (1, 2)]

    def initial(self, tiles: int) -> list[Value]:
        """The initial state: maxima, and sums."""
        return [constant(FLOAT, _NEGATIVE), constant(FLOAT, 0)] * 2 * tiles

    def step(
        self, scores: Scores, state: Sequence[Value]
    ) -> tuple[Scores, list[list[Value]], list[Value]]:
        """The weights of a tile of scores, the factors of earlier sums, and the new state."""
        weights: Scores = []
        factors: list[list[Value]] = []
        following: list[Value] = []
        for tile, line in enumerate(scores):
            halves: list[list[list[Value]]] = []
            factors.append([])
            for half in range(2):
                at = 4 * tile + 2 * half
                mine = [four[2 * half : 2 * half + 2] for four in line]
                made, factor, after = self._row(mine, state[at], state[at + 1])
                halves.append(made)
                factors[-1].append(factor)
                following += after
            weights.append([[*a, *b] for a, b in zip(*halves, strict=True)])
        return weights, factors, following

    def _row(
        self, scores: list[list[Value]], largest: Value, total: Value
    ) -> tuple[list[list[Value]], Value, list[Value]]:
        frame, b = self._frame, self._frame.b
        top = self._largest([largest, *(value for pair in scores for value in pair)])
        for lane in self._neighbours:
            top = self._largest([top, frame.grid.from_lane(top, lane)])
        none = b.compare("oeq", top, _NEGATIVE)
        less = b.select(none, constant(FLOAT, 0), top)  # avoids inf - inf
        less = b.binary("fmul", less, self._scale)
        factor = exponential(frame, largest, self._scale, less)
        weights = [
            [exponential(frame, value, self._scale, less) for value in pair] for pair in scores
        ]
        added = b.binary("fmul", total, factor)
        for pair in weights:
            added = b.binary("fadd", added, b.binary("fadd", *pair))
        return weights, factor, [top, added]

    def totals(self, state: Sequence[Value]) -> list[list[tuple[Value, Value]]]:
        """The maximum and the sum of exponentials of each row, in all of its lanes."""
        frame, result = self._frame, list[list[tuple[Value, Value]]]()
        for at in range(0, len(state), 4):
            pair: list[tuple[Value, Value]] = []
            for largest, total in (state[at : at + 2], state[at + 2 : at + 4]):
                for lane in self._neighbours:
                    other = frame.grid.from_lane(total, lane)
                    total = frame.b.binary("fadd", total, other)
                score = frame.b.binary("fmul", largest, self._scale)
                pair.append((score, total))
            result.append(pair)
        return result

    def _largest(self, values: Sequence[Value]) -> Value:
        """The maximum of the numbers that are not NaN: the weight of a NaN is NaN all the same."""
        b, result = self._frame.b, values[0]
        for value in values[1:]:
            result = b.intrinsic("maxnum", result, value)
        return result
