"""Hoists nests that read far more than they write to right after the producers of what they read.

The gradient of a weight, fused with the update of that weight, reads large temporaries and writes
only variables. Right after the producers of those temporaries it finds much of them in the caches,
and their memory is freed early.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.ir.loop import iterations
from thalweg.ir.rewrite import loads_in
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, temporary_bytes
from thalweg.lower.nests.loop_nest import LastAccesses, LoopNest

_SortKey = tuple[int, int]  # the nest that a nest follows, and its rank among those hoisted there
_START: _SortKey = (-1, 0)


def hoist_consumers(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests, some of them hoisted as far as dependences allow."""
    scheduler = _Scheduler(nests, target)
    keys = [scheduler.key(position, nest) for position, nest in enumerate(nests)]
    return [nests[i] for i in sorted(range(len(nests)), key=keys.__getitem__)]


class _Scheduler:
    """Assigns sort keys to nests in order, from the keys of the nests that they depend on."""

    def __init__(self, nests: Sequence[LoopNest], target: Target) -> None:
        self._target = target
        self._last = LastAccesses(_START)
        self._checked = _START
        self._check_positions = _check_positions(nests, target)
        self._last_check = max(self._check_positions, default=-1)

    def key(self, position: int, nest: LoopNest) -> _SortKey:
        """The sort key of the next nest."""
        key = position, 0
        if self._may_move(position, nest):
            checked = self._checked if _updates_variables(nest) else _START
            key = max(self._last.before(nest), checked)[0], position + 1
        self._last.note(nest, key)
        if position in self._check_positions:
            self._checked = max(self._checked, key)
        return key

    def _may_move(self, position: int, nest: LoopNest) -> bool:
        if nest.checks or (position < self._last_check and _updates_variables(nest)):
            return False  # no variable is written before all checks have passed
        written, read = temporary_bytes(nest.written), temporary_bytes(nest.reads)
        min_bytes, shrinkage = self._target.min_hoisted_bytes, self._target.hoisted_shrinkage
        return _is_scalar(nest) or (read >= min_bytes and written * shrinkage <= read)


def _check_positions(nests: Sequence[LoopNest], target: Target) -> set[int]:
    """The nests that updates stay behind: those with checks or, on targets that hoist updates over
    checks, those that write what the conditions read."""
    if not target.hoists_over_checks:
        return {position for position, nest in enumerate(nests) if nest.checks}
    positions: set[int] = set()
    writers: dict[Buffer, int] = {}
    for position, nest in enumerate(nests):
        read = loads_in(check.condition for check in nest.checks)
        positions.update(writers[load.buffer] for load in read if load.buffer in writers)
        writers |= dict.fromkeys(nest.written, position)
    return positions


def _is_scalar(nest: LoopNest) -> bool:
    return iterations(nest.variables) == 1 and nest.product is None and not _updates_variables(nest)


def _updates_variables(nest: LoopNest) -> bool:
    """Whether a nest writes variables or loop variables."""
    return any(buffer.is_variable for buffer in nest.written)
