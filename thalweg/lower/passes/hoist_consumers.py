"""Hoists nests that read far more than they write, up to the producers of what they read.

The gradient of a weight, fused with the update of that weight, reads large temporaries and writes
only variables. Right after the producers of those temporaries, it finds much of them in the caches,
and frees their memory early.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from thalweg.ir.loop import iterations
from thalweg.ir.rewrite import loads_in
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.loop_nest import LoopNest

_Place = tuple[int, int]  # the nest that it comes after, and a rank among those hoisted there
_START: _Place = (-1, 0)


def hoist_consumers(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests, some of them hoisted as far as dependences allow."""
    order = _Order(nests, target)
    places = [order.place(position, nest) for position, nest in enumerate(nests)]
    return [nests[i] for i in sorted(range(len(nests)), key=places.__getitem__)]


class _Order:
    """The places of nests so far, by the buffers that they access."""

    def __init__(self, nests: Sequence[LoopNest], target: Target) -> None:
        self._target = target
        self._written: dict[Buffer, _Place] = defaultdict(lambda: _START)
        self._used: dict[Buffer, _Place] = defaultdict(lambda: _START)
        self._checked = _START
        self._deciding = _deciding(nests, target)
        self._last_check = max(self._deciding, default=-1)

    def place(self, position: int, nest: LoopNest) -> _Place:
        """The place of the next nest."""
        found = position, 0
        if self._may_move(position, nest):
            found = self._earliest(nest)[0], position + 1
        for buffer in nest.reads | nest.written:
            self._used[buffer] = max(self._used[buffer], found)
        for buffer in nest.written:
            self._written[buffer] = max(self._written[buffer], found)
        if position in self._deciding:
            self._checked = max(self._checked, found)
        return found

    def _may_move(self, position: int, nest: LoopNest) -> bool:
        if nest.checks or (position < self._last_check and _lasts(nest)):
            return False  # nothing that outlives the step is written before all checks have held
        made = sum(b.bytes for b in nest.written if b.kind is BufferKind.TEMPORARY)
        read = sum(b.bytes for b in nest.reads if b.kind is BufferKind.TEMPORARY)
        min_bytes, shrinkage = self._target.min_hoisted_bytes, self._target.hoisted_shrinkage
        return _is_number(nest) or (read >= min_bytes and made * shrinkage <= read)

    def _earliest(self, nest: LoopNest) -> _Place:
        """The last place of the nests that it depends on."""
        places = [self._written[buffer] for buffer in nest.reads]
        places += [self._used[buffer] for buffer in nest.written]
        places += [self._checked] if _lasts(nest) else []
        return max(places, default=_START)


def _deciding(nests: Sequence[LoopNest], target: Target) -> set[int]:
    """The nests after which all checks have held: those that have them or, where updates are
    hoisted over these, those that write what the conditions read."""
    if not target.hoists_over_checks:
        return {position for position, nest in enumerate(nests) if nest.checks}
    found: set[int] = set()
    made: dict[Buffer, int] = {}
    for position, nest in enumerate(nests):
        read = loads_in(check.condition for check in nest.checks)
        found.update(made[load.buffer] for load in read if load.buffer in made)
        made |= dict.fromkeys(nest.written, position)
    return found


def _is_number(nest: LoopNest) -> bool:
    return iterations(nest.variables) == 1 and nest.product is None and not _lasts(nest)


def _lasts(nest: LoopNest) -> bool:
    """Whether a nest writes what outlives the step."""
    return any(buffer.is_variable for buffer in nest.written)
