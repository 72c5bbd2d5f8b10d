"""Measures rows on both systems: their clusters take turns, round by round."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from driver import Cluster, TaskError
from rows import TRANSPORTS, Row

SYSTEMS = {"thalweg": "thalweg", "tensorflow": "tensorflow.compat.v1"}
SETTLE = 0.1  # seconds: threads of the system before that still spin go to sleep
MAX_STEPS = 2000


@dataclass(frozen=True)
class Settings:
    """How to measure."""

    rounds: int = 5
    round_seconds: float = 1.0


@dataclass
class Figures:
    """What was measured of a row on one system."""

    seconds: list[float] = field(default_factory=list[float])  # of a step; one for each round
    steps: int = 0  # in a round
    error: str = ""

    @property
    def best(self) -> float | None:
        """Seconds of a step in the best round."""
        return min(self.seconds, default=None)


class Measurement:
    """The clusters, which live as long as rows use them."""

    def __init__(self, rows: list[Row], settings: Settings) -> None:
        self._rows, self._settings = rows, settings
        self._clusters: dict[tuple[str, str], Cluster] = {}

    def run(self) -> Iterator[tuple[Row, dict[str, Figures]]]:
        """All rows, with the figures of each system."""
        try:
            for row in self._rows:
                yield row, self._row(row)
        finally:
            for cluster in self._clusters.values():
                cluster.end()

    def _cluster(self, system: str, row: Row) -> Cluster:
        transport = row.transport if system == "thalweg" else ""
        key = (system, transport)
        if key not in self._clusters:
            workers = max(each.workers for each in self._rows if each.transport == row.transport)
            self._clusters[key] = Cluster(SYSTEMS[system], workers, TRANSPORTS[transport])
        return self._clusters[key]

    def _row(self, row: Row) -> dict[str, Figures]:
        figures = {system: Figures() for system in SYSTEMS}
        for system, found in figures.items():
            with self._failing(system, row, found):
                self._cluster(system, row).make(row.program, row.workers, **row.options)
                found.steps = row.steps or self._steps(system, row)
        for number in range(self._settings.rounds):
            for system in list(SYSTEMS)[:: 1 if number % 2 else -1]:
                found = figures[system]
                if not found.error:
                    with self._failing(system, row, found):
                        found.seconds.append(self._round(system, row, found.steps))
        for system, found in figures.items():
            if not found.error:
                with self._failing(system, row, found):
                    self._cluster(system, row).close(row.workers)
        return figures

    @contextmanager
    def _failing(self, system: str, row: Row, found: Figures) -> Iterator[None]:
        """Note an error; the cluster is of no use for other rows."""
        try:
            yield
        except TaskError as error:
            found.error = str(error)
            transport = row.transport if system == "thalweg" else ""
            if cluster := self._clusters.pop((system, transport), None):
                cluster.end()

    def _steps(self, system: str, row: Row) -> int:
        """As many as fill a round."""
        for count in (1, 3, 10):
            seconds = self._round(system, row, count)
        return max(3, min(int(self._settings.round_seconds / seconds), MAX_STEPS))

    def _round(self, system: str, row: Row, steps: int) -> float:
        """Seconds of a step: that of the worker who is last, or what the chief's steps told."""
        time.sleep(SETTLE)
        if row.max_seconds:
            return self._cluster(system, row).run(1, steps)[0]["median"]
        found = self._cluster(system, row).run(row.workers, steps)
        return max(each["seconds"] for each in found) / steps
