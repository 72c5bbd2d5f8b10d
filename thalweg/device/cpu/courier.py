"""Couriers: threads that hand over results of a program while the program still runs.

A program signals an event when it has made a result that others wait for. A worker waits for these
events, in the order in which they are signalled, and delivers each result: a gradient is on its way
to another device while the kernels that make the next one run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from thalweg.device.cpu.pool import Event
from thalweg.device.workers import WORKERS

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


def follow(early: Sequence[Early], results: Sequence[Any], deliver: Deliver) -> Delivery:
    """Deliver results of a program that is about to run."""
    delivery = Delivery(early, results, deliver)
    WORKERS.start(delivery.run)
    return delivery


def _keep_waiting() -> None:
    """Who runs the program ends the wait, also where the program stops."""
