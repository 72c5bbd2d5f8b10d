"""The choice of a schedule: unit, tile, stages and shares that cost least."""

from __future__ import annotations

from thalweg.codegen.cuda.contraction.problem import FLOAT64, Problem
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.target import CudaTarget


def schedule_of(problem: Problem, target: CudaTarget) -> Schedule:
    """The schedule that the cost model likes best."""
    if problem.dtype == FLOAT64:
        return Schedule("cores", 64, 64, 8, 8, 1)
    return Schedule("cores", 64, 64, 16, 8, 1)
