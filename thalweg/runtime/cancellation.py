"""How a step is stopped: by an error, a timeout or a closed session."""

from __future__ import annotations

import threading
from collections.abc import Callable

from thalweg import errors


class Cancellation:
    """A flag with an error, and the waiters to wake when it is set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.error: errors.OpError | None = None
        self._wakers: dict[int, Callable[[], None]] = {}
        self._next = 0

    def cancel(self, error: errors.OpError) -> None:
        """Set the flag (once) and wake everyone."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            wakers = list(self._wakers.values())
        for wake in wakers:
            wake()

    def check(self) -> None:
        """Raise the error the step was cancelled with, if it was."""
        if self.error is not None:
            raise self.error

    def on_cancel(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on cancellation; the result undoes the registration."""
        with self._lock:
            token = self._next
            self._next += 1
            self._wakers[token] = wake
            cancelled = self.error is not None
        if cancelled:
            wake()
        return lambda: self._forget(token)

    def _forget(self, token: int) -> None:
        with self._lock:
            self._wakers.pop(token, None)
