"""Removes copies that concatenate tensors: these are written where the copy would have put them.

A nest that only copies whole tensors one after the other into a buffer (`stack`, `concat` of rows)
is removed by `alias_concat`: the tensors' buffers become sub-buffers of the result.

One that interleaves them (`concat` of columns, `stack` and a transpose) is removed by
`concat_in_place` where each tensor has one producer: that writes to the offsets of the result
instead. Where a target reads rows of the result as fast as rows of a tensor, other readers read
them there; else there may be none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeVar

from thalweg.ir.expr import Expr, Load, Select
from thalweg.ir.index import Affine, FloorMod, Term, bounds_of, upper_border
from thalweg.ir.kernel import Store
from thalweg.ir.loop import Variable
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate, Renaming, users_of

Found = TypeVar("Found")

#: The range of values that each index takes.
Limits = dict[Variable, tuple[int, int]]


class Step(NamedTuple):
    """An index of a copy, or a digit of one: its extent, and its strides in the part and in the
    whole."""

    count: int
    inner: int
    outer: int


def alias_concat(nests: Sequence[LoopNest], pieces: Pieces) -> list[LoopNest]:
    """The nests without such copies; adds the parts to `pieces`."""
    writers: dict[Buffer, list[Store]] = defaultdict(list)
    for nest in nests:
        for write, buffer in zip(nest.template.writes, nest.targets, strict=True):
            writers[buffer].append(write)
    gone: set[int] = set()
    aliases: dict[Buffer, frozenset[Buffer]] = {}
    known: dict[NestTemplate, dict[Buffer, int]] = {}
    for position, nest in enumerate(nests):
        starts = _find_once(nest, known, partial(_copied, find=_start))
        whole = nest.targets[0] if nest.targets else None
        if whole is None or not starts or not pieces.keys().isdisjoint([whole, *starts]):
            continue
        if all(_is_made_once(writers[buffer]) for buffer in (whole, *starts)):
            if not aliases.keys().isdisjoint(starts):
                _move(starts, whole, pieces)
            pieces.update((buffer, (whole, start)) for buffer, start in starts.items())
            # A part may be a whole itself: what is written are the parts of that.
            aliases[whole] = frozenset[Buffer]().union(*(aliases.get(p, {p}) for p in starts))
            gone.add(position)
    kept = [nest for position, nest in enumerate(nests) if position not in gone]
    return [_with_aliases(nest, aliases) for nest in kept] if gone else kept


def _move(starts: Mapping[Buffer, int], whole: Buffer, pieces: Pieces) -> None:
    """What lies in a part of a whole lies in the whole."""
    for buffer, (around, start) in pieces.items():
        if around in starts:
            pieces[buffer] = whole, starts[around] + start


def _is_made_once(writes: Sequence[Store]) -> bool:
    """Whether a buffer is a temporary that one unconditional write fills."""
    is_single = len(writes) == 1 and writes[0].is_plain
    return is_single and writes[0].buffer.kind is BufferKind.TEMPORARY


def _with_aliases(nest: LoopNest, aliases: Mapping[Buffer, frozenset[Buffer]]) -> LoopNest:
    """The nest, reading all sub-buffers of what it reads."""
    found = [aliases[buffer] for buffer in nest.loaded if buffer in aliases]
    return replace(nest, aliases=nest.aliases.union(*found)) if found else nest


def _find_once(
    nest: LoopNest,
    known: dict[NestTemplate, dict[Buffer, Found]],
    find: Callable[[LoopNest], dict[Buffer, Found]],
) -> dict[Buffer, Found]:
    """What `find` returns for a nest: computed once for all instances of its template whose buffers
    begin at one element."""
    if nest.checks or nest.aliases or any(shift for _, shift in nest.views):
        return find(nest)
    template = nest.template
    if template not in known:
        known[template] = find(LoopNest(template, nest.nodes))
    found, numbers = known[template], template.buffers.index
    return {nest.views[numbers(buffer)][0]: what for buffer, what in found.items()}


def _copied(
    nest: LoopNest, find: Callable[[Store, Load, Limits], Found | None]
) -> dict[Buffer, Found]:
    """What `find` returns for each part that a nest copies into a whole; nothing if the nest does
    more, or if `find` returns None for one."""
    template = nest.template
    if (
        len(template.writes) != 1
        or len(template.loads) < 2
        or not isinstance(template.writes[0].value, Select)
    ):
        return {}
    if template.product or nest.checks or nest.serial or nest.aliases:
        return {}
    (write,) = nest.writes
    found: dict[Buffer, Found] = {}
    for leaf, limits in _leaves(write.value, {v: (0, v.extent) for v in nest.variables}):
        what = find(write, leaf, limits) if isinstance(leaf, Load) else None
        if what is None or not isinstance(leaf, Load) or leaf.buffer in found:
            return {}
        found[leaf.buffer] = what
    return found


# Interleaved tensors


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
        parts = _find_once(copy, known, _layouts)
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
            is_copy = bool(_find_once(nests[place], known, _layouts))
            reader = None if is_copy else changed.get(place, result[place])
            changed[place] = _reading_there(reader, parts, whole)
        if None not in changed.values():
            result[position] = None
            for place, nest in changed.items():
                result[place] = nest
    return [nest for nest in result if nest is not None]


def _layouts(copy: LoopNest) -> dict[Buffer, Layout]:
    """The layout of each part that a nest copies, if that is all it does."""
    return _copied(copy, _layout) if _is_made_once(copy.template.writes) else {}


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
        if place is None or not _is_made_once([write]) or (template.product and is_short):
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


# Selections by an index


def _leaves(value: Expr, limits: Limits) -> list[tuple[Expr | None, Limits]]:
    """The values that selections by an index choose from, and the ranges of indices for each."""
    if not isinstance(value, Select):
        return [(value, limits)]
    found = _border(value.condition)
    if found is None:
        return [(None, limits)]
    variable, border = found
    low, high = limits.get(variable, (0, 0))
    if not low < border < high:
        return [(None, limits)]
    below, above = {**limits, variable: (low, border)}, {**limits, variable: (border, high)}
    return [*_leaves(value.chosen, below), *_leaves(value.otherwise, above)]


def _border(condition: Expr) -> tuple[Variable, int] | None:
    """The variable that a condition bounds from above, and the bound."""
    found = upper_border(condition)
    if found is None:
        return None
    atom, border = found
    if isinstance(atom, Variable):
        return atom, border
    if not isinstance(atom, FloorMod) or atom.modulus or not _is_one_variable(atom.number):
        return None
    (variable,) = atom.number.terms
    return (variable, border * atom.divisor) if isinstance(variable, Variable) else None


def _is_one_variable(place: Affine) -> bool:
    return place.constant == 0 and list(place.terms.values()) == [1]


# Offsets


def _start(write: Store, leaf: Load, limits: Limits) -> int | None:
    """The element of the whole at which a part begins, if the copy of it is contiguous."""
    steps = steps_of(write, leaf, limits)
    if steps is None or any(step.inner != step.outer for step in steps):
        return None
    return first_place(write.offset, limits)


def steps_of(write: Store, leaf: Load, limits: Limits) -> list[Step] | None:
    """The loops by which a copy visits all elements of a part in order, the outermost first."""
    buffer = leaf.buffer
    if buffer.dtype != write.buffer.dtype or buffer is write.buffer:
        return None
    target, digits = write.offset.terms, _digits_of(leaf.offset, limits)
    if digits is None or not target.keys() <= limits.keys():
        return None
    found = [Step(n, inner, target.get(v, 0) * divisor) for v, divisor, n, inner in digits]
    found.sort(key=lambda step: step.inner, reverse=True)
    dense = [prod(step.count for step in found[n + 1 :]) for n in range(len(found))]
    if [step.inner for step in found] != dense or prod(s.count for s in found) != buffer.size:
        return None
    return found


def first_place(offset: Affine, limits: Limits) -> int:
    """An offset where all indices have their least values."""
    return offset.constant + sum(limits[atom][0] * f for atom, f in offset.terms.items())  # pyright: ignore[reportArgumentType] - the caller saw that all atoms are variables


def _digits_of(place: Affine, limits: Limits) -> list[tuple[Variable, int, int, int]] | None:
    """The digits of indices that an offset is the sum of: the index, divisor, extent and stride of
    each. None where it is no such sum, or does not begin at zero."""
    own: dict[Variable, dict[int, tuple[int, int]]] = {v: {} for v in limits}
    first = place.constant
    for atom, factor in place.terms.items():
        number, divisor, modulus = _digit(atom)
        if number not in own or divisor in own[number]:
            return None
        own[number][divisor] = modulus, factor
        value = limits[number][0] // divisor
        first += factor * (value % modulus if modulus else value)
    found: list[tuple[Variable, int, int, int]] = []
    for variable, (low, high) in limits.items():
        changing = _changing_digits(own[variable], low, high)
        if changing is None:
            return None
        found += [(variable, *digit) for digit in changing]
    return None if first else found


def _digit(atom: Any) -> tuple[Any, int, int]:
    """A term as a digit of an index: the index, the divisor and the modulus (0: none)."""
    if isinstance(atom, FloorMod) and _is_one_variable(atom.number):
        (number,) = atom.number.terms
        return number, atom.divisor, atom.modulus
    return atom, 1, 0


def _changing_digits(
    digits: Mapping[int, tuple[int, int]], low: int, high: int
) -> list[tuple[int, int, int]] | None:
    """The digits that change while an index goes from `low` up to `high`: divisor, extent and
    stride. None where they do not determine the index."""
    found: list[tuple[int, int, int]] = []
    divisor, left = 1, high - low
    while left > 1:
        modulus, factor = digits.get(divisor, (1, 0))
        count = min(modulus, left) if modulus else left
        begins = low // divisor % modulus if modulus else 0
        if count == 1 or left % count or begins + count > (modulus or count):
            return None
        found.append((divisor, count, factor))
        divisor, left = divisor * count, left // count
    unused = digits.keys() - {divisor for divisor, _, _ in found}
    stays = all(low // divisor == (high - 1) // divisor for divisor in unused)
    return found if stays else None
