"""What the search for schedules has in common on all devices: a budget of time, what was found."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol, TypeVar

from thalweg.codegen.progress import progress
from thalweg.ir.kernel import Contraction
from thalweg.lower.dynamic_shapes import SpecializedKernel

#: Whether steps are tuned when they are first compiled.
TUNES = os.environ.get("THALWEG_TUNE") == "1"
#: How many seconds tuning may take, unless told otherwise.
BUDGET = 60.0
BETTER = 0.97  # a winner that gains less than this is luck


@dataclass(frozen=True)
class Subject:
    """A contraction to tune."""

    name: str
    specialized: SpecializedKernel

    @property
    def kernel(self) -> Contraction:
        """What is computed."""
        assert isinstance(self.specialized.kernel, Contraction)
        return self.specialized.kernel


class Summarized(Protocol):
    """A schedule of any device."""

    @property
    def summary(self) -> str:
        """What matters of it, for readers."""
        ...


@dataclass(frozen=True)
class Tuned:
    """What measuring a contraction found: seconds by the likely schedule and by the best one."""

    name: str
    iterations: str
    likely: float
    best: float
    schedule: Summarized
    tried: int


SubjectT = TypeVar("SubjectT", bound=Subject)
ScheduleT = TypeVar("ScheduleT", bound=Summarized)


def winner(
    subject: Subject, seconds: Mapping[ScheduleT, float], likely: ScheduleT
) -> tuple[ScheduleT, Tuned]:
    """The fastest schedule, or the likely one unless another is clearly faster."""
    fastest = min(seconds, key=seconds.__getitem__)
    best = fastest if seconds[fastest] < BETTER * seconds[likely] else likely
    iterations, times = iterations_of(subject.kernel), (seconds[likely], seconds[best])
    return best, Tuned(subject.name, iterations, *times, best, len(seconds))


def extents_of(kernel: Contraction) -> list[int]:
    """How many batches, rows, columns and terms there are."""
    groups = kernel.batch, kernel.rows, kernel.columns, kernel.reduced
    return [prod(int(v.extent) for v in group) for group in groups]


def iterations_of(kernel: Contraction) -> str:
    """The same, for readers."""
    batch, *others = extents_of(kernel)
    return (f"{batch} of " if batch != 1 else "") + "×".join(map(str, others))


def within_budget(
    subjects: Iterable[SubjectT],
    tuned: Callable[[SubjectT, float], Iterable[Tuned]],
    budget: float,
) -> list[Tuned]:
    """What was found, of the largest subjects first, each with its share of the time; `tuned` is
    given a subject and when its time ends."""

    def work(subject: SubjectT) -> float:
        return float(prod(extents_of(subject.kernel))) + 1.0

    start, found = time.monotonic(), list[Tuned]()
    ordered = sorted(subjects, key=work, reverse=True)
    left, seen = sum(map(work, ordered)), 0
    for subject in progress(ordered, len(ordered), "tuning"):
        spare = budget - (time.monotonic() - start)
        if spare <= 0:
            break
        share = max(work(subject) / left, 0.5 / (len(ordered) - seen))
        found += tuned(subject, time.monotonic() + spare * min(share, 1.0))
        left, seen = left - work(subject), seen + 1
    return found
