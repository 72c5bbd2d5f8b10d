"""The names of a graph's nodes and scopes: which are taken, and unique new ones.

Names are unique regardless of case, since they become file names and checkpoint keys. GraphDefs
distinguish case: imported nodes keep their names as spelled.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from thalweg.graph.node import reached

NODE_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-/]*")


class Names:
    """The full names of nodes and scopes of a graph, shared with its sub-graphs."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}  # lower-case name -> how often it was requested
        self._nodes: set[str] = set()  # the names of nodes as spelled

    def add(self, full: str) -> None:
        """Register the name of a node."""
        self._counts.setdefault(full.lower(), 1)
        self._nodes.add(full)

    def unique(self, full: str, mark_as_used: bool) -> str:
        """The name, with a suffix `_1`, `_2`, … if it is taken."""
        key = full.lower()
        count = self._counts.get(key, 0)
        if count == 0:
            _check(full)
            if mark_as_used:
                self._counts[key] = 1
            return full
        while f"{key}_{count}" in self._counts:
            count += 1
        if mark_as_used:
            self._counts[key] = count + 1
            self._counts[f"{key}_{count}"] = 1
        return f"{full}_{count}"

    def imported(self, outer: str, names: Collection[str]) -> dict[str, str]:
        """Full names, below the prefix `outer`, for nodes that are imported together. A name is
        kept unless it is exactly that of a node or of a scope of a node."""
        may_clash = any((outer + name).lower() in self._counts for name in names)
        taken = _with_scopes(self._nodes) if may_clash else set[str]()
        full_names: dict[str, str] = {}
        for name in names:
            free, count = name, 0
            while outer + free in taken or (count and free in names):
                count += 1
                free = f"{name}_{count}"
            full = full_names[name] = outer + free
            _check(full)
            self._counts.setdefault(full.lower(), 1)
        return full_names


def _check(full: str) -> None:
    if not NODE_NAME.fullmatch(full):
        raise ValueError(f"'{full}' is not a valid node name")


def _with_scopes(names: Iterable[str]) -> set[str]:
    """Names and the scopes around them."""
    return reached(names, lambda name: [name.rpartition("/")[0]]) - {""}
