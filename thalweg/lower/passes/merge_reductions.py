"""Sums of many products as one product.

A weight that is used at every step of an unrolled loop gets its gradient as a sum of products, one
per step: dW = Σ aₜᵀ bₜ. With all the aₜ one after the other in memory, and all the bₜ, the step is
one more variable to sum over: one long contraction instead of many short ones and their sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from thalweg.ir.expr import Accumulated, Call, Expr, Load
from thalweg.ir.fingerprint import structure
from thalweg.ir.index import Affine, number
from thalweg.ir.index import variable as index_of
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import Fold
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.loop_nest import (
    Factor,
    LoopNest,
    NestTemplate,
    Positions,
    Renaming,
    users_of,
)

#: For each buffer that lies inside another one: in which, and from which element on.
Pieces = dict[Buffer, tuple[Buffer, int]]


def merge_reductions(drafts: Sequence[LoopNest], pieces: Pieces, target: Target) -> list[LoopNest]:
    """The drafts with sums of products of one form joined; notes which buffers make up others."""
    writers, readers = users_of(drafts)
    least = target.min_merged_contractions
    result: list[LoopNest | None] = list(drafts)
    adds: dict[NestTemplate, bool] = {}  # whether nests hold sums that are long enough
    for position, draft in enumerate(drafts):
        if draft.nest not in adds:
            adds[draft.nest] = _adds_many(draft.nest, least)
        groups = _groups(drafts, draft, writers, readers, least) if adds[draft.nest] else ()
        for chain, group in groups:
            joined = _joined([drafts[place] for place in group], draft, chain, pieces)
            if joined is None:
                continue
            for place in group:
                result[place] = None
            result[position] = joined
            break  # the nest has one product now
    return [draft for draft in result if draft is not None]


def _adds_many(nest: NestTemplate, least: int) -> bool:
    """Whether a nest does nothing but compute with sums, of which one may be of many products."""
    if nest.product is not None or len(nest.writes) != 1 or nest.has_reductions:
        return False
    return any(len(_added(chain)) >= least for chain in _chains(nest.writes[0].value))


def _groups(
    drafts: Sequence[LoopNest],
    total: LoopNest,
    writers: Positions,
    readers: Positions,
    least: int,
) -> list[tuple[Expr, list[int]]]:
    """The products of one form that a sum inside a draft adds up and that nobody else reads."""
    found: list[tuple[Expr, list[int]]] = []
    for chain in _chains(total.writes[0].value):
        alike: dict[Any, list[int]] = defaultdict(list)
        for buffer, offset in _added(chain):
            if buffer.kind is not BufferKind.TEMPORARY or len(writers[buffer]) != 1:
                continue
            (place,) = writers[buffer]
            draft = drafts[place]
            if len(readers[buffer]) == 1 and _is_bare(draft) and _meet(draft, total, offset):
                alike[_form(draft)].append(place)
        found += [(chain, group) for group in alike.values() if len(set(group)) >= least]
    return [(chain, group) for chain, group in found if len(set(group)) == len(group)]


def _meet(draft: LoopNest, total: LoopNest, offset: Affine) -> bool:
    """Whether a sum reads a product at the place it was made."""
    mine = structure([draft.writes[0].offset], draft.variables)
    return draft.domain == total.domain and mine == structure([offset], total.variables)


def _is_sum(part: Expr) -> bool:
    return isinstance(part, Call) and part.function == "add"


def _chains(value: Expr) -> list[Expr]:
    """The sums in an expression that are not parts of larger sums."""
    found: list[Expr] = []
    pending, seen = [value], set[Expr]()
    while pending:
        part = pending.pop()
        if part in seen or isinstance(part, Load):
            continue
        seen.add(part)
        if _is_sum(part):
            found.append(part)
        else:
            pending += part.parts
    return found


def _added(chain: Expr) -> list[tuple[Buffer, Affine]]:
    """What a sum of loads adds up."""
    found: list[tuple[Buffer, Affine]] = []
    pending = [chain]
    while pending:
        part = pending.pop()
        if _is_sum(part):
            pending += part.parts
        elif isinstance(part, Load):
            found.append((part.buffer, part.offset))
    return found


def _is_bare(draft: LoopNest) -> bool:
    """Whether a draft is a product of two temporaries and nothing else."""
    product = draft.product
    if product is None or len(draft.writes) != 1:
        return False
    factors = [product.a.value, product.b.value]
    loads = [value for value in factors if isinstance(value, Load)]
    temporary = all(load.buffer.kind is BufferKind.TEMPORARY for load in loads)
    return len(loads) == 2 and temporary and isinstance(draft.writes[0].value, Accumulated)


def _form(draft: LoopNest) -> Any:
    """What products must have in common to be joined: all but the buffers."""
    product = draft.product
    assert product is not None
    factors = product.a, product.b
    bounds = [bound for factor in factors for bound in factor.bounds]
    places = [*(f.load.offset for f in factors), *(place for _, place, _ in bounds)]
    sizes = tuple(factor.buffer.size for factor in factors)
    limits = tuple((low, high) for low, _, high in bounds), len(product.a.bounds)
    same = structure([*places, draft.writes[0].offset], (*draft.variables, *product.reduced))
    return same, limits, sizes, product.dtype


def _joined(
    products: Sequence[LoopNest], total: LoopNest, chain: Expr, pieces: Pieces
) -> LoopNest | None:
    """One product in place of several and of their sum."""
    first = products[0]
    assert first.product is not None
    steps = Variable.fresh(len(products))
    a, b = (_stack([_factor(draft, side) for draft in products], steps, pieces) for side in (0, 1))
    if a is None or b is None:
        return None
    product = replace(first.product, reduced=(steps, *first.product.reduced), a=a, b=b)
    gone = {draft.writes[0].buffer for draft in products}
    rest = Fold(lambda part, left: _left(part, left, gone)).of(chain)
    total_sum = Accumulated(product.dtype)
    value = total_sum if rest is None else total_sum + rest
    rename = Renaming(_onto(total, first), lambda part: value if part is chain else None)
    # Within the sum's place stands what is left of it, which has to be renamed as well.
    moved = Renaming(_onto(total, first)).of(rename.of(total.writes[0].value))
    write = total.writes[0]
    done = replace(
        write, variables=first.variables, offset=rename.affine(write.offset), value=moved
    )
    nodes = tuple(dict.fromkeys(n for draft in (*products, total) for n in draft.nodes))
    needed = tuple(n for draft in (*products, total) for n in draft.needed)
    behind = frozenset(_factor(draft, side).buffer for draft in products for side in (0, 1))
    return LoopNest.of(first.variables, (done,), nodes, product, needed, behind=behind)


def _onto(draft: LoopNest, other: LoopNest) -> dict[Variable, Affine]:
    pairs = zip(draft.variables, other.variables, strict=True)
    return {mine: index_of(theirs) for mine, theirs in pairs if mine is not theirs}


def _factor(draft: LoopNest, side: int) -> Factor:
    assert draft.product is not None
    return draft.product.b if side else draft.product.a


def _stack(factors: Sequence[Factor], steps: Variable, pieces: Pieces) -> Factor | None:
    """The factors of all steps as one over a buffer that holds them one after the other."""
    buffers = [factor.buffer for factor in factors]
    offset: Affine = factors[0].load.offset
    if all(buffer in pieces for buffer in buffers):
        places = [pieces[buffer] for buffer in buffers]
        strides = {now[1] - before[1] for before, now in pairwise(places)}
        if len({home for home, _ in places}) > 1 or len(strides) > 1:
            return None
        home, start = places[0]
        (stride,) = strides
    elif len(set(buffers)) < len(buffers) or any(buffer in pieces for buffer in buffers):
        return None
    else:
        size = buffers[0].size
        home = Buffer(
            BufferKind.TEMPORARY, buffers[0].dtype, size * len(buffers), buffers[0].source
        )
        pieces.update((b, (home, place * size)) for place, b in enumerate(buffers))
        start, stride = 0, size
    placed = offset + index_of(steps).scaled(stride)
    value = Load(home, placed + number(start))
    return Factor(value, factors[0].bounds)


def _left(part: Expr, left: Fold[Expr | None], gone: set[Buffer]) -> Expr | None:
    """What is left of a sum of loads without those of some buffers."""
    if isinstance(part, Load) and part.buffer in gone:
        return None
    if not _is_sum(part):
        return part
    first, second = left.parts(part)
    return second if first is None else first if second is None else first + second
