"""The connecting side: a peer to which this process sends HELLO; ready after its WELCOME."""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from thalweg import errors
from thalweg.cluster import wire
from thalweg.cluster.transport import handshake
from thalweg.cluster.transport.bulk import BulkSocket, Offer
from thalweg.cluster.transport.channel import Channel
from thalweg.cluster.transport.local import connect
from thalweg.cluster.transport.peer import EndpointInterface, Peer, unavailable
from thalweg.cluster.transport.sockets import ConnectionEvent, Socket, zeromq
from thalweg.cluster.wire import DecodedMessage, Kind, Message, WireError
from thalweg.platform import tf_logging

if TYPE_CHECKING:
    from collections.abc import Callable

    import zmq

_MAX_FAILED_HANDSHAKES = 3


class Outbound(Peer):
    """A peer that this process connects to, with retries until it answers."""

    def __init__(
        self,
        endpoint: EndpointInterface,
        address: str,
        make_socket: Callable[[], zmq.Socket[bytes]],
        identity: handshake.Identity,
        patience: float,
        replaces: int,
    ) -> None:
        super().__init__(endpoint, address)
        self._identity = identity
        self._failed_handshakes = 0
        self._is_bulk_settled = Event()  # the bulk connection is open, or will not be
        self._is_bulk_settled.set()
        self._socket = Socket(endpoint.loop, make_socket(), self._received, self._on_event)
        self._socket.connect(address)
        self._socket.send(wire.write(identity.hello(replaces)))
        self._socket.watch()  # last: from here on the I/O thread may call `mark_lost`
        endpoint.loop.call_later(patience, lambda: self._give_up(patience))

    @property
    def session(self) -> int:
        """The number of its session; 0 before the WELCOME."""
        return self._control.session

    def _write(self, *frames: Any) -> bool:
        return self._socket.send(*frames)

    def _disconnect(self, linger_ms: int) -> None:
        self._socket.close(linger_ms)

    def _give_up(self, patience: float) -> None:
        if not self._control.session:
            self.mark_lost(unavailable(self.address, f"nobody answered for {patience:g} s"))

    def _received(self, frames: list[zmq.Frame]) -> None:
        self._read(self._control, frames)

    def _read(self, channel: Channel, frames: list[zmq.Frame]) -> None:
        try:
            decoded = wire.read(frames[0].bytes)
            if channel.session:
                self.handle(channel, decoded, frames[1:])
            else:
                with suppress(errors.UnavailableError):  # lost meanwhile; the handler was notified
                    self._handle_handshake(decoded)
        except wire.VersionError as error:
            text = f"The process at {self.address} cannot be talked to: {error}"
            self.mark_lost(errors.FailedPreconditionError(None, None, text))
        except WireError as error:
            self._endpoint.refuse(str(error))

    def _handle_handshake(self, decoded: DecodedMessage) -> None:
        kind = decoded.kind
        if kind is Kind.REFUSED:
            self.mark_lost(handshake.refusal(self.address, decoded))
        elif kind is Kind.WELCOME and decoded.session:
            self._accept_welcome(decoded)
        else:
            raise WireError("a message before the welcome")

    def _accept_welcome(self, decoded: DecodedMessage) -> None:
        welcome = self._identity.read(decoded)
        session = decoded.session
        self.incarnation = welcome.incarnation
        self._control = Channel(self._write, session, decoded.sequence)
        self._share_memory(welcome.maps, welcome.process)
        if welcome.local is not None:
            self._connect_local(welcome.local, session)
        self._post(wire.write(handshake.confirm(welcome)))
        if welcome.bulk is not None:
            self._is_bulk_settled.clear()
            name, args = f"thalweg-cluster-bulk {self.address}", (welcome.bulk, session)
            Thread(target=self._connect_bulk, args=args, name=name, daemon=True).start()
        self._become_ready()

    def _connect_local(self, name: str, session: int) -> None:
        local = connect(self._endpoint.loop, name)
        if local is not None:
            self._use_local(local, session).put(wire.write(Message(Kind.ATTACH)))

    def _connect_bulk(self, offer: Offer, session: int) -> None:
        """Open the bulk connection, if possible, and read it until it ends; on its own thread."""
        bulk: BulkSocket | None = None
        try:
            bulk = offer.connect(self.address.rpartition(":")[0])
            channel = Channel(bulk.send, session)
            channel.put(wire.write(Message(Kind.ATTACH)))
            self._bulk_socket, self._bulk = bulk, channel
        except (OSError, ValueError) as error:
            if bulk is not None:
                bulk.free()
            tf_logging.debug("%s: no connection for chunks: %s", self.address, error)
            return
        finally:
            self._is_bulk_settled.set()
        self._read_bulk(bulk, channel)

    def _channel_of_chunks(self) -> Channel:
        self._is_bulk_settled.wait()
        return super()._channel_of_chunks()

    def _on_event(self, event: ConnectionEvent) -> None:
        zmq = zeromq()
        if event.event == zmq.EVENT_DISCONNECTED and event.was_open:
            # ZeroMQ would reconnect, but messages in flight are lost.
            self.mark_lost(unavailable(self.address, "the connection broke"))
        elif event.event in (
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.EVENT_HANDSHAKE_FAILED_AUTH,
        ):
            self._lose_unauthenticated()  # closes the socket, so that ZeroMQ does not retry
        elif event.event == zmq.EVENT_DISCONNECTED:
            self._failed_handshakes += 1
            if self._failed_handshakes == _MAX_FAILED_HANDSHAKES:
                self._lose_unauthenticated()

    def _lose_unauthenticated(self) -> None:
        text = (
            f"The process at {self.address} refuses the connection: "
            "it has another key, or none, or is no task of Thalweg"
        )
        self.mark_lost(errors.UnauthenticatedError(None, None, text))
