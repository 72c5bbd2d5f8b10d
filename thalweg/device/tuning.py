"""The device-independent part of tuning: sharing a time budget among contractions, reporting."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol, TypeVar

from thalweg.codegen.progress import progress
from thalweg.ir.kernel import Contraction
from thalweg.lower.dynamic_shapes import SpecializedKernel

#: Whether steps are tuned when they are first compiled.
TUNES = os.environ.get("THALWEG_TUNE") == "1"
#: The default time limit of tuning in seconds.
BUDGET = 60.0
_CLEARLY_FASTER = 0.97  # of the likely schedule's time: above it, a difference may be noise


class AnySchedule(Protocol):
    """A schedule of any device."""

    @property
    def summary(self) -> str:
        """Its main parameters, as text."""
        ...


ScheduleT = TypeVar("ScheduleT", bound=AnySchedule)


@dataclass(frozen=True)
class Tuned:
    """The result of tuning a contraction."""

    name: str
    iterations: str
    likely: float  # seconds with the schedule that the cost model chose
    best: float  # seconds with `schedule`
    schedule: AnySchedule
    tried: int


@dataclass(frozen=True)
class Subject(ABC):
    """A contraction to tune."""

    name: str
    specialized: SpecializedKernel

    @property
    def kernel(self) -> Contraction:
        """The contraction itself."""
        assert isinstance(self.specialized.kernel, Contraction)
        return self.specialized.kernel

    @abstractmethod
    def tune(self, deadline: float) -> Tuned | None:
        """Measure schedules until the deadline on the monotonic clock, and store the best; None if
        there are none."""

    def winner(
        self, seconds: Mapping[ScheduleT, float], likely: ScheduleT
    ) -> tuple[ScheduleT, Tuned]:
        """The fastest schedule if it is clearly faster than the likely one, else the likely one."""
        fastest = min(seconds, key=seconds.__getitem__)
        best = fastest if seconds[fastest] < _CLEARLY_FASTER * seconds[likely] else likely
        iterations, found = iterations_of(self.kernel), (seconds[likely], seconds[best])
        return best, Tuned(self.name, iterations, *found, best, len(seconds))


def extents_of(kernel: Contraction) -> list[int]:
    """The numbers of batches, rows, columns and terms."""
    groups = kernel.batch, kernel.rows, kernel.columns, kernel.reduced
    return [prod(int(v.extent) for v in group) for group in groups]


def iterations_of(kernel: Contraction) -> str:
    """The extents as text: `64×100×784`, or `8 of 64×100×784` for 8 batches."""
    batch, *others = extents_of(kernel)
    return (f"{batch} of " if batch != 1 else "") + "×".join(map(str, others))


def tune_all(subjects: Iterable[Subject], budget: float) -> list[Tuned]:
    """Tune distinct contractions, the largest first, each with its share of the budget in
    seconds."""

    def work(subject: Subject) -> float:
        return float(prod(extents_of(subject.kernel))) + 1.0

    start, results = time.monotonic(), list[Tuned]()
    ordered = sorted(subjects, key=work, reverse=True)
    work_left, count_left = sum(map(work, ordered)), len(ordered)
    for subject in progress(ordered, len(ordered), "tuning"):
        seconds_left = budget - (time.monotonic() - start)
        if seconds_left <= 0:
            break
        share = max(work(subject) / work_left, 0.5 / count_left)
        tuned = subject.tune(time.monotonic() + seconds_left * min(share, 1.0))
        results += [] if tuned is None else [tuned]
        work_left, count_left = work_left - work(subject), count_left - 1
    return results
