"""The accepting side of an endpoint: its listening sockets, and the peers that connected."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from thalweg import errors
from thalweg.cluster import wire
from thalweg.cluster.transport import handshake
from thalweg.cluster.transport.bulk import BulkListener, BulkSocket, Offer
from thalweg.cluster.transport.channel import Channel
from thalweg.cluster.transport.handshake import Greeting, Identity
from thalweg.cluster.transport.local import LocalListener, LocalSocket
from thalweg.cluster.transport.peer import EndpointInterface, Peer, unavailable
from thalweg.cluster.transport.sealing import Keys
from thalweg.cluster.transport.sockets import ConnectionEvent, Socket, zeromq
from thalweg.cluster.wire import DecodedMessage, Kind, WireError

if TYPE_CHECKING:
    import zmq

_SESSION_BITS = 63


class Inbound(Peer):
    """A peer that connected to this process."""

    def __init__(
        self, endpoint: EndpointInterface, hello: Greeting, listener: Listener, route: bytes
    ) -> None:
        super().__init__(endpoint, hello.address)
        self.incarnation = hello.incarnation
        self.route = route
        self.offer: Offer | None = None  # of a bulk connection
        self.session = secrets.randbits(_SESSION_BITS) | 1
        self._listener = listener
        self._process = hello.process
        self._control = Channel(self._write, self.session)

    @property
    def control(self) -> Channel:
        """The channel of its control connection."""
        return self._control

    def welcome(self, welcome: wire.Message) -> None:
        """Send a WELCOME, which assigns the session; the peer is ready when it sends CONFIRM."""
        self._post(wire.write(welcome))
        self._share_memory(False, self._process)

    def is_same(self, hello: Greeting) -> bool:
        """Whether a HELLO comes from the same process."""
        return self.incarnation == hello.incarnation

    def attach_bulk(self, bulk: BulkSocket, decoded: DecodedMessage) -> None:
        """Take over a bulk connection of this peer; the calling thread reads it until it ends."""
        channel = Channel(bulk.send, self.session)
        try:
            channel.check(decoded)
        except WireError as error:
            bulk.free()
            reason = str(error)
            self._endpoint.loop.call(lambda: self._endpoint.refuse(reason))
        else:
            self._bulk_socket, self._bulk = bulk, channel
            self._read_bulk(bulk, channel)

    def attach_local(self, local: LocalSocket, decoded: DecodedMessage) -> None:
        """Take over a Unix socket connection of this peer."""
        if self._local is not None:
            raise WireError("a second connection within the host")
        self._use_local(local, self.session).check(decoded)

    def _write(self, *frames: Any) -> bool:
        return self._listener.send(self.route, *frames)

    def _disconnect(self, linger_ms: int) -> None:
        self._listener.forget(self)

    def _handle_rare(self, kind: Kind, decoded: DecodedMessage) -> None:
        if kind is Kind.CONFIRM:
            self._share_memory(decoded.fields.get("maps") is True, None)
            self._become_ready()
        else:
            super()._handle_rare(kind, decoded)


class _Connection(NamedTuple):
    peer: Inbound
    channel: Channel


class Listener:
    """A ROUTER socket. Each connection has a route, the routing ID that ZeroMQ assigns, and a file
    descriptor, by which ZeroMQ's monitor reports that the connection ended."""

    def __init__(
        self, endpoint: EndpointInterface, socket: zmq.Socket[bytes], host: str, port: int
    ) -> None:
        self._endpoint = endpoint
        self._connections: dict[bytes, _Connection] = {}
        self._peers: dict[int, Inbound] = {}  # by session
        self._files: dict[int, Inbound | None] = {}  # by descriptor; None before the HELLO
        self._socket = Socket(endpoint.loop, socket, self._received, self._on_event)
        self._identity: Identity | None = None
        self._local: LocalListener | None = None
        self._host = host
        self._bulk: BulkListener | None = None  # created for the first peer on another host
        self.address = self._socket.bind(host, port)

    def open(self, identity: Identity) -> None:
        """Start to accept peers, with the identity of the endpoint."""
        self._identity = identity
        if identity.probe:
            self._local = LocalListener(self._endpoint.loop, self._accepted)
        self._socket.watch()

    @property
    def peers(self) -> list[Inbound]:
        """All connected peers."""
        return list(self._peers.values())

    def send(self, route: bytes, *frames: Any) -> bool:
        """Send over a connection; returns False if its send queue is full."""
        return self._socket.send(route, *frames)

    def close(self, linger_ms: int) -> None:
        """Close all listening sockets."""
        self._socket.close(linger_ms)
        for listener in (self._local, self._bulk):
            if listener is not None:
                listener.close()

    def forget(self, peer: Inbound) -> None:
        """Remove a lost peer, and invalidate its bulk offer."""
        self._peers.pop(peer.session, None)
        self._connections.pop(peer.route, None)
        if self._bulk is not None and peer.offer is not None:
            self._bulk.withdraw(peer.offer)

    def _received(self, frames: list[zmq.Frame]) -> None:
        route, (frame, *data) = frames[0].bytes, frames[1:]
        try:
            decoded = wire.read(frame.bytes)
            connection = self._connections.get(route)
            if connection is not None:
                connection.peer.handle(connection.channel, decoded, data)
            else:
                self._open(route, decoded, int(frame.get("__fd")))
        except wire.VersionError as error:
            self._refuse(route, errors.FailedPreconditionError(None, None, str(error)))
        except WireError as error:
            self._endpoint.refuse(str(error))

    def _open(self, route: bytes, decoded: DecodedMessage, file: int) -> None:
        """Handle the first message of a connection: a HELLO, or else it is refused."""
        self._socket.read_events()  # so that EVENT_ACCEPTED of this connection is processed first
        if file not in self._files:
            raise WireError("a message of a connection that is gone")
        if decoded.kind is Kind.HELLO:
            self._accept_hello(route, decoded, file)
        else:
            text = "this task does not know the connection: it was started again"
            self._refuse(route, errors.AbortedError(None, None, text))

    def _accept_hello(self, route: bytes, decoded: DecodedMessage, file: int) -> None:
        if self._identity is None:
            raise WireError("a HELLO to an endpoint that is not open")
        hello = self._identity.read(decoded)
        peer = Inbound(self._endpoint, hello, self, route)
        previous, self._files[file] = self._files[file], peer
        if previous is not None:
            previous.mark_lost(unavailable(previous.address, "the connection broke"))
        for replaced in self._replaced(hello):
            replaced.mark_lost(unavailable(replaced.address, "it connected again"))
        self._peers[peer.session] = peer
        self._connections[route] = _Connection(peer, peer.control)
        local = self._local.name if self._local else None
        peer.offer = self._offer_bulk(self._identity, hello, peer)
        peer.welcome(self._identity.welcome(hello, local, peer.offer))

    def _offer_bulk(self, identity: Identity, hello: Greeting, peer: Inbound) -> Offer | None:
        """Offer a bulk connection to a peer with which no memory is shared."""
        if hello.process is not None or not (hello.takes_bulk and identity.takes_bulk):
            return None
        loop, refuse = self._endpoint.loop, self._endpoint.refuse
        try:
            self._bulk = self._bulk or BulkListener(loop, self._host, refuse)
        except OSError:
            return None
        return self._bulk.offer(Keys.new() if identity.is_secret else None, peer.attach_bulk)

    def _replaced(self, hello: Greeting) -> list[Inbound]:
        """Peers that this HELLO proves dead before their heartbeats time out: the connection that
        the process replaces, and other incarnations at its address. Their pending work must not
        consume messages that are meant for their successors."""
        return [
            peer
            for peer in self._peers.values()
            if (peer.session == hello.replaces and peer.is_same(hello))
            or (hello.listens and peer.address == hello.address and not peer.is_same(hello))
        ]

    def _accepted(self, local: LocalSocket) -> None:
        local.watch(partial(self._attach_local, local), local.close)

    def _attach_local(self, local: LocalSocket, frame: bytes) -> None:
        """Handle the first message of a local connection: an ATTACH with its session."""
        try:
            decoded = wire.read(frame)
            peer = self._peers.get(decoded.session)
            if decoded.kind is not Kind.ATTACH or peer is None:
                raise WireError("a connection within the host of no session")
            peer.attach_local(local, decoded)
        except WireError as error:
            self._endpoint.refuse(str(error))
            local.close()

    def _refuse(self, route: bytes, error: errors.OpError) -> None:
        self._endpoint.refuse(error.message)
        try:
            self._socket.send(route, wire.write(handshake.refused(error)))
        except ConnectionError:
            return  # the peer has disconnected already

    def _on_event(self, event: ConnectionEvent) -> None:
        zmq = zeromq()
        if event.event == zmq.EVENT_ACCEPTED:
            self._files[event.file] = None
        elif event.event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
            peer = self._files.pop(event.file, None)
            if peer is not None:
                peer.mark_lost(unavailable(peer.address, "the connection broke"))
