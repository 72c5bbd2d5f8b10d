"""Cancellation of steps: by an error, a timeout or the end of the session."""

from __future__ import annotations

import threading
from collections.abc import Callable

from thalweg import errors


class Cancellation:
    """A flag with an error, and callbacks that wake waiters when it is set. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.error: errors.OpError | None = None
        self._callbacks: dict[object, Callable[[], None]] = {}

    def cancel(self, error: errors.OpError) -> None:
        """Set the error and wake all waiters; only the first call has an effect."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            wakers = list(self._callbacks.values())
        for wake in wakers:
            wake()

    def check(self) -> None:
        """Raise the error the step was cancelled with, if it was."""
        if self.error is not None:
            raise self.error

    def on_cancel(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on cancellation, at once if it happened; returns the unregister function."""
        token = object()
        with self._lock:
            self._callbacks[token] = wake
            cancelled = self.error is not None
        if cancelled:
            wake()
        return lambda: self._unregister(token)

    def _unregister(self, token: object) -> None:
        with self._lock:
            self._callbacks.pop(token, None)
