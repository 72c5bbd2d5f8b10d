"""A line on the terminal, or a bar in a notebook, that says how far a long piece of work is."""

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
    """The items as they come; after two seconds the terminal tells how many kernels are done."""
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
    """One line that is written over and over: "compiling 37/120 kernels"."""

    def __init__(self, total: int, doing: str = "compiling") -> None:
        self.n, self._total, self._doing = 0, total, doing

    def update(self, more: int) -> None:
        """Note that so many more are done."""
        self.n += more
        line = f"\r{self._doing} {self.n}/{self._total} kernels"
        print(line, end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the line."""
        print(file=sys.stderr)
