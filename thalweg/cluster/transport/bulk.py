"""Bulk connections: a dedicated TCP connection for the chunks of large values between hosts.

ZeroMQ would copy each chunk and pass it from thread to thread. A bulk connection is a plain TCP
connection: the accepting side offers a port of its own in the handshake, and the connecting side
connects to it. If that fails, for example because of a firewall, chunks use the control connection.
The sending thread blocks in the system call; a reader thread receives straight into the memory of
the value.

An offer carries a single-use ticket and, in a cluster with a key, the AEAD keys that encrypt this
connection. It is sent over the control connection, which the cluster's key encrypts. A client that
has not yet authenticated costs one thread, for a few seconds, and a few bytes.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from secrets import randbits
from struct import Struct
from typing import Any, NamedTuple

from thalweg.cluster import wire
from thalweg.cluster.transport.loop import Loop
from thalweg.cluster.transport.sealing import TAG, Keys, Seal
from thalweg.cluster.transport.streams import CHUNK
from thalweg.cluster.wire import MAX_FRAME, DecodedMessage, Kind, WireError

_PREAMBLE = Struct("<4sHxxQ")  # magic, format version, ticket
_PREFIX = Struct("<II")  # bytes of the frame, bytes of its data
_PATIENCE = 5.0  # seconds: timeout of authentication, and TCP user timeout of a connection
_MAX_STRANGERS = 64  # connections that have not authenticated
_MAX_FIRST = 1024  # bytes of the first frame, before authentication
_TICKET_BITS = 63
_BACKLOG = 128


class Offer(NamedTuple):
    """Where to open a bulk connection, and the credentials for it."""

    port: int
    ticket: int
    keys: Keys | None  # None in a cluster without a key

    def connect(self, host: str) -> BulkSocket:
        """Open the connection; raises OSError on failure."""
        connected = socket.create_connection((host, self.port), _PATIENCE)
        try:
            connected.sendall(_PREAMBLE.pack(wire.MAGIC, wire.VERSION, self.ticket))
            connected.settimeout(None)
            return BulkSocket(connected, self.keys)
        except BaseException:
            connected.close()
            raise


class BulkSocket:
    """One end of a bulk connection, for one sending and one receiving thread at a time."""

    def __init__(self, connected: socket.socket, keys: Keys | None) -> None:
        self._socket = connected
        self._outgoing = Seal(keys.outgoing) if keys else None
        self._incoming = Seal(keys.incoming) if keys else None
        self._sealed_out, self._sealed_in = _ScratchBuffer(), _ScratchBuffer()
        self._prefix = b""  # of the last message received: associated data of its frame and data
        _configure(connected)

    def send(self, frame: bytearray, data: Any = b"") -> bool:
        """Send a message like `Socket.send`, but block until the kernel has taken all of it."""
        prefix = _PREFIX.pack(len(frame), len(data))
        try:
            self._send_all([prefix, *self._encrypted(frame, data, prefix)])
        except OSError as error:
            raise ConnectionError(str(error)) from error
        return True

    def receive(self, limit: int = MAX_FRAME) -> tuple[bytes, int]:
        """Receive the next frame; returns it and the size of the data that follows it.

        The caller must then receive the data with `receive_into`. Raises OSError or EOFError if the
        connection ends, WireError if this is not a message.
        """
        prefix = bytearray(_PREFIX.size)
        self._receive_exactly(memoryview(prefix))
        frame_bytes, data_bytes = _PREFIX.unpack(prefix)
        if frame_bytes > limit or data_bytes > CHUNK:
            raise WireError(f"a frame of {frame_bytes} bytes with {data_bytes} more")
        self._prefix = bytes(prefix)
        frame = bytearray(frame_bytes)
        self.receive_into(memoryview(frame))
        return bytes(frame), data_bytes

    def receive_into(self, memory: memoryview) -> None:
        """Receive exactly `memory.nbytes` bytes, decrypted if the connection has keys."""
        if self._incoming is None:
            self._receive_exactly(memory)
            return
        sealed = self._sealed_in.view(memory.nbytes + TAG)
        self._receive_exactly(sealed)
        self._incoming.open(sealed, self._prefix, memory)

    def close(self) -> None:
        """Shut down both directions, from any thread: blocked sends and receives fail."""
        _shut_down(self._socket)

    def free(self) -> None:
        """Close the file descriptor; on the receiving thread."""
        self.close()
        self._socket.close()

    def _encrypted(self, frame: bytearray, data: Any, prefix: bytes) -> Iterator[Any]:
        if self._outgoing is None:
            yield from (frame, data)
            return
        head = bytearray(len(frame) + TAG)
        self._outgoing.close(frame, prefix, head)
        yield head
        if len(data):
            sealed = self._sealed_out.view(len(data) + TAG)
            self._outgoing.close(data, prefix, sealed)
            yield sealed

    def _send_all(self, parts: list[Any]) -> None:
        pending = [memoryview(part) for part in parts]
        while pending:
            count = self._socket.sendmsg(pending)
            while pending and count >= pending[0].nbytes:
                count -= pending.pop(0).nbytes
            if pending:
                pending[0] = pending[0][count:]

    def _receive_exactly(self, memory: memoryview) -> None:
        _receive_exactly(self._socket, memory)


class _ScratchBuffer:
    """A reusable buffer for ciphertext, which grows on demand."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def view(self, nbytes: int) -> memoryview:
        """The first `nbytes` of the buffer, which earlier views share."""
        if nbytes > len(self._memory):
            self._memory = memoryview(bytearray(nbytes))
        return self._memory[:nbytes]


#: (connection, its ATTACH): takes ownership of the connection and reads it until it ends.
Attach = Callable[[BulkSocket, DecodedMessage], None]


class BulkListener:
    """Accepts bulk connections."""

    def __init__(self, loop: Loop, host: str, refuse: Callable[[str], None]) -> None:
        """Listen on an ephemeral port; raises OSError if there is none."""
        self._loop, self._refuse = loop, refuse
        self._offers: dict[int, tuple[Keys | None, Attach]] = {}  # by ticket
        self._unauthenticated: set[socket.socket] = set()
        self._socket = socket.create_server((socket.gethostbyname(host), 0), backlog=_BACKLOG)
        self._socket.setblocking(False)
        self._port: int = self._socket.getsockname()[1]
        loop.watch(self._socket.fileno(), self._accept)

    def offer(self, keys: Keys | None, attach: Attach) -> Offer:
        """Register an expected connection; returns the offer to send to the other side."""
        ticket = randbits(_TICKET_BITS) | 1
        self._offers[ticket] = keys, attach
        return Offer(self._port, ticket, keys and keys.of_other_side)

    def withdraw(self, offer: Offer) -> None:
        """Invalidate an offer."""
        self._offers.pop(offer.ticket, None)

    def close(self) -> None:
        """Stop accepting, and drop connections that have not authenticated."""
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        for connected in [*self._unauthenticated]:
            self._drop_unauthenticated(connected)

    def _accept(self) -> None:
        with suppress(OSError):  # the client has disconnected already
            connected, _ = self._socket.accept()
            if len(self._unauthenticated) >= _MAX_STRANGERS:
                connected.close()
                return
            connected.setblocking(True)
            self._unauthenticated.add(connected)
            self._loop.call_later(_PATIENCE, partial(self._drop_unauthenticated, connected))
            name = "thalweg-cluster-bulk"
            threading.Thread(target=self._serve, args=(connected,), name=name, daemon=True).start()

    def _drop_unauthenticated(self, connected: socket.socket) -> None:
        """Shut down a connection if it has not authenticated yet."""
        if connected in self._unauthenticated:
            _shut_down(connected)

    def _serve(self, connected: socket.socket) -> None:
        """Authenticate a connection and hand it to the owner of its ticket; on its own thread."""
        try:
            bulk, decoded, attach = self._authenticate(connected)
        except (OSError, EOFError, WireError) as error:
            reason = str(error) or "it ended early"
            self._loop.call(lambda: self._refuse(f"a connection for chunks: {reason}"))
            connected.close()
            return
        finally:
            self._unauthenticated.discard(connected)
        attach(bulk, decoded)

    def _authenticate(self, connected: socket.socket) -> tuple[BulkSocket, DecodedMessage, Attach]:
        preamble = bytearray(_PREAMBLE.size)
        _receive_exactly(connected, memoryview(preamble))
        magic, version, ticket = _PREAMBLE.unpack(preamble)
        offer = self._offers.get(ticket)
        if magic != wire.MAGIC or version != wire.VERSION or offer is None:
            raise WireError("no ticket")
        keys, attach = offer
        bulk = BulkSocket(connected, keys)
        frame, data_bytes = bulk.receive(_MAX_FIRST)
        decoded = wire.read(frame)
        # Keys must serve one connection only: of two that race with one ticket, one pops it.
        is_attach = decoded.kind is Kind.ATTACH and not data_bytes
        if not is_attach or self._offers.pop(ticket, None) is None:
            raise WireError("a ticket that was used")
        return bulk, decoded, attach


def _receive_exactly(connected: socket.socket, memory: memoryview) -> None:
    """Block until `memory` is full; raises EOFError if the other side closes before that."""
    while memory.nbytes:
        count = connected.recv_into(memory, 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError
        memory = memory[count:]


def _shut_down(connected: socket.socket) -> None:
    with suppress(OSError):  # the other side has closed already
        connected.shutdown(socket.SHUT_RDWR)


def _configure(connected: socket.socket) -> None:
    """Have the kernel detect a dead host by keepalives, as heartbeats do for ZeroMQ, and send
    without delays."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_PATIENCE * 1000))
    with suppress(OSError):  # the other side has closed already, or the kernel has no Reno
        if connected.getpeername()[0] == connected.getsockname()[0]:
            # BBR, the default of some systems, paces by timers, which cost more than they gain
            # where nothing is congested: within a host.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
