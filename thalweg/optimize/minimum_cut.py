"""Minimum cuts: assigns vertices to two sides at the least cost, by Dinic's algorithm.

The input is the cost of each side for a vertex, and the cost of an edge whose ends are on different
sides. The result is the vertices on the first side.
"""

from __future__ import annotations

from collections import deque

INFINITE = float("inf")
_FIRST, _SECOND = 0, 1


class Cut:
    """A flow network; the two sides are its source and its sink."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]  # of each vertex; edge ^ 1 is the reverse of edge
        self._ends: list[int] = []
        self._capacity: list[float] = []

    def vertex(self, first: float = 0.0, second: float = 0.0) -> int:
        """Add a vertex, with the cost of each side."""
        self._edges.append([])
        number = len(self._edges) - 1
        if second:
            self.edge(_FIRST, number, second)
        if first:
            self.edge(number, _SECOND, first)
        return number

    def edge(self, source: int, sink: int, cost: float) -> None:
        """Add the cost of `source` being on the first side and `sink` on the second."""
        for start, end, capacity in ((source, sink, cost), (sink, source, 0.0)):
            self._edges[start].append(len(self._ends))
            self._ends.append(end)
            self._capacity.append(capacity)

    def first_side(self) -> set[int]:
        """The vertices on the first side of a minimum cut; of several cuts, the smallest set."""
        while (levels := self._levels())[_SECOND] >= 0:
            next_edge = [0] * len(self._edges)
            while self._push(levels, next_edge):
                pass
        return {vertex for vertex, level in enumerate(levels) if level >= 0 and vertex > _SECOND}

    def _levels(self) -> list[int]:
        """The distance of each vertex from the first side, over edges with capacity; -1 if none."""
        levels = [-1] * len(self._edges)
        levels[_FIRST], pending = 0, deque([_FIRST])
        while pending:
            vertex = pending.popleft()
            for edge in self._edges[vertex]:
                end = self._ends[edge]
                if self._capacity[edge] > 0 and levels[end] < 0:
                    levels[end] = levels[vertex] + 1
                    pending.append(end)
        return levels

    def _push(self, levels: list[int], next_edge: list[int]) -> bool:
        """Augment the flow along one path; False if there is none."""
        path: list[int] = []
        vertex = _FIRST
        while vertex != _SECOND:
            edge = self._next(vertex, levels, next_edge)
            if edge is not None:
                path.append(edge)
                vertex = self._ends[edge]
            elif path:  # a dead end: back up, and try the next edge
                vertex = self._ends[path.pop() ^ 1]
                next_edge[vertex] += 1
            else:
                return False
        flow = min(self._capacity[edge] for edge in path)
        for edge in path:
            self._capacity[edge] -= flow
            self._capacity[edge ^ 1] += flow
        return True

    def _next(self, vertex: int, levels: list[int], next_edge: list[int]) -> int | None:
        edges = self._edges[vertex]
        while next_edge[vertex] < len(edges):
            edge = edges[next_edge[vertex]]
            if self._capacity[edge] > 0 and levels[self._ends[edge]] == levels[vertex] + 1:
                return edge
            next_edge[vertex] += 1
        return None
