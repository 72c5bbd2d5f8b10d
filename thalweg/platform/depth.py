"""How deep Python's calls may go while deep expressions are walked."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

_DEPTH = 20_000  # calls: some ten for each of the parts that one kernel holds at most
_depths: list[int] = []  # what the limit was when those that are inside now began


@contextmanager
def deep_calls() -> Generator[None]:
    """With room for deep expressions; the last to leave restores the limit."""
    _depths.append(sys.getrecursionlimit())
    sys.setrecursionlimit(max(_DEPTH, _depths[-1]))
    try:
        yield
    finally:
        before = min(_depths)
        _depths.pop()
        if not _depths:
            sys.setrecursionlimit(before)
