"""A graph that holds no nodes: overrides for what eager code does not need of graphs.

Name scopes only prefix names, which need not be unique. Ops run in program order. Collections hold
the library's own entries and the global step.
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
    """A graph without nodes."""

    #: The first entries of the library's own collections.
    collection_factories: ClassVar[dict[Any, Callable[[], Any]]] = {}

    def enter_scope(self, name: str | None) -> str:
        """Set the prefix of new variables' names."""
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
        """Nothing to do: effects happen in program order."""
        return nullcontext()

    def add_to_collection(self, name: Hashable, value: UserObject) -> None:
        """Keep the global step; nothing else is collected."""
        if name == GraphKeys.GLOBAL_STEP:
            super().add_to_collection(name, value)

    def get_collection_ref(self, name: Hashable) -> list[Any]:
        """The named list; for other names than the library's own, a new empty one."""
        if name != GraphKeys.GLOBAL_STEP and not isinstance(cast("Any", name), tuple):
            return []
        collection = super().get_collection_ref(name)
        if not collection and name in self.collection_factories:
            collection.append(self.collection_factories[name]())
        return collection

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Nothing to do: eager code feeds nothing."""

    def prevent_fetching(self, node: Node) -> None:
        """Nothing to do: eager code fetches nothing."""

    def get_operations(self) -> list[Node]:
        """Empty: eager code has no graph."""
        return []

    def add(self, *arguments: Any, **named: Any) -> Node:
        """Raise: ops are recorded, not added as nodes."""
        raise RuntimeError("Eager code has no graph to add nodes to: apply the op.")
