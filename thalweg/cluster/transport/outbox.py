"""What a thread sends while it does one thing: small messages for one peer leave in one packet.

A packet wakes a thread of another process, which costs more than to make or to read a message. The
I/O thread has an outbox during each callback, other threads while they ask for one; it is empty
again before they wait for anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Protocol

from thalweg.cluster.wire import MAX_BUNDLE, MAX_PACKET

_MAX_HELD = MAX_PACKET - 8 - 4 * MAX_BUNDLE  # bytes of messages in a packet


class Held(Protocol):
    """A peer with messages that have not left."""

    def release(self, frames: Sequence[bytearray]) -> None:
        """Send messages in one packet."""
        ...


class Outbox:
    """Messages of one thread that have not left, by peer."""

    def __init__(self) -> None:
        self.held: dict[Held, list[bytearray]] = {}

    def hold(self, peer: Held, frame: bytearray) -> None:
        """Keep a message until the others for its peer are there."""
        frames = self.held.get(peer)
        if frames is None:
            self.held[peer] = [frame]
        elif len(frames) < MAX_BUNDLE and len(frame) + sum(map(len, frames)) <= _MAX_HELD:
            frames.append(frame)
        else:
            self.held[peer] = [frame]
            peer.release(frames)

    def flush(self) -> None:
        """Have all messages leave."""
        held, self.held = self.held, {}
        for peer, frames in held.items():
            peer.release(frames)


class Together:
    """Has what a thread sends inside of a `with` leave at its end."""

    def __init__(self, outboxes: dict[int, Outbox]) -> None:
        self._outboxes = outboxes  # by thread
        self._thread, self._outbox = get_ident(), Outbox()

    def __enter__(self) -> None:
        self._outboxes[self._thread] = self._outbox

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Have all leave; also where a signal has stopped the end of the `with`."""
        self._outboxes.pop(self._thread, None)
        if self._outbox.held:
            self._outbox.flush()
