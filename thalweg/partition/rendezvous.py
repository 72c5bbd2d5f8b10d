"""Where the partitions of a step meet: a value is sent under a key once and received once.

Inside a process nothing is copied: the receiver gets the object that was sent. A receiver that
comes first leaves a callback, so that no thread waits. An aborted rendezvous answers everyone, now
and later, with the first error: no receiver waits for a sender that failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

#: (value, error): one of them is None
Received = Callable[[Any, BaseException | None], None]


class Key(NamedTuple):
    """What is transferred: a tensor, or the end of a node, from one device to another."""

    tensor: str
    source: str
    destination: str

    def __str__(self) -> str:
        return f"{self.source};{self.destination};{self.tensor}"


class Rendezvous:
    """The transfers of one step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[Key, Any] = {}
        self._waiting: dict[Key, Received] = {}
        self.error: BaseException | None = None

    def send(self, key: Key, value: Any) -> None:
        """Give a value to who receives it, now or later."""
        with self._lock:
            if self.error is not None:
                raise self.error
            received = self._waiting.pop(key, None)
            if received is None:
                self._sent[key] = value
        if received is not None:
            received(value, None)

    def receive(self, key: Key, received: Received) -> None:
        """Call `received` once: with the value when it is there, or with the error."""
        with self._lock:
            error = self.error
            if error is None and key not in self._sent:
                self._waiting[key] = received
                return
            value = None if error is not None else self._sent.pop(key)
        received(value, error)

    def abort(self, error: BaseException) -> None:
        """Answer all receivers with an error; only the first call counts."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            waiting, self._waiting = [*self._waiting.values()], {}
            self._sent.clear()
        for received in waiting:
            received(None, error)
