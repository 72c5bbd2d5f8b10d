"""Per-thread stacks of default graphs and sessions.

The graph layer knows a session only as a `Runner`: an object with a graph that runs fetches.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from thalweg.graph.graph import Graph
    from thalweg.graph.likes import FetchLike, Structure

Item = TypeVar("Item")


class Runner(Protocol):
    """The interface of a session that graphs use."""

    @property
    def graph(self) -> Graph:
        """The graph this session runs."""
        ...

    def run(self, fetches: FetchLike, feed_dict: Mapping[Any, Any] | None = None) -> Structure:
        """Run a step."""
        ...


class ThreadStack(threading.local, Generic[Item]):
    """A stack per thread: `with stack.pushed(item):` makes the item current."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[Item] = []

    @property
    def top(self) -> Item | None:
        """The current item, if any."""
        return self.items[-1] if self.items else None

    @contextmanager
    def pushed(self, item: Item) -> Generator[Item]:
        """Make `item` current inside the block."""
        self.items.append(item)
        try:
            yield item
        finally:
            if self.items.pop() is not item:
                raise AssertionError(f"Nesting violated for default stack of {type(item)} objects")


sessions: ThreadStack[Runner] = ThreadStack()


def runner_for(graph: Any, session: Runner | None, call: str) -> Runner:
    """The session, or the default one, to run a node of `graph`; a ValueError if it cannot."""
    runner = session or sessions.top
    if runner is None:
        raise ValueError(
            f"Cannot execute {call}: no default session is registered. "
            f"Use `with sess.as_default()` or pass an explicit session to {call}"
        )
    if runner.graph is not graph:
        default = "the default session's" if session is None else "the session's"
        raise ValueError(f"Cannot use {default} graph: {call} is of a node of another graph")
    return runner
