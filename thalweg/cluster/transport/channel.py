"""One connection of a peer: it numbers the messages that leave, and checks those that come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from thalweg.cluster import wire

#: Hand the frames of a message to a socket: False where its queue is full. The function is called
#: just before, in the order in which messages leave.
Write = Callable[[Sequence[Any], Callable[[], None]], bool]


class Channel:
    """A connection, its session and how many messages went over it."""

    def __init__(self, write: Write, session: int = 0, heard: int = 0) -> None:
        self.session, self._heard = session, heard
        self._write = write
        self._order = count(1)

    def put(self, frame: bytearray, *more: Any) -> bool:
        """Send a message, from any thread: False where too many wait to leave.

        A ConnectionError where the connection is gone.
        """
        return self._write(
            (frame, *more), lambda: wire.stamp(frame, self.session, next(self._order))
        )

    def check(self, envelope: wire.Envelope) -> None:
        """Refuse a message that cannot be the next: one that came before, or elsewhere."""
        if envelope.session != self.session:
            raise wire.WireError("a message of another connection")
        if envelope.sequence <= self._heard:
            raise wire.WireError("a message that came before")
        self._heard = envelope.sequence
