"""Transposes a factor once for many small contractions.

In every iteration of an unrolled loop's gradient a few rows are multiplied by the same transposed
weights: dx = dy Wᵀ. Each such product would transpose the weights while packing them. Where there
are several, a transposed copy is stored once, and all of them read it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from thalweg.ir.expr import Load, Variable
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Contraction, Store
from thalweg.ir.loop import iterations
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
        # Most templates have no such factor: their instances need not be looked at.
        if _transposed(nest.template.product, rows) and (factor := _transposed(nest.product, rows)):
            users[factor].append(position)
    result = list(nests)
    reading = cache(_template_reading)  # instances of one template stay instances of one
    copies: dict[int, list[LoopNest]] = defaultdict(list)
    for matrix, positions in users.items():
        size, buffer = matrix.columns * matrix.depth, matrix.buffer
        between = nests[positions[0] : positions[-1]]
        is_rare = len(positions) < target.min_pretransposed_uses
        if is_rare or any(buffer in nest.written for nest in between):
            continue
        copy = Buffer.temporary(buffer.dtype, size, buffer.source)
        copies[positions[0]].append(_copy(nests[positions[0]], matrix, copy))
        for position in positions:
            template, first = reading(nests[position].template)
            result[position] = nests[position].with_template(template, {first: (copy, 0)})
    return [output for number, nest in enumerate(result) for output in (*copies[number], nest)]


def _transposed(product: Contraction | None, rows: range) -> _Matrix | None:
    """The second factor of a product of few rows, if its reduced variable is contiguous."""
    match product:
        case Contraction(
            batch=(), columns=(column,), reduced=(inner,), b=Access(value=Load() as load, bounds=())
        ) if iterations(product.rows) in rows:
            buffer, offset = load.buffer, load.offset
        case _:
            return None
    if set(offset.terms) != {column, inner} or offset.terms[inner] != 1:
        return None
    stride = offset.terms[column]
    if stride < inner.extent or np.dtype(buffer.dtype) != np.dtype(product.dtype):
        return None
    return _Matrix(buffer, offset.constant, stride, column.extent, inner.extent)


def _copy(user: LoopNest, matrix: _Matrix, copy: Buffer) -> LoopNest:
    inner, column = Variable.fresh(matrix.depth), Variable.fresh(matrix.columns)
    offset = Affine(matrix.start, {column: matrix.stride, inner: 1})
    value = Load(matrix.buffer, offset)
    loops = inner, column
    write = Store(copy, loops, Affine(0, {inner: matrix.columns, column: 1}), value)
    return LoopNest(NestTemplate(loops, (write,)), user.nodes[:1])


def _template_reading(template: NestTemplate) -> tuple[NestTemplate, Buffer]:
    """A template whose product reads a transposed copy, and the copy."""
    product = template.product
    assert product is not None
    (column,), (inner,) = product.columns, product.reduced
    copy = replace(product.b.load.buffer)
    factor = Access(Load(copy, Affine(0, {inner: column.extent, column: 1})))
    return replace(template, product=replace(product, b=factor)), copy
