"""Couriers: threads that hand over results of a program while the program still runs.

A program signals an event when it has made a result that others wait for. The courier of its pool
waits for these events, in the order in which they are signalled, and delivers each result: a
gradient is on its way to another device while the kernels that make the next one run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

from thalweg.device.cpu.pool import Event, Pool
from thalweg.platform.caches import memoized
from thalweg.platform.forks import renewed_after_fork

#: (number of the result, the result)
Deliver = Callable[[int, Any], None]


class Early(NamedTuple):
    """A result that is there before the program ends: its number, and the event that says so."""

    number: int
    event: Event


class Delivery:
    """The early results of one call of a program, on their way."""

    def __init__(self, early: Sequence[Early], results: Sequence[Any], deliver: Deliver) -> None:
        self._early, self._results, self._deliver = early, results, deliver
        self._stopped = False
        self._done = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Deliver each result once it is there; on the courier's thread."""
        try:
            for number, event in self._early:
                event.wait(_keep_waiting)
                if self._stopped:
                    return
                result = self._results[number]
                self._deliver(number, result if result.ndim else result[()])
        except BaseException as error:  # carried to the caller's thread
            self._error = error
        finally:
            self._done.set()

    def end(self, is_complete: bool) -> None:
        """Return when all is delivered; of a program that was stopped, nothing more is."""
        if not is_complete:
            self._stopped = True
            for _, event in self._early:
                event.signal()
        self._done.wait()
        for _, event in self._early:
            event.reset()
        if self._error is not None:
            raise self._error


class Courier:
    """The thread that follows the programs of a pool, one after the other. A program that runs
    needs nothing that another one leaves, so none is waited for in vain."""

    def __init__(self) -> None:
        self.renew_locks()
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """Begin without a thread, as in the child of a fork."""
        self._lock = threading.Lock()
        self._deliveries: SimpleQueue[Delivery] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def follow(self, early: Sequence[Early], results: Sequence[Any], deliver: Deliver) -> Delivery:
        """Deliver results of a program that is about to run."""
        if self._thread is None:
            self._start()
        delivery = Delivery(early, results, deliver)
        self._deliveries.put(delivery)
        return delivery

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="courier", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            self._deliveries.get().run()


@memoized(64)
def courier_of(pool: Pool) -> Courier:
    """The courier of a pool's programs."""
    return Courier()


def _keep_waiting() -> None:
    """Who runs the program ends the wait, also where the program stops."""
