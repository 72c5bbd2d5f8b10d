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


def run_delivering(
    run: Callable[[], int], early: Mapping[int, Event], results: Sequence[Any], deliver: Deliver
) -> int:
    """Run a program, whose early outputs a worker thread delivers meanwhile; its fault code.

    `early`: the event that is signalled when an output is computed, by the output's number. If the
    program stops, nothing more is delivered. Raises what `deliver` raised.
    """
    is_stopped = False
    done = Future[None]()

    def deliver_all() -> None:
        try:
            for number, event in early.items():
                event.wait()
                if is_stopped:
                    break
                result = results[number]
                deliver(number, result if result.ndim else result[()])
            done.set_result(None)
        except BaseException as error:  # raised again on the caller's thread
            done.set_exception(error)

    workers.start(deliver_all)
    fault = -1
    try:
        fault = run()
    finally:
        if fault:
            is_stopped = True
            for event in early.values():
                event.signal()
        error = done.exception()  # when all is delivered
        for event in early.values():
            event.reset()
        if error is not None:
            raise error
    return fault
