"""A region on concrete shapes, lowered: kernels in order, over buffers that have their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thalweg.graph.node import Node, Tensor
from thalweg.lower.buffers import Buffer
from thalweg.lower.build import Drafting
from thalweg.lower.cut import in_pieces, in_steps
from thalweg.lower.finish import Launch, finish
from thalweg.lower.fuse import fuse
from thalweg.lower.memory import in_place
from thalweg.lower.order import sooner
from thalweg.lower.pieced import pieced
from thalweg.lower.recompute import recomputed
from thalweg.lower.specialise import Region, Shape, Specialised, specialise
from thalweg.lower.stack import Pieces, stacked
from thalweg.lower.turned import turned
from thalweg.lower.woven import woven


@dataclass(frozen=True)
class Lowered:
    """Kernel launches in order, and what the buffers of a region's border are."""

    spec: Specialised
    launches: tuple[Launch, ...]
    checked: tuple[Node, ...]  # the node behind each fault code, from 1
    buffers: Mapping[Tensor, Buffer]
    streams: Mapping[Node, Buffer]
    pieces: Pieces  # buffers that lie inside others
    drafted: int  # kernels before fusion


def lower(region: Region, shapes: Mapping[Tensor, Shape]) -> Lowered:
    """Shapes made concrete, nodes drafted as loops, drafts fused, kernels finished."""
    spec, kinds = specialise(region, shapes, {})
    drafting = Drafting(spec, kinds)
    drafting.run()
    buffers, streams, drafted = drafting.buffers, drafting.streams, len(drafting.drafts)
    pieces: Pieces = {}
    drafts = in_steps(stacked(pieced(drafting.drafts, pieces), pieces))
    del drafting, kinds  # what it knows of every tensor is more than all that is kept
    drafts = fuse(drafts)
    drafts = turned(recomputed(sooner(recomputed(drafts, pieces)), pieces))
    drafts = in_pieces(woven(drafts, pieces))
    launches, checked = finish(drafts, in_place(drafts, pieces))
    return Lowered(spec, tuple(launches), tuple(checked), buffers, streams, pieces, drafted)
