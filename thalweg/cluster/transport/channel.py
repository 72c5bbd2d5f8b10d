"""One connection of a peer: it numbers the messages that leave, and checks those that come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.cluster.wire import STAMP_OFFSET, Letter, WireError, bundle_head, pack_stamp

#: Hand the frames of a message to a socket: False where its queue is full.
Write = Callable[..., bool]


class Channel:
    """A connection, its session and how many messages went over it."""

    def __init__(
        self, write: Write, session: int = 0, heard: int = 0, lock: threading.Lock | None = None
    ) -> None:
        self.session, self.heard = session, heard
        self._write = write
        self.sent = 0  # messages; `heard` is the number of the last that came
        self._lock = lock or threading.Lock()  # messages leave in the order of their numbers

    def put(self, frame: bytearray, *more: Any) -> bool:
        """Send a message, from any thread: False where too many wait to leave.

        A ConnectionError where the connection is gone.
        """
        with self._lock:
            self.sent += 1
            pack_stamp(frame, STAMP_OFFSET, self.session, self.sent)
            return self._write(frame, *more)

    def put_together(self, frames: Sequence[bytearray]) -> bool:
        """Send messages in one packet, as `put` does one."""
        with self._lock:
            for frame in frames:
                self.sent += 1
                pack_stamp(frame, STAMP_OFFSET, self.session, self.sent)
            return self._write(bundle_head([len(frame) for frame in frames]), *frames)

    def check(self, letter: Letter) -> None:
        """Refuse a message that cannot be the next: one that came before, or elsewhere."""
        if letter.session != self.session:
            raise WireError("a message of another connection")
        if letter.sequence <= self.heard:
            raise WireError("a message that came before")
        self.heard = letter.sequence
