"""The rendezvous of a step's partitions: each key is sent once and received once.

Within a process nothing is copied: the receiver gets the object that was sent. Receiving takes a
callback, so no thread blocks. After `abort`, all pending and later operations fail with the first
error: no receiver waits for a sender that failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

#: (value, error); the error is None on success
Received = Callable[[Any, BaseException | None], None]
#: (the object registered for the key, value, error)
Arrived = Callable[[Any, Any, BaseException | None], None]


class Key(NamedTuple):
    """A transfer: a tensor's name, or `^node` for a control edge, and the two devices."""

    tensor: str
    source: str
    destination: str

    def __str__(self) -> str:
        return f"{self.source};{self.destination};{self.tensor}"


class Rendezvous:
    """The transfers of one step. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[Key, Any] = {}
        self._waiting: dict[Key, Received] = {}
        self._expected: dict[Key, Any] = {}
        self._arrived: Arrived | None = None
        self.error: BaseException | None = None

    def send(self, key: Key, value: Any) -> None:
        """Pass a value to its receiver, or store it for a later one. Raises the error after
        `abort`."""
        with self._lock:
            if self.error is not None:
                raise self.error
            expected, arrived = self._expected.pop(key, None), self._arrived
            received = None if expected is not None else self._waiting.pop(key, None)
            if expected is None and received is None:
                self._sent[key] = value
            elif not self._expected:  # who is called refers to this rendezvous: end the cycle
                self._arrived = None
        if expected is not None and arrived is not None:
            arrived(expected, value, None)
        elif received is not None:
            received(value, None)

    def expect(self, expected: Mapping[Key, Any], arrived: Arrived) -> list[tuple[Any, Any]]:
        """Receive several keys through one callback, `arrived`, which is called with the object
        registered for the key in `expected` and the value, and once with an error. Returns what was
        sent before, as (object, value). Only one partition of a step may call this."""
        with self._lock:
            error = self.error
            if error is None:
                self._expected = {**expected}
                early = self._early(expected) if self._sent else []
                self._arrived = arrived if self._expected else None
                return early
        arrived(None, None, error)
        return []

    def _early(self, expected: Mapping[Key, Any]) -> list[tuple[Any, Any]]:
        """Take the expected values that were sent before. The caller holds the lock."""
        early = [key for key in self._sent if key in expected]
        return [(self._expected.pop(key), self._sent.pop(key)) for key in early]

    def receive(self, key: Key, received: Received) -> None:
        """Call `received` once, with the value when it has been sent, or with the error."""
        with self._lock:
            error = self.error
            if error is None and key not in self._sent:
                self._waiting[key] = received
                return
            value = None if error is not None else self._sent.pop(key)
        received(value, error)

    def run_batched(self, work: Callable[[], None]) -> None:
        """Call a function that does not block. Subclasses may batch the values that it sends until
        it returns."""
        work()

    def abort(self, error: BaseException) -> None:
        """Fail all receivers with an error; calls after the first have no effect."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            waiting, self._waiting = [*self._waiting.values()], {}
            arrived, self._arrived, self._expected = self._arrived, None, {}
            self._sent.clear()
        if arrived is not None:
            arrived(None, None, error)
        for received in waiting:
            received(None, error)
