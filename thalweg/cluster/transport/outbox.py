"""Outboxes: small messages that a thread sends to one peer in a row are batched in one packet.

Each packet wakes a thread of another process, which costs more than to write or read a message. The
I/O thread has an outbox during each callback, other threads inside `Loop.run_batched`. An outbox
is flushed before its thread blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Protocol

from thalweg.cluster.wire import MAX_BUNDLE, MAX_PACKET

_MAX_BATCH = MAX_PACKET - 8 - 4 * MAX_BUNDLE  # bytes of messages in one packet


class BatchReceiver(Protocol):
    """A peer to which an outbox sends."""

    def send_batch(self, frames: Sequence[bytearray]) -> None:
        """Send these messages in one packet."""
        ...


class Outbox:
    """The unsent messages of one thread, by peer."""

    def __init__(self) -> None:
        self.pending: dict[BatchReceiver, list[bytearray]] = {}

    def add(self, peer: BatchReceiver, frame: bytearray) -> None:
        """Add a message; sends the earlier ones of its peer first if the packet would be full."""
        frames = self.pending.get(peer)
        if frames is None:
            self.pending[peer] = [frame]
        elif len(frames) < MAX_BUNDLE and len(frame) + sum(map(len, frames)) <= _MAX_BATCH:
            frames.append(frame)
        else:
            self.pending[peer] = [frame]
            peer.send_batch(frames)

    def flush(self) -> None:
        """Send all messages."""
        pending, self.pending = self.pending, {}
        for peer, frames in pending.items():
            peer.send_batch(frames)


class BatchedSends:
    """A context manager: gives the thread an outbox, and flushes it on exit."""

    def __init__(self, outboxes: dict[int, Outbox]) -> None:
        self._outboxes = outboxes  # by thread
        self._thread, self._outbox = get_ident(), Outbox()

    def __enter__(self) -> None:
        self._outboxes[self._thread] = self._outbox

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Remove and flush the outbox; idempotent, in case a signal interrupted `__exit__`."""
        self._outboxes.pop(self._thread, None)
        if self._outbox.pending:
            self._outbox.flush()
