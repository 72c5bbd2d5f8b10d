"""Lowers a region on concrete shapes to kernel launches over buffers: the list of passes."""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.graph.node import Tensor
from thalweg.ir.target import Target
from thalweg.lower.lowered import Lowered
from thalweg.lower.memory.arena import in_place
from thalweg.lower.memory.buffers import Pieces
from thalweg.lower.nests.bufferize import bufferize
from thalweg.lower.nests.builder import NestBuilder
from thalweg.lower.nests.split import split_large_selects, split_large_values
from thalweg.lower.nests.verify import verified, verify_launches, verify_pieces
from thalweg.lower.passes.concat import alias_concat, concat_in_place
from thalweg.lower.passes.fuse import fuse, fuse_rows
from thalweg.lower.passes.hoist_consumers import hoist_consumers
from thalweg.lower.passes.hoist_invariants import hoist_invariants
from thalweg.lower.passes.merge_reductions import merge_reductions
from thalweg.lower.passes.pretranspose import pretranspose
from thalweg.lower.passes.rematerialize import inline_into_rows, rematerialize
from thalweg.lower.passes.tile_windows import tile_windows
from thalweg.lower.specialise import Region, Shape, specialise


def lower(region: Region, shapes: Mapping[Tensor, Shape], target: Target) -> Lowered:
    """Specialise a region to shapes, build its loop nests, run the passes, and bufferize."""
    spec, classes = specialise(region, shapes)
    builder = NestBuilder(spec, classes, target)
    builder.run()
    buffers, streams = builder.buffers, builder.streams
    unfused = sum(bool(nest.template.writes) for nest in builder.nests)
    nests, pieces = verified("inline_producers", builder.nests), Pieces()
    del builder, classes  # their tables are larger than all that is kept
    nests = verified("alias_concat", alias_concat(nests, pieces))
    nests = verified("merge_reductions", merge_reductions(nests, pieces, target))
    verify_pieces("merge_reductions", pieces)
    nests = verified("split_large_values", split_large_values(nests, target))
    nests = verified("hoist_invariants", hoist_invariants(nests))
    nests = verified("fuse", fuse(nests, target))
    nests = verified("inline_into_rows", inline_into_rows(nests, pieces, target))
    nests = verified("fuse_rows", fuse_rows(nests, target))
    nests = verified("rematerialize", rematerialize(nests, pieces, target))
    nests = verified("hoist_consumers", hoist_consumers(nests, target))
    nests = verified("rematerialize", rematerialize(nests, pieces, target))
    nests = verified("pretranspose", pretranspose(nests, target))
    nests = verified("concat_in_place", concat_in_place(nests, pieces, target))
    nests = verified("split_large_selects", split_large_selects(nests, target))
    nests = verified("tile_windows", tile_windows(nests, target))
    launches, checked = bufferize(nests, in_place(nests, pieces, target))
    verify_launches(launches)
    return Lowered(spec, tuple(launches), tuple(checked), buffers, streams, pieces, unfused)
