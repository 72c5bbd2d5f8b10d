"""The process at the other end of a connection: sending to it, asking it, and losing it.

A peer is ready once both sides have said who they are; what is sent before that is held back. A
peer is lost once, for good: its connection broke, it was silent for too long, it refused this
process, or it went away. From then on every send raises, and whoever waits for an answer is told.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

from thalweg import errors
from thalweg.cluster import wire
from thalweg.cluster.transport.loop import Loop
from thalweg.cluster.wire import Kind, Letter, Message

#: (answer, None) or (None, why there is none); on the I/O thread, or that of a request that failed
Done = Callable[[Message | None, Exception | None], None]

_RETRY = 0.001  # seconds until a full queue is tried again


class Handler(Protocol):
    """Who is told what peers do; on the I/O thread, so it must be short."""

    def received(self, peer: Peer, message: Message) -> None:
        """A message came. If it is a request, `peer.reply(message, answer)` answers it."""
        ...

    def lost(self, peer: Peer, error: errors.OpError) -> None:
        """A peer is dead, paused, unreachable, restarted, or refuses this process; called once."""
        ...


class Surroundings(Protocol):
    """What an endpoint lends to its peers."""

    loop: Loop
    handler: Handler

    def forget(self, peer: Peer) -> None:
        """Have no more to do with a lost peer."""
        ...

    def refuse(self, reason: str) -> None:
        """Count a message that was dropped."""
        ...


class Peer(ABC):
    """A process that this one talks to."""

    def __init__(self, surroundings: Surroundings, address: str) -> None:
        self.address = address
        self.incarnation = 0  # a random number of its endpoint; 0 while unknown
        self._surroundings = surroundings
        self._error: errors.OpError | None = None
        self._is_lost = threading.Event()
        self._held: deque[tuple[Message, bool]] | None = deque()  # until it is ready
        self._lock = threading.Lock()
        self._session = self._sent = self._heard = 0
        self._numbers = count(1)
        self._requests: dict[int, Done] = {}

    @property
    def is_alive(self) -> bool:
        """Whether it is not lost: it is connected, or being connected to."""
        return self._error is None

    def send(self, message: Message) -> None:
        """Send a message, from any thread. Messages of a thread arrive in their order, but for
        those with large values, which later ones may overtake.

        An UnavailableError, or what else the peer was lost with, once it is lost.
        """
        self._send(message, False)

    def request(self, message: Message, done: Done) -> None:
        """Send a message that is to be answered. `done` is called once, whatever happens."""
        number = next(self._numbers)
        self._requests[number] = done
        try:
            self._send(message._replace(request=number), False)
        except Exception as error:
            self._answer(number, None, error)

    def reply(self, request: Message, answer: Message) -> None:
        """Answer a request of this peer's."""
        self._send(answer._replace(request=request.request), True)

    # Sending

    @abstractmethod
    def _write(self, frames: Sequence[Any]) -> bool:
        """Hand frames to the socket: False where its queue is full."""

    @abstractmethod
    def _disconnect(self, linger_ms: int) -> None:
        """Give up the connection; what was sent may still leave for a time."""

    def _send(self, message: Message, is_answer: bool) -> None:
        if not self._hold(message, is_answer):
            self._transmit(message, is_answer)

    def _hold(self, message: Message, is_answer: bool) -> bool:
        """Keep a message until the peer is ready, if it is not."""
        with self._lock:
            if self._held is None or self._error is not None:
                return False
            self._held.append((message, is_answer))
            return True

    def _transmit(self, message: Message, is_answer: bool = False) -> None:
        contents = [wire.content_of(value) for value in message.values]
        headers = [wire.ValueHeader(wire.Place.INLINE, *each[:3]) for each in contents]
        self._put(wire.write(message, headers, contents, is_answer))

    def _put(self, frame: bytearray) -> None:
        while not self._try_put(frame):
            self._is_lost.wait(_RETRY)

    def _try_put(self, frame: bytearray) -> bool:
        if self._error is not None:
            raise _again(self._error)
        with self._lock:
            wire.stamp(frame, self._session, self._sent + 1)
            try:
                is_sent = self._write((frame,))
            except ConnectionError as error:
                self._lose_soon(unavailable(self.address, str(error)))
                raise unavailable(self.address, str(error)) from error
            self._sent += is_sent
        return is_sent

    # Receiving; on the I/O thread

    def expects(self, envelope: wire.Envelope) -> bool:
        """Whether a message can be the next one: neither replayed nor of another connection."""
        if envelope.session != self._session or envelope.sequence <= self._heard:
            return False
        self._heard = envelope.sequence
        return True

    def deliver(self, letter: Letter) -> None:
        """Hand a message to whoever waits for it."""
        envelope = letter.envelope
        values = [
            wire.value_of(header, content)
            for header, content in zip(letter.headers, letter.contents, strict=True)
        ]
        message = Message(envelope.kind, envelope.step, letter.fields, values, envelope.request)
        if envelope.is_answer:
            self._answer(envelope.request, message, None)
        else:
            self._surroundings.handler.received(self, message)

    def _answer(self, number: int, answer: Message | None, error: Exception | None) -> None:
        done = self._requests.pop(number, None)
        if done is not None:
            done(answer, error)

    # Ready, and lost

    def _become_ready(self, session: int, incarnation: int) -> None:
        self._session, self.incarnation = session, incarnation
        while held := self._next_held():
            self._transmit(*held)

    def _next_held(self) -> tuple[Message, bool] | None:
        """What was held back longest; where nothing is left, nothing more is held back."""
        with self._lock:
            if self._held:
                return self._held.popleft()
            self._held = None
            return None

    def _lose_soon(self, error: errors.OpError) -> None:
        self._surroundings.loop.call(lambda: self.lose(error))

    def lose(self, error: errors.OpError) -> None:
        """Give up, on the I/O thread; tells the handler and whoever waits for an answer."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self._end(error)
        self._surroundings.handler.lost(self, error)

    def part(self, linger_ms: int) -> None:
        """Say goodbye, as this endpoint closes."""
        if self._session and self.is_alive:
            with suppress(errors.OpError):
                self._try_put(wire.write(Message(Kind.BYE)))
        self._end(unavailable(self.address, "this endpoint is closed"), linger_ms)

    def _end(self, error: errors.OpError, linger_ms: int = 0) -> None:
        """Let nobody wait any longer."""
        self._error = self._error or error
        self._is_lost.set()
        self._disconnect(linger_ms)
        self._surroundings.forget(self)
        for number in list(self._requests):
            self._answer(number, None, _again(error))


def unavailable(address: str, reason: str) -> errors.UnavailableError:
    """The error of a lost peer."""
    return errors.UnavailableError(None, None, f"The task at {address} is lost: {reason}")


def _again(error: errors.OpError) -> errors.OpError:
    """An error to raise in one more thread, with a traceback of its own."""
    return type(error)(None, None, error.message)
