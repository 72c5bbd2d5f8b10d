"""Minimum cuts: which of two sides each of some choices takes, at the least cost.

Comes in: for each choice what a side costs, and for pairs what it costs to take different sides.
Goes out: the choices on the first side. Dinic's algorithm.
"""

from __future__ import annotations

from collections import deque

INFINITE = float("inf")
_FIRST, _SECOND = 0, 1


class Cut:
    """A network between two sides."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]  # of each vertex, by number; the other end's is ^ 1
        self._ends: list[int] = []
        self._room: list[float] = []

    def vertex(self, first: float = 0.0, second: float = 0.0) -> int:
        """A choice, and what each side costs."""
        self._edges.append([])
        made = len(self._edges) - 1
        if second:
            self.edge(_FIRST, made, second)
        if first:
            self.edge(made, _SECOND, first)
        return made

    def edge(self, one: int, other: int, cost: float) -> None:
        """What it costs if one is on the first side and the other is not."""
        for start, end, room in ((one, other, cost), (other, one, 0.0)):
            self._edges[start].append(len(self._ends))
            self._ends.append(end)
            self._room.append(room)

    def first_side(self) -> set[int]:
        """The choices on the first side of the cheapest cut; of several, those of the fewest."""
        while (levels := self._levels())[_SECOND] >= 0:
            tried = [0] * len(self._edges)
            while self._push(levels, tried):
                pass
        return {vertex for vertex, level in enumerate(levels) if level >= 0 and vertex > _SECOND}

    def _levels(self) -> list[int]:
        """How far each vertex is from the first side, over edges with room; -1 is out of reach."""
        levels = [-1] * len(self._edges)
        levels[_FIRST], pending = 0, deque([_FIRST])
        while pending:
            vertex = pending.popleft()
            for edge in self._edges[vertex]:
                end = self._ends[edge]
                if self._room[edge] > 0 and levels[end] < 0:
                    levels[end] = levels[vertex] + 1
                    pending.append(end)
        return levels

    def _push(self, levels: list[int], tried: list[int]) -> bool:
        """Fill one path from side to side; whether there was one."""
        path: list[int] = []
        vertex = _FIRST
        while vertex != _SECOND:
            edge = self._next(vertex, levels, tried)
            if edge is not None:
                path.append(edge)
                vertex = self._ends[edge]
            elif path:  # a dead end: back, and on with the next edge
                vertex = self._ends[path.pop() ^ 1]
                tried[vertex] += 1
            else:
                return False
        least = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= least
            self._room[edge ^ 1] += least
        return True

    def _next(self, vertex: int, levels: list[int], tried: list[int]) -> int | None:
        edges = self._edges[vertex]
        while tried[vertex] < len(edges):
            edge = edges[tried[vertex]]
            if self._room[edge] > 0 and levels[self._ends[edge]] == levels[vertex] + 1:
                return edge
            tried[vertex] += 1
        return None
