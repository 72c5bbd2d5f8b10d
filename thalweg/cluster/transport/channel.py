"""One connection of a peer: numbers the messages sent, and rejects replays among those received."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.cluster.wire import STAMP_OFFSET, DecodedMessage, WireError, bundle_head, pack_stamp

#: Passes the frames of a message to a socket; returns False if its send queue is full.
Write = Callable[..., bool]


class Channel:
    """A connection: its session and its sequence numbers in both directions."""

    def __init__(
        self,
        write: Write,
        session: int = 0,
        last_sequence: int = 0,
        lock: threading.Lock | None = None,
    ) -> None:
        self.session, self.last_sequence = session, last_sequence
        self._write = write
        self.sent = 0  # last sequence number sent; `last_sequence` is the last one received
        self._lock = lock or threading.Lock()  # messages are written in sequence order

    def put(self, frame: bytearray, *more: Any) -> bool:
        """Stamp and send a message, from any thread; returns False if the send queue is full.

        Raises ConnectionError if the connection is broken.
        """
        with self._lock:
            self.sent += 1
            pack_stamp(frame, STAMP_OFFSET, self.session, self.sent)
            return self._write(frame, *more)

    def put_batch(self, frames: Sequence[bytearray]) -> bool:
        """Send several messages in one packet; otherwise like `put`."""
        with self._lock:
            for frame in frames:
                self.sent += 1
                pack_stamp(frame, STAMP_OFFSET, self.session, self.sent)
            return self._write(bundle_head([len(frame) for frame in frames]), *frames)

    def check(self, decoded: DecodedMessage) -> None:
        """Raise WireError for a message of another session or a replayed sequence number."""
        if decoded.session != self.session:
            raise WireError("a message of another connection")
        if decoded.sequence <= self.last_sequence:
            raise WireError("a message that came before")
        self.last_sequence = decoded.sequence
