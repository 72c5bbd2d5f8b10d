"""The names of a graph: which are taken, and what the next one of a name is called.

Case does not tell names apart, since names become those of files and of variables in checkpoints.
GraphDefs do tell them apart: what is imported keeps its names as they are spelled.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

NODE_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-/]*")


class Names:
    """The names of nodes and scopes, inside all scopes; sub-graphs share those of their graph."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}  # how often a name was asked for, in lower case
        self._nodes: set[str] = set()  # the names of nodes as they are spelled

    def add(self, full: str) -> None:
        """Note the name of a node."""
        self._counts.setdefault(full.lower(), 1)
        self._nodes.add(full)

    def unique(self, full: str, mark_as_used: bool) -> str:
        """A name, with `_1`, `_2`, … where it is taken."""
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
        """Names of nodes that come together, below a prefix: kept unless a node or the scope of a
        node is spelled so."""
        clash = any((outer + name).lower() in self._counts for name in names)
        taken = _with_scopes(self._nodes) if clash else set[str]()
        found: dict[str, str] = {}
        for name in names:
            free, count = name, 0
            while outer + free in taken or (count and free in names):
                count += 1
                free = f"{name}_{count}"
            found[name] = outer + free
            _check(found[name])
            self._counts.setdefault(found[name].lower(), 1)
        return found


def _check(full: str) -> None:
    if not NODE_NAME.fullmatch(full):
        raise ValueError(f"'{full}' is not a valid node name")


def _with_scopes(names: Iterable[str]) -> set[str]:
    """Names, and those of the scopes around them."""
    taken: set[str] = set()
    for name in names:
        while name and name not in taken:
            taken.add(name)
            name = name.rpartition("/")[0]
    return taken
