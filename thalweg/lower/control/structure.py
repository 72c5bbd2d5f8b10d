"""Control programs as nested loops and conditionals, for devices that cannot jump.

The items of a `ControlProgram` are a sequence with branches between labels. All of them come from
loops and conditionals, so that they nest, which is found again here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thalweg.lower.control.program import Branch, BufferView, Item, Label, Part


@dataclass(frozen=True, eq=False)
class Loop:
    """Runs as long as a truth is true, which is looked at before each iteration."""

    truth: BufferView
    body: Sequence[Structure]


@dataclass(frozen=True, eq=False)
class Conditional:
    """Runs one of two sequences."""

    truth: BufferView
    if_true: Sequence[Structure]
    if_false: Sequence[Structure]


Structure = Part | Loop | Conditional


def structured(items: Sequence[Item]) -> list[Structure]:
    """A sequence of items whose branches all lead to places inside it or to its end."""
    found: list[Structure] = []
    place = 0
    while place < len(items):
        item = items[place]
        if isinstance(item, Part):
            found.append(item)
        elif isinstance(item, Branch):
            made, place = _branched(items, place, item)
            found += made
        place += 1
    return found


def _branched(items: Sequence[Item], place: int, branch: Branch) -> tuple[list[Structure], int]:
    """What a branch is the start of, and the place of its last item."""
    if branch.decides is None:  # the end of a branch of a conditional, with nothing after it
        return [], place
    end = _index(items, branch.target)
    inside = items[place + 1 : end]
    last = inside[-1] if inside else None
    if isinstance(last, Branch) and last.if_true and last.target is inside[0]:
        return [Loop(branch.decides, structured(inside[1:-1]))], end
    if not isinstance(last, Branch) or last.decides is not None:
        return [Conditional(branch.decides, structured(inside), ())], end
    after = _index(items, last.target)
    otherwise = structured(items[end + 1 : after])
    return [Conditional(branch.decides, structured(inside[:-1]), otherwise)], after


def _index(items: Sequence[Item], label: Label) -> int:
    """Where a label is; one that is not there stands at the end."""
    return next((n for n, item in enumerate(items) if item is label), len(items))
