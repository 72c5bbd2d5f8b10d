"""Loads a lowered control node as a program: compiles its parts and builds its template.

Each part has a listing. A small part that is the whole iteration of a loop is compiled as one
function that runs several iterations; in other parts each kernel is a call of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any, cast

from thalweg.codegen.cache import Loaded, load_all, name_of
from thalweg.codegen.kernels import Iteration, iteration_request
from thalweg.codegen.llvm.emitted import Request
from thalweg.codegen.machine import CpuTarget
from thalweg.device.control import ViewLayout, references_of
from thalweg.device.cpu.control_program import CpuControlStep
from thalweg.device.cpu.listing import Call, build_listing
from thalweg.device.cpu.loading import function_numbers, kernel_request
from thalweg.device.cpu.table_template import ControlTemplate, Entry, Jump
from thalweg.device.program import Listing
from thalweg.device.program_template import ABSOLUTE
from thalweg.ir.kernel import Loops
from thalweg.lower.control.program import (
    BufferView,
    ControlProgram,
    Item,
    Loop,
    Part,
    Storage,
)
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.memory.arena import rounded
from thalweg.lower.memory.barriers import work_of
from thalweg.lower.memory.buffers import Buffer, BufferKind

if TYPE_CHECKING:
    from thalweg.device.cpu.device import CpuDevice

_Listings = Mapping[Part, Listing[Call]]

_ITERATION_WORK = 50_000.0  # of all iterations in one call of an iteration function: some 20 µs
_MAX_ITERATION_KERNELS = 24  # that are compiled as one iteration function
_NO_CODE = Loaded((), 0)


def make_control_step(
    program: ControlProgram, kernels: Sequence[SpecializedKernel], device: CpuDevice
) -> CpuControlStep:
    """The program of a control node, lowered for the target of a device."""
    target = device.target
    threads = _threads_for(program, device.threads, target)
    listings, loaded = _compiled_parts(program, kernels, target, threads)
    offsets, frame = _frame(program, listings, target.alignment)
    layout = ViewLayout(listings, offsets)
    table = _table(program, listings, function_numbers(loaded), layout)
    template = ControlTemplate(
        **layout.fields(loaded),
        arena=frame,
        references=references_of(program, layout.views),
        streams=(),
        inputs=(),
        outputs=(),
        calls=table,
        threads=threads,
        work=inf,
        packed_references=(),
        interface=program.interface,
        views=layout.views,
        checks=any(part.lowered.checked for part in program.parts),
    )
    return CpuControlStep(template, list(loaded.values()), device.pool)


# Parts


def _threads_for(program: ControlProgram, most: int, target: CpuTarget) -> int:
    """The number of threads for a program: one if all its parts are small."""
    works = [_work(part, target) for part in program.parts]
    return 1 if max(works, default=0) < 2 * target.min_shared_work else most


def _compiled_parts(
    program: ControlProgram,
    specialized: Sequence[SpecializedKernel],
    target: CpuTarget,
    threads: int,
) -> tuple[dict[Part, Listing[Call]], dict[str, Loaded]]:
    """The listings of the parts, compiled together, and their kernels by name. The argument words
    of the parts follow one another."""
    parts, following = program.parts, iter(specialized)
    kernels = {part: [next(following) for _ in part.lowered.launches] for part in parts}
    conditions = _loop_conditions(program) if threads == 1 else {}
    requests: dict[Part, list[Request]] = {}
    for part in parts:
        condition = conditions.get(part)
        iteration = condition and _iteration(part, kernels[part], condition, target)
        if iteration is not None:
            requests[part] = [iteration_request(iteration, target)]
        else:
            pairs = zip(part.lowered.launches, kernels[part], strict=True)
            requests[part] = [kernel_request(launch, k.kernel, target) for launch, k in pairs]
    every = [request for part in parts for request in requests[part]]
    loaded = load_all(every, target)
    names, code_of = [name_of(request, target) for request in every], iter(loaded)
    listings: dict[Part, Listing[Call]] = {}
    words = 0
    for part in parts:
        code = [next(code_of) for _ in requests[part]]
        # An iteration function is the code of the first call; the others have none.
        code += [_NO_CODE] * (len(kernels[part]) - len(code))
        listings[part] = build_listing(part.lowered, kernels[part], code, target, {}, words)
        words += sum(kernel.word_count for kernel in kernels[part])
    return listings, dict(zip(names, loaded, strict=True))


def _work(part: Part, target: CpuTarget) -> float:
    return sum(work_of(launch.kernel, target) for launch in part.lowered.launches)


def _loop_conditions(program: ControlProgram) -> dict[Part, BufferView]:
    """The small parts that are the whole iteration of a loop, and the loop's condition."""
    loops = [item for item in program.walk() if isinstance(item, Loop) and len(item.body) == 1]
    bodies = [(loop.body[0], loop.truth) for loop in loops]
    return {part: truth for part, truth in bodies if isinstance(part, Part) and _is_small(part)}


def _is_small(part: Part) -> bool:
    kernels = [launch.kernel for launch in part.lowered.launches]
    return len(kernels) <= _MAX_ITERATION_KERNELS and all(isinstance(k, Loops) for k in kernels)


def _iteration(
    part: Part, kernels: Sequence[SpecializedKernel], condition: BufferView, target: CpuTarget
) -> Iteration | None:
    """A part as one function of several iterations; None if it does not compute the condition."""
    memory: dict[Any, int] = {}  # numbers by (buffer or view, start of an argument in it)
    numbers: list[tuple[int, ...]] = []
    for launch in part.lowered.launches:
        arguments = zip(launch.buffers, launch.starts, strict=True)
        keys = [(part.views.get(buffer, buffer), start) for buffer, start in arguments]
        numbers.append(tuple(memory.setdefault(key, len(memory)) for key in keys))
    if (condition, 0) not in memory:
        return None
    counts = Counter(_alias_class(buffer) for buffer, _ in memory)
    overlapping = frozenset(
        number for (buffer, _), number in memory.items() if counts[_alias_class(buffer)] > 1
    )
    most = max(int(_ITERATION_WORK / (_work(part, target) + 1)), 1)
    loops = tuple(cast("Loops", kernel.kernel) for kernel in kernels)
    *starts, _ = accumulate([kernel.word_count for kernel in kernels], initial=0)
    return Iteration(loops, tuple(starts), tuple(numbers), overlapping, memory[condition, 0], most)


def _alias_class(memory: BufferView | Buffer) -> Any:
    """What memory may overlap with: temporaries share the arena, and two variables may be one."""
    if isinstance(memory, Buffer):
        return BufferKind.TEMPORARY if memory.kind is BufferKind.TEMPORARY else memory
    return Storage.VARIABLE if memory.where is Storage.VARIABLE else memory


# The template


def _frame(
    program: ControlProgram, listings: _Listings, alignment: int
) -> tuple[dict[BufferView, int], int]:
    """The offsets of the views in the frame, and its size. The temporaries, whose memory the parts
    share, come first."""
    temporary = max((listing.arena.size for listing in listings.values()), default=0)
    own = [view for view in program.views() if view.where is Storage.OWN]
    sizes = [rounded(view.bytes, alignment) for view in own]
    *offsets, end = accumulate(sizes, initial=rounded(temporary, alignment))
    return dict(zip(own, offsets, strict=True)), end


def _table(
    program: ControlProgram, listings: _Listings, functions: Mapping[int, int], layout: ViewLayout
) -> list[Entry | Jump]:
    """The calls of the parts, and the jumps of loops and conditionals. `functions`: their numbers
    by address."""

    def jump(target: int, truth: BufferView | None = None, if_true: bool = False) -> Jump:
        base, offset = (ABSOLUTE, 0) if truth is None else layout.address_of(truth)
        return Jump(target, offset, if_true, base=base)

    def entries_of(items: Sequence[Item], start: int) -> list[Entry | Jump]:
        """The entries of items, the first of which is entry `start` of the table."""
        table: list[Entry | Jump] = []
        for item in items:
            at = start + len(table)
            if isinstance(item, Part):
                calls = listings[item].calls
                entries = [entry for call in calls for entry in call.entries(functions)]
                if entries:
                    entries[0] = entries[0]._replace(barrier=True)
                if len(entries) < len(calls):  # an iteration function in place of several kernels
                    entries[0] = entries[0]._replace(work=int(_ITERATION_WORK))
                table += entries
            elif isinstance(item, Loop):
                body = entries_of(item.body, at + 1)
                end = at + len(body) + 2
                table += [jump(end, item.truth), *body, jump(at + 1, item.truth, if_true=True)]
            else:
                if_true = entries_of(item.if_true, at + 1)
                middle = at + len(if_true) + 2
                if_false = entries_of(item.if_false, middle)
                end = middle + len(if_false)
                table += [jump(middle, item.truth), *if_true, jump(end), *if_false]
        return table

    return entries_of(program.items, 0)
