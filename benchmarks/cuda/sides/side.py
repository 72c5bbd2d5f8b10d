"""One system's training step of a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Side:
    """A step, which has ended when it returns the loss, and what may be asked about it."""

    step: Callable[[], float]
    peak_bytes: Callable[[], int] = lambda: 0  # of device memory, since `forget_peak`
    forget_peak: Callable[[], None] = lambda: None
    plan: Callable[[], Any] | None = None
