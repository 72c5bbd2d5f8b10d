"""Fuses loop nests, element by element, and reductions of rows into what reads them.

A nest is fused into an earlier one of the same loops if it reads that one's results only at the
offsets they are written at (an activation into the product before it, an optimizer's update into
the gradient's product), or if both read the same buffers (the moments of Adam, several reductions
of one input), and if dependences allow one to move to the other. Then dead stores are removed.

A layer norm is a nest that reduces each row to its mean and variance, and one that normalises the
row. A target whose threads share a row computes both in one nest (`fuse_rows`) and loads the row
once. The stores of the first nest that are read later remain, once for each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import compress
from math import prod
from typing import Any

from thalweg.graph.node import Node
from thalweg.ir.expr import Expr, Index, Load, Variable
from thalweg.ir.index import Affine, row_major, unraveled
from thalweg.ir.kernel import Store
from thalweg.ir.loop import iterations
from thalweg.ir.rewrite import free_variables, walk
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind, View
from thalweg.lower.nests.loop_nest import (
    LastAccesses,
    LoopNest,
    NestTemplate,
    Renaming,
    renaming,
)
from thalweg.lower.nests.reductions import is_contiguous, outermost

Substitution = Mapping[Variable, Variable | Affine]

_MAX_CANDIDATES = 8
_MIN_ROW = 64  # elements that are reduced for each row, and that are written for it
_MIN_ROWS, _MAX_COLUMNS = 1024, 1024  # of sums in two launches: partial sums, and their total


def fuse(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests, fused where that is legal and profitable; the order respects dependences."""
    fusion = _Fusion(target)
    for nest in nests:
        fusion.add(nest)
    return _without_dead([nest for nest in fusion.nests if nest is not None])


class _Fusion:
    """The nests so far; None stands where a nest was moved away."""

    def __init__(self, target: Target) -> None:
        self.nests: list[LoopNest | None] = []
        self._last = LastAccesses()
        self._target = target
        #: by templates and the overlaps of their buffers: what fusing gave, and the views of both
        self._known: dict[Any, tuple[LoopNest | None, Sequence[View]]] = {}
        self._single: dict[Any, int] = {}  # positions of column sums without a partner, by shape

    def add(self, nest: LoopNest) -> None:
        form = _column_sum_shape(nest) if self._target.pairs_sums else None
        partner = self._single.pop(form, None)
        for position in [*self._candidates(nest), *([] if partner is None else [partner])]:
            target = self.nests[position]
            if target is None:
                continue
            fused = self._fused(target, nest)
            if fused is None:
                continue
            if self._last.before(nest) <= position:
                self.nests[position] = fused
                self._last.note(nest, position)
                return
            if self._last.before(target) <= position:  # nothing after it depends on it
                self.nests[position] = None
                self._append(fused)
                return
        if form is not None:
            self._single[form] = len(self.nests)
        self._append(nest)

    def _fused(self, first: LoopNest, second: LoopNest) -> LoopNest | None:
        """Both nests fused, or None where that is illegal or unprofitable."""
        if any(nest.aliases or not nest.template.can_rebind for nest in (first, second)):
            return _fused(first, second, self._target)  # templates and views do not say it all
        views = first.views + second.views
        key = (first.template, second.template, *_overlaps(views))
        if key not in self._known:
            self._known[key] = _fused(first, second, self._target), views
            return self._known[key][0]
        fused, known_views = self._known[key]
        return fused and fused.rebound(known_views, views, _joined_nodes(first, second))

    def _append(self, nest: LoopNest) -> None:
        self._last.note(nest, len(self.nests))
        self.nests.append(nest)

    def _candidates(self, nest: LoopNest) -> list[int]:
        template = nest.template
        if template.product is not None or template.is_sealed:
            return []
        if any(write.combine != "set" for write in template.writes):
            return []
        positions = {self._last.written[buffer] for buffer in nest.reads}
        positions |= {self._last.used[buffer] for buffer in nest.reads if buffer.size > 1}
        return sorted(positions - {-1}, reverse=True)[:_MAX_CANDIDATES]


def _column_sum_shape(nest: LoopNest) -> Any:
    """The extents of a nest that sums few columns of many rows; None for other nests. Two nests of
    the same extents become one kernel, with half the launches."""
    template = nest.template
    if not template.is_plain or not template.has_reductions:
        return None
    extents = {tuple(v.extent for v in part.variables) for part in outermost(template.values)}
    if len(extents) != 1:
        return None
    (reduced,) = extents
    is_long = prod(reduced) >= _MIN_ROWS and prod(nest.domain) <= _MAX_COLUMNS
    return (nest.domain, reduced) if is_long else None


def _overlaps(views: Sequence[View]) -> list[tuple[int, int]]:
    """For each view the number of its buffer, and the distance from the first view of that."""
    first: dict[Buffer, tuple[int, int]] = {}
    overlaps: list[tuple[int, int]] = []
    for buffer, shift in views:
        number, start = first.setdefault(buffer, (len(first), shift))
        overlaps.append((number, shift - start))
    return overlaps


def _joined_nodes(first: LoopNest, second: LoopNest) -> tuple[Node, ...]:
    """The nodes of both nests."""
    return first.nodes + tuple([node for node in second.nodes if node not in first.nodes])


def _joined(template: NestTemplate, first: LoopNest, second: LoopNest) -> LoopNest:
    """The nest of a template that does what both nests do."""
    return LoopNest(template, _joined_nodes(first, second), first.aliases | second.aliases)


def _fused(first: LoopNest, second: LoopNest, target: Target) -> LoopNest | None:
    """Both nests fused, or None where that is illegal or unprofitable."""
    if first.template.serial or second.template.serial or first.template.is_sealed:
        return None
    if any(write.combine != "set" for write in first.writes):
        return None
    if first.product is not None and second.template.has_reductions:
        return None
    if first.written & second.aliases or second.written & first.aliases:
        return None  # one reads what the other writes through a sub-buffer, at other offsets
    writes = [*first.writes, *second.writes]
    size = first.template.expr_size + second.template.expr_size
    streams = len(first.loads.keys() | second.loads.keys()) + len(writes)
    if not target.holds(size, streams, len(writes)):
        return None
    indices = _matched_loops(second, first)
    if indices is None:
        return None
    renamed = Renaming(indices)
    stores = {write.buffer: write for write in first.writes}
    is_aligned = _is_aligned(first, second, stores, renamed)
    return _merge(first, second, stores, indices) if is_aligned else None


def _matched_loops(second: LoopNest, first: LoopNest) -> Substitution | None:
    """The variables of the second nest in terms of those of the first: of equal loops, or of the
    same number of iterations, if every offset stays affine. None where there is no such match."""
    if first.domain == second.domain:
        return renaming(second.variables, first.variables)
    if not first.written & second.reads:
        return None
    if any(w.variables != second.variables or w.inside is not None for w in second.writes):
        return None
    if iterations(second.variables) != iterations(first.variables):
        return None
    indices = unraveled(row_major(first.variables), second.variables)
    return indices if _keeps_affine(second, Renaming(indices)) else None


def _keeps_affine(nest: LoopNest, renamed: Renaming) -> bool:
    """Whether a nest's renamed offsets are sums of variables, and its values use no index."""
    offsets = [*nest.load_offsets, *(write.offset for write in nest.writes)]
    if any(renamed.place(offset).floor_mods for offset in offsets):
        return False
    return not any(isinstance(part, Index) for part in walk(nest.values))


def _is_aligned(
    first: LoopNest, second: LoopNest, stores: dict[Buffer, Store], renamed: Renaming
) -> bool:
    """Whether all dependences between the two nests are within an iteration."""
    for buffer, offsets in second.loads.items():
        if buffer in stores and any(
            renamed.place(offset) != stores[buffer].offset for offset in offsets
        ):
            return False
    for write in second.writes:
        offset = renamed.place(write.offset)
        if write.buffer in stores and stores[write.buffer].offset != offset:
            return False
        if any(read != offset for read in first.loads.get(write.buffer, ())):
            return False
        if first.has_factor(write.buffer):
            return False
    # A reduction reads elements of other iterations: they must not be overwritten.
    return not (first.template.has_reductions and first.reads & second.written)


def _merge(
    first: LoopNest,
    second: LoopNest,
    stores: dict[Buffer, Store],
    indices: Substitution,
) -> LoopNest:
    values = {buffer: write.value for buffer, write in stores.items()}
    renamed = Renaming(
        indices, lambda part: values.get(part.buffer) if isinstance(part, Load) else None
    )
    writes = list(first.writes)
    for write in second.writes:
        moved = renamed.store(write)
        if first.domain != second.domain:
            moved = replace(moved, variables=first.variables, distinct=frozenset())
        writes = [*(w for w in writes if w.buffer is not write.buffer), moved]
    return _joined(NestTemplate(first.variables, tuple(writes), first.product), first, second)


def _without_dead(nests: list[LoopNest]) -> list[LoopNest]:
    """The nests without writes to temporaries that no later nest reads."""
    alive: set[Buffer] = set()
    live_nests: list[LoopNest] = []
    live_template = cache(_live_template)
    for nest in reversed(nests):
        is_live = [b.kind is not BufferKind.TEMPORARY or b in alive for b in nest.targets]
        if not any(is_live) and not nest.template.checks:
            continue
        if not all(is_live):
            nest = nest.with_template(live_template(nest.template, tuple(is_live)))
        alive |= nest.reads
        live_nests.append(nest)
    return live_nests[::-1]


def _live_template(template: NestTemplate, live: tuple[bool, ...]) -> NestTemplate:
    return replace(template, writes=tuple(compress(template.writes, live)))


# Rows


def fuse_rows(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests, with reductions of rows fused into their readers if threads share rows."""
    if not target.fuses_rows:
        return list(nests)
    result: list[LoopNest | None] = list(nests)
    for position in range(len(result)):
        while (fusion := _row_fusion(result, position, target)) is not None:
            earlier, fused_position, fused = fusion
            result[position] = result[earlier] = None
            result[fused_position] = fused
    return _without_dead([nest for nest in result if nest is not None])


def _row_fusion(
    nests: Sequence[LoopNest | None], position: int, target: Target
) -> tuple[int, int, LoopNest] | None:
    """The position of a nest that can be fused into the one at `position`, the position of the
    fused nest (`position`, or that of the producer if nests in between depend on it), and the fused
    nest."""
    second = nests[position]
    if second is None or not _stores_rows(second) or len(second.variables) < 2:
        return None
    read: set[Buffer] = set()  # by nests between
    written: set[Buffer] = set()
    for earlier in range(position - 1, -1, -1):
        first = nests[earlier]
        if first is None:
            continue
        if first.written & second.reads and _can_fuse_rows(first, second, target):
            if first.written.isdisjoint(read | written) and first.reads.isdisjoint(written):
                return earlier, position, _fused_rows(first, second)
            other_reads = second.reads - first.written
            is_free = other_reads.isdisjoint(written) and second.written.isdisjoint(read | written)
            return (earlier, earlier, _fused_rows(first, second)) if is_free else None
        read |= first.reads
        written |= first.written
    return None


def _stores_rows(nest: LoopNest) -> bool:
    return nest.template.is_plain and not nest.aliases


def _can_fuse_rows(first: LoopNest, second: LoopNest, target: Target) -> bool:
    """Whether the first reduces the rows that the second iterates over, and both fit a kernel."""
    depth = len(first.variables)
    if not _stores_rows(first) or not 0 < depth < len(second.variables):
        return False
    rows, rest = second.variables[:depth], second.variables[depth:]
    if first.domain != second.domain[:depth]:
        return False
    if iterations(rest) < _MIN_ROW or not target.keeps_row(iterations(rest)):
        return False
    are_of_rows = all(free_variables(part).issubset(rows) for part in second.reductions)
    if not _reduces_rows(first) or not are_of_rows:
        return False
    if first.reads & second.written or first.written & second.written:
        return False
    buffers = first.loads.keys() | second.loads.keys() | first.written | second.written
    size = first.template.expr_size + second.template.expr_size
    return target.holds(size, len(buffers)) and all(
        offset == write.offset
        for write in _writes_over(first, rows)
        for offset in second.loads.get(write.buffer, ())
    )


def _reduces_rows(nest: LoopNest) -> bool:
    """Whether a nest reduces long rows, and nothing else."""
    reductions = nest.reductions
    return bool(reductions) and all(
        iterations(part.variables) >= _MIN_ROW and is_contiguous(part) for part in reductions
    )


def _writes_over(nest: LoopNest, rows: tuple[Variable, ...]) -> list[Store]:
    """The writes of a nest over other variables."""
    renamed = Renaming(renaming(nest.variables, rows))
    return [renamed.store(write) for write in nest.writes]


def _fused_rows(first: LoopNest, second: LoopNest) -> LoopNest:
    writes = _writes_over(first, second.variables[: len(first.variables)])
    values: dict[Expr, Expr] = {Load(w.buffer, w.offset): w.value for w in writes}
    replaced = Renaming({}, values.get)
    all_writes = (*writes, *map(replaced.store, second.writes))
    return _joined(NestTemplate(second.variables, all_writes), first, second)
