"""Progress of long compilations: a line on the terminal, or a bar in a notebook."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

from thalweg.platform.notebook import is_notebook, progress_bar

_T = TypeVar("_T")
_PATIENCE = 2.0  # seconds before anything is shown


def progress(items: Iterable[_T], total: int, doing: str = "compiling") -> Generator[_T]:
    """Yield the items; after two seconds, show how many are done."""
    if not _shown():
        yield from items
        return
    start, bar = time.monotonic(), None
    try:
        for done, item in enumerate(items, start=1):
            yield item
            if bar is None and time.monotonic() - start > _PATIENCE:
                bar = _bar(total, doing)
            if bar is not None:
                bar.update(done - bar.n)
    finally:
        if bar is not None:
            bar.close()


def _shown() -> bool:
    return (
        os.environ.get("THALWEG_PROGRESS") == "1"
        or (sys.stderr is not None and sys.stderr.isatty())
        or is_notebook()
    )


def _bar(total: int, doing: str) -> Any:
    try:
        tqdm = progress_bar()
    except ImportError:
        return PlainBar(total, doing)
    form = "{desc} {n_fmt}/{total_fmt} kernels |{bar}| {elapsed}<{remaining}"
    return tqdm(total=total, desc=doing, bar_format=form, leave=False, file=sys.stderr)


class PlainBar:
    """One line, rewritten in place: "compiling 37/120 kernels"."""

    def __init__(self, total: int, doing: str = "compiling") -> None:
        self.n, self._total, self._doing = 0, total, doing

    def update(self, more: int) -> None:
        """Count `more` items as done."""
        self.n += more
        line = f"\r{self._doing} {self.n}/{self._total} kernels"
        print(line, end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the line."""
        print(file=sys.stderr)
