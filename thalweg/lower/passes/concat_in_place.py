"""Tensors need not be copied to lie side by side.

A draft that only copies tensors into a whole (`concat` of columns, `stack` with a transpose behind)
is left out where each of them is made by one draft and nobody else reads it: that one writes to the
places of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thalweg.ir.expr import Load
from thalweg.ir.index import Affine, Term, bounds_of
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate, Write, users_of
from thalweg.lower.passes.alias_concat import (
    Limits,
    Step,
    copied,
    first_place,
    found_again,
    is_made_once,
    steps_of,
)
from thalweg.lower.passes.merge_reductions import Pieces


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie in a whole: how far each step through it goes there, the
    slowest first, and where the first element lies."""

    steps: tuple[Step, ...]
    start: int

    @property
    def run(self) -> int:
        """How many elements lie one after the other."""
        last = self.steps[-1] if self.steps else Step(1, 1, 1)
        return last.count if last.outer == 1 else 1

    def place(self, offset: Affine) -> Affine | None:
        """A place in the tensor, as one in the whole; None where it is no plain sum there."""
        first, rest, most = self.start, offset.constant, list[float]()
        for step in self.steps:
            value, rest = divmod(rest, step.inner)
            first += value * step.outer
            most.append(value)
        terms: dict[Term, int] = {}
        for atom, factor in offset.terms.items():
            low, high = bounds_of(atom)
            number = next((n for n, s in enumerate(self.steps) if factor % s.inner == 0), None)
            if number is None or factor < 0 or low < 0:
                return None
            times = factor // self.steps[number].inner
            terms[atom] = times * self.steps[number].outer
            most[number] += times * high
        fits = all(value < step.count for value, step in zip(most, self.steps, strict=True))
        return Affine(first, terms) if fits and offset.constant >= 0 else None


def concat_in_place(drafts: Sequence[LoopNest], pieces: Pieces, target: Target) -> list[LoopNest]:
    """The drafts without such copies."""
    fixed = {*pieces, *(home for home, _ in pieces.values())}
    makers, readers = users_of(drafts)
    result: list[LoopNest | None] = list(drafts)
    known: dict[NestTemplate, dict[Buffer, Layout]] = {}
    nests: dict[Any, tuple[NestTemplate, Buffer] | None] = {}
    for position, copy in enumerate(drafts):
        parts = found_again(copy, known, _layouts)
        if not parts or not fixed.isdisjoint(parts):
            continue
        (whole,) = copy.targets
        inner = all(buffer.kind is BufferKind.TEMPORARY for buffer in (whole, *parts))
        alone = all(readers[part] == [position] and len(makers[part]) == 1 for part in parts)
        if not inner or not alone or makers[whole] != [position]:
            continue
        places = dict.fromkeys(makers[part][0] for part in parts)
        changed = [_writing_there(result[place], parts, whole, nests, target) for place in places]
        if None not in changed:
            result[position] = None
            for place, maker in zip(places, changed, strict=True):
                result[place] = maker
    return [draft for draft in result if draft is not None]


def _layouts(copy: LoopNest) -> dict[Buffer, Layout]:
    """Where a draft copies its parts to, if that is all it does."""
    return copied(copy, _layout) if is_made_once(copy.writes) else {}


def _layout(write: Write, leaf: Load, limits: Limits) -> Layout | None:
    steps = steps_of(write, leaf, limits)
    if steps is None:
        return None
    joined: list[Step] = []
    for step in steps:
        if joined and joined[-1].outer == step.count * step.outer:  # goes on where the row ends
            step = step._replace(count=joined.pop().count * step.count)
        joined.append(step)
    return Layout(tuple(joined), first_place(write.offset, limits))


def _writing_there(
    maker: LoopNest | None,
    parts: Mapping[Buffer, Layout],
    whole: Buffer,
    nests: dict[Any, tuple[NestTemplate, Buffer] | None],
    target: Target,
) -> LoopNest | None:
    """A draft that writes to a whole instead of its parts; drafts of one nest are still of one."""
    if maker is None:
        return None
    layouts = tuple(parts.get(buffer) for buffer in maker.targets)
    shifts = [maker.homes[number][1] for number in maker.nest.written]
    if any(layout and shift for layout, shift in zip(layouts, shifts, strict=True)):
        return None
    key = maker.nest, layouts
    if key not in nests:
        nest = _nest_writing(maker.nest, layouts, whole, target)
        nests[key] = None if nest is None else (nest, whole)
    found = nests[key]
    return None if found is None else maker.changed(found[0], {found[1]: (whole, 0)})


def _nest_writing(
    nest: NestTemplate, layouts: Sequence[Layout | None], whole: Buffer, target: Target
) -> NestTemplate | None:
    writes: list[Write] = []
    for write, layout in zip(nest.writes, layouts, strict=True):
        if layout is None:
            writes.append(write)
            continue
        place = layout.place(write.offset)
        # The tiles of a product are stored by whole vectors.
        is_short = layout.run * whole.dtype.itemsize < target.alignment
        if place is None or not is_made_once([write]) or (nest.product and is_short):
            return None
        writes.append(replace(write, buffer=whole, offset=place))
    return replace(nest, writes=tuple(writes))
