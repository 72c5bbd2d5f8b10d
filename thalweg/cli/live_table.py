"""The table of tasks that `thalweg launch` shows, below what the tasks print.

On a terminal, with the package rich, it is drawn again and again in place. Elsewhere it is a line
now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from thalweg.cli.report import has_colours, printable
from thalweg.cluster.launch.watch import Rates
from thalweg.platform.amounts import size

_LINES_EVERY = 10  # tables are not drawn: one line for so many of them


class Row(NamedTuple):
    """What there is to say about a task."""

    task: str
    state: str
    steps: int | None
    rates: Rates | None


class Display(Protocol):
    """Where lines and tables go."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *_: object) -> None: ...

    def line(self, task: str, text: str) -> None:
        """Show a line that a task printed."""
        ...

    def table(self, rows: Sequence[Row]) -> None:
        """Show how the tasks do."""
        ...


def display() -> Display:
    """The display for where the output goes."""
    if has_colours():
        try:
            return LiveTable()
        except ImportError:  # without rich
            pass
    return PlainLines()


class PlainLines:
    """Lines, for files, pipes and simple terminals."""

    def __init__(self) -> None:
        self._asked = 0

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def line(self, task: str, text: str) -> None:
        print(f"{task:>10} | {_visible(text)}", flush=True)

    def table(self, rows: Sequence[Row]) -> None:
        if not any(row.rates and row.rates.steps for row in rows):
            return
        self._asked += 1
        if self._asked % _LINES_EVERY == 1:
            self.line("launch", " · ".join(map(summary, rows)))


class LiveTable:
    """A table that stays at the bottom of the terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text

        self._table, self._text = Table, Text
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=4)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def line(self, task: str, text: str) -> None:
        self._console.print(self._text(f"{task:>10} | {_visible(text)}"))

    def table(self, rows: Sequence[Row]) -> None:
        drawn: Any = self._table()
        for name in ("task", "state", "steps", "steps/s", "sent/s", "received/s"):
            drawn.add_column(name, justify="left" if name in ("task", "state") else "right")
        for row in rows:
            drawn.add_row(*cells(row))
        self._live.update(drawn)


def cells(row: Row) -> list[str]:
    """A row of the table as text."""
    steps = "" if row.steps is None else f"{row.steps:,}"
    if row.rates is None or row.state != "running":
        return [row.task, row.state, steps, "", "", ""]
    sent, received = size(int(row.rates.bytes_sent)), size(int(row.rates.bytes_received))
    return [row.task, row.state, steps, f"{row.rates.steps:,.1f}", sent, received]


def summary(row: Row) -> str:
    """A row as part of a sentence."""
    _, state, _, rate, sent, received = cells(row)
    if not rate:
        return f"{row.task} {state}"
    return f"{row.task} {rate} steps/s, {sent}/s out, {received}/s in"


def _visible(text: str) -> str:
    """A line as a terminal shows it: of what a progress bar drew over, the last."""
    return printable(text.rpartition("\r")[2].expandtabs())
