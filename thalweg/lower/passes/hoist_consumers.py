"""Hoists nests that read far more than they write to right after the producers of what they read.

The gradient of a weight, fused with the update of that weight, reads large temporaries and writes
only variables. Right after the producers of those temporaries it finds much of them in the caches,
and their memory is freed early.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.ir.loop import iterations
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import temporary_bytes
from thalweg.lower.nests.loop_nest import LastAccesses, LoopNest

_SortKey = tuple[int, int]  # the nest that a nest follows, and its rank among those hoisted there
_START: _SortKey = (-1, 0)


def hoist_consumers(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests, some of them hoisted as far as dependences allow."""
    scheduler = _Scheduler(target)
    keys = [scheduler.key(position, nest) for position, nest in enumerate(nests)]
    return [nests[i] for i in sorted(range(len(nests)), key=keys.__getitem__)]


class _Scheduler:
    """Assigns sort keys to nests in order, from the keys of the nests that they depend on."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._last = LastAccesses(_START)

    def key(self, position: int, nest: LoopNest) -> _SortKey:
        """The sort key of the next nest."""
        key = position, 0
        if self._may_move(nest):
            key = self._last.before(nest)[0], position + 1
        self._last.note(nest, key)
        return key

    def _may_move(self, nest: LoopNest) -> bool:
        written, read = temporary_bytes(nest.written), temporary_bytes(nest.reads)
        min_bytes, shrinkage = self._target.min_hoisted_bytes, self._target.hoisted_shrinkage
        return _is_scalar(nest) or (read >= min_bytes and written * shrinkage <= read)


def _is_scalar(nest: LoopNest) -> bool:
    is_update = any(buffer.is_variable for buffer in nest.written)
    return iterations(nest.variables) == 1 and nest.product is None and not is_update
