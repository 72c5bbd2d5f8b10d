"""Lowering, by way of what keeps lowerings for later processes, where something does.

The parts of native loops and conditionals are lowered through here: their programs are put together
anew in every process, from regions that are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from thalweg.graph.node import Tensor
from thalweg.ir.target import Target
from thalweg.lower import lowering
from thalweg.lower.lowering import Lowered
from thalweg.lower.specialise import Region, Shape

Lower = Callable[[Region, Mapping[Tensor, Shape], Target], Lowered]

#: What lowers, or finds a lowering; set by `thalweg.runtime.lowering_cache`, which knows the disk.
keeper: list[Lower] = [lowering.lower]


def lower(region: Region, shapes: Mapping[Tensor, Shape], target: Target) -> Lowered:
    """A region on concrete shapes, lowered now or before."""
    return keeper[0](region, shapes, target)
