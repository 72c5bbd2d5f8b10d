"""The parts of a control program with their code.

Comes in: a control program, its kernels, and its number of threads. Goes out: the listing of each
part, and the loaded kernels by name. A small part that is the whole iteration of a loop is compiled
as one function that runs several iterations; in other parts each kernel is a call of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from thalweg.codegen.cache import Loaded, load_all, name_of
from thalweg.codegen.kernels import iteration_request
from thalweg.codegen.llvm.emitted import Request
from thalweg.codegen.loops.iteration import Iteration
from thalweg.codegen.machine import CpuTarget
from thalweg.device.cpu.listing import Call, build_listing, count_words
from thalweg.device.cpu.loading import kernel_request
from thalweg.device.program import Listing
from thalweg.ir.kernel import Loops
from thalweg.lower.control.program import BufferView, ControlProgram, Loop, Part, Storage
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.memory.barriers import work_of
from thalweg.lower.memory.buffers import Buffer, BufferKind

_ITERATION_WORK = 50_000.0  # of all iterations in one call of an iteration function: some 20 µs
_MAX_ITERATION_KERNELS = 24  # that are compiled as one iteration function
_NO_CODE = Loaded((), 0)


def threads_for(program: ControlProgram, most: int, target: CpuTarget) -> int:
    """The number of threads for a program: one if all its parts are small."""
    works = [_work(part, target) for part in program.parts]
    return 1 if max(works, default=0) < 2 * target.min_shared_work else most


def placed_parts(
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
        listings[part] = _listing(part, kernels[part], code, words, target)
        words += sum(call.word_count for call in listings[part].calls)
    return listings, dict(zip(names, loaded, strict=True))


def _work(part: Part, target: CpuTarget) -> float:
    return sum(work_of(launch.kernel, target) for launch in part.lowered.launches)


def _loop_conditions(program: ControlProgram) -> dict[Part, BufferView]:
    """The small parts that are the whole iteration of a loop, and the loop's condition."""
    conditions: dict[Part, BufferView] = {}
    for item in program.walk():
        match item:
            case Loop(truth=truth, body=[Part() as part]):
                launches = part.lowered.launches
                is_small = len(launches) <= _MAX_ITERATION_KERNELS
                if is_small and all(isinstance(launch.kernel, Loops) for launch in launches):
                    conditions[part] = truth
            case _:
                pass
    return conditions


def _iteration(
    part: Part, kernels: Sequence[SpecializedKernel], condition: BufferView, target: CpuTarget
) -> Iteration | None:
    """A part as one function of several iterations; None if it does not compute the condition."""
    memory: dict[Any, int] = {}  # numbers by (buffer or view, start of an argument in it)
    starts: list[int] = []
    numbers: list[tuple[int, ...]] = []
    words = 0
    for launch, kernel in zip(part.lowered.launches, kernels, strict=True):
        arguments = zip(launch.buffers, launch.starts, strict=True)
        keys = [(part.views.get(buffer, buffer), start) for buffer, start in arguments]
        numbers.append(tuple(memory.setdefault(key, len(memory)) for key in keys))
        starts.append(words)
        words += count_words(launch, kernel)
    if (condition, 0) not in memory:
        return None
    counts = Counter(_alias_class(buffer) for buffer, _ in memory)
    overlapping = frozenset(
        number for (buffer, _), number in memory.items() if counts[_alias_class(buffer)] > 1
    )
    most = max(int(_ITERATION_WORK / (_work(part, target) + 1)), 1)
    loops = tuple(cast("Loops", kernel.kernel) for kernel in kernels)
    return Iteration(loops, tuple(starts), tuple(numbers), overlapping, memory[condition, 0], most)


def _alias_class(memory: BufferView | Buffer) -> Any:
    """What memory may overlap with: temporaries share the arena, and two variables may be one."""
    if isinstance(memory, Buffer):
        return BufferKind.TEMPORARY if memory.kind is BufferKind.TEMPORARY else memory
    return Storage.VARIABLE if memory.where is Storage.VARIABLE else memory


def _listing(
    part: Part,
    kernels: Sequence[SpecializedKernel],
    loaded: Sequence[Loaded],
    words: int,
    target: CpuTarget,
) -> Listing[Call]:
    """The listing of a part, with a barrier before it. An iteration function is the code of the
    first call; the others have none."""
    missing = len(part.lowered.launches) - len(loaded)
    code = [*loaded, *[_NO_CODE] * missing]
    listing = build_listing(part.lowered, kernels, code, target, words)
    calls: list[Call] = []
    for call in listing.calls:
        dispatch = call.dispatch if calls else call.dispatch._replace(barrier=True)
        if missing:
            dispatch = dispatch._replace(thread=-1, work=int(_ITERATION_WORK))
        calls.append(replace(call, dispatch=dispatch))
    return replace(listing, calls=calls)
