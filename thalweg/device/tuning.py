"""What the search for schedules has in common on all devices: a budget of time, what was found."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol, TypeVar

from thalweg.codegen.progress import progress
from thalweg.ir.kernel import Contraction

#: Whether steps are tuned when they are first compiled.
TUNES = os.environ.get("THALWEG_TUNE") == "1"
#: How many seconds tuning may take, unless told otherwise.
BUDGET = 60.0
BETTER = 0.97  # a winner that gains less than this is luck

SubjectT = TypeVar("SubjectT")


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


def extents_of(kernel: Contraction) -> list[int]:
    """How many batches, rows, columns and terms there are."""
    groups = kernel.batch, kernel.rows, kernel.columns, kernel.reduced
    return [prod(int(v.extent) for v in group) for group in groups]


def iterations_of(kernel: Contraction) -> str:
    """The same, for readers."""
    batch, *others = extents_of(kernel)
    return (f"{batch} of " if batch != 1 else "") + "×".join(map(str, others))


def work_of(kernel: Contraction) -> float:
    """By what contractions share time."""
    return float(prod(extents_of(kernel))) + 1.0


def within_budget(
    subjects: Sequence[SubjectT],
    work: Callable[[SubjectT], float],
    tuned: Callable[[SubjectT, float], Iterable[Tuned]],
    budget: float,
) -> list[Tuned]:
    """What was found, of the largest subjects first, each with its share of the time; `tuned` is
    given a subject and when its time ends."""
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
