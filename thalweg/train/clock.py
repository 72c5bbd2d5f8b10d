"""The time that hooks and session managers go by. Tests put a clock of their own in its place."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since some moment in the past; never goes back."""
    return time.monotonic()


def wait(seconds: float) -> None:
    """Let time pass."""
    time.sleep(seconds)
