"""The search for the best schedule of a contraction: measure, compare, keep.

Comes in: contractions; each runs on scratch buffers under the schedules that are worth it and then
under what is near the best. Goes out: what was found; the winners are kept on disk.
THALWEG_TUNE=1 does so whenever a step is compiled that has contractions not measured before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cache import load_all
from thalweg.codegen.contraction.form import NotContraction
from thalweg.codegen.contraction.plan import neighbours, schedule, schedules
from thalweg.codegen.contraction.schedule import Schedule
from thalweg.codegen.kernels import keep_schedule, key_of, request, tuned_schedule
from thalweg.device.cpu.pool import Entry, Pool, StepTable
from thalweg.device.tuning import BUDGET, Subject, Tuned, winner, within_budget
from thalweg.ir.kernel import Argument, Contraction
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.platform import tf_logging

_MIN_RUNS, _MAX_RUNS = 5, 60  # runs of a schedule
_PATIENCE = 0.05  # seconds for the runs of a schedule, more or less
_LINE = 64


@dataclass(frozen=True)
class CpuSubject(Subject):
    """A contraction to tune: whose threads it runs on, and how many."""

    pool: Pool
    threads: int


def tune_new(adapted: Sequence[SpecializedKernel], pool: Pool, threads: int) -> None:
    """Tune the contractions among some kernels that were never measured."""
    target = pool.target
    subjects = [
        CpuSubject(f"contraction {number}", each, pool, threads)
        for number, each in enumerate(adapted)
        if isinstance(each.kernel, Contraction) and tuned_schedule(each.kernel, target) is None
    ]
    if subjects:
        tf_logging.info("Measuring schedules of %d contractions (THALWEG_TUNE=1).", len(subjects))
        tune_kernels(subjects, BUDGET)


def tune_kernels(subjects: Sequence[CpuSubject], budget: float) -> list[Tuned]:
    """Measure and keep; the largest contractions first, each with its share of the time."""
    distinct = {key_of(subject.kernel): subject for subject in subjects}
    return within_budget(distinct.values(), _tuned, budget)


def _tuned(subject: CpuSubject, end: float) -> Iterator[Tuned]:
    target = subject.pool.target
    try:
        search = _Search(subject, schedule(subject.kernel, target))
    except NotContraction:
        return
    search.run(end)
    best, tuned = winner(subject, search.seconds, search.likely)
    keep_schedule(subject.kernel, target, best)
    yield tuned


@dataclass
class _Search:
    """The schedules of a contraction that were measured so far."""

    subject: CpuSubject
    likely: Schedule
    seconds: dict[Schedule, float] = field(default_factory=dict[Schedule, float])

    def run(self, end: float) -> None:
        """Measure those worth it, then what is near the best, until the time is over."""
        kernel, target = self.subject.kernel, self.subject.pool.target
        bench = _Bench(self.subject)
        self.seconds[self.likely] = bench.seconds(self.likely)
        self._measure(bench, schedules(kernel, target), end)
        while self._measure(bench, neighbours(kernel, target, self._fastest()), end):
            pass
        for made in {self.likely, self._fastest()}:  # once more, side by side
            self.seconds[made] = min(self.seconds[made], bench.seconds(made))

    def _fastest(self) -> Schedule:
        return min(self.seconds, key=self.seconds.__getitem__)

    def _measure(self, bench: _Bench, choices: Sequence[Schedule], end: float) -> bool:
        """Whether one of the choices is the fastest now, with time left for more."""
        before = self._fastest()
        for made in choices:
            if time.monotonic() > end:
                return False
            if made not in self.seconds:
                self.seconds[made] = bench.seconds(made)
        return self._fastest() != before


class _Bench:
    """Scratch buffers for a contraction, and the clock."""

    def __init__(self, subject: CpuSubject) -> None:
        self._subject, self._pool = subject, subject.pool
        random = np.random.default_rng(0)
        self._buffers = [_values(argument, random) for argument in subject.kernel.arguments]
        self._fault = np.zeros(8, np.int64)

    def seconds(self, made: Schedule) -> float:
        """The best time of some calls, from the first thread's start to the last one's end."""
        target = self._pool.target
        try:
            (loaded,) = load_all([request(self._subject.kernel, target, made)], target)
        except NotContraction:
            return float("inf")
        scratch = np.zeros(loaded.scratch + _LINE, np.uint8)
        addresses = [buffer.ctypes.data for buffer in self._buffers]
        place = -(-scratch.ctypes.data // _LINE) * _LINE
        table = [self._fault.ctypes.data, *addresses, place, *self._subject.specialized.words]
        words = np.array(table, np.int64)
        entries = [Entry(function, words.ctypes.data) for function in loaded.functions]
        fault = self._fault.ctypes.data
        program = StepTable(self._pool, entries, fault, self._subject.threads)
        return min(self._spans(program), default=float("inf"))

    def _spans(self, program: StepTable) -> Iterator[float]:
        end = time.monotonic() + _PATIENCE
        for run in range(_MAX_RUNS):
            times = self._pool.timed(program)
            if times.all():  # other steps left all threads to this one
                yield float(times[..., 1].max() - times[..., 0].min()) / 1e9
            if run >= _MIN_RUNS and time.monotonic() > end:
                return


def _values(argument: Argument, random: np.random.Generator) -> NDArray[Any]:
    """Numbers like those of a step; indices that lead anywhere lead to the first element."""
    size, dtype = max(1, int(argument.size)), np.dtype(argument.dtype)
    if dtype.kind != "f":
        return np.zeros(size, dtype)
    return random.random(size, np.float32).astype(dtype, copy=False)
