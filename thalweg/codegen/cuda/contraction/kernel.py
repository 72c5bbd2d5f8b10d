"""Emits contractions as CUDA kernels, and computes their launches.

Given a `Contraction` and the target, it emits the entries that transpose operands, the one that
multiplies, and one that adds up partial sums of several blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.codegen.cuda.contraction import cores, mma, wgmma
from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.plan import schedule_of
from thalweg.codegen.cuda.contraction.problem import Operand, problem_of
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.contraction.transposition import Transposition, transposition_shape
from thalweg.codegen.cuda.contraction.tune import tuned_schedule
from thalweg.codegen.cuda.contraction.work import FIXUP_THREADS, Work
from thalweg.codegen.cuda.grid import GridModule
from thalweg.codegen.cuda.launch import CudaKernel, LaunchShape
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.ir.kernel import Contraction
from thalweg.platform.caches import memoized

_TRANSPOSE, _MULTIPLY, _FIXUP = "transpose_", "multiply", "add_parts"


def emit_contraction(
    kernel: Contraction,
    target: CudaTarget,
    guarded: bool = False,
    aligned: bool = False,
    schedule: Schedule | None = None,
) -> CudaKernel:
    """The text of a contraction, with the given schedule, the tuned one, or the cheapest by the
    cost model.

    A `guarded` one does nothing if the fault word is set; the buffers of an `aligned` one begin at
    multiples of 16 bytes. Raises `NotContraction` if plain loops are as good.
    """
    work = _work(kernel, target, aligned, schedule)
    module = GridModule(target)
    plan = wgmma.Plan(work) if work.schedule.unit == "wgmma" else None
    if work.schedule.unit == "cores":
        module.min_blocks = cores.resident_blocks(work)
    elif work.schedule.residents > 1 or (plan is not None and plan.shares_registers):
        module.min_blocks = work.schedule.residents  # limits registers
    maps = plan.tensor_maps if plan is not None else ()
    for name, operand in _copies(work).items():
        turning = GridFrame(module, name, work.problem.kernel, Transposition.threads, len(maps))
        transposition = Transposition(turning, operand, work.schedule.fragments)
        with turning.unless_faulty(guarded):
            transposition.emit()
    frame = GridFrame(module, _MULTIPLY, work.problem.kernel, work.schedule.threads, len(maps))
    with frame.unless_faulty(guarded):
        _multiply(work, frame)
    entries = [*_copies(work), _MULTIPLY]
    if work.schedule.has_parts:
        entries.append(_FIXUP)
        fixup = GridFrame(module, _FIXUP, work.problem.kernel, FIXUP_THREADS, len(maps))
        with fixup.unless_faulty(guarded):
            work.emit_fixup(fixup)
    return CudaKernel(module.text, tuple(entries), work.scratch, maps)


def contraction_shapes(
    kernel: Contraction,
    target: CudaTarget,
    sizes: Sequence[int] = (),
    aligned: bool = False,
    schedule: Schedule | None = None,
) -> tuple[LaunchShape, ...]:
    """The launches of a contraction's entries; `sizes` are its run-time sizes."""
    work = _work(kernel, target, aligned, schedule)
    made = work.schedule
    tiles = max(1, work.tiles(work.problem.words(sizes)))
    shared = _shared_bytes(work, target)
    blocks = tiles * made.splits
    if made.unit == "wgmma":
        blocks = min(blocks, target.multiprocessors * made.residents)
    multiply = LaunchShape((made.workers or blocks, 1, 1), (made.threads, 1, 1), shared)
    copies = [transposition_shape(operand, target) for operand in _copies(work).values()]
    if not made.has_parts:
        return *copies, multiply
    fixup = tiles if made.workers else work.fixup_blocks(tiles, target.multiprocessors)
    return *copies, multiply, LaunchShape((fixup, 1, 1), (FIXUP_THREADS, 1, 1))


def _copies(work: Work) -> dict[str, Operand]:
    """The operands that earlier launches transpose, by the names of their entries."""
    sides = {"a": work.problem.a, "b": work.problem.b}
    return {f"{_TRANSPOSE}{name}": sides[name] for name in work.schedule.transposed}


def _work(
    kernel: Contraction, target: CudaTarget, aligned: bool, schedule: Schedule | None
) -> Work:
    problem = problem_of(kernel, aligned)
    made = schedule or tuned_schedule(kernel, target) or _cheapest_schedule(kernel, target, aligned)
    return Work(wgmma.padded(problem, made) if made.unit == "wgmma" else problem, made)


@memoized(256)
def _cheapest_schedule(kernel: Contraction, target: CudaTarget, aligned: bool) -> Schedule:
    """The cheapest schedule, cached, since each launch's shape needs it, too."""
    return schedule_of(problem_of(kernel, aligned), target)


def _multiply(work: Work, frame: GridFrame) -> None:
    emitters = {"cores": cores.emit_cores, "mma": mma.emit_mma, "wgmma": wgmma.emit_wgmma}
    emitters[work.schedule.unit](work, frame)


def _shared_bytes(work: Work, target: CudaTarget) -> int:
    if work.schedule.unit == "cores":
        return cores.shared_bytes(work)
    if work.schedule.unit == "wgmma":
        return wgmma.Plan(work).size
    return mma.shared_bytes(work, target.is_emulated)
