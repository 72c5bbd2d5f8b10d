"""From one thread to another: elements that a thread of their own prefetches.

The maker waits for room, the taker for an item; neither holds a lock meanwhile. A maker stops when
its channel is closed, and a channel closes when the flow that takes from it is dropped.
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
    """In the place of an element: why there is none."""

    error: Exception


#: An element, the end of all, or an error.
Item = Element | None | Failure


def attempt(pull: Callable[[], Element | None]) -> Item:
    """What a pull gives, errors included."""
    try:
        return pull()
    except Interrupted:
        raise
    except Exception as error:
        return Failure(error)


class _Desk:
    """Where a maker and a taker meet. Whoever drops its end leaves the other one alone."""

    def __init__(
        self, pull: Callable[[], Element | None], maker: Puller | None, node: Node
    ) -> None:
        self.pull = pull
        self.node = node  # the stage that they are of
        self.maker = maker
        self.items: SimpleQueue[Any] = SimpleQueue()
        self.room: SimpleQueue[None] = SimpleQueue()
        self.making = threading.Lock()  # held while an item is made: a snapshot waits for that
        self.is_closed = False

    def close(self) -> None:
        """Let the maker stop."""
        self.is_closed = True
        self.room.put(None)
        if self.maker is not None:
            self.maker.interrupt(_CLOSED)


class Channel:
    """A thread that makes items, a bounded number ahead of whoever takes them.

    It ends with the channel. Where the maker pulls as `maker`, that is woken then; and whoever
    finds nothing made, and nobody making, need not wait for the thread: it stands in for it.
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
        """The lock that the maker holds while it makes an item."""
        return self._desk.making

    def take(self, puller: Puller) -> Item:
        """The next item, as soon as there is one."""
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
        """The items that were made and not taken. The caller has `making`, and nobody takes."""
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
    """Make items while there is room for them, up to the end."""
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
    """After an interrupt that was meant for one who stood in, or that means the end."""
    if desk.maker is not None:
        desk.maker.go_on()
