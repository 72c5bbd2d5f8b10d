"""Where the partitions of a step meet: a value is sent under a key once and received once.

Inside a process nothing is copied: the receiver gets the object that was sent. A receiver that
comes first leaves a callback, so that no thread waits. An aborted rendezvous answers everyone, now
and later, with the first error: no receiver waits for a sender that failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

#: (value, error): one of them is None
Received = Callable[[Any, BaseException | None], None]
#: (what was expected, value, error)
Arrived = Callable[[Any, Any, BaseException | None], None]


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
        self._expected: dict[Key, Any] = {}
        self._arrived: Arrived | None = None
        self.error: BaseException | None = None

    def send(self, key: Key, value: Any) -> None:
        """Give a value to who receives it, now or later."""
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
        """Call `arrived` with every one of several values when it comes, and with what stands for
        its key here; with the error once. What came before is returned. Only one part of a step
        may do so."""
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
        """What came before it was expected; the lock is held."""
        early = [key for key in self._sent if key in expected]
        return [(self._expected.pop(key), self._sent.pop(key)) for key in early]

    def receive(self, key: Key, received: Received) -> None:
        """Call `received` once: with the value when it is there, or with the error."""
        with self._lock:
            error = self.error
            if error is None and key not in self._sent:
                self._waiting[key] = received
                return
            value = None if error is not None else self._sent.pop(key)
        received(value, error)

    def do_together(self, work: Callable[[], None]) -> None:
        """Call a function, which waits for nobody and may send several values: elsewhere they may
        leave together, at its end or at a `flush`."""
        work()

    def flush(self) -> None:
        """Have values leave that were sent: a call that takes long follows."""

    def abort(self, error: BaseException) -> None:
        """Answer all receivers with an error; only the first call counts."""
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
