"""Fractional pooling: pooling over regions of random, nearly equal sizes.

An axis of n elements is divided into floor(n / ratio) regions; their boundaries are redrawn in each
step, and returned with the result for the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.analysis.effects import Resource, writes
from thalweg.graph.known import constant_value_as_shape
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, vector
from thalweg.ops.core import shaping
from thalweg.ops.core.context import Context
from thalweg.ops.random.philox import Stream, Words
from thalweg.platform.arrays import Array
from thalweg.public import public

_SPARE_BLOCKS = 64  # a shuffle may reject numbers


class Tap:
    """One element of every region: its offset within the regions of rows and of columns."""

    def __init__(self, rows: Regions, columns: Regions, row: int, column: int) -> None:
        self.rows = np.minimum(rows.starts + row, rows.ends - 1)
        self.columns = np.minimum(columns.starts + column, columns.ends - 1)
        self.inside = np.ix_(rows.starts + row < rows.ends, columns.starts + column < columns.ends)

    def of(self, x: Array) -> Array:
        """The elements of `x`, one per region; regions that are too small repeat their last."""
        return x[:, self.rows[:, None], self.columns[None, :], :]

    def mask(self, shape: Sequence[int]) -> Array:
        """Whether each region has this element; the mask broadcasts to the output."""
        present = np.zeros(shape, np.bool_)
        present[self.inside] = True
        return present[None, :, :, None]

    def add(self, total: Array, parts: Array) -> None:
        """Add one part per region to the element; at one offset all regions are disjoint."""
        rows, columns = (np.ravel(index) for index in self.inside)
        kept = parts[:, rows[:, None], columns[None, :], :]
        total[:, self.rows[rows][:, None], self.columns[columns][None, :], :] += kept


class Regions:
    """The begins and ends of the regions of one axis."""

    def __init__(self, sequence: Array, overlapping: bool) -> None:
        self.starts = sequence[:-1]
        ends = sequence[1:] + 1 if overlapping else sequence[1:]
        self.ends = np.minimum(ends, sequence[-1])

    @property
    def longest(self) -> int:
        """The size of the largest region."""
        return int((self.ends - self.starts).max(initial=0))

    def __len__(self) -> int:
        return len(self.starts)


def _taps(rows: Regions, columns: Regions) -> Iterator[Tap]:
    for row in range(rows.longest):
        for column in range(columns.longest):
            yield Tap(rows, columns, row, column)


def draw_sequence(size: int, count: int, pseudo_random: bool, random: Words) -> Array:
    """The begins of `count` regions of an axis of `size` elements, and its end.

    Region sizes are floor(size / count) or one more. Random regions are shuffled;
    pseudo-random ones follow ceil(alpha (i + u)), for one random u (Graham, 2014).
    """
    small, larger = divmod(size, count)
    if larger == 0:
        sizes = np.full(count, small)
    elif pseudo_random:
        return _pseudo_random(size, count, random)
    else:
        sizes = np.full(count, small)
        sizes[:larger] += 1
        _shuffle(sizes, random)
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _shuffle(values: Array, random: Words) -> None:
    for last in range(len(values) - 1, 0, -1):
        other = random.below(last + 1)
        values[[last, other]] = values[[other, last]]


def _pseudo_random(size: int, count: int, random: Words) -> Array:
    alpha = size / count
    small = math.floor(alpha)
    limits = (small + 2) / alpha - 1, (size + 1 - small) / alpha - (count - 1)
    shift = random.float64() * min(limits)
    sequence = np.ceil(alpha * (np.arange(count + 1) + shift)).astype(np.int64) - 1
    sequence[0], sequence[-1] = 0, size
    return sequence


class FractionalPooling(Op, abstract=True):
    """The base of fractional poolings: regions, redrawn in each step."""

    stateful = True
    effects = (writes(Resource.STREAM),)
    host_only = True  # the regions are drawn without replacement
    pooling_ratio: tuple[float, ...]
    pseudo_random: bool = False
    overlapping: bool = False
    deterministic: bool = False
    seed: int = 0
    seed2: int = 0

    def shape(self, value: Tensor) -> list[TensorShape]:
        sizes = value.shape.with_rank(4).as_list()
        ratios = zip(sizes, self.pooling_ratio, strict=True)
        pooled = tuple(None if n is None else int(n / ratio) for n, ratio in ratios)
        edges = [vector(None if n is None else n + 1) for n in pooled[1:3]]
        return [TensorShape.of(pooled), *edges]

    def kernel(self, context: Context, value: Array) -> tuple[Array, Array, Array]:
        if value.ndim != 4:
            raise errors.invalid(f"value must be 4-dimensional, got shape {list(value.shape)}")
        random = self._words(context, sum(value.shape[1:3]) + _SPARE_BLOCKS)
        rows, columns = (
            draw_sequence(n, int(n / ratio), self.pseudo_random, random)
            for n, ratio in zip(value.shape[1:3], self.pooling_ratio[1:3], strict=True)
        )
        regions = Regions(rows, self.overlapping), Regions(columns, self.overlapping)
        return self.pooled(value, *regions), rows, columns

    def _words(self, context: Context, blocks: int) -> Words:
        """The node's random numbers: the next of its stream, or the same in each step."""
        if self.deterministic:
            return Words(context.state(lambda: Stream(self.seed, self.seed2).reserve(blocks)))
        return Words(context.state(lambda: Stream(self.seed, self.seed2)).reserve(blocks))

    def pooled(self, x: Array, rows: Regions, columns: Regions) -> Array:
        """One element per region."""
        raise TypeError(f"{self.type_name} does not say how it pools")


class FractionalMaxPool(FractionalPooling):
    """y = the maximum of x in each region"""

    signature = (
        "value: T -> output: T, row_pooling_sequence: int64, col_pooling_sequence: int64; "
        "T: float32|float64|int32|int64"
    )

    def pooled(self, x: Array, rows: Regions, columns: Regions) -> Array:
        return _largest(x, rows, columns)

    def gradient(self, node: Node, dy: Tensor, *_: Any) -> Tensor:
        op = FractionalMaxPoolGrad(overlapping=self.overlapping)
        return op(node.inputs[0], node.outputs[0], dy, *node.outputs[1:])


def _largest(x: Array, rows: Regions, columns: Regions) -> Array:
    taps = _taps(rows, columns)
    largest = next(taps).of(x)
    for tap in taps:
        np.maximum(largest, tap.of(x), out=largest)
    return largest


class FractionalMaxPoolGrad(Op):
    """dx = dy, added at the (first) maximum of each region"""

    signature = (
        "orig_input: T, orig_output: T, out_backprop: T, row_pooling_sequence: int64, "
        "col_pooling_sequence: int64 -> output: T; T: float32|float64|int32|int64"
    )
    host_only = True  # the sizes of the regions depend on data
    overlapping: bool = False

    def shape(self, orig_input: Tensor, *_: Tensor) -> TensorShape:
        return orig_input.shape.with_rank(4)

    def numpy(self, x: Array, y: Array, dy: Array, rows: Array, columns: Array) -> Array:
        regions = Regions(rows, self.overlapping), Regions(columns, self.overlapping)
        dx = np.zeros(x.shape, dy.dtype)
        open_ = np.ones(dy.shape, np.bool_)
        for tap in _taps(*regions):
            first = (tap.of(x) == y) & open_ & tap.mask(dy.shape[1:3])
            tap.add(dx, dy * first)
            open_ ^= first
        return dx


class FractionalAvgPool(FractionalPooling):
    """y = the mean of x in each region"""

    signature = (
        "value: T -> output: T, row_pooling_sequence: int64, col_pooling_sequence: int64; "
        "T: float32|float64|int32|int64"
    )

    def pooled(self, x: Array, rows: Regions, columns: Regions) -> Array:
        total = np.zeros((len(x), len(rows), len(columns), x.shape[-1]), x.dtype)
        for tap in _taps(rows, columns):
            total += tap.of(x) * tap.mask(total.shape[1:3])
        return (total / _areas(rows, columns)).astype(x.dtype)

    def gradient(self, node: Node, dy: Tensor, *_: Any) -> Tensor:
        op = FractionalAvgPoolGrad(overlapping=self.overlapping)
        sizes = shaping.shape(node.inputs[0], out_type=dtypes.int64)
        return op(sizes, dy, *node.outputs[1:])


def _areas(rows: Regions, columns: Regions) -> Array:
    heights, widths = rows.ends - rows.starts, columns.ends - columns.starts
    return (heights[:, None] * widths[None, :])[None, :, :, None]


class FractionalAvgPoolGrad(Op):
    """dx = dy, distributed evenly over each region"""

    signature = (
        "orig_input_tensor_shape: int64, out_backprop: T, row_pooling_sequence: int64, "
        "col_pooling_sequence: int64 -> output: T; T: float32|float64|int32|int64"
    )
    host_only = True  # the sizes of the regions depend on data
    overlapping: bool = False

    def shape(self, orig_input_tensor_shape: Tensor, *_: Tensor) -> TensorShape:
        return constant_value_as_shape(orig_input_tensor_shape).with_rank(4)

    def numpy(self, sizes: Array, dy: Array, rows: Array, columns: Array) -> Array:
        regions = Regions(rows, self.overlapping), Regions(columns, self.overlapping)
        part = dy / _areas(*regions)
        dx = np.zeros(sizes.tolist(), part.dtype)
        for tap in _taps(*regions):
            tap.add(dx, part)
        return dx.astype(dy.dtype)


@public("nn.fractional_max_pool")
def fractional_max_pool(
    value: Any,
    pooling_ratio: float | Sequence[float],
    pseudo_random: bool = False,
    overlapping: bool = False,
    deterministic: bool = False,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> Any:
    """Max pooling over random regions: (output, row_pooling_sequence, col_pooling_sequence)."""
    op = FractionalMaxPool(
        pooling_ratio=_ratios(pooling_ratio),
        pseudo_random=bool(pseudo_random),
        overlapping=bool(overlapping),
        deterministic=bool(deterministic),
        seed=seed or 0,
        seed2=seed2 or 0,
    )
    return op(value, name=name)


@public("nn.fractional_avg_pool")
def fractional_avg_pool(
    value: Any,
    pooling_ratio: float | Sequence[float],
    pseudo_random: bool = False,
    overlapping: bool = False,
    deterministic: bool = False,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> Any:
    """Mean pooling over random regions: (output, row_pooling_sequence, col_pooling_sequence)."""
    op = FractionalAvgPool(
        pooling_ratio=_ratios(pooling_ratio),
        pseudo_random=bool(pseudo_random),
        overlapping=bool(overlapping),
        deterministic=bool(deterministic),
        seed=seed or 0,
        seed2=seed2 or 0,
    )
    return op(value, name=name)


def _ratios(pooling_ratio: Any) -> tuple[float, ...]:
    given = tuple(float(ratio) for ratio in pooling_ratio)
    if len(given) != 4:
        raise ValueError(f"pooling_ratio must have 4 entries, got {list(given)}")
    if given[0] != 1 or given[3] != 1:
        raise ValueError(f"pooling_ratio must be 1 in batch and depth, got {list(given)}")
    if min(given) < 1:
        raise ValueError(f"pooling_ratio must be at least 1, got {list(given)}")
    return given
