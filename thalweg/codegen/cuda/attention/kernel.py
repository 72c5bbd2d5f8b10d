"""Emits attention kernels, and computes their launches.

Given a `Loops` kernel with chained products, it emits an entry that computes them on tensor cores.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.codegen.cuda.attention.emit import AttentionEmitter
from thalweg.codegen.cuda.attention.form import NotAttention, form_of
from thalweg.codegen.cuda.attention.schedule import THREADS, Schedule, schedule_of
from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.space import Words
from thalweg.codegen.cuda.grid import GridModule
from thalweg.codegen.cuda.launch import CudaKernel, LaunchShape
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.ir.expr import Reduce
from thalweg.ir.kernel import Loops
from thalweg.ir.rewrite import walk

_ENTRY = "attention"
_AMPERE = 80  # the first compute capability with the instructions


def emit_attention(
    kernel: Loops, target: CudaTarget, guarded: bool = False, aligned: bool = False
) -> CudaKernel:
    """The text of an attention kernel; raises `NotAttention` for others.

    A `guarded` one does nothing if the fault word is set; the buffers of an `aligned` one begin at
    multiples of 16 bytes.
    """
    schedule = _schedule(kernel, target)
    module = GridModule(target)
    frame = GridFrame(module, _ENTRY, schedule.form.kernel, THREADS)
    with frame.unless_faulty(guarded):
        AttentionEmitter(schedule, frame, aligned).emit()
    return CudaKernel(module.text, (_ENTRY,))


def attention_shapes(
    kernel: Loops, target: CudaTarget, sizes: Sequence[int] = ()
) -> tuple[LaunchShape, ...]:
    """The launch of an attention kernel; `sizes` are its run-time sizes."""
    words = Words(len(kernel.arguments) + 2, sizes)
    return (_schedule(kernel, target).launch(words),)


def _schedule(kernel: Loops, target: CudaTarget) -> Schedule:
    if target.capability < _AMPERE or not _has_nested_sums(kernel):
        raise NotAttention
    return schedule_of(form_of(kernel), target.is_emulated)


def _has_nested_sums(kernel: Loops) -> bool:
    """Whether sums are nested: a quick test that few kernels pass."""
    sums = kernel.every(Reduce)
    return any(isinstance(part, Reduce) for total in sums for part in walk([total.body]))
