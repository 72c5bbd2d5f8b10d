"""Transposes a factor once for many small contractions.

In every iteration of an unrolled loop's gradient a few rows are multiplied by the same transposed
weights: dx = dy Wᵀ. Each such product would transpose the weights as it packs them. Where there are
several, a transposed copy is stored once, and all of them read that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from thalweg.ir.expr import Load
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Contraction, Store
from thalweg.ir.loop import Variable, iterations
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate


@dataclass(frozen=True)
class _Matrix:
    """A factor that is a matrix in a buffer, its columns `stride` elements apart."""

    buffer: Buffer
    start: int
    stride: int
    columns: int
    depth: int


def pretranspose(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests with transposed copies of factors that several contractions read."""
    users: dict[_Matrix, list[int]] = defaultdict(list)
    rows = range(target.min_pretransposed_rows, target.max_pretransposed_rows + 1)
    for position, nest in enumerate(nests):
        # Most products are no such ones, which their templates tell.
        if _across(nest.template.product, rows) and (found := _across(nest.product, rows)):
            users[found].append(position)
    result = list(nests)
    templates: dict[NestTemplate, tuple[NestTemplate, Buffer]] = {}
    copies: dict[int, list[LoopNest]] = defaultdict(list)
    for matrix, positions in users.items():
        is_read_once = len(positions) < target.min_pretransposed_uses
        if is_read_once or _changes(nests, matrix.buffer, positions):
            continue
        size, buffer = matrix.columns * matrix.depth, matrix.buffer
        copy = Buffer.temporary(buffer.dtype, size, buffer.source)
        copies[positions[0]].append(_copy(nests[positions[0]], matrix, copy))
        for position in positions:
            result[position] = _reading(nests[position], copy, templates)
    return [each for at, nest in enumerate(result) for each in (*copies[at], nest)]


def _across(product: Contraction | None, rows: range) -> _Matrix | None:
    """The second factor of a product of few rows, if its reduced variable is contiguous."""
    if product is None or product.batch or product.b.bounds:
        return None
    value = product.b.value
    if not isinstance(value, Load):
        return None
    if len(product.columns) != 1 or len(product.reduced) != 1:
        return None
    if iterations(product.rows) not in rows:
        return None
    (column,), (inner,) = product.columns, product.reduced
    buffer, offset = value.buffer, value.offset
    if set(offset.terms) != {column, inner} or offset.terms[inner] != 1:
        return None
    stride = offset.terms[column]
    if stride < inner.extent or np.dtype(buffer.dtype) != np.dtype(product.dtype):
        return None
    return _Matrix(buffer, offset.constant, stride, column.extent, inner.extent)


def _changes(nests: Sequence[LoopNest], buffer: Buffer, positions: Sequence[int]) -> bool:
    """Whether a buffer is written between the first product and the last."""
    return any(buffer in nest.written for nest in nests[positions[0] : positions[-1]])


def _copy(user: LoopNest, matrix: _Matrix, copy: Buffer) -> LoopNest:
    inner, column = Variable.fresh(matrix.depth), Variable.fresh(matrix.columns)
    place = Affine(matrix.start, {column: matrix.stride, inner: 1})
    value = Load(matrix.buffer, place)
    loops = inner, column
    write = Store(copy, loops, Affine(0, {inner: matrix.columns, column: 1}), value)
    return LoopNest.of(loops, (write,), user.nodes[:1])


def _reading(
    nest: LoopNest, copy: Buffer, templates: dict[NestTemplate, tuple[NestTemplate, Buffer]]
) -> LoopNest:
    """A nest whose product reads the copy; instances of one template stay instances of one."""
    if nest.template not in templates:
        templates[nest.template] = _reading_template(nest.template, copy), copy
    template, first = templates[nest.template]
    return nest.with_template(template, {first: (copy, 0)})


def _reading_template(template: NestTemplate, copy: Buffer) -> NestTemplate:
    product = template.product
    assert product is not None
    (column,), (inner,) = product.columns, product.reduced
    place = Affine(0, {inner: column.extent, column: 1})
    factor = Access(Load(copy, place), ())
    return replace(template, product=replace(product, b=factor))
