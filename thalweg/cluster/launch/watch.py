"""Asks tasks how they do: their counters, and from two looks at them, their rates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from thalweg import errors
from thalweg.cluster.launch.task import Task
from thalweg.cluster.traffic import Statistics
from thalweg.cluster.transport.endpoint import Done, Endpoint, Peer
from thalweg.cluster.wire import Kind, Message


class Look(NamedTuple):
    """What a task said, and when."""

    time: float
    statistics: Statistics


class Rates(NamedTuple):
    """What a task does in a second."""

    steps: float
    bytes_sent: float
    bytes_received: float


class Watch:
    """Asks tasks for their counters, without waiting for any."""

    def __init__(self, addresses: Mapping[Task, str]) -> None:
        self._addresses = addresses
        self._endpoint = Endpoint(self)
        self._looks: dict[Task, tuple[Look, Look]] = {}

    def ask(self) -> None:
        """Ask all tasks; what they answer is there later."""
        for task, address in self._addresses.items():
            self._endpoint.peer(address).request(Message(Kind.STATUS), self._answered(task))

    def statistics(self, task: Task) -> Statistics | None:
        """The counters that a task told last."""
        return self._looks[task][1].statistics if task in self._looks else None

    def rates(self, task: Task) -> Rates | None:
        """What a task did in a second between the last two answers."""
        return rates(*self._looks[task]) if task in self._looks else None

    def close(self) -> None:
        """Ask nobody any more."""
        self._endpoint.close()

    def _answered(self, task: Task) -> Done:
        def done(message: Message | None, error: Exception | None) -> None:
            if message is None or message.kind is not Kind.DONE:
                return  # it is not up, or not any more
            fields: Mapping[str, Any] = message.fields
            counted = Statistics(*(int(fields.get(name, 0)) for name in Statistics._fields))
            look = Look(time.monotonic(), counted)
            self._looks[task] = self._looks.get(task, (look, look))[1], look

        return done

    # What the endpoint tells

    def received(self, peer: Peer, message: Message) -> None:
        """Nobody sends a watcher anything but answers."""

    def lost(self, peer: Peer, error: errors.OpError) -> None:
        """A task that is gone is asked again in a while."""


def rates(before: Look, after: Look) -> Rates | None:
    """What happened in a second; None where nothing can be said: a first look, or a new process."""
    seconds = after.time - before.time
    pairs = zip(before.statistics, after.statistics, strict=True)
    differences = [new - old for old, new in pairs]
    if seconds <= 0 or min(differences) < 0:
        return None
    return Rates(*(difference / seconds for difference in differences))
