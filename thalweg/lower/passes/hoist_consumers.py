"""When drafts run: what makes little of much runs as soon as it can.

The gradient of a weight, joined with the update of that weight, reads large values and leaves
nothing behind but the variables it writes. Where it runs right after what it reads was made, that
memory is free for others, and much of it is still in the caches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod

from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.loop_nest import LoopNest

_Place = tuple[int, int]  # after which draft, and after how many others that were moved


def hoist_consumers(drafts: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The drafts, some of them moved to the front as far as what they touch lets them."""
    order = _Order(drafts, target)
    places = [order.place(position, draft) for position, draft in enumerate(drafts)]
    return [drafts[i] for i in sorted(range(len(drafts)), key=places.__getitem__)]


class _Order:
    def __init__(self, drafts: Sequence[LoopNest], target: Target) -> None:
        self._target = target
        self._written: dict[Buffer, _Place] = defaultdict(_start)
        self._used: dict[Buffer, _Place] = defaultdict(_start)
        self._checked = _start()
        self._last_check = max((i for i, draft in enumerate(drafts) if draft.needed), default=-1)

    def place(self, position: int, draft: LoopNest) -> _Place:
        """Where a draft goes; those before it in the old order have their places."""
        found = position, 0
        if self._may_move(position, draft):
            found = self._earliest(draft)[0], position + 1
        for buffer in draft.reads | draft.written:
            self._used[buffer] = max(self._used[buffer], found)
        for buffer in draft.written:
            self._written[buffer] = max(self._written[buffer], found)
        if draft.needed:
            self._checked = max(self._checked, found)
        return found

    def _may_move(self, position: int, draft: LoopNest) -> bool:
        if draft.needed or (position < self._last_check and _lasts(draft)):
            return False  # nothing that lasts is written before all checks have held
        made = sum(b.bytes for b in draft.written if b.kind is BufferKind.TEMPORARY)
        read = sum(b.bytes for b in draft.reads if b.kind is BufferKind.TEMPORARY)
        much, shrinkage = self._target.min_hoisted_bytes, self._target.hoisted_shrinkage
        return _is_number(draft) or (read >= much and made * shrinkage <= read)

    def _earliest(self, draft: LoopNest) -> _Place:
        """The last place of those it must come after."""
        places = [self._written[buffer] for buffer in draft.reads]
        places += [self._used[buffer] for buffer in draft.written]
        places += [self._checked] if _lasts(draft) else []
        return max(places, default=_start())


def _start() -> _Place:
    return -1, 0


def _is_number(draft: LoopNest) -> bool:
    return prod(draft.domain) == 1 and draft.product is None and not _lasts(draft)


def _lasts(draft: LoopNest) -> bool:
    """Whether a draft writes what outlives the step."""
    return any(buffer.kind in (BufferKind.VARIABLE, BufferKind.CARRIED) for buffer in draft.written)
