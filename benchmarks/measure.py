"""Measures one work on several systems: first calls, agreement of results, rounds, memory."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from remote import Remote, WorkerError, busy_seconds
from works import Work

SETTLE = 0.1  # seconds: threads of the system before that still spin go to sleep
LOG = Path(__file__).with_name("workers.log")


@dataclass(frozen=True)
class Settings:
    """How to measure."""

    cpus: list[int]
    rounds: int = 5
    round_seconds: float = 0.5
    most_steps: int = 2000
    first_calls: int = 2
    warm_calls: int = 2
    batch: int | None = None
    processes: int = 1  # pairs of them, old against new


@dataclass
class Figures:
    """What was measured of one work on one system."""

    version: str = ""
    first: float | None = None  # seconds, caches empty
    warm: float | None = None  # seconds, disk cache filled by an earlier process
    process: float | None = None  # seconds from the start of such a process to its first result
    results: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # per step, one for each round
    steps: int = 0  # in a round
    peak: int | None = None  # bytes
    idle_share: float = 0.0  # CPU seconds per second while others ran
    error: str = ""

    @property
    def best(self) -> float | None:
        """Seconds per step in the best round."""
        return min(self.seconds, default=None)


class Measurement:
    """One work on its systems; every system's process lives from first call to last round."""

    def __init__(self, work: Work, systems: Sequence[str], settings: Settings) -> None:
        self.work, self.settings = work, settings
        self.figures = {name: Figures() for name in systems}
        self.remotes: dict[str, Remote] = {}

    def run(self) -> dict[str, dict[str, Any]]:
        """All figures, by system."""
        with ExitStack() as stack:
            self.stack = stack
            self.log = stack.enter_context(LOG.open("a"))
            for stage in (self.first_calls, self.check, self.choose_steps, self.rounds, self.peaks):
                stage()
        share = {"foreign_share": self.foreign_share}
        return {name: asdict(f) | {"best": f.best} | share for name, f in self.figures.items()}

    def each(self, action: Any) -> None:
        """Do something on every system still alive; one that fails is left out from then on."""
        for name in list(self.remotes):
            try:
                action(self.remotes[name], self.figures[name])
            except WorkerError as error:
                self.figures[name].error = str(error)
                self.remotes.pop(name).close()

    def start(self, system: str, caches: Path) -> Remote:
        """A new worker."""
        settings = self.settings
        return Remote(system, self.work.name, settings.cpus, caches, settings.batch, self.log)

    def first_calls(self) -> None:
        """Start all systems, one after the other, and take each one's first step."""
        for name, figures in self.figures.items():
            try:
                self.first_call(name, figures)
            except WorkerError as error:
                figures.error = str(error)

    def first_call(self, system: str, figures: Figures) -> None:
        """The best of several processes with empty caches; the last stays for the rounds."""
        is_thalweg = re.split("[@!]", system)[0] == "thalweg"  # of a checkout, or less a pass
        is_rated = (is_thalweg or system == "jax") and not self.work.moves_data
        repeats = self.settings.first_calls if is_rated else 1
        firsts: list[float] = []
        for last in [False] * (repeats - 1) + [True]:
            caches = Path(tempfile.mkdtemp(prefix="bench-"))
            self.stack.callback(shutil.rmtree, caches, ignore_errors=True)
            remote = self.start(system, caches)
            self.stack.callback(remote.close)
            made = remote.ask("make")
            firsts.append(made["first"])
            if not last:
                remote.close()
        figures.first, figures.version = min(firsts), made["version"]
        figures.results = [made["result"]]
        self.remotes[system] = remote
        if is_thalweg and is_rated and self.settings.warm_calls:
            calls = [self.warm_call(system, caches) for _ in range(self.settings.warm_calls)]
            figures.warm, figures.process = map(min, zip(*calls, strict=True))

    def warm_call(self, system: str, caches: Path) -> tuple[float, float]:
        """The first step of a process that finds the disk cache filled, and all until its end."""
        start = time.perf_counter()
        remote = self.start(system, caches)
        try:
            first = remote.ask("make")["first"]
            return first, time.perf_counter() - start
        finally:
            remote.close()

    def check(self) -> None:
        """The results of the next few steps; the driver compares them afterwards."""

        def ask(remote: Remote, figures: Figures) -> None:
            figures.results += remote.ask("check", steps=self.work.steps_checked - 1)["results"]

        self.each(ask)

    def choose_steps(self) -> None:
        """As many steps in a round as fill its time; then a new high-water mark."""

        def ask(remote: Remote, figures: Figures) -> None:
            time.sleep(SETTLE)
            seconds = remote.ask("run", steps=1)["seconds"]
            if seconds < self.settings.round_seconds / 5:
                seconds = min(remote.ask("run", steps=n)["seconds"] for n in (3, 10, 10))
            wanted = int(self.settings.round_seconds / seconds)
            figures.steps = max(self.work.least_steps, min(wanted, self.settings.most_steps))
            remote.ask("reset")

        self.each(ask)

    def rounds(self) -> None:
        """Rounds of steps, and how busy processes of others kept the CPUs meanwhile."""
        start, own, all_ = time.perf_counter(), self.own_seconds(), busy_seconds()
        self.take_turns()
        foreign = (busy_seconds() - all_) - (self.own_seconds() - own)
        self.foreign_share = max(0.0, foreign) / (time.perf_counter() - start)

    def own_seconds(self) -> float:
        """CPU seconds of all workers alive."""
        return sum(remote.busy() for remote in self.remotes.values())

    def take_turns(self) -> None:
        """The systems take turns, each round beginning with another."""
        for number in range(self.settings.rounds):
            names = list(self.remotes)
            order = names[number % len(names) :] + names[: number % len(names)] if names else []
            self.remotes = {name: self.remotes[name] for name in order}
            self.each(self.one_round)

    def one_round(self, remote: Remote, figures: Figures) -> None:
        """One system's steps, while the CPU time of the idle ones is watched."""
        time.sleep(SETTLE)
        others = {name: r.busy() for name, r in self.remotes.items() if r is not remote}
        start = time.perf_counter()
        figures.seconds.append(remote.ask("run", steps=figures.steps)["seconds"])
        elapsed = time.perf_counter() - start
        for name, before in others.items():
            share = (self.remotes[name].busy() - before) / max(elapsed, 0.1)
            self.figures[name].idle_share = max(self.figures[name].idle_share, share)

    def peaks(self) -> None:
        """The high-water mark of the rounds."""

        def ask(remote: Remote, figures: Figures) -> None:
            figures.peak = remote.ask("peak")["peak"]

        self.each(ask)


def disagreement(figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Each system's largest distance from the median of all, relative to the largest value."""
    import numpy as np

    results = {name: np.array(f["results"]) for name, f in figures.items() if not f["error"]}
    if not results:
        return {}
    median = np.median(np.stack(list(results.values())), 0)
    scale = np.abs(median).max(1, keepdims=True) + 1e-30
    return {name: float((np.abs(r - median) / scale).max()) for name, r in results.items()}
