"""A graph that holds no nodes: what graphs do, and eager code need not.

Scopes only prefix names, which need not be unique; everything is in the order of the program; of
collections, what the library keeps for itself and the global step remain.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, cast

from thalweg.graph.collections import GraphKeys
from thalweg.graph.graph import Graph
from thalweg.graph.likes import UserObject
from thalweg.graph.node import Node, Tensor


class BareGraph(Graph):
    """The part of a graph that needs no nodes."""

    makers: ClassVar[dict[Any, Callable[[], Any]]] = {}  # of what collections keep for the library

    def enter_scope(self, name: str | None) -> str:
        """Prefix the names of new variables; names need not be unique."""
        outer = self._scope
        if not name:
            self._scope = ""
        elif name[-1] == "/":
            self._scope = name[:-1]
        else:
            self._scope = f"{outer}/{name}" if outer else name
        return outer

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """The name in the current scope; names need not be unique."""
        return f"{self._scope}/{name}" if self._scope else name

    def control_dependencies(self, control_inputs: Any) -> AbstractContextManager[None]:
        """Effects come in the order of the program anyway."""
        return nullcontext()

    def add_to_collection(self, name: Hashable, value: UserObject) -> None:
        """Keep the global step; other things live as long as somebody holds them."""
        if name == GraphKeys.GLOBAL_STEP:
            super().add_to_collection(name, value)

    def get_collection_ref(self, name: Hashable) -> list[Any]:
        """The named list: that of the library's own for good, others for the caller alone."""
        if name != GraphKeys.GLOBAL_STEP and not isinstance(cast("Any", name), tuple):
            return []
        found = super().get_collection_ref(name)
        if not found and name in self.makers:
            found.append(self.makers[name]())
        return found

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Nothing is fed."""

    def prevent_fetching(self, node: Node) -> None:
        """Nothing is fetched."""

    def get_operations(self) -> list[Node]:
        """Eager code has no graph to show."""
        return []

    def add(self, *arguments: Any, **named: Any) -> Node:
        """Nodes are recorded, not added."""
        raise RuntimeError("Eager code has no graph to add nodes to: apply the op.")
