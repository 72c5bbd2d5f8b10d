"""Tensors that are made together need not be copied to lie side by side.

A draft that only copies tensors into the rows of a whole (`concat` of columns) is left out where
one other draft makes all of them and nobody else reads them: that one writes the rows of the whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thalweg.lower.affine import Affine, Atom, bounds_of
from thalweg.lower.buffers import Buffer, Kind
from thalweg.lower.drafts import Draft, Nest, Write
from thalweg.lower.pieced import Limits, copied, first_place, found_again, is_made_once, steps_of
from thalweg.lower.stack import Pieces


@dataclass(frozen=True)
class Rows:
    """Where a tensor lies in a whole: `length` elements of it from `start` on, and so in every row,
    which are `stride` apart."""

    length: int
    stride: int
    start: int

    def place(self, offset: Affine) -> Affine | None:
        """A place in the tensor, as one in the whole; None where rows cannot be told apart."""
        row, within = divmod(offset.constant, self.length)
        terms: dict[Atom, int] = {}
        for atom, factor in offset.terms.items():
            low, high = bounds_of(atom)
            if factor % self.length == 0:
                terms[atom] = factor // self.length * self.stride
            elif factor > 0 and low >= 0:
                terms[atom], within = factor, within + factor * high
            else:
                return None
        if not within < self.length:
            return None
        first = offset.constant % self.length + row * self.stride + self.start
        return Affine(first, terms)


def woven(drafts: Sequence[Draft], pieces: Pieces) -> list[Draft]:
    """The drafts without such copies."""
    fixed = {*pieces, *(home for home, _ in pieces.values())}
    makers: dict[Buffer, list[int]] = defaultdict(list)
    readers: dict[Buffer, list[int]] = defaultdict(list)
    for position, draft in enumerate(drafts):
        for buffer in draft.targets:
            makers[buffer].append(position)
        for buffer in draft.reads:
            readers[buffer].append(position)
    result: list[Draft | None] = list(drafts)
    known: dict[Nest, dict[Buffer, Rows]] = {}
    nests: dict[Any, tuple[Nest, Buffer] | None] = {}
    for position, copy in enumerate(drafts):
        parts = found_again(copy, known, _rows)
        if not parts or not fixed.isdisjoint(parts):
            continue
        (whole,) = copy.targets
        inner = all(buffer.kind is Kind.TEMPORARY for buffer in (whole, *parts))
        alone = all(readers[part] == [position] for part in parts)
        made = {tuple(makers[part]) for part in parts}
        if not inner or not alone or len(made) != 1 or makers[whole] != [position]:
            continue
        (places,) = made
        maker = result[places[0]] if len(places) == 1 else None
        changed = None if maker is None else _writing_rows(maker, parts, whole, nests)
        if changed is not None:
            result[places[0]], result[position] = changed, None
    return [draft for draft in result if draft is not None]


def _rows(copy: Draft) -> dict[Buffer, Rows]:
    """The rows that a draft copies its parts to, if that is all it does."""
    return copied(copy, _rows_of) if is_made_once(copy.writes) else {}


def _rows_of(write: Write, leaf: Any, limits: Limits) -> Rows | None:
    steps = steps_of(write, leaf, limits)
    if steps is None:
        return None
    length = 1
    while steps and steps[-1][1] == steps[-1][2]:
        length *= steps.pop()[0]
    strides = {length * outer / inner for _, inner, outer in steps}
    if len(strides) != 1 or not min(strides).is_integer() or min(strides) < length:
        return None
    return Rows(length, int(strides.pop()), first_place(write.offset, limits))


def _writing_rows(
    maker: Draft,
    parts: Mapping[Buffer, Rows],
    whole: Buffer,
    nests: dict[Any, tuple[Nest, Buffer] | None],
) -> Draft | None:
    """A draft that writes rows of a whole instead of parts; drafts of one nest are still of one."""
    rows = tuple(parts.get(buffer) for buffer in maker.targets)
    shifts = [maker.homes[number][1] for number in maker.nest.written]
    if any(row and shift for row, shift in zip(rows, shifts, strict=True)):
        return None
    key = maker.nest, rows
    if key not in nests:
        nest = _nest_of_rows(maker.nest, rows, whole)
        nests[key] = None if nest is None else (nest, whole)
    found = nests[key]
    return None if found is None else maker.changed(found[0], {found[1]: (whole, 0)})


def _nest_of_rows(nest: Nest, rows: Sequence[Rows | None], whole: Buffer) -> Nest | None:
    writes: list[Write] = []
    for write, row in zip(nest.writes, rows, strict=True):
        place = write.offset if row is None else row.place(write.offset)
        if place is None or (row is not None and not is_made_once([write])):
            return None
        writes.append(write if row is None else replace(write, buffer=whole, offset=place))
    return replace(nest, writes=tuple(writes))
