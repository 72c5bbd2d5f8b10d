"""Completion callbacks: called once, on any thread, with a value or an error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

#: (value, None) or (None, error)
Done = Callable[[Any, BaseException | None], None]
#: Withdraws a pending request: its callback is only called if its step was cancelled.
Stop = Callable[[], None]


def wait_for(start: Callable[[Done], Stop]) -> Any:
    """Call `start` with a callback and block until it is called; returns its value or raises its
    error."""
    outcomes = list[tuple[Any, BaseException | None]]()
    sleeper = threading.Lock()
    sleeper.acquire()

    def done(value: Any, error: BaseException | None) -> None:
        outcomes.append((value, error))
        sleeper.release()

    stop = start(done)
    try:
        sleeper.acquire()
    except BaseException:  # an interrupt: no thread waits for the request any more
        stop()
        raise
    ((value, error),) = outcomes
    if error is not None:
        raise error
    return value
