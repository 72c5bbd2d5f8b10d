"""Early outputs: results that a program hands over while it still runs.

The program signals an event when it has computed an early output. A worker thread waits for these
events in the order in which they are signalled and delivers the outputs, so that a gradient is sent
to another device while the kernels of the next one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from thalweg.device import workers
from thalweg.device.cpu.pool import Event

#: (number of the output, its value)
Deliver = Callable[[int, Any], None]


class Delivery:
    """Delivers the early outputs of one call on a worker thread, from its construction to `end`.
    `early`: the event that is signalled when an output is computed, by the output's number."""

    def __init__(
        self, early: Mapping[int, Event], results: Sequence[Any], deliver: Deliver
    ) -> None:
        self._early, self._results, self._deliver = early, results, deliver
        self._stopped = False
        self._done = Future[None]()
        workers.start(self._run)

    def _run(self) -> None:
        try:
            for number, event in self._early.items():
                event.wait()  # `end` signals the events of a program that stopped
                if self._stopped:
                    break
                result = self._results[number]
                self._deliver(number, result if result.ndim else result[()])
            self._done.set_result(None)
        except BaseException as error:  # raised again by `end`, on the caller's thread
            self._done.set_exception(error)

    def end(self, is_complete: bool) -> None:
        """Wait until all is delivered; if the program stopped, deliver nothing more.

        Raises what `deliver` raised.
        """
        if not is_complete:
            self._stopped = True
            for event in self._early.values():
                event.signal()
        error = self._done.exception()
        for event in self._early.values():
            event.reset()
        if error is not None:
            raise error
