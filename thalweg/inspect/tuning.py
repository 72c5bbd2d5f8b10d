"""`tf.tune`: the best schedules for the contractions of a step, by measurement.

What comes in is a session and a step; what goes out is a report to print. Winners are used from
then on, in this process and, as they are kept beside the compiled kernels, in later ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.codegen.contraction.schedule import Schedule
from thalweg.codegen.cuda.contraction.schedule import Schedule as CudaSchedule
from thalweg.device.cpu.tuner import Subject, tune_kernels
from thalweg.device.cuda.tuner import CudaSubject, tune_contractions
from thalweg.device.tuning import BUDGET, Tuned
from thalweg.graph.likes import FetchLike
from thalweg.inspect.explain import StepPlan
from thalweg.inspect.kernel_info import CpuKernel, GpuKernel
from thalweg.inspect.plan_text import clipped, table
from thalweg.inspect.session import InspectedSession
from thalweg.ir.kernel import Contraction
from thalweg.public import public
from thalweg.runtime.compiled import Executable

_HEAD = ("kernel", "iterations", "likely", "best", "gain", "schedule")


@dataclass(frozen=True)
class TuneReport:
    """What `tf.tune` found for each contraction; `print` it for a table."""

    kernels: Sequence[Tuned]
    seconds: float

    def __str__(self) -> str:
        tried = sum(kernel.tried for kernel in self.kernels)
        count = f"{tried} schedules of {len(self.kernels)} contractions in {self.seconds:.1f} s"
        return "\n".join([*table(_HEAD, map(_cells, self.kernels), left=(0, 5)), count])

    __repr__ = __str__


@public("tune")
def tune(
    session: InspectedSession,
    fetches: FetchLike,
    feed_dict: Mapping[Any, Any] | None = None,
    budget_seconds: float = BUDGET,
) -> TuneReport:
    """Measure other schedules for the contractions of a step, and use the best from now on.

    Everything runs on scratch memory: variables stay as they are.

    ```
    print(tf.tune(sess, [train, loss], {x: images, y: labels}))
    ```
    """
    start, plan = time.monotonic(), session.plan(fetches, feed_dict)
    contractions = [k for k in plan.kernels if isinstance(k.kernel, Contraction)]
    on_cpus = [_subject(k) for k in contractions if isinstance(k, CpuKernel)]
    on_gpus = [_cuda_subject(k) for k in contractions if isinstance(k, GpuKernel)]
    found = tune_kernels(on_cpus, budget_seconds)
    found += tune_contractions(on_gpus, budget_seconds - (time.monotonic() - start))
    _forget(plan)
    return TuneReport(found, time.monotonic() - start)


def _subject(kernel: CpuKernel) -> Subject:
    alone = kernel.call.thread >= 0
    return Subject(
        kernel.name, kernel.call.specialized, kernel.pool, 1 if alone else kernel.threads
    )


def _cuda_subject(kernel: GpuKernel) -> CudaSubject:
    call = kernel.call
    return CudaSubject(kernel.name, call.specialized, call.aligned, kernel.memory, kernel.target)


def _forget(plan: StepPlan) -> None:
    """Let the step be recompiled with the schedules that won."""
    for instruction in plan.plan.instructions:
        if isinstance(instruction.call, Executable):
            instruction.call.programs.clear()


def _cells(tuned: Tuned) -> list[str]:
    times = [f"{seconds * 1e3:.3f} ms" for seconds in (tuned.likely, tuned.best)]
    gain = f"{tuned.likely / max(tuned.best, 1e-12):.2f}x"
    name, iterations = clipped(tuned.name), tuned.iterations
    return [name, iterations, *times, gain, described(tuned.schedule)]


def described(made: Schedule | CudaSchedule) -> str:
    """A schedule in short."""
    if isinstance(made, CudaSchedule):
        return _described_cuda(made)
    unit = "columns" if made.dots else "tiles" if made.matrix else "vectors"
    parts = [f"tile {made.tile}x{made.vectors} {unit}", f"piece {made.block}x{made.panels}"]
    named = {"split": made.split, "a": made.copy_a, "b": made.copy_b}
    named |= {"prefetch_steps": made.prefetch_steps, "prefetch_panels": made.prefetch_panels}
    return ", ".join([*parts, *(f"{name} {value}" for name, value in named.items() if value)])


def _described_cuda(made: CudaSchedule) -> str:
    parts = [f"{made.unit} {made.m}x{made.n}x{made.k}", f"{made.stages} stages"]
    counts = {"workers": made.workers, "parts": made.splits if made.splits > 1 else 0}
    return ", ".join([*parts, *(f"{count} {name}" for name, count in counts.items() if count)])
