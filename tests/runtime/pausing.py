"""Steps that pause wherever they may, and what is done at their pauses."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from thalweg.device.cpu import pool_layout as layout
from thalweg.device.cpu.pool import Pool, default_pool
from thalweg.runtime.cancellation import Cancellation

_PATIENCE = (layout.BUDGET, layout.SLICE, layout.MIN_SLICE)


@contextmanager
def impatient(pool: Pool | None = None) -> Generator[None]:
    """Inside, programs pause at every barrier where they may, but for the first entries."""
    words = (pool or default_pool())._words
    before = [int(words[offset // 8]) for offset in _PATIENCE]
    for offset in _PATIENCE:
        words[offset // 8] = 0
    try:
        yield
    finally:
        for offset, value in zip(_PATIENCE, before, strict=True):
            words[offset // 8] = value


class Pauses:
    """Counts the pauses of steps, and does something at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._at, self._then = 0, self._nothing
        check = Cancellation.check

        def counted(cancellation: Cancellation) -> None:
            self.count += 1
            if self.count == self._at:
                self._then(cancellation)
            check(cancellation)

        monkeypatch.setattr(Cancellation, "check", counted)

    def _nothing(self, _: Cancellation) -> None: ...

    def at(self, count: int, then: Callable[[Cancellation], object]) -> None:
        """From now on, do something at a pause: 1 is the next one."""
        self.count, self._at, self._then = 0, count, then

    def interrupt_at(self, count: int) -> None:
        """Press Ctrl-C at a pause."""
        self.at(count, lambda _: signal.raise_signal(signal.SIGINT))
