"""Tuned schedules of GPU contractions, stored beside those of CPUs."""

from __future__ import annotations

from thalweg.codegen.contraction.tune import winners
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.kernels import key_of
from thalweg.ir.kernel import Contraction

_SAMPLE = Schedule("cores", 1, 1, 1, 1, 1)


def tuned_schedule(kernel: Contraction, target: CudaTarget) -> Schedule | None:
    """The tuned schedule of a contraction, or None."""
    return winners().find(key_of(kernel), target, _SAMPLE)
