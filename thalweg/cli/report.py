"""What a command tells: facts, tables and parts, printed as text for people or JSON for scripts.

Text is plain where it goes to a file or a pipe; on a terminal, headings stand out. Names that come
from files are printed with control characters escaped, so that no file can steer a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, cast

from thalweg.platform.amounts import size

_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


class Size(int):
    """A number of bytes: `Size(580_000)` is 580 kB to people and a number to scripts."""


@dataclass
class Report:
    """What there is to say about one thing; `parts` are things inside it."""

    kind: str
    path: str = ""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(
        default_factory=dict[str, Sequence[Mapping[str, Any]]]
    )
    parts: list[Report] = field(default_factory=list["Report"])

    def data(self) -> dict[str, Any]:
        """The report as JSON has it."""
        named = {"kind": self.kind} | ({"path": self.path} if self.path else {})
        parts = {"parts": [part.data() for part in self.parts]} if self.parts else {}
        return named | self.facts | {title: list(t) for title, t in self.tables.items()} | parts

    def lines(self, indent: str = "", colour: bool = False) -> Iterator[str]:
        """The report as text."""
        yield indent + _marked(printable(f"{self.kind} {self.path}".strip()), _BOLD, colour)
        yield from _facts(self.facts, indent + "  ", colour)
        for title, rows in self.tables.items():
            if rows:
                yield ""
                yield f"{indent}  {_marked(printable(title), _BOLD, colour)}"
                yield from _table(rows, indent + "    ", colour)
        for part in self.parts:
            yield ""
            yield from part.lines(indent + "  ", colour)


def show(report: Report, as_json: bool) -> None:
    """Print a report."""
    if as_json:
        print(json.dumps(_plain(report.data()), indent=2, ensure_ascii=False))
        return
    for line in report.lines(colour=has_colours()):
        print(line)


def has_colours() -> bool:
    """Whether output goes to a terminal that shows them, and its user wants that."""
    environment = os.environ
    wanted = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return wanted and sys.stdout is not None and sys.stdout.isatty()


def bold(text: str) -> str:
    """A text that stands out on a terminal."""
    return _marked(text, _BOLD, has_colours())


def _marked(text: str, mark: str, colour: bool) -> str:
    return f"{mark}{text}{_PLAIN}" if colour and text else text


def _facts(facts: Mapping[str, Any], indent: str, colour: bool) -> Iterator[str]:
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        label = _marked(name.ljust(width), _DIM, colour)
        yield f"{indent}{label}  {text_of(value)}".rstrip()


def _table(rows: Sequence[Mapping[str, Any]], indent: str, colour: bool) -> Iterator[str]:
    heads = list(dict.fromkeys(head for row in rows for head in row))
    cells = [[text_of(row.get(head)) for head in heads] for row in rows]
    right = [all(_is_number(row.get(head)) for row in rows) for head in heads]
    widths = [
        max(len(head), *(len(line[column]) for line in cells)) for column, head in enumerate(heads)
    ]
    yield indent + _marked(_line(heads, widths, right), _DIM, colour)
    for line in cells:
        yield indent + _line(line, widths, right)


def _line(cells: Iterable[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    aligned = (
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(aligned).rstrip()


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def text_of(value: Any) -> str:
    """A cell or a fact as people read it."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case Size():
            return size(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}"
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """A text of one line, control characters and halves of surrogates escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _plain(value: Any) -> Any:
    """A value of types that JSON has: other numbers than finite ones are text."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _plain(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)
