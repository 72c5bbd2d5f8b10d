"""A region on concrete shapes, lowered: kernels in order, over buffers that have their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thalweg.graph.node import Node, Tensor
from thalweg.ir.target import Target
from thalweg.lower.memory.arena import in_place
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.nests.bufferize import Launch, finish
from thalweg.lower.nests.builder import NestBuilder
from thalweg.lower.nests.split import in_pieces, in_steps
from thalweg.lower.passes.alias_concat import alias_concat
from thalweg.lower.passes.concat_in_place import concat_in_place
from thalweg.lower.passes.fuse import fuse
from thalweg.lower.passes.hoist_consumers import hoist_consumers
from thalweg.lower.passes.merge_reductions import Pieces, merge_reductions
from thalweg.lower.passes.pretranspose import pretranspose
from thalweg.lower.passes.rematerialize import rematerialize
from thalweg.lower.specialise import Region, Shape, Specialised, specialise


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


def lower(region: Region, shapes: Mapping[Tensor, Shape], target: Target) -> Lowered:
    """Shapes made concrete, nodes drafted as loops, drafts fused, kernels finished."""
    spec, classes = specialise(region, shapes, {})
    drafting = NestBuilder(spec, classes, target)
    drafting.run()
    buffers, streams, drafted = drafting.buffers, drafting.streams, len(drafting.drafts)
    pieces: Pieces = {}
    drafts = merge_reductions(alias_concat(drafting.drafts, pieces), pieces, target)
    del drafting, classes  # what it knows of every tensor is more than all that is kept
    drafts = fuse(in_steps(drafts, target), target)
    drafts = hoist_consumers(rematerialize(drafts, pieces, target), target)
    drafts = pretranspose(rematerialize(drafts, pieces, target), target)
    drafts = in_pieces(concat_in_place(drafts, pieces, target), target)
    launches, checked = finish(drafts, in_place(drafts, pieces))
    return Lowered(spec, tuple(launches), tuple(checked), buffers, streams, pieces, drafted)
