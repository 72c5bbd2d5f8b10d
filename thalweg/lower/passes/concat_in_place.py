"""Removes copies that interleave tensors: their producers write into the result.

A nest that only copies tensors into a buffer (`concat` of columns, `stack` and a transpose) is
removed where each tensor has one producer: that writes to the offsets of the result instead. Where
a target reads rows of the result as fast as rows of a tensor, other readers read them there; else
there may be none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thalweg.ir.expr import Expr, Load
from thalweg.ir.index import Affine, Term, bounds_of
from thalweg.ir.kernel import Store
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate, Renaming, users_of
from thalweg.lower.passes.alias_concat import (
    Limits,
    Step,
    copied,
    find_once,
    first_place,
    is_made_once,
    steps_of,
)


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie in a whole: its loops and their strides there, the
    outermost first, and the first element."""

    steps: tuple[Step, ...]
    start: int

    @property
    def run(self) -> int:
        """The number of contiguous elements."""
        last = self.steps[-1] if self.steps else Step(1, 1, 1)
        return last.count if last.outer == 1 else 1

    def place(self, offset: Affine) -> Affine | None:
        """An offset in the tensor as one in the whole; None where that is no affine sum."""
        first, rest, highest = self.start, offset.constant, list[float]()
        for step in self.steps:
            value, rest = divmod(rest, step.inner)
            first += value * step.outer
            highest.append(value)
        terms: dict[Term, int] = {}
        for atom, factor in offset.terms.items():
            low, high = bounds_of(atom)
            number = next((n for n, s in enumerate(self.steps) if factor % s.inner == 0), None)
            if number is None or factor < 0 or low < 0:
                return None
            times = factor // self.steps[number].inner
            terms[atom] = times * self.steps[number].outer
            highest[number] += times * high
        fits = all(value < step.count for value, step in zip(highest, self.steps, strict=True))
        return Affine(first, terms) if fits and offset.constant >= 0 else None


def concat_in_place(nests: Sequence[LoopNest], pieces: Pieces, target: Target) -> list[LoopNest]:
    """The nests without such copies."""
    fixed = {*pieces, *(whole for whole, _ in pieces.values())}
    writers, readers = users_of(nests)
    result: list[LoopNest | None] = list(nests)
    known: dict[NestTemplate, dict[Buffer, Layout]] = {}
    templates: dict[Any, tuple[NestTemplate, Buffer] | None] = {}
    for position, copy in enumerate(nests):
        parts = find_once(copy, known, _layouts)
        if not parts or not fixed.isdisjoint(parts):
            continue
        (whole,) = copy.targets
        inner = all(buffer.kind is BufferKind.TEMPORARY for buffer in (whole, *parts))
        once = all(len(writers[part]) == 1 for part in parts) and writers[whole] == [position]
        others = {place for part in parts for place in readers[part]} - {position}
        if not inner or not once or (others and not target.reads_strided):
            continue
        places = dict.fromkeys(writers[part][0] for part in parts)
        changed = {
            place: _writing_there(result[place], parts, whole, templates, target)
            for place in places
        }
        for place in others:
            is_copy = bool(find_once(nests[place], known, _layouts))
            reader = None if is_copy else changed.get(place, result[place])
            changed[place] = _reading_there(reader, parts, whole)
        if None not in changed.values():
            result[position] = None
            for place, nest in changed.items():
                result[place] = nest
    return [nest for nest in result if nest is not None]


def _layouts(copy: LoopNest) -> dict[Buffer, Layout]:
    """The layout of each part that a nest copies, if that is all it does."""
    return copied(copy, _layout) if is_made_once(copy.template.writes) else {}


def _layout(write: Store, leaf: Load, limits: Limits) -> Layout | None:
    steps = steps_of(write, leaf, limits)
    if steps is None:
        return None
    joined: list[Step] = []
    for step in steps:
        if joined and joined[-1].outer == step.count * step.outer:  # contiguous rows
            step = step._replace(count=joined.pop().count * step.count)
        joined.append(step)
    return Layout(tuple(joined), first_place(write.offset, limits))


def _writing_there(
    producer: LoopNest | None,
    parts: Mapping[Buffer, Layout],
    whole: Buffer,
    templates: dict[Any, tuple[NestTemplate, Buffer] | None],
    target: Target,
) -> LoopNest | None:
    """A producer that writes to the whole; instances of one template stay instances of one."""
    if producer is None:
        return None
    layouts = tuple(parts.get(buffer) for buffer in producer.targets)
    shifts = [producer.views[number][1] for number in producer.template.written]
    if any(layout and shift for layout, shift in zip(layouts, shifts, strict=True)):
        return None
    key = producer.template, layouts
    if key not in templates:
        template = _template_writing(producer.template, layouts, whole, target)
        templates[key] = None if template is None else (template, whole)
    found = templates[key]
    return None if found is None else producer.with_template(found[0], {found[1]: (whole, 0)})


def _template_writing(
    template: NestTemplate, layouts: Sequence[Layout | None], whole: Buffer, target: Target
) -> NestTemplate | None:
    writes: list[Store] = []
    for write, layout in zip(template.writes, layouts, strict=True):
        if layout is None:
            writes.append(write)
            continue
        place = layout.place(write.offset)
        # The tiles of a contraction are stored by whole vectors.
        is_short = layout.run * whole.dtype.itemsize < target.stored_bytes
        if place is None or not is_made_once([write]) or (template.product and is_short):
            return None
        writes.append(replace(write, buffer=whole, offset=place))
    return replace(template, writes=tuple(writes))


def _reading_there(
    reader: LoopNest | None, parts: Mapping[Buffer, Layout], whole: Buffer
) -> LoopNest | None:
    """A nest that reads the parts from the whole; None where it is a contraction, or computes where
    it reads."""
    if reader is None or reader.product is not None or reader.checks:
        return None
    places = {
        (buffer, offset): layout.place(offset)
        for buffer, layout in parts.items()
        for offset in reader.loads.get(buffer, ())
    }
    if None in places.values():
        return None

    def moved(part: Expr) -> Expr | None:
        if not isinstance(part, Load) or part.buffer not in parts:
            return None
        place = places[part.buffer, part.offset]
        assert place is not None
        return Load(whole, place)

    writes = tuple(map(Renaming({}, moved).store, reader.writes))
    return LoopNest.of(
        reader.variables, writes, reader.nodes, serial=reader.serial, aliases=reader.aliases
    )
