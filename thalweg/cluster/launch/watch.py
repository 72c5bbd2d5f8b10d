"""Polls tasks for their counters and derives rates from the last two samples."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from thalweg import errors
from thalweg.cluster.launch.task import Task
from thalweg.cluster.traffic import Statistics
from thalweg.cluster.transport.endpoint import Done, Endpoint, Peer
from thalweg.cluster.wire import Kind, Message


class Sample(NamedTuple):
    """A sample of a task's counters and its time."""

    time: float
    statistics: Statistics


class Rates(NamedTuple):
    """The rates of a task's counters, per second."""

    steps: float
    bytes_sent: float
    bytes_received: float


class Watch:
    """Polls tasks for their counters without blocking."""

    def __init__(self, addresses: Mapping[Task, str]) -> None:
        self._addresses = addresses
        self._endpoint = Endpoint(self)
        self._samples: dict[Task, tuple[Sample, Sample]] = {}

    def poll(self) -> None:
        """Request the counters of all tasks; replies are recorded as they arrive."""
        for task, address in self._addresses.items():
            self._endpoint.peer(address).request(Message(Kind.STATUS), self._on_reply(task))

    def statistics(self, task: Task) -> Statistics | None:
        """The latest counters of a task, if it has replied."""
        return self._samples[task][1].statistics if task in self._samples else None

    def rates(self, task: Task) -> Rates | None:
        """The rates of a task between its last two replies; None if they are unknown."""
        return rates(*self._samples[task]) if task in self._samples else None

    def close(self) -> None:
        """Stop polling and close the endpoint."""
        self._endpoint.close()

    def _on_reply(self, task: Task) -> Done:
        def done(message: Message | None, error: Exception | None) -> None:
            if message is None or message.kind is not Kind.DONE:
                return  # the task is not up, or is gone
            fields: Mapping[str, Any] = message.fields
            counters = Statistics(*(int(fields.get(name, 0)) for name in Statistics._fields))
            sample = Sample(time.monotonic(), counters)
            self._samples[task] = self._samples.get(task, (sample, sample))[1], sample

        return done

    # Callbacks of the endpoint

    def received(self, peer: Peer, message: Message) -> None:
        """Does nothing: only replies are expected."""

    def lost(self, peer: Peer, error: errors.OpError) -> None:
        """Does nothing: a lost task is asked again by the next poll."""


def rates(before: Sample, after: Sample) -> Rates | None:
    """The rates between two samples; None if there is only one or the task was restarted."""
    seconds = after.time - before.time
    pairs = zip(before.statistics, after.statistics, strict=True)
    differences = [new - old for old, new in pairs]
    if seconds <= 0 or min(differences) < 0:
        return None
    return Rates(*(difference / seconds for difference in differences))
