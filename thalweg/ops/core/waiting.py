"""What is told later: a function is called with a value or an error, once, on any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

#: (value, None) or (None, error)
Done = Callable[[Any, BaseException | None], None]
#: Withdraws a request: unless it was told before, it is told no more but that its step has ended.
Stop = Callable[[], None]


def waited_for(start: Callable[[Done], Stop]) -> Any:
    """What something that is started tells; this thread sleeps until then."""
    outcomes = list[tuple[Any, BaseException | None]]()
    sleeper = threading.Lock()
    sleeper.acquire()

    def done(value: Any, error: BaseException | None) -> None:
        outcomes.append((value, error))
        sleeper.release()

    stop = start(done)
    try:
        sleeper.acquire()
    except BaseException:  # an interrupt: the waiter goes, so must its request
        stop()
        raise
    ((value, error),) = outcomes
    if error is not None:
        raise error
    return value
