"""Channels: bounded queues of elements that a background thread prefetches.

The producer waits for a free slot, the consumer for an item; neither holds a lock while it waits.
The producer stops when its channel is closed; a channel closes when the consuming flow is dropped.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from thalweg import errors
from thalweg.data.flow import Element, Interrupted, Puller
from thalweg.graph.node import Node
from thalweg.platform import spans

_CLOSED = errors.CancelledError(None, None, "the pipeline was closed")


class Failure(NamedTuple):
    """An error in place of an element."""

    error: Exception


#: An element, None at the end, or an error.
Item = Element | None | Failure


def attempt(pull: Callable[[], Element | None]) -> Item:
    """The result of a pull; an error is returned as a Failure."""
    try:
        return pull()
    except Interrupted:
        raise
    except Exception as error:
        return Failure(error)


class _Desk:
    """The state shared by producer and consumer; it holds no reference to the channel."""

    def __init__(
        self, pull: Callable[[], Element | None], maker: Puller | None, node: Node
    ) -> None:
        self.pull = pull
        self.node = node  # the stage of the channel
        self.maker = maker
        self.items: SimpleQueue[Any] = SimpleQueue()
        self.room: SimpleQueue[None] = SimpleQueue()
        self.making = threading.Lock()  # held while an item is computed; snapshots acquire it
        self.is_closed = False

    def close(self) -> None:
        """Let the maker stop."""
        self.is_closed = True
        self.room.put(None)
        if self.maker is not None:
            self.maker.interrupt(_CLOSED)


class Channel:
    """A thread that computes items, at most `room` ahead of the consumer.

    It ends with the channel, which interrupts the puller `maker`, if any. With that puller, a
    consumer that finds the queue empty and no item in progress computes the item itself.
    """

    def __init__(
        self,
        node: Node,
        pull: Callable[[], Element | None],
        end: Callable[[], None],
        room: int,
        made: Sequence[Item] = (),
        maker: Puller | None = None,
    ) -> None:
        desk = self._desk = _Desk(pull, maker, node)
        for item in made:
            desk.items.put(item)
        for _ in range(room - len(made)):
            desk.room.put(None)
        self._finalize = weakref.finalize(self, desk.close)
        self._finalize.atexit = False
        if None not in made:
            args, name = (desk, end), f"thalweg-data {node.name}"
            threading.Thread(target=_make, args=args, name=name, daemon=True).start()

    @property
    def making(self) -> threading.Lock:
        """The lock that is held while an item is computed."""
        return self._desk.making

    def take(self, puller: Puller) -> Item:
        """Remove and return the next item; blocks until there is one."""
        desk = self._desk
        if desk.maker is not None and desk.items.empty() and desk.making.acquire(blocking=False):
            try:
                if desk.items.empty():
                    with puller.in_place_of(desk.maker):
                        return attempt(desk.pull)
            finally:
                desk.making.release()
        item = puller.get(desk.items, desk.node)
        desk.room.put(None)
        return item

    def made(self) -> list[Item]:
        """The queued items. The caller holds `making`, and nobody calls `take` meanwhile."""
        found: list[Item] = []
        items = self._desk.items
        while True:
            try:
                found.append(items.get_nowait())
            except Empty:
                break
        for item in found:
            items.put(item)
        return found

    def close(self) -> None:
        """Let the maker stop."""
        self._finalize()


def _make(desk: _Desk, end: Callable[[], None]) -> None:
    """Compute items whenever there is a free slot, until the last one."""
    with np.errstate(all="ignore"):
        try:
            while _make_one(desk):
                pass
        finally:
            end()


def _make_one(desk: _Desk) -> bool:
    with spans.Lasting("waits for room", desk.node):
        desk.room.get()
    with desk.making, spans.Lasting("makes an element", desk.node):
        while not desk.is_closed:
            try:
                item = attempt(desk.pull)
            except Interrupted:
                _go_on(desk)
                continue
            desk.items.put(item)
            return item is not None
    return False


def _go_on(desk: _Desk) -> None:
    """Clear an interrupt that was meant for a consumer pulling in this thread's place. The caller
    detects one by `close` from `is_closed`."""
    if desk.maker is not None:
        desk.maker.go_on()
