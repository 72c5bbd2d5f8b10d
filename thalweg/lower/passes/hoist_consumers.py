"""Hoists nests that read far more than they write to right after the producers of what they read.

The gradient of a weight, fused with the update of that weight, reads large temporaries and writes
only variables. Right after the producers of those temporaries it finds much of them in the caches,
and their memory is freed early.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from thalweg.ir.loop import iterations
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import temporary_bytes
from thalweg.lower.nests.loop_nest import LoopNest, hoisted


def hoist_consumers(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests, some of them hoisted as far as dependences allow."""
    return hoisted(nests, partial(_may_move, target=target))


def _may_move(nest: LoopNest, target: Target) -> bool:
    written, read = temporary_bytes(nest.written), temporary_bytes(nest.reads)
    shrinks = read >= target.min_hoisted_bytes and written * target.hoisted_shrinkage <= read
    return shrinks or _is_scalar(nest)


def _is_scalar(nest: LoopNest) -> bool:
    is_update = any(buffer.is_variable for buffer in nest.written)
    return iterations(nest.variables) == 1 and nest.product is None and not is_update
