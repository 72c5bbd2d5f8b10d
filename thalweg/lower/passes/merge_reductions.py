"""Merges sums of contractions into one contraction.

The gradient of a weight that is used in every iteration of an unrolled loop is a sum of products:
dW = Σ aₜᵀ bₜ. If all aₜ are contiguous in memory, and all bₜ, the iteration t becomes one more
reduced variable: one long contraction instead of many short ones and their sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

from thalweg.ir.expr import Accumulated, Call, Expr, Load, Variable
from thalweg.ir.fingerprint import structure
from thalweg.ir.index import Affine, index_of, number
from thalweg.ir.kernel import Access, Contraction
from thalweg.ir.rewrite import Fold, walk
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces, nested_buffers
from thalweg.lower.nests.loop_nest import (
    LoopNest,
    NestTemplate,
    Positions,
    Renaming,
    renaming,
    users_of,
)


def merge_reductions(nests: Sequence[LoopNest], pieces: Pieces, target: Target) -> list[LoopNest]:
    """The nests with sums of equivalent contractions merged; adds their factors to `pieces`."""
    writers, readers = users_of(nests)
    least = target.min_merged_contractions
    result: list[LoopNest | None] = list(nests)
    adds_many = cache(partial(_adds_many, least=least))
    for position, nest in enumerate(nests):
        groups = _groups(nests, nest, writers, readers, least) if adds_many(nest.template) else ()
        for chain, group in groups:
            merged = _merged([nests[term] for term in group], nest, chain, pieces)
            if merged is None:
                continue
            for term in group:
                result[term] = None
            result[position] = merged
            break  # the nest has a product now
    return [nest for nest in result if nest is not None]


def _adds_many(template: NestTemplate, least: int) -> bool:
    """Whether a template is one elementwise write with a sum of enough loads in it."""
    if template.product is not None or len(template.writes) != 1 or template.has_reductions:
        return False
    return any(len(_summed_loads(chain)) >= least for chain in _sums(template.writes[0].value))


def _groups(
    nests: Sequence[LoopNest],
    total: LoopNest,
    writers: Positions,
    readers: Positions,
    least: int,
) -> list[tuple[Expr, list[int]]]:
    """The sums in a nest, each with a group of equivalent contractions that only it reads."""
    groups: list[tuple[Expr, list[int]]] = []
    for chain in _sums(total.writes[0].value):
        equivalent: dict[Any, list[int]] = defaultdict(list)
        for buffer, offset in _summed_loads(chain):
            if buffer.kind is not BufferKind.TEMPORARY or len(readers[buffer]) != 1:
                continue
            positions = writers[buffer]
            nest = nests[positions[0]] if len(positions) == 1 else None
            if nest is not None and _is_contraction(nest) and _is_aligned(nest, total, offset):
                equivalent[_key_of(nest)] += positions
        distinct = [group for group in equivalent.values() if len(set(group)) == len(group)]
        groups += [(chain, group) for group in distinct if len(group) >= least]
    return groups


def _is_aligned(nest: LoopNest, total: LoopNest, offset: Affine) -> bool:
    """Whether a sum reads a contraction at the offset that it is written at."""
    written = structure([nest.writes[0].offset], nest.variables)
    return nest.domain == total.domain and written == structure([offset], total.variables)


def _is_sum(part: Expr) -> bool:
    return isinstance(part, Call) and part.function == "add"


def _sums(value: Expr) -> list[Expr]:
    """The sums in an expression that are not terms of larger sums."""
    parts = walk(
        [value], lambda part: () if isinstance(part, Load) or _is_sum(part) else part.parts
    )
    return [part for part in parts if _is_sum(part)]


def _summed_loads(chain: Expr) -> list[tuple[Buffer, Affine]]:
    """The loads among the terms of a sum."""
    loads: list[tuple[Buffer, Affine]] = []
    pending = [chain]
    while pending:
        part = pending.pop()
        if _is_sum(part):
            pending += part.parts
        elif isinstance(part, Load):
            loads.append((part.buffer, part.offset))
    return loads


def _is_contraction(nest: LoopNest) -> bool:
    """Whether a nest is a contraction of two temporaries without an epilogue."""
    match nest.product, nest.values:
        case Contraction(a=Access(value=Load() as a), b=Access(value=Load() as b)), [Accumulated()]:
            return all(load.buffer.kind is BufferKind.TEMPORARY for load in (a, b))
        case _:
            return False


def _key_of(nest: LoopNest) -> Any:
    """The key of a contraction: equal for those that differ in their buffers alone."""
    product = nest.product
    assert product is not None
    factors, bounds = (product.a, product.b), product.bounds
    offsets = [*(f.load.offset for f in factors), *(offset for _, offset, _ in bounds)]
    sizes = tuple(factor.load.buffer.size for factor in factors)
    limits = tuple((low, high) for low, _, high in bounds), len(product.a.bounds)
    same = structure([*offsets, nest.writes[0].offset], (*nest.variables, *product.reduced))
    return same, limits, sizes, product.dtype


def _merged(
    products: Sequence[LoopNest], total: LoopNest, chain: Expr, pieces: Pieces
) -> LoopNest | None:
    """One contraction that replaces several and their sum; None if the factors cannot be
    contiguous."""
    first = products[0]
    contractions = [nest.product for nest in products if nest.product is not None]
    steps = Variable.fresh(len(products))
    a = _merged_factor([contraction.a for contraction in contractions], steps, pieces)
    b = _merged_factor([contraction.b for contraction in contractions], steps, pieces)
    if a is None or b is None:
        return None
    product = replace(contractions[0], reduced=(steps, *contractions[0].reduced), a=a, b=b)
    buffers = {nest.writes[0].buffer for nest in products}
    remaining = Fold(lambda part, left: _without_terms(part, left, buffers)).of(chain)
    onto = renaming(total.variables, first.variables)
    sums = Accumulated(product.dtype)
    value = sums if remaining is None else sums + Renaming(onto).of(remaining)
    rename = Renaming(onto, lambda part: value if part is chain else None)
    writes = (rename.store(total.writes[0]),)
    nodes = tuple(dict.fromkeys(n for nest in (*products, total) for n in nest.nodes))
    aliases = frozenset(f.load.buffer for c in contractions for f in (c.a, c.b))
    return LoopNest(NestTemplate(first.variables, writes, product), nodes, aliases)


def _merged_factor(factors: Sequence[Access], steps: Variable, pieces: Pieces) -> Access | None:
    """The factors of all iterations as one over a buffer that holds them contiguously."""
    buffers = [factor.load.buffer for factor in factors]
    if len(set(buffers)) == len(buffers) and nested_buffers(pieces).isdisjoint(buffers):
        size = buffers[0].size
        whole = Buffer.temporary(buffers[0].dtype, size * len(buffers), buffers[0].source)
        pieces.update((b, (whole, position * size)) for position, b in enumerate(buffers))
    if not pieces.keys() >= set(buffers):
        return None
    views = [pieces[buffer] for buffer in buffers]
    strides = {after[1] - before[1] for before, after in pairwise(views)}
    if len({whole for whole, _ in views}) > 1 or len(strides) > 1:
        return None
    (whole, start), (stride,) = views[0], strides
    offset = factors[0].load.offset + index_of(steps).scaled(stride) + number(start)
    return Access(Load(whole, offset), factors[0].bounds)


def _without_terms(part: Expr, remaining: Fold[Expr | None], buffers: set[Buffer]) -> Expr | None:
    """A sum without the loads from some buffers; None if no term remains."""
    if isinstance(part, Load) and part.buffer in buffers:
        return None
    if not _is_sum(part):
        return part
    first, second = remaining.parts(part)
    return second if first is None else first if second is None else first + second
