"""The parts of a control program with their code: calls, and where their temporaries lie.

Comes in: a program, with what varied in its kernels so far and how many threads run it. A small
part that is all of a loop's iteration is compiled as one function that repeats itself; of any other
part each kernel is a call of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from thalweg.codegen.cache import Loaded, load_all
from thalweg.codegen.kernels import iteration_request
from thalweg.codegen.llvm.emitted import Request
from thalweg.codegen.loops.iteration import Iteration
from thalweg.codegen.machine import CpuTarget
from thalweg.device.cpu.listing import Call, listed
from thalweg.device.cpu.loading import kernel_request
from thalweg.device.program import Listing
from thalweg.ir.kernel import Loops
from thalweg.lower.control.program import Branch, BufferView, ControlProgram, Part, Storage
from thalweg.lower.dynamic_shapes import SpecializedKernel, Varying
from thalweg.lower.memory.barriers import work_of
from thalweg.lower.memory.buffers import Buffer, BufferKind

_REPEATED_WORK = 50_000.0  # of a kernel that repeats itself before it returns: some 20 µs
_MAX_REPEATED = 24  # kernels of an iteration that repeats itself: all of them are compiled as one
_NO_CODE = Loaded((), 0)


def threads_for(program: ControlProgram, most: int, target: CpuTarget) -> int:
    """How many threads a program is worth: one, where all its parts are small."""
    works = [_work(part, target) for part in _parts(program)]
    return 1 if max(works, default=0) < 2 * target.min_shared_work else most


def placed_parts(
    program: ControlProgram, varying: Varying, target: CpuTarget, threads: int
) -> dict[Part, Listing[Call]]:
    """The parts of a program, all compiled together, the words of their calls one after another."""
    parts = _parts(program)
    kernels = iter(varying.adapt([launch for p in parts for launch in p.lowered.launches]))
    to = {part: [next(kernels) for _ in part.lowered.launches] for part in parts}
    deciding = _repeated(program) if threads == 1 else {}
    iterations = {part: _iteration(part, to[part], deciding[part], target) for part in deciding}
    requests = {part: _requests(part, to[part], iterations.get(part), target) for part in parts}
    loaded = iter(load_all([one for part in parts for one in requests[part]], target))
    found: dict[Part, Listing[Call]] = {}
    words = 0
    for part in parts:
        code = [next(loaded) for _ in requests[part]]
        found[part] = _with_code(part, to[part], code, words, target)
        words += sum(call.word_count for call in found[part].calls)
    return found


def _parts(program: ControlProgram) -> list[Part]:
    return [item for item in program.items if isinstance(item, Part)]


def _work(part: Part, target: CpuTarget) -> float:
    return sum(work_of(launch.kernel, target) for launch in part.lowered.launches)


def _repeated(program: ControlProgram) -> dict[Part, BufferView]:
    """The parts that are all of a loop's iteration, and what decides if there is another one."""
    found: dict[Part, BufferView] = {}
    items = program.items
    for label, part, branch in zip(items, items[1:], items[2:], strict=False):
        if not isinstance(branch, Branch) or branch.target is not label or not branch.if_true:
            continue
        if not isinstance(part, Part) or branch.decides is None:
            continue
        launches = part.lowered.launches
        is_small = len(launches) <= _MAX_REPEATED
        if is_small and all(isinstance(launch.kernel, Loops) for launch in launches):
            found[part] = branch.decides
    return found


def _iteration(
    part: Part, kernels: Sequence[SpecializedKernel], deciding: BufferView, target: CpuTarget
) -> Iteration | None:
    """A part as one function that repeats itself."""
    launches = part.lowered.launches
    memory: dict[Any, int] = {}  # numbers, by what lies there and where in it an argument begins
    starts: list[int] = []
    numbers: list[tuple[int, ...]] = []
    words = 0
    for launch, to in zip(launches, kernels, strict=True):
        places = zip(launch.buffers, launch.starts, strict=True)
        keys = [(part.views.get(buffer, buffer), start) for buffer, start in places]
        numbers.append(tuple(memory.setdefault(key, len(memory)) for key in keys))
        starts.append(words)
        words += Call.count_words(launch, to)
    if (deciding, 0) not in memory:
        return None
    times = Counter(_memory_of(place) for place, _ in memory)
    overlapping = frozenset(
        number for (place, _), number in memory.items() if times[_memory_of(place)] > 1
    )
    most = max(int(_REPEATED_WORK / (_work(part, target) + 1)), 1)
    loops = tuple(cast("Loops", to.kernel) for to in kernels)
    return Iteration(loops, tuple(starts), tuple(numbers), overlapping, memory[deciding, 0], most)


def _memory_of(place: BufferView | Buffer) -> Any:
    """What memory is part of: all temporaries of the arena; two variables may be one in the end."""
    if isinstance(place, Buffer):
        return BufferKind.TEMPORARY if place.kind is BufferKind.TEMPORARY else place
    return Storage.VARIABLE if place.where is Storage.VARIABLE else place


def _requests(
    part: Part,
    kernels: Sequence[SpecializedKernel],
    iteration: Iteration | None,
    target: CpuTarget,
) -> list[Request]:
    if iteration is not None:
        return [iteration_request(iteration, target)]
    pairs = zip(part.lowered.launches, kernels, strict=True)
    return [kernel_request(launch, to.kernel, target) for launch, to in pairs]


def _with_code(
    part: Part,
    kernels: Sequence[SpecializedKernel],
    loaded: Sequence[Loaded],
    words: int,
    target: CpuTarget,
) -> Listing[Call]:
    """The calls of a part, which begin with a barrier; of one that repeats itself the first call is
    all."""
    missing = len(part.lowered.launches) - len(loaded)
    made = listed(part.lowered, kernels, [*loaded, *[_NO_CODE] * missing], target, words)
    calls = [*made.calls]
    if calls:
        calls[0] = replace(calls[0], barrier=True)
    if missing:
        calls = [replace(call, thread=-1, work=int(_REPEATED_WORK)) for call in calls]
    return replace(made, calls=calls)
