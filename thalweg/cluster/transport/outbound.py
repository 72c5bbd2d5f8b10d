"""A peer that this process connects to: it says HELLO, and is ready when it is welcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thalweg import errors
from thalweg.cluster import wire
from thalweg.cluster.transport import handshake
from thalweg.cluster.transport.peer import Peer, Surroundings, unavailable
from thalweg.cluster.transport.sockets import ConnectionEvent, Socket, zeromq
from thalweg.cluster.wire import Kind, Message, WireError

if TYPE_CHECKING:
    import zmq

_MAX_FAILED_HANDSHAKES = 3


class Outbound(Peer):
    """A connection that this process made, and makes again until somebody answers."""

    def __init__(
        self,
        surroundings: Surroundings,
        address: str,
        socket: zmq.Socket[bytes],
        hello: Message,
        patience: float,
    ) -> None:
        super().__init__(surroundings, address)
        self._failed_handshakes = 0
        self._is_connected = False
        self._socket = Socket(surroundings.loop, socket, self._received, self._happened)
        self._socket.connect(address)
        self._socket.send((wire.write(hello),))
        surroundings.loop.later(patience, lambda: self._give_up(patience))

    def _write(self, frames: Sequence[Any]) -> bool:
        return self._socket.send(frames)

    def _disconnect(self, linger_ms: int) -> None:
        self._socket.close(linger_ms)

    def _give_up(self, patience: float) -> None:
        if not self._session:
            self.lose(unavailable(self.address, f"nobody answered for {patience:g} s"))

    def _received(self, frames: list[zmq.Frame]) -> None:
        try:
            letter = handshake.opened(frames)
            if self._session:
                self._take(letter)
            else:
                self._shake_hands(letter)
        except wire.VersionError as error:
            self.lose(errors.FailedPreconditionError(None, None, f"{self.address}: {error}"))
        except WireError as error:
            self._surroundings.refuse(str(error))

    def _take(self, letter: wire.Letter) -> None:
        if not self.expects(letter.envelope):
            raise WireError("a message of another connection, or one that came before")
        kind = letter.envelope.kind
        if kind is Kind.REFUSED:
            self.lose(handshake.refusal(self.address, letter))
        elif kind is Kind.BYE:
            self.lose(unavailable(self.address, "it was closed"))
        else:
            self.deliver(letter)

    def _shake_hands(self, letter: wire.Letter) -> None:
        if letter.envelope.kind is Kind.REFUSED:
            self.lose(handshake.refusal(self.address, letter))
        elif letter.envelope.kind is Kind.WELCOME:
            welcome = handshake.read_greeting(letter)
            self._heard = letter.envelope.sequence
            self._become_ready(letter.envelope.session, welcome.incarnation)
        else:
            raise WireError("a message before the welcome")

    def _happened(self, event: ConnectionEvent) -> None:
        zmq = zeromq()
        if event.event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._is_connected = True
        elif event.event == zmq.EVENT_DISCONNECTED and self._is_connected:
            # ZeroMQ would connect again, but what was under way is gone.
            self.lose(unavailable(self.address, "the connection broke"))
        elif event.event in (
            zmq.EVENT_DISCONNECTED,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.EVENT_HANDSHAKE_FAILED_AUTH,
        ):
            self._handshake_failed()

    def _handshake_failed(self) -> None:
        self._failed_handshakes += 1
        if self._failed_handshakes == _MAX_FAILED_HANDSHAKES:
            reason = "it has another key, or none, or is no task of Thalweg"
            text = f"The process at {self.address} refuses the connection: {reason}"
            self.lose(errors.UnauthenticatedError(None, None, text))
