"""How much each server holds and does: counters beside its shards, and a table of them."""

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
    """What one server holds, and what workers have asked of it so far."""

    device: str
    keys: int
    bytes: int
    pulled: int
    pushed: int


class LoadCounters:
    """Counts the keys that one server was asked for, on the server."""

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
        """How many keys were pulled, and how many pushed."""
        return [self._pulled, self._pushed]


def _count(variable: Variable, rows: Tensor) -> Node:
    many = casting.cast(shaping.size(rows), int64)
    return state.assign_add(variable, many, use_locking=True).op


def load_text(loads: Sequence[ServerLoad]) -> str:
    """Loads as a table, with each server's part of the whole in percent."""
    totals = [sum(column) or 1 for column in zip(*(load[1:] for load in loads), strict=True)]
    lines = [("server", "keys", "", "bytes", "", "pulled", "", "pushed", "")]
    lines += [(load.device, *_cells(load[1:], totals)) for load in loads]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_row(line, widths) for line in lines)


def _cells(counts: Sequence[Any], totals: Sequence[int]) -> list[str]:
    pairs = zip(counts, totals, strict=True)
    return [cell for count, total in pairs for cell in (f"{count:,}", f"{count / total:.0%}")]


def _row(line: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if place == 0 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(line, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()
