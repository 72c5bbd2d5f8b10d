"""Merges sums of contractions into one contraction.

A weight that is used in every iteration of an unrolled loop gets its gradient as a sum of products:
dW = Σ aₜᵀ bₜ. With all aₜ contiguous in memory, and all bₜ, the iteration t is one more reduced
variable: one long contraction instead of many short ones and their sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

from thalweg.ir.expr import Accumulated, Call, Expr, Load
from thalweg.ir.fingerprint import structure
from thalweg.ir.index import Affine, number
from thalweg.ir.index import variable as index_of
from thalweg.ir.kernel import Access
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import Fold, walk
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces
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
            merged = _merged([nests[place] for place in group], nest, chain, pieces)
            if merged is None:
                continue
            for place in group:
                result[place] = None
            result[position] = merged
            break  # the nest has a product now
    return [nest for nest in result if nest is not None]


def _adds_many(template: NestTemplate, least: int) -> bool:
    """Whether a template is one elementwise write with a sum of enough loads in it."""
    if template.product is not None or len(template.writes) != 1 or template.has_reductions:
        return False
    return any(len(_added(chain)) >= least for chain in _chains(template.writes[0].value))


def _groups(
    nests: Sequence[LoopNest],
    total: LoopNest,
    writers: Positions,
    readers: Positions,
    least: int,
) -> list[tuple[Expr, list[int]]]:
    """The sums in a nest, each with a group of equivalent contractions that only it reads."""
    found: list[tuple[Expr, list[int]]] = []
    for chain in _chains(total.writes[0].value):
        equivalent: dict[Any, list[int]] = defaultdict(list)
        for buffer, offset in _added(chain):
            if buffer.kind is not BufferKind.TEMPORARY or len(writers[buffer]) != 1:
                continue
            (place,) = writers[buffer]
            nest = nests[place]
            if len(readers[buffer]) == 1 and _is_bare(nest) and _meet(nest, total, offset):
                equivalent[_form(nest)].append(place)
        found += [(chain, group) for group in equivalent.values() if len(set(group)) >= least]
    return [(chain, group) for chain, group in found if len(set(group)) == len(group)]


def _meet(nest: LoopNest, total: LoopNest, offset: Affine) -> bool:
    """Whether a sum reads a contraction at the offset that it is written at."""
    mine = structure([nest.writes[0].offset], nest.variables)
    return nest.domain == total.domain and mine == structure([offset], total.variables)


def _is_sum(part: Expr) -> bool:
    return isinstance(part, Call) and part.function == "add"


def _chains(value: Expr) -> list[Expr]:
    """The sums in an expression that are not terms of larger sums."""
    parts = walk(
        [value], lambda part: () if isinstance(part, Load) or _is_sum(part) else part.parts
    )
    return [part for part in parts if _is_sum(part)]


def _added(chain: Expr) -> list[tuple[Buffer, Affine]]:
    """The loads among the terms of a sum."""
    found: list[tuple[Buffer, Affine]] = []
    pending = [chain]
    while pending:
        part = pending.pop()
        if _is_sum(part):
            pending += part.parts
        elif isinstance(part, Load):
            found.append((part.buffer, part.offset))
    return found


def _is_bare(nest: LoopNest) -> bool:
    """Whether a nest is a contraction of two temporaries without an epilogue."""
    product = nest.product
    if product is None or len(nest.writes) != 1:
        return False
    factors = [product.a.value, product.b.value]
    loads = [value for value in factors if isinstance(value, Load)]
    temporary = all(load.buffer.kind is BufferKind.TEMPORARY for load in loads)
    return len(loads) == 2 and temporary and isinstance(nest.writes[0].value, Accumulated)


def _form(nest: LoopNest) -> Any:
    """What equivalent contractions have in common: all but the buffers."""
    product = nest.product
    assert product is not None
    factors = product.a, product.b
    bounds = [bound for factor in factors for bound in factor.bounds]
    places = [*(f.load.offset for f in factors), *(place for _, place, _ in bounds)]
    sizes = tuple(factor.load.buffer.size for factor in factors)
    limits = tuple((low, high) for low, _, high in bounds), len(product.a.bounds)
    same = structure([*places, nest.writes[0].offset], (*nest.variables, *product.reduced))
    return same, limits, sizes, product.dtype


def _merged(
    products: Sequence[LoopNest], total: LoopNest, chain: Expr, pieces: Pieces
) -> LoopNest | None:
    """One contraction in place of several and of their sum; None if the factors are not
    contiguous."""
    first = products[0]
    assert first.product is not None
    steps = Variable.fresh(len(products))
    a, b = (
        _merged_factor([_factor(nest, side) for nest in products], steps, pieces) for side in (0, 1)
    )
    if a is None or b is None:
        return None
    product = replace(first.product, reduced=(steps, *first.product.reduced), a=a, b=b)
    gone = {nest.writes[0].buffer for nest in products}
    rest = Fold(lambda part, left: _left(part, left, gone)).of(chain)
    total_sum = Accumulated(product.dtype)
    value = total_sum if rest is None else total_sum + rest
    onto = renaming(total.variables, first.variables)
    rename = Renaming(onto, lambda part: value if part is chain else None)
    # The rest of the sum, which was put in as it is, has to be renamed as well.
    renamed = Renaming(onto).of(rename.of(total.writes[0].value))
    write = total.writes[0]
    done = replace(
        write, variables=first.variables, offset=rename.place(write.offset), value=renamed
    )
    nodes = tuple(dict.fromkeys(n for nest in (*products, total) for n in nest.nodes))
    checks = tuple(n for nest in (*products, total) for n in nest.checks)
    aliases = frozenset(_factor(nest, side).load.buffer for nest in products for side in (0, 1))
    return LoopNest.of(first.variables, (done,), nodes, product, checks, aliases=aliases)


def _factor(nest: LoopNest, side: int) -> Access:
    assert nest.product is not None
    return nest.product.b if side else nest.product.a


def _merged_factor(factors: Sequence[Access], steps: Variable, pieces: Pieces) -> Access | None:
    """The factors of all iterations as one over a buffer that holds them contiguously."""
    buffers = [factor.load.buffer for factor in factors]
    offset: Affine = factors[0].load.offset
    if all(buffer in pieces for buffer in buffers):
        places = [pieces[buffer] for buffer in buffers]
        strides = {now[1] - before[1] for before, now in pairwise(places)}
        if len({whole for whole, _ in places}) > 1 or len(strides) > 1:
            return None
        whole, start = places[0]
        (stride,) = strides
    elif len(set(buffers)) < len(buffers) or not _aliased(pieces).isdisjoint(buffers):
        return None
    else:
        size = buffers[0].size
        whole = Buffer.temporary(buffers[0].dtype, size * len(buffers), buffers[0].source)
        pieces.update((b, (whole, place * size)) for place, b in enumerate(buffers))
        start, stride = 0, size
    placed = offset + index_of(steps).scaled(stride)
    value = Load(whole, placed + number(start))
    return Access(value, factors[0].bounds)


def _aliased(pieces: Pieces) -> set[Buffer]:
    """The buffers that lie in others, and those that others lie in."""
    return {*pieces, *(whole for whole, _ in pieces.values())}


def _left(part: Expr, left: Fold[Expr | None], gone: set[Buffer]) -> Expr | None:
    """A sum of loads without those from some buffers; None if nothing is left."""
    if isinstance(part, Load) and part.buffer in gone:
        return None
    if not _is_sum(part):
        return part
    first, second = left.parts(part)
    return second if first is None else first if second is None else first + second
