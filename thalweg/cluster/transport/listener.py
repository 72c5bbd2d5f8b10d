"""Where an endpoint accepts connections, and the peers that made them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thalweg import errors
from thalweg.cluster import wire
from thalweg.cluster.transport import handshake
from thalweg.cluster.transport.peer import Peer, Surroundings, unavailable
from thalweg.cluster.transport.sockets import ConnectionEvent, Socket, zeromq
from thalweg.cluster.wire import Kind, Letter, WireError

if TYPE_CHECKING:
    import zmq


class Inbound(Peer):
    """A process that connected to this one."""

    def __init__(self, surroundings: Surroundings, address: str, listener: Listener, route: bytes):
        super().__init__(surroundings, address)
        self.route = route
        self._listener = listener

    def welcome(self, incarnation: int, address: str, own_incarnation: int) -> None:
        """Tell it the number of its session; it is ready."""
        self._session = secrets.randbits(63) | 1
        self._put(wire.write(handshake.greeting(Kind.WELCOME, address, own_incarnation)))
        self._become_ready(self._session, incarnation)

    def _write(self, frames: Sequence[Any]) -> bool:
        return self._listener.socket.send((self.route, *frames))

    def _disconnect(self, linger_ms: int) -> None:
        self._listener.forget(self)


class Listener:
    """A socket that others connect to. Each connection has a route, which ZeroMQ makes up, and a
    file, by which it says that the connection is gone."""

    def __init__(
        self, surroundings: Surroundings, socket: zmq.Socket[bytes], bind: str, incarnation: int
    ) -> None:
        self._surroundings, self._incarnation = surroundings, incarnation
        self._peers: dict[bytes, Inbound] = {}
        self._files: dict[int, Inbound | None] = {}  # of open connections; None before its HELLO
        self.socket = Socket(surroundings.loop, socket, self._received, self._happened)
        host, _, port = bind.rpartition(":")
        self.address = self.socket.bind(host or "127.0.0.1", int(port))

    @property
    def peers(self) -> list[Inbound]:
        """All that are connected."""
        return list(self._peers.values())

    def close(self, linger_ms: int) -> None:
        """Accept no more."""
        self.socket.close(linger_ms)

    def forget(self, peer: Inbound) -> None:
        """A peer is lost."""
        self._peers.pop(peer.route, None)

    def _received(self, frames: list[zmq.Frame]) -> None:
        route = frames[0].bytes
        try:
            letter = handshake.opened(frames[1:])
            if letter.envelope.kind is Kind.HELLO:
                self._hello(route, letter, int(frames[1].get("__fd")))
            else:
                self._take(route, letter)
        except wire.VersionError as error:
            self._refuse(route, errors.FailedPreconditionError(None, None, str(error)))
        except WireError as error:
            self._surroundings.refuse(str(error))

    def _hello(self, route: bytes, letter: Letter, file: int) -> None:
        self.socket.read_events()  # that of the connection is older than what came over it
        if route in self._peers or file not in self._files:
            raise WireError("a second HELLO, or one of a connection that is gone")
        hello = handshake.read_greeting(letter)
        peer = Inbound(self._surroundings, hello.address, self, route)
        former, self._files[file] = self._files[file], peer
        if former is not None:
            former.lose(unavailable(former.address, "the connection broke"))
        self._peers[route] = peer
        peer.welcome(hello.incarnation, self.address, self._incarnation)

    def _take(self, route: bytes, letter: Letter) -> None:
        peer = self._peers.get(route)
        if peer is None:
            text = "this task does not know the connection: it was started again"
            self._refuse(route, errors.AbortedError(None, None, text))
        elif not peer.expects(letter.envelope):
            raise WireError("a message of another connection, or one that came before")
        elif letter.envelope.kind is Kind.BYE:
            peer.lose(unavailable(peer.address, "it was closed"))
        else:
            peer.deliver(letter)

    def _refuse(self, route: bytes, error: errors.OpError) -> None:
        self._surroundings.refuse(error.message)
        try:
            self.socket.send((route, wire.write(handshake.refused(error))))
        except ConnectionError:
            return  # it is gone already

    def _happened(self, event: ConnectionEvent) -> None:
        zmq = zeromq()
        if event.event == zmq.EVENT_ACCEPTED:
            self._files[event.file] = None
        elif event.event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
            peer = self._files.pop(event.file, None)
            if peer is not None:
                peer.lose(unavailable(peer.address, "the connection broke"))
