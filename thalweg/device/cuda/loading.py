"""Builds the template of a GPU program from a lowered region, and loads its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from thalweg.codegen.cuda.target import CudaTarget
from thalweg.device.cuda.dependencies import is_check
from thalweg.device.cuda.graph_template import MAX_SMALL_OUTPUT, GraphTemplate, PlacedLaunch
from thalweg.device.cuda.kernels import KernelRequest, Kernels, LoadedKernel
from thalweg.device.cuda.listing import (
    CudaCall,
    CudaListing,
    aligned_launches,
    guarded_launches,
    listed,
)
from thalweg.device.program_template import compile_error, only_writes, template_of
from thalweg.lower.control.program import ControlProgram, Part
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.lowered import Launch, Lowered
from thalweg.lower.memory.barriers import amid_updates
from thalweg.lower.memory.buffers import Buffer

#: Seconds per graph: between graphs a step checks for signals and cancellation.
SLICE = 0.08


def load_kernels(
    lowered: Lowered, kernels: Sequence[SpecializedKernel], cache: Kernels, target: CudaTarget
) -> tuple[list[str], list[LoadedKernel]]:
    """The names of the kernels of all launches in the cache, and the loaded kernels."""
    launches = lowered.launches
    forms = zip(guarded_launches(launches), aligned_launches(lowered), strict=True)
    requests = [
        KernelRequest(one.kernel, *form, partial(compile_error, launch))
        for one, form, launch in zip(kernels, forms, launches, strict=True)
    ]
    keys = [(request.kernel, request.guarded, request.aligned) for request in requests]
    unique = dict(zip(keys, requests, strict=True))
    found = dict(zip(unique, cache.load(list(unique.values())), strict=True))
    names = {key: request.name(target) for key, request in unique.items()}
    return [names[key] for key in keys], [found[key] for key in keys]


def load_parts(
    program: ControlProgram, specialized: Sequence[SpecializedKernel], cache: Kernels
) -> dict[Part, CudaListing]:
    """The listings of a control program's parts, with kernels from the cache or compiled. The
    argument words of the parts follow one another."""
    adapted, words = iter(specialized), 0
    listings: dict[Part, CudaListing] = {}
    for part in program.parts:
        kernels = [next(adapted) for _ in part.lowered.launches]
        _, loaded = load_kernels(part.lowered, kernels, cache, cache.target)
        listings[part] = listed(part.lowered, kernels, loaded, cache.target, words)
        words += sum(kernel.word_count for kernel in kernels)
    return listings


def make_template(
    lowered: Lowered,
    kernels: Sequence[SpecializedKernel],
    names: Sequence[str],
    loaded: Sequence[LoadedKernel],
    target: CudaTarget,
) -> tuple[GraphTemplate, CudaListing]:
    """The template of a lowered region, and its listing."""
    listing = listed(lowered, kernels, loaded, target)
    unique = dict(zip(names, loaded, strict=True))
    numbers = {name: number for number, name in enumerate(unique)}
    made, region = template_of(unique, lowered, listing), lowered.spec.region
    pairs = zip(listing.calls, names, strict=True)
    template = GraphTemplate(
        **vars(made),
        launches=[placed(call, numbers[name]) for call, name in pairs],
        graphs=graph_starts(listing.calls),
        input_shapes=[lowered.spec.shapes[region.inputs[place]] for place, _ in made.inputs],
        writes_to_host=_writes_to_host(lowered),
    )
    return template, listing


def _writes_to_host(lowered: Lowered) -> bool:
    """Whether there are no checks, and kernels write each small result once and never read it."""
    region = lowered.spec.region
    outputs = [lowered.buffers[tensor] for tensor in region.outputs if tensor not in region.roots]
    small = [buffer for buffer in outputs if buffer.bytes <= MAX_SMALL_OUTPUT]
    inside = {each for buffer, (whole, _) in lowered.pieces.items() for each in (buffer, whole)}
    is_safe = inside.isdisjoint(small) and not any(map(is_check, lowered.launches))
    return is_safe and all(_is_written_once(buffer, lowered.launches) for buffer in small)


def _is_written_once(buffer: Buffer, launches: Sequence[Launch]) -> bool:
    users = [launch for launch in launches if buffer in launch.buffers]
    if len(users) != 1 or users[0].buffers.count(buffer) != 1:
        return False
    return only_writes(users[0], buffer)


def placed(call: CudaCall, kernel: int) -> PlacedLaunch:
    """A launch of a template, given the number of its kernel."""
    count = call.specialized.word_count
    return PlacedLaunch(kernel, call.words, count, call.shapes, call.after)


def graph_starts(calls: Sequence[CudaCall], limit: float | None = None) -> list[int]:
    """The first launch of each graph: graphs are short, and none ends within an update."""
    no_pause = amid_updates([call.launch for call in calls])
    starts, spent = [0], 0.0
    for number, call in enumerate(calls):
        if spent and spent + call.seconds > (limit or SLICE) and not no_pause[number]:
            starts.append(number)
            spent = 0.0
        spent += call.seconds
    return starts
