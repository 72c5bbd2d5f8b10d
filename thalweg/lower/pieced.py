"""Tensors that are made one after the other in memory need not be copied to be stacked.

A draft that only copies tensors one after the other into a whole (`stack`, `concat` of rows) is
left out: the tensors are pieces of the whole's buffer from the beginning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

from thalweg.loops.expr import Expr
from thalweg.loops.loop import Variable
from thalweg.lower.affine import Affine, Digit, affine, is_index, number, total
from thalweg.lower.buffers import Buffer, Kind
from thalweg.lower.drafts import Draft, Nest, Write
from thalweg.lower.stack import Pieces

Found = TypeVar("Found")

#: The values that indices take somewhere: from the first number up to the second.
Limits = dict[Variable, tuple[int, int]]


def pieced(drafts: Sequence[Draft], pieces: Pieces) -> list[Draft]:
    """The drafts without such copies; notes in `pieces` where the parts lie from now on."""
    writers: dict[Buffer, list[Write]] = defaultdict(list)
    for draft in drafts:
        for write, buffer in zip(draft.nest.writes, draft.targets, strict=True):
            writers[buffer].append(write)
    gone: set[int] = set()
    behind: dict[Buffer, frozenset[Buffer]] = {}
    known: dict[Nest, dict[Buffer, int]] = {}
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
    if len(writes) != 1 or writes[0].buffer.kind is not Kind.TEMPORARY:
        return False
    return writes[0].combine == "set" and writes[0].inside is None


def _behind(draft: Draft, behind: Mapping[Buffer, frozenset[Buffer]]) -> Draft:
    """A draft that is known to read all pieces of what it reads."""
    found = [behind[buffer] for buffer in draft.loaded if buffer in behind]
    return replace(draft, behind=draft.behind.union(*found)) if found else draft


def found_again(
    draft: Draft,
    known: dict[Nest, dict[Buffer, Found]],
    find: Callable[[Draft], dict[Buffer, Found]],
) -> dict[Buffer, Found]:
    """What is found of a draft's buffers: once for all of its nest that begin at one place."""
    if draft.needed or draft.behind or any(shift for _, shift in draft.homes):
        return find(draft)
    nest = draft.nest
    if nest not in known:
        known[nest] = find(Draft(nest, draft.nodes))
    found, numbers = known[nest], nest.buffers.index
    return {draft.homes[numbers(buffer)][0]: what for buffer, what in found.items()}


def _starts(draft: Draft) -> dict[Buffer, int]:
    """Where in a whole the parts begin that a draft copies there, if that is all it does."""
    return copied(draft, _start)


def copied(draft: Draft, find: Callable[[Write, Any, Limits], Found | None]) -> dict[Buffer, Found]:
    """What is found of each part that a draft copies into a whole, if that is all it does and all
    parts are so."""
    nest = draft.nest
    if len(nest.writes) != 1 or len(nest.loads) < 2 or not _selects(nest.writes[0].value):
        return {}
    if nest.product or draft.needed or draft.serial or draft.behind:
        return {}
    (write,) = draft.writes
    found: dict[Buffer, Found] = {}
    for leaf, limits in _leaves(write.value, {v: (0, v.extent) for v in draft.variables}):
        what = find(write, leaf, limits)
        if what is None or leaf.arguments[0] in found:
            return {}
        found[leaf.arguments[0]] = what
    return found


# Selections by an index


def _selects(value: Any) -> bool:
    return isinstance(value, Expr) and value.function == "select"


def _leaves(value: Any, limits: Limits) -> list[tuple[Any, Limits]]:
    """What selections by an index choose from, and for which values of the indices."""
    if not _selects(value):
        return [(value, limits)]
    condition, first, second = value.arguments
    found = _border(condition)
    if found is None:
        return [(None, limits)]
    variable, border = found
    low, high = limits.get(variable, (0, 0))
    if not low < border < high:
        return [(None, limits)]
    below, above = {**limits, variable: (low, border)}, {**limits, variable: (border, high)}
    return [*_leaves(first, below), *_leaves(second, above)]


def _border(condition: Any) -> tuple[Variable, int] | None:
    """The index that must be below a number for a condition to hold, and that number."""
    if not isinstance(condition, Expr) or condition.function != "lt":
        return None
    left, border = condition.arguments
    if not is_index(left) or not isinstance(border, int):
        return None
    place = affine(left)
    if place.constant or list(place.terms.values()) != [1]:
        return None
    (atom,) = place.terms
    if isinstance(atom, Variable):
        return atom, border
    if not isinstance(atom, Digit) or atom.modulus or not _is_one_variable(atom.number):
        return None
    (variable,) = atom.number.terms
    return (variable, border * atom.divisor) if isinstance(variable, Variable) else None


def _is_one_variable(place: Affine) -> bool:
    return place.constant == 0 and list(place.terms.values()) == [1]


# Places


def _start(write: Write, leaf: Any, limits: Limits) -> int | None:
    """Where a buffer begins in the whole, if the copy takes its elements one after the other."""
    steps = steps_of(write, leaf, limits)
    if steps is None or any(inner != outer for _, inner, outer in steps):
        return None
    return first_place(write.offset, limits)


def steps_of(write: Write, leaf: Any, limits: Limits) -> list[tuple[int, int, int]] | None:
    """How a copy goes through all elements of a buffer, in order: for each index that turns, the
    slowest first, how often, and how far it steps in the buffer and in the whole."""
    if not isinstance(leaf, Expr) or leaf.function != "load":
        return None
    buffer, place = leaf.arguments
    if buffer.dtype != write.buffer.dtype or buffer is write.buffer:
        return None
    offset, target = _within(place, limits), write.offset
    if not offset.terms.keys() | target.terms.keys() <= limits.keys():
        return None
    turning = {v: high - low for v, (low, high) in limits.items() if high - low > 1}
    order = sorted(turning, key=lambda v: offset.terms.get(v, 0), reverse=True)
    found = [(turning[v], offset.terms.get(v, 0), target.terms.get(v, 0)) for v in order]
    dense = [prod(count for count, _, _ in found[n + 1 :]) for n in range(len(found))]
    if [step for _, step, _ in found] != dense or prod(turning.values()) != buffer.size:
        return None
    return found if first_place(offset, limits) == 0 else None


def first_place(offset: Affine, limits: Limits) -> int:
    """A place where all indices have their least values."""
    return offset.constant + sum(limits[atom][0] * f for atom, f in offset.terms.items())  # pyright: ignore[reportArgumentType] - the caller saw that all atoms are variables


def _within(offset: Affine, limits: Limits) -> Affine:
    """A place where indices are limited, with digits that are then plain made so."""
    terms = [_plain(atom, limits).scaled(factor) for atom, factor in offset.terms.items()]
    return total([number(offset.constant), *terms])


def _plain(atom: Any, limits: Limits) -> Affine:
    """`i % 16` is `i - 32` for i from 32 to 47."""
    same = Affine(0, {atom: 1})
    if not isinstance(atom, Digit) or atom.divisor != 1 or not _is_one_variable(atom.number):
        return same
    (variable,) = atom.number.terms
    if not isinstance(variable, Variable) or variable not in limits or not atom.modulus:
        return same
    low, high = limits[variable]
    turns = low // atom.modulus
    if (high - 1) // atom.modulus != turns:
        return same
    return Affine(-turns * atom.modulus, {variable: 1})
