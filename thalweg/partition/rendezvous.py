"""The rendezvous of a step's partitions: each key is sent once and received once.

Within a process nothing is copied: the receiver gets the object that was sent. Receiving takes a
callback, so no thread blocks. After `abort`, all pending and later operations fail with the first
error: no receiver waits for a sender that failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

#: (value, error); the error is None on success
Received = Callable[[Any, BaseException | None], None]


class Key(NamedTuple):
    """A transfer: a tensor's name, or `^node` for a control edge, and the two devices."""

    tensor_name: str
    send_device: str
    recv_device: str


class Rendezvous:
    """The transfers of one step. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[Key, Any] = {}
        self._waiting: dict[Key, Received] = {}
        self.error: BaseException | None = None

    def send(self, key: Key, value: Any) -> None:
        """Pass a value to its receiver, or store it for a later one. Raises the error after
        `abort`."""
        with self._lock:
            if self.error is not None:
                raise self.error
            received = self._waiting.pop(key, None)
            if received is None:
                self._sent[key] = value
        if received is not None:
            received(value, None)

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
            self._sent.clear()
        for received in waiting:
            received(None, error)
