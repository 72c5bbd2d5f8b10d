"""Factors of many small products, turned round once for all of them.

At every step of an unrolled loop's gradient a few rows meet the same weights, read across their
rows: dx = dy Wᵀ. Each such product would turn the weights round on its way. Where there are
several, a copy whose columns lie side by side is made once, and all of them read that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from thalweg.ir.expr import Load
from thalweg.ir.index import Affine
from thalweg.ir.loop import Variable
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.loop_nest import Factor, LoopNest, NestTemplate, Product, Write


@dataclass(frozen=True)
class _Turned:
    """What a factor is: a matrix in a buffer, its columns as far apart as `stride` says."""

    buffer: Buffer
    start: int
    stride: int
    columns: int
    depth: int


def pretranspose(drafts: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The drafts with copies of factors that several products would turn round."""
    users: dict[_Turned, list[int]] = defaultdict(list)
    rows = range(target.min_pretransposed_rows, target.max_pretransposed_rows + 1)
    for position, draft in enumerate(drafts):
        found = None if draft.product is None else _across(draft.product, rows)
        if found is not None:
            users[found].append(position)
    result = list(drafts)
    nests: dict[NestTemplate, tuple[NestTemplate, Buffer]] = {}
    copies: dict[int, list[LoopNest]] = defaultdict(list)
    for matrix, positions in users.items():
        is_read_once = len(positions) < target.min_pretransposed_uses
        if is_read_once or _changes(drafts, matrix.buffer, positions):
            continue
        home = Buffer(
            BufferKind.TEMPORARY,
            matrix.buffer.dtype,
            matrix.columns * matrix.depth,
            matrix.buffer.source,
        )
        copies[positions[0]].append(_copy(drafts[positions[0]], matrix, home))
        for position in positions:
            result[position] = _reading(drafts[position], home, nests)
    return [each for at, draft in enumerate(result) for each in (*copies[at], draft)]


def _across(product: Product, rows: range) -> _Turned | None:
    """The second factor of a product of few rows, if its sums run along memory."""
    value = product.b.value
    if product.batch or product.b.bounds or not isinstance(value, Load):
        return None
    if len(product.columns) != 1 or len(product.reduced) != 1:
        return None
    if prod(variable.extent for variable in product.rows) not in rows:
        return None
    (column,), (inner,) = product.columns, product.reduced
    buffer, offset = value.buffer, value.offset
    if set(offset.terms) != {column, inner} or offset.terms[inner] != 1:
        return None
    stride = offset.terms[column]
    if stride < inner.extent or np.dtype(buffer.dtype) != np.dtype(product.dtype):
        return None
    return _Turned(buffer, offset.constant, stride, column.extent, inner.extent)


def _changes(drafts: Sequence[LoopNest], buffer: Buffer, positions: Sequence[int]) -> bool:
    """Whether a buffer is written between the first product and the last."""
    return any(buffer in draft.written for draft in drafts[positions[0] : positions[-1]])


def _copy(user: LoopNest, matrix: _Turned, home: Buffer) -> LoopNest:
    inner, column = Variable.fresh(matrix.depth), Variable.fresh(matrix.columns)
    place = Affine(matrix.start, {column: matrix.stride, inner: 1})
    value = Load(matrix.buffer, place)
    nest = inner, column
    write = Write(home, nest, Affine(0, {inner: matrix.columns, column: 1}), value)
    return LoopNest.of(nest, (write,), user.nodes[:1])


def _reading(
    draft: LoopNest, home: Buffer, nests: dict[NestTemplate, tuple[NestTemplate, Buffer]]
) -> LoopNest:
    """A draft whose product reads the copy; drafts of one nest are still of one."""
    if draft.nest not in nests:
        nests[draft.nest] = _reading_nest(draft.nest, home), home
    nest, first = nests[draft.nest]
    return draft.changed(nest, {first: (home, 0)})


def _reading_nest(nest: NestTemplate, home: Buffer) -> NestTemplate:
    product = nest.product
    assert product is not None
    (column,), (inner,) = product.columns, product.reduced
    place = Affine(0, {inner: column.extent, column: 1})
    factor = Factor(Load(home, place), ())
    return replace(nest, product=replace(product, b=factor))
