"""Removes copies that concatenate tensors: their producers write into the result directly.

A nest that only copies whole tensors one after the other into a buffer (`stack`, `concat` of rows)
is removed by `alias_concat`: the tensors' buffers become sub-buffers of the result.

A nest that interleaves them (`concat` of columns, `stack` and a transpose) is removed by
`concat_in_place` if each tensor has one producer, which then writes to the offsets of the result.
Other readers of a tensor read it from the result, on targets that read strided rows as fast as
contiguous ones; on other targets there must be none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from thalweg.ir.expr import Expr, Load, Select
from thalweg.ir.index import Affine, FloorMod, Term, bounds_of
from thalweg.ir.kernel import Store
from thalweg.ir.loop import Variable
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces, nested_buffers
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate, Renaming, users_of
from thalweg.lower.nests.split import Limits, chosen_ranges


class Step(NamedTuple):
    """A loop of a copy, or a digit of its index: the extent, and the strides in the part and in the
    whole."""

    count: int
    inner: int
    outer: int


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor inside a whole: its loops with their strides, the outermost first, and
    its first element."""

    steps: tuple[Step, ...]
    start: int

    @property
    def run(self) -> int:
        """The number of contiguous elements."""
        last = self.steps[-1] if self.steps else Step(1, 1, 1)
        return last.count if last.outer == 1 else 1

    @property
    def is_contiguous(self) -> bool:
        """Whether the tensor lies in the whole as it is."""
        return all(step.inner == step.outer for step in self.steps)

    def place(self, offset: Affine) -> Affine | None:
        """An offset in the tensor as one in the whole; None where that is no affine sum."""
        start, constant, highest = self.start, offset.constant, list[float]()
        for step in self.steps:
            value, constant = divmod(constant, step.inner)
            start += value * step.outer
            highest.append(value)
        terms: dict[Term, int] = {}
        for atom, factor in offset.terms.items():
            low, high = bounds_of(atom)
            level = next((n for n, s in enumerate(self.steps) if factor % s.inner == 0), None)
            if level is None or factor < 0 or low < 0:
                return None
            times = factor // self.steps[level].inner
            terms[atom] = times * self.steps[level].outer
            highest[level] += times * high
        fits = all(value < step.count for value, step in zip(highest, self.steps, strict=True))
        return Affine(start, terms) if fits and offset.constant >= 0 else None


Layouts = dict[Buffer, Layout]  # of the parts of a whole


def alias_concat(nests: Sequence[LoopNest], pieces: Pieces) -> list[LoopNest]:
    """The nests without concatenating copies; adds the parts to `pieces`."""
    writers: dict[Buffer, list[Store]] = defaultdict(list)
    for nest in nests:
        for write, buffer in zip(nest.template.writes, nest.targets, strict=True):
            writers[buffer].append(write)
    removed: set[int] = set()
    aliases: dict[Buffer, frozenset[Buffer]] = {}
    known: dict[NestTemplate, Layouts] = {}
    for position, nest in enumerate(nests):
        layouts = _layouts(nest, known)
        if not layouts or not all(layout.is_contiguous for layout in layouts.values()):
            continue
        (whole,), starts = nest.targets, {part: layout.start for part, layout in layouts.items()}
        if not pieces.keys().isdisjoint([whole, *starts]):
            continue
        if all(_is_written_once(writers[buffer]) for buffer in (whole, *starts)):
            if not aliases.keys().isdisjoint(starts):
                _move_pieces(starts, whole, pieces)
            pieces.update((buffer, (whole, start)) for buffer, start in starts.items())
            # A part may be a concatenation itself: then its own parts are what nests write.
            aliases[whole] = frozenset[Buffer]().union(*(aliases.get(p, {p}) for p in starts))
            removed.add(position)
    remaining = [nest for position, nest in enumerate(nests) if position not in removed]
    return [_with_aliases(nest, aliases) for nest in remaining] if removed else remaining


def _move_pieces(starts: Mapping[Buffer, int], whole: Buffer, pieces: Pieces) -> None:
    """Sub-buffers of the parts become sub-buffers of the whole."""
    for buffer, (part, start) in pieces.items():
        if part in starts:
            pieces[buffer] = whole, starts[part] + start


def _is_written_once(writes: Sequence[Store]) -> bool:
    """Whether a buffer is a temporary that one unconditional write fills."""
    is_single = len(writes) == 1 and writes[0].is_plain
    return is_single and writes[0].buffer.kind is BufferKind.TEMPORARY


def _with_aliases(nest: LoopNest, aliases: Mapping[Buffer, frozenset[Buffer]]) -> LoopNest:
    """The nest, with the sub-buffers of the buffers it reads as aliases."""
    aliased = [aliases[buffer] for buffer in nest.loaded if buffer in aliases]
    return replace(nest, aliases=nest.aliases.union(*aliased)) if aliased else nest


def _layouts(nest: LoopNest, known: dict[NestTemplate, Layouts]) -> Layouts:
    """The layout of each part that a nest copies into a whole; empty if it does anything else.
    Cached by template where all views start at 0."""
    template = nest.template
    if nest.aliases:
        return {}
    if any(shift for _, shift in nest.views):
        return _copied(nest)
    if template not in known:
        known[template] = _copied(LoopNest(template, nest.nodes))
    return {nest.bound[buffer][0]: layout for buffer, layout in known[template].items()}


def _copied(nest: LoopNest) -> Layouts:
    template = nest.template
    if not _is_written_once(template.writes) or not isinstance(template.values[0], Select):
        return {}
    if len(template.loads) < 2 or nest.serial or template.product:
        return {}
    (write,) = nest.writes
    layouts: Layouts = {}
    for leaf, limits in chosen_ranges(write.value, {v: (0, v.extent) for v in nest.variables}):
        layout = _layout(write, leaf, limits) if isinstance(leaf, Load) else None
        if layout is None or not isinstance(leaf, Load) or leaf.buffer in layouts:
            return {}
        layouts[leaf.buffer] = layout
    return layouts


# Interleaved tensors


def concat_in_place(nests: Sequence[LoopNest], pieces: Pieces, target: Target) -> list[LoopNest]:
    """The nests without interleaving copies."""
    fixed = nested_buffers(pieces)
    writers, readers = users_of(nests)
    result: list[LoopNest | None] = list(nests)
    known: dict[NestTemplate, Layouts] = {}
    templates: dict[Any, tuple[NestTemplate, Buffer] | None] = {}
    for position, copy in enumerate(nests):
        parts = _layouts(copy, known)
        if not parts or not fixed.isdisjoint(parts):
            continue
        (whole,) = copy.targets
        others = {reader for part in parts for reader in readers[part]} - {position}
        if any(buffer.kind is not BufferKind.TEMPORARY for buffer in (whole, *parts)):
            continue
        if any(len(writers[part]) != 1 for part in parts) or writers[whole] != [position]:
            continue
        if others and not target.reads_strided:
            continue
        producers = dict.fromkeys(writers[part][0] for part in parts)
        changed = {
            number: _writing_to_whole(result[number], parts, whole, templates, target)
            for number in producers
        }
        for number in others:
            is_copy = bool(_layouts(nests[number], known))
            reader = None if is_copy else changed.get(number, result[number])
            changed[number] = _reading_from_whole(reader, parts, whole)
        if None not in changed.values():
            result[position] = None
            for number, nest in changed.items():
                result[number] = nest
    return [nest for nest in result if nest is not None]


def _layout(write: Store, leaf: Load, limits: Limits) -> Layout | None:
    steps = steps_of(write, leaf, limits)
    if steps is None:
        return None
    merged: list[Step] = []
    for step in steps:
        if merged and merged[-1].outer == step.count * step.outer:  # contiguous rows
            step = step._replace(count=merged.pop().count * step.count)
        merged.append(step)
    return Layout(tuple(merged), first_offset(write.offset, limits))


def _writing_to_whole(
    producer: LoopNest | None,
    parts: Mapping[Buffer, Layout],
    whole: Buffer,
    templates: dict[Any, tuple[NestTemplate, Buffer] | None],
    target: Target,
) -> LoopNest | None:
    """A producer that writes to the whole; instances of one template stay instances of one
    template. None where it cannot."""
    if producer is None:
        return None
    layouts = tuple(parts.get(buffer) for buffer in producer.targets)
    shifts = [producer.bound[write.buffer][1] for write in producer.template.writes]
    if any(layout and shift for layout, shift in zip(layouts, shifts, strict=True)):
        return None
    key = producer.template, layouts
    if key not in templates:
        template = _template_writing_to_whole(producer.template, layouts, whole, target)
        templates[key] = None if template is None else (template, whole)
    found = templates[key]
    return None if found is None else producer.with_template(found[0], {found[1]: (whole, 0)})


def _template_writing_to_whole(
    template: NestTemplate, layouts: Sequence[Layout | None], whole: Buffer, target: Target
) -> NestTemplate | None:
    writes: list[Store] = []
    for write, layout in zip(template.writes, layouts, strict=True):
        if layout is None:
            writes.append(write)
            continue
        offset = layout.place(write.offset)
        # The tiles of a contraction are stored by whole vectors.
        is_short = layout.run * whole.dtype.itemsize < target.stored_bytes
        if offset is None or not _is_written_once([write]) or (template.product and is_short):
            return None
        writes.append(replace(write, buffer=whole, offset=offset))
    return replace(template, writes=tuple(writes))


def _reading_from_whole(
    reader: LoopNest | None, parts: Mapping[Buffer, Layout], whole: Buffer
) -> LoopNest | None:
    """A nest that reads the parts from the whole. None for a contraction, a check, or
    offsets that are not affine in the whole."""
    if reader is None or reader.product is not None or reader.template.checks:
        return None
    new_offsets = {
        (buffer, offset): layout.place(offset)
        for buffer, layout in parts.items()
        for offset in reader.loads.get(buffer, ())
    }
    if None in new_offsets.values():
        return None

    def replacement(part: Expr) -> Expr | None:
        if not isinstance(part, Load) or part.buffer not in parts:
            return None
        new_offset = new_offsets[part.buffer, part.offset]
        assert new_offset is not None
        return Load(whole, new_offset)

    return reader.with_writes(tuple(map(Renaming({}, replacement).store, reader.writes)))


# Offsets


def steps_of(write: Store, leaf: Load, limits: Limits) -> list[Step] | None:
    """The loops by which a copy visits all elements of a part in order, the outermost first."""
    buffer = leaf.buffer
    if buffer.dtype != write.buffer.dtype or buffer is write.buffer:
        return None
    target, digits = write.offset.terms, _digits_of(leaf.offset, limits)
    if digits is None or not target.keys() <= limits.keys():
        return None
    steps = [Step(n, inner, target.get(v, 0) * divisor) for v, divisor, n, inner in digits]
    steps.sort(key=lambda step: step.inner, reverse=True)
    dense = [prod(step.count for step in steps[n + 1 :]) for n in range(len(steps))]
    if [step.inner for step in steps] != dense or prod(s.count for s in steps) != buffer.size:
        return None
    return steps


def first_offset(offset: Affine, limits: Limits) -> int:
    """An offset at the least values of all indices."""
    return offset.constant + sum(limits[atom][0] * f for atom, f in offset.terms.items())  # pyright: ignore[reportArgumentType] - the caller saw that all atoms are variables


def _digits_of(offset: Affine, limits: Limits) -> list[tuple[Variable, int, int, int]] | None:
    """An offset as a sum of digits of indices: the index, divisor, extent and stride of each. None
    if it is no such sum, or does not start at zero."""
    digits: dict[Variable, dict[int, tuple[int, int]]] = {v: {} for v in limits}
    start = offset.constant
    for atom, factor in offset.terms.items():
        number, divisor, modulus = _digit(atom)
        if number not in digits or divisor in digits[number]:
            return None
        digits[number][divisor] = modulus, factor
        value = limits[number][0] // divisor
        start += factor * (value % modulus if modulus else value)
    steps: list[tuple[Variable, int, int, int]] = []
    for variable, (low, high) in limits.items():
        changing = _changing_digits(digits[variable], low, high)
        if changing is None:
            return None
        steps += [(variable, *digit) for digit in changing]
    return None if start else steps


def _digit(atom: Any) -> tuple[Any, int, int]:
    """A term as a digit of an index: the index, the divisor and the modulus (0: none)."""
    if isinstance(atom, FloorMod) and atom.number.sole_term is not None:
        return atom.number.sole_term, atom.divisor, atom.modulus
    return atom, 1, 0


def _changing_digits(
    digits: Mapping[int, tuple[int, int]], low: int, high: int
) -> list[tuple[int, int, int]] | None:
    """The divisor, extent and stride of the digits that change while an index runs from `low` to
    `high`. None if they do not determine the index."""
    changing: list[tuple[int, int, int]] = []
    divisor, remaining = 1, high - low
    while remaining > 1:
        modulus, factor = digits.get(divisor, (1, 0))
        count = min(modulus, remaining) if modulus else remaining
        first = low // divisor % modulus if modulus else 0
        if count == 1 or remaining % count or first + count > (modulus or count):
            return None
        changing.append((divisor, count, factor))
        divisor, remaining = divisor * count, remaining // count
    unused = digits.keys() - {divisor for divisor, _, _ in changing}
    stays = all(low // divisor == (high - 1) // divisor for divisor in unused)
    return changing if stays else None
