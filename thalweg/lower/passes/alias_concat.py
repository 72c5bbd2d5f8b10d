"""Tensors that are made one after the other in memory need not be copied to be stacked.

A draft that only copies tensors one after the other into a whole (`stack`, `concat` of rows) is
left out: the tensors are pieces of the whole's buffer from the beginning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple, TypeVar

from thalweg.ir.expr import Expr, Load, Select
from thalweg.ir.index import Affine, FloorMod, upper_border
from thalweg.ir.loop import Variable
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate, Write
from thalweg.lower.passes.merge_reductions import Pieces

Found = TypeVar("Found")

#: The values that indices take somewhere: from the first number up to the second.
Limits = dict[Variable, tuple[int, int]]


class Step(NamedTuple):
    """An index of a copy, or a digit of one: how often it turns, and how far that steps in the part
    and in the whole."""

    count: int
    inner: int
    outer: int


def alias_concat(drafts: Sequence[LoopNest], pieces: Pieces) -> list[LoopNest]:
    """The drafts without such copies; notes in `pieces` where the parts lie from now on."""
    writers: dict[Buffer, list[Write]] = defaultdict(list)
    for draft in drafts:
        for write, buffer in zip(draft.nest.writes, draft.targets, strict=True):
            writers[buffer].append(write)
    gone: set[int] = set()
    behind: dict[Buffer, frozenset[Buffer]] = {}
    known: dict[NestTemplate, dict[Buffer, int]] = {}
    for position, draft in enumerate(drafts):
        starts = found_again(draft, known, _starts)
        whole = draft.targets[0] if draft.targets else None
        if whole is None or not starts or not pieces.keys().isdisjoint([whole, *starts]):
            continue
        if all(is_made_once(writers[buffer]) for buffer in (whole, *starts)):
            pieces.update((buffer, (whole, start)) for buffer, start in starts.items())
            behind[whole] = frozenset(starts)
            gone.add(position)
    kept = [draft for position, draft in enumerate(drafts) if position not in gone]
    return [_behind(draft, behind) for draft in kept] if gone else kept


def is_made_once(writes: Sequence[Write]) -> bool:
    """Whether a buffer is the step's own and written whole by one draft."""
    if len(writes) != 1 or writes[0].buffer.kind is not BufferKind.TEMPORARY:
        return False
    return writes[0].combine == "set" and writes[0].inside is None


def _behind(draft: LoopNest, behind: Mapping[Buffer, frozenset[Buffer]]) -> LoopNest:
    """A draft that is known to read all pieces of what it reads."""
    found = [behind[buffer] for buffer in draft.loaded if buffer in behind]
    return replace(draft, behind=draft.behind.union(*found)) if found else draft


def found_again(
    draft: LoopNest,
    known: dict[NestTemplate, dict[Buffer, Found]],
    find: Callable[[LoopNest], dict[Buffer, Found]],
) -> dict[Buffer, Found]:
    """What is found of a draft's buffers: once for all of its nest that begin at one place."""
    if draft.needed or draft.behind or any(shift for _, shift in draft.homes):
        return find(draft)
    nest = draft.nest
    if nest not in known:
        known[nest] = find(LoopNest(nest, draft.nodes))
    found, numbers = known[nest], nest.buffers.index
    return {draft.homes[numbers(buffer)][0]: what for buffer, what in found.items()}


def _starts(draft: LoopNest) -> dict[Buffer, int]:
    """Where in a whole the parts begin that a draft copies there, if that is all it does."""
    return copied(draft, _start)


def copied(
    draft: LoopNest, find: Callable[[Write, Load, Limits], Found | None]
) -> dict[Buffer, Found]:
    """What is found of each part that a draft copies into a whole, if that is all it does and all
    parts are so."""
    nest = draft.nest
    if len(nest.writes) != 1 or len(nest.loads) < 2 or not isinstance(nest.writes[0].value, Select):
        return {}
    if nest.product or draft.needed or draft.serial or draft.behind:
        return {}
    (write,) = draft.writes
    found: dict[Buffer, Found] = {}
    for leaf, limits in _leaves(write.value, {v: (0, v.extent) for v in draft.variables}):
        what = find(write, leaf, limits) if isinstance(leaf, Load) else None
        if what is None or not isinstance(leaf, Load) or leaf.buffer in found:
            return {}
        found[leaf.buffer] = what
    return found


# Selections by an index


def _leaves(value: Expr, limits: Limits) -> list[tuple[Expr | None, Limits]]:
    """What selections by an index choose from, and for which values of the indices."""
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
    """The index that must be below a number for a condition to hold, and that number."""
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


# Places


def _start(write: Write, leaf: Load, limits: Limits) -> int | None:
    """Where a buffer begins in the whole, if the copy takes its elements one after the other."""
    steps = steps_of(write, leaf, limits)
    if steps is None or any(step.inner != step.outer for step in steps):
        return None
    return first_place(write.offset, limits)


def steps_of(write: Write, leaf: Load, limits: Limits) -> list[Step] | None:
    """How a copy goes through all elements of a buffer, in order: the slowest step first."""
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
    """A place where all indices have their least values."""
    return offset.constant + sum(limits[atom][0] * f for atom, f in offset.terms.items())  # pyright: ignore[reportArgumentType] - the caller saw that all atoms are variables


def _digits_of(place: Affine, limits: Limits) -> list[tuple[Variable, int, int, int]] | None:
    """The digits of indices that a place is the sum of: for each the index, the divisor, how often
    it turns, and by how much it moves the place. None where it is no such sum from zero on."""
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
        turning = _turning(own[variable], low, high)
        if turning is None:
            return None
        found += [(variable, *digit) for digit in turning]
    return None if first else found


def _digit(atom: Any) -> tuple[Any, int, int]:
    """An index with the divisor and the modulus that a digit of it has, or as it is."""
    if isinstance(atom, FloorMod) and _is_one_variable(atom.number):
        (number,) = atom.number.terms
        return number, atom.divisor, atom.modulus
    return atom, 1, 0


def _turning(
    digits: Mapping[int, tuple[int, int]], low: int, high: int
) -> list[tuple[int, int, int]] | None:
    """Those of an index's digits that change from `low` up to `high`: divisor, count and factor.
    None where together they do not count all of that."""
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
