"""What a system makes of a work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """`call(i)` runs step number i; gives loss or logits in the system's own type.

    A step has ended when its call returns, but for a system that runs ahead: `finish` waits for it.
    """

    call: Callable[[int], Any]
    building: float = 0.0  # seconds spent on making a graph and planning it, part of the first call
    finish: Callable[[], Any] = lambda: None
    plan: Callable[[], Any] | None = None
    settle: Callable[[], Any] = lambda: None  # untimed, before and after a round
    session: Any = None


def planned(session: Any, fetches: Any, feeds: Sequence[Any]) -> tuple[Callable[..., Any], float]:
    """A callable of a session, and the seconds it took to make: a session may plan then."""
    start = time.perf_counter()
    call = session.make_callable(fetches, feeds)
    return call, time.perf_counter() - start
