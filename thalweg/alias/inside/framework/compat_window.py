"""`tensorflow.python.compat.compat`: whether old readers must be able to read what is written."""

from __future__ import annotations

import contextlib
from typing import Any


def forward_compatible(year: int, month: int, day: int) -> bool:
    """True: whatever was new after that day may be used."""
    return True


def forward_compatibility_horizon(year: int, month: int, day: int) -> Any:
    """A block in which `forward_compatible` is what it always is."""
    return contextlib.nullcontext()
