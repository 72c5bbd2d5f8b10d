"""Tunes contractions: measures candidate schedules and stores the best on disk.

Each contraction runs on scratch buffers, first with the schedules that the planner proposes, then
with the neighbours of the best. With THALWEG_TUNE=1, contractions that were never measured are
tuned when their step is compiled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cache import load_all
from thalweg.codegen.contraction.form import NotContraction
from thalweg.codegen.contraction.plan import neighbours, schedule, schedules
from thalweg.codegen.contraction.schedule import Schedule
from thalweg.codegen.kernels import keep_schedule, key_of, request, tuned_schedule
from thalweg.device.cpu.pool import Entry, Pool, StepTable
from thalweg.device.tuning import BUDGET, Subject, Tuned, tune_all
from thalweg.ir.kernel import Argument, Contraction
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.memory.arena import rounded
from thalweg.platform import tf_logging

_MIN_RUNS, _MAX_RUNS = 5, 60  # of a schedule
_MAX_SECONDS = 0.05  # of all runs of a schedule, beyond the minimum
_CACHE_LINE = 64


@dataclass(frozen=True)
class CpuSubject(Subject):
    """A contraction to tune, and the threads that it runs on."""

    pool: Pool
    threads: int

    def tune(self, deadline: float) -> Tuned | None:
        """Measure the proposed schedules, then neighbours of the best, until the deadline."""
        kernel, target = self.kernel, self.pool.target
        try:
            likely = schedule(kernel, target)
        except NotContraction:
            return None
        random = np.random.default_rng(0)
        operands = [_operand(argument, random) for argument in kernel.arguments]
        seconds = {likely: self._seconds(likely, operands)}

        def fastest() -> Schedule:
            return min(seconds, key=seconds.__getitem__)

        def measure(candidates: Sequence[Schedule]) -> bool:
            """Measure candidates; whether one is the fastest now and the deadline is not over."""
            before = fastest()
            for candidate in candidates:
                if time.monotonic() > deadline:
                    return False
                if candidate not in seconds:
                    seconds[candidate] = self._seconds(candidate, operands)
            return fastest() != before

        measure(schedules(kernel, target))
        while measure(neighbours(kernel, target, fastest())):
            pass
        for candidate in {likely, fastest()}:  # once more, under the same conditions
            seconds[candidate] = min(seconds[candidate], self._seconds(candidate, operands))
        best, tuned = self.winner(seconds, likely)
        keep_schedule(kernel, target, best)
        return tuned

    def _seconds(self, candidate: Schedule, operands: Sequence[NDArray[Any]]) -> float:
        """The best time of some runs with a schedule; infinity if it cannot be emitted."""
        target = self.pool.target
        try:
            (loaded,) = load_all([request(self.kernel, target, candidate)], target)
        except NotContraction:
            return inf
        fault = np.zeros(8, np.int64)
        scratch = np.zeros(loaded.scratch + _CACHE_LINE, np.uint8)
        aligned = rounded(scratch.ctypes.data, _CACHE_LINE)
        addresses = [fault.ctypes.data, *(each.ctypes.data for each in operands), aligned]
        words = np.array([*addresses, *self.specialized.words], np.int64)
        entries = [Entry(function, words.ctypes.data) for function in loaded.functions]
        table = StepTable(self.pool, entries, fault.ctypes.data, self.threads)
        return min(_run_times(table), default=inf)


def tune_new(kernels: Sequence[SpecializedKernel], pool: Pool, threads: int) -> None:
    """Tune the contractions among the kernels that were never measured."""
    target = pool.target
    subjects = {
        key_of(each.kernel): CpuSubject(f"contraction {number}", each, pool, threads)
        for number, each in enumerate(kernels)
        if isinstance(each.kernel, Contraction) and tuned_schedule(each.kernel, target) is None
    }
    if subjects:
        tf_logging.info("Measuring schedules of %d contractions (THALWEG_TUNE=1).", len(subjects))
        tune_all(subjects.values(), BUDGET)


def _run_times(table: StepTable) -> Iterator[float]:
    """The seconds of some runs, from the first thread's begin to the last one's end."""
    deadline = time.monotonic() + _MAX_SECONDS
    for run in range(_MAX_RUNS):
        times = table.measure()
        if times.all():  # no other step occupied a thread
            yield float(times[..., 1].max() - times[..., 0].min()) / 1e9
        if run >= _MIN_RUNS and time.monotonic() > deadline:
            return


def _operand(argument: Argument, random: np.random.Generator) -> NDArray[Any]:
    """Random floats; zeros for integers, which are valid indices."""
    size, dtype = max(1, int(argument.size)), np.dtype(argument.dtype)
    if dtype.kind != "f":
        return np.zeros(size, dtype)
    return random.random(size, np.float32).astype(dtype, copy=False)
