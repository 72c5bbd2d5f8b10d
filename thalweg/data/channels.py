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


class _ChannelState:
    """The state shared by producer and consumer; it holds no reference to the channel."""

    def __init__(
        self, pull: Callable[[], Element | None], producer: Puller | None, node: Node
    ) -> None:
        self.pull = pull
        self.node = node  # the stage of the channel
        self.producer = producer
        self.items: SimpleQueue[Any] = SimpleQueue()
        self.free_slots: SimpleQueue[None] = SimpleQueue()
        self.producing = threading.Lock()  # held while an item is computed; snapshots acquire it
        self.is_closed = False

    def close(self) -> None:
        """Let the producer stop."""
        self.is_closed = True
        self.free_slots.put(None)
        if self.producer is not None:
            self.producer.interrupt(_CLOSED)


class Channel:
    """A thread that computes items, at most `room` ahead of the consumer.

    It ends with the channel, which interrupts the puller `producer`, if any. With that puller, a
    consumer that finds the queue empty and no item in progress computes the item itself.
    """

    def __init__(
        self,
        node: Node,
        pull: Callable[[], Element | None],
        end: Callable[[], None],
        capacity: int,
        items: Sequence[Item] = (),
        producer: Puller | None = None,
    ) -> None:
        state = self._state = _ChannelState(pull, producer, node)
        for item in items:
            state.items.put(item)
        for _ in range(capacity - len(items)):
            state.free_slots.put(None)
        self._finalize = weakref.finalize(self, state.close)
        self._finalize.atexit = False
        if None not in items:
            args, name = (state, end), f"thalweg-data {node.name}"
            threading.Thread(target=_produce, args=args, name=name, daemon=True).start()

    @property
    def producing(self) -> threading.Lock:
        """The lock that is held while an item is computed."""
        return self._state.producing

    def take(self, puller: Puller) -> Item:
        """Remove and return the next item; blocks until there is one."""
        state = self._state
        if (
            state.producer is not None
            and state.items.empty()
            and state.producing.acquire(blocking=False)
        ):
            try:
                if state.items.empty():
                    with puller.in_place_of(state.producer):
                        return attempt(state.pull)
            finally:
                state.producing.release()
        item = puller.get(state.items, state.node)
        state.free_slots.put(None)
        return item

    def pending_items(self) -> list[Item]:
        """The queued items. The caller holds `producing`, and nobody calls `take` meanwhile."""
        result: list[Item] = []
        items = self._state.items
        while True:
            try:
                result.append(items.get_nowait())
            except Empty:
                break
        for item in result:
            items.put(item)
        return result

    def close(self) -> None:
        """Let the producer stop."""
        self._finalize()


def _produce(state: _ChannelState, end: Callable[[], None]) -> None:
    """Compute items whenever there is a free slot, until the last one."""
    with np.errstate(all="ignore"):
        try:
            while _produce_one(state):
                pass
        finally:
            end()


def _produce_one(state: _ChannelState) -> bool:
    with spans.BlockSpan("waits for room", state.node):
        state.free_slots.get()
    with state.producing, spans.BlockSpan("makes an element", state.node):
        while not state.is_closed:
            try:
                item = attempt(state.pull)
            except Interrupted:
                _resume(state)
                continue
            state.items.put(item)
            return item is not None
    return False


def _resume(state: _ChannelState) -> None:
    """Clear an interrupt that was meant for a consumer pulling in this thread's place. The caller
    detects one by `close` from `is_closed`."""
    if state.producer is not None:
        state.producer.resume()
