"""The load of servers: counters on each server, and a table of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from thalweg.graph.dtypes import int64
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import device
from thalweg.ops.core import casting, shaping
from thalweg.ops.state import state
from thalweg.variables.initializers import Zeros
from thalweg.variables.scope import get_variable
from thalweg.variables.variable import Variable


class ServerLoad(NamedTuple):
    """The keys and bytes that a server holds, and the keys that workers have pulled and pushed."""

    device: str
    keys: int
    bytes: int
    pulled: int
    pushed: int


class LoadCounters:
    """Counters of the keys pulled from and pushed to one server, on that server."""

    def __init__(self, server: int, device_name: str) -> None:
        with device(device_name):
            self._pulled, self._pushed = (
                get_variable(
                    f"{what}_{server}", [], int64, Zeros(), trainable=False, use_resource=True
                )
                for what in ("pulled", "pushed")
            )

    def count_pull(self, rows: Tensor) -> Node:
        """Count the keys of a pull."""
        return _count(self._pulled, rows)

    def count_push(self, rows: Tensor) -> Node:
        """Count the keys of a push."""
        return _count(self._pushed, rows)

    @property
    def values(self) -> list[Variable]:
        """The counts of pulled and of pushed keys."""
        return [self._pulled, self._pushed]


def _count(variable: Variable, rows: Tensor) -> Node:
    count = casting.cast(shaping.size(rows), int64)
    return state.assign_add(variable, count, use_locking=True).op


def load_text(loads: Sequence[ServerLoad]) -> str:
    """Loads as a table, with each server's share in percent."""
    totals = [sum(column) or 1 for column in zip(*(load[1:] for load in loads), strict=True)]
    lines = [("server", "keys", "", "bytes", "", "pulled", "", "pushed", "")]
    lines += [(load.device, *_cells(load[1:], totals)) for load in loads]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_row(line, widths) for line in lines)


def _cells(counts: Sequence[Any], totals: Sequence[int]) -> list[str]:
    pairs = zip(counts, totals, strict=True)
    return [cell for count, total in pairs for cell in (f"{count:,}", f"{count / total:.0%}")]


def _row(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = map(str.rjust, line[1:], widths[1:])
    return "  ".join([line[0].ljust(widths[0]), *cells]).rstrip()
