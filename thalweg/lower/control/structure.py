"""Control programs as nested loops and conditionals, for devices that cannot jump.

The items of a `ControlProgram` are a sequence with branches to labels. All branches come from loops
and conditionals, so the sequence can be parsed back into their nesting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thalweg.lower.control.program import Branch, BufferView, Item, Label, Part


@dataclass(frozen=True, eq=False)
class Loop:
    """Runs while `truth` is true, which is tested before each iteration."""

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
    """The structure of a sequence of items whose branches lead to labels inside it or to its
    end."""
    structures: list[Structure] = []
    position = 0
    while position < len(items):
        item = items[position]
        if isinstance(item, Part):
            structures.append(item)
        elif isinstance(item, Branch):
            inner, position = _branched(items, position, item)
            structures += inner
        position += 1
    return structures


def _branched(items: Sequence[Item], position: int, branch: Branch) -> tuple[list[Structure], int]:
    """The structure that starts with a branch, and the position of its last item."""
    if branch.decides is None:  # ends the last branch of a conditional
        return [], position
    end = _index(items, branch.target)
    inside = items[position + 1 : end]
    last = inside[-1] if inside else None
    if isinstance(last, Branch) and last.if_true and last.target is inside[0]:
        return [Loop(branch.decides, structured(inside[1:-1]))], end
    if not isinstance(last, Branch) or last.decides is not None:
        return [Conditional(branch.decides, structured(inside), ())], end
    end_of_else = _index(items, last.target)
    otherwise = structured(items[end + 1 : end_of_else])
    return [Conditional(branch.decides, structured(inside[:-1]), otherwise)], end_of_else


def _index(items: Sequence[Item], label: Label) -> int:
    """The position of a label; the end for one outside the sequence."""
    return next((n for n, item in enumerate(items) if item is label), len(items))
