"""A connection for large values between hosts: their chunks go from memory to memory.

ZeroMQ would copy each chunk, and hand it from thread to thread. This is a plain TCP connection that
the side which connects makes when the other offers it, to a port of its own; where it cannot be
made, as a firewall is between, chunks take the first connection. Whoever sends writes to it and
waits, and a thread reads from it to where the value will be.

An offer has a ticket, good for one connection, and where the cluster has a key those by which
everything here is sealed: it is told over a connection that only who has the cluster's key can
read. A stranger who has shown neither costs a thread, for a few seconds, and a few bytes.
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
from thalweg.cluster.wire import MAX_FRAME, Kind, Letter, WireError

_PREAMBLE = Struct("<4sHxxQ")  # the magic word, the version of the format, the ticket
_PREFIX = Struct("<II")  # the bytes of a frame and of its data
_PATIENCE = 5.0  # seconds for a stranger, and until a connection on which nothing arrives is cut
_MAX_STRANGERS = 64
_MAX_FIRST = 1024  # bytes of the frame of a stranger
_TICKET_BITS = 63
_BACKLOG = 128


class Offer(NamedTuple):
    """Where to connect to, and what with."""

    port: int
    ticket: int
    keys: Keys | None  # None in a cluster without a key

    def connect(self, host: str) -> BulkSocket:
        """Make the connection; an OSError where that cannot be."""
        connected = socket.create_connection((host, self.port), _PATIENCE)
        try:
            connected.sendall(_PREAMBLE.pack(wire.MAGIC, wire.VERSION, self.ticket))
            connected.settimeout(None)
            return BulkSocket(connected, self.keys)
        except BaseException:
            connected.close()
            raise


class BulkSocket:
    """One end of a connection for large values: one thread at a time sends, and one receives."""

    def __init__(self, connected: socket.socket, keys: Keys | None) -> None:
        self._socket = connected
        self._outgoing = Seal(keys.outgoing) if keys else None
        self._incoming = Seal(keys.incoming) if keys else None
        self._sealed_out, self._sealed_in = _Memory(), _Memory()
        self._prefix = b""  # of the frame that was received last
        _configure(connected)

    def send(self, frame: bytearray, data: Any = b"") -> bool:
        """Send a message, as the sockets of ZeroMQ do, but wait until it has left."""
        prefix = _PREFIX.pack(len(frame), len(data))
        try:
            self._send_all([prefix, *self._sealed(frame, data, prefix)])
        except OSError as error:
            raise ConnectionError(str(error)) from error
        return True

    def receive(self, limit: int = MAX_FRAME) -> tuple[bytes, int]:
        """The frame of the next message, and the bytes of its data, which are to be received next.

        An OSError or EOFError where the connection ends, a WireError where this is no message.
        """
        prefix = bytearray(_PREFIX.size)
        self._fill(memoryview(prefix))
        frame_bytes, data_bytes = _PREFIX.unpack(prefix)
        if frame_bytes > limit or data_bytes > CHUNK:
            raise WireError(f"a frame of {frame_bytes} bytes with {data_bytes} more")
        self._prefix = bytes(prefix)
        frame = bytearray(frame_bytes)
        self.receive_into(memoryview(frame))
        return bytes(frame), data_bytes

    def receive_into(self, memory: memoryview) -> None:
        """The data of the message, to where it belongs."""
        if self._incoming is None:
            self._fill(memory)
            return
        sealed = self._sealed_in.view(memory.nbytes + TAG)
        self._fill(sealed)
        self._incoming.open(sealed, self._prefix, memory)

    def close(self) -> None:
        """End both directions, from any thread: whoever sends or receives is told."""
        _shut_down(self._socket)

    def free(self) -> None:
        """Have no socket any more, on the thread that received."""
        self.close()
        self._socket.close()

    def _sealed(self, frame: bytearray, data: Any, prefix: bytes) -> Iterator[Any]:
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
        left = [memoryview(part) for part in parts]
        while left:
            count = self._socket.sendmsg(left)
            while left and count >= left[0].nbytes:
                count -= left.pop(0).nbytes
            if left:
                left[0] = left[0][count:]

    def _fill(self, memory: memoryview) -> None:
        _fill(self._socket, memory)


class _Memory:
    """Memory for what is sealed, which serves again and again."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def view(self, nbytes: int) -> memoryview:
        """So many bytes."""
        if nbytes > len(self._memory):
            self._memory = memoryview(bytearray(nbytes))
        return self._memory[:nbytes]


#: (connection, its first message): who made an offer takes the connection, and reads from it.
Attach = Callable[[BulkSocket, Letter], None]


class BulkListener:
    """Where connections for large values come in."""

    def __init__(self, loop: Loop, host: str, refuse: Callable[[str], None]) -> None:
        """An OSError where there is no port to be had."""
        self._loop, self._refuse = loop, refuse
        self._offers: dict[int, tuple[Keys | None, Attach]] = {}  # by ticket
        self._strangers: set[socket.socket] = set()
        self._socket = socket.create_server((socket.gethostbyname(host), 0), backlog=_BACKLOG)
        self._socket.setblocking(False)
        self._port: int = self._socket.getsockname()[1]
        loop.watch(self._socket.fileno(), self._accept)

    def offer(self, keys: Keys | None, attach: Attach) -> Offer:
        """Expect a connection; what the other side is to be told."""
        ticket = randbits(_TICKET_BITS) | 1
        self._offers[ticket] = keys, attach
        return Offer(self._port, ticket, keys and keys.of_other_side)

    def withdraw(self, offer: Offer) -> None:
        """Expect a connection no longer."""
        self._offers.pop(offer.ticket, None)

    def close(self) -> None:
        """Accept no more."""
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        for each in [*self._strangers]:
            self._dismiss(each)

    def _accept(self) -> None:
        with suppress(OSError):  # who connected is gone already
            connected, _ = self._socket.accept()
            if len(self._strangers) >= _MAX_STRANGERS:
                connected.close()
                return
            connected.setblocking(True)
            self._strangers.add(connected)
            self._loop.later(_PATIENCE, partial(self._dismiss, connected))
            name = "thalweg-cluster-bulk"
            threading.Thread(target=self._greet, args=(connected,), name=name, daemon=True).start()

    def _dismiss(self, connected: socket.socket) -> None:
        """End a connection that has shown no ticket until now."""
        if connected in self._strangers:
            _shut_down(connected)

    def _greet(self, connected: socket.socket) -> None:
        """Hear a stranger out, and serve it if it has a ticket; on a thread of its own."""
        try:
            bulk, letter, attach = self._admitted(connected)
        except (OSError, EOFError, WireError) as error:
            reason = str(error) or "it ended early"
            self._loop.call(lambda: self._refuse(f"a connection for chunks: {reason}"))
            connected.close()
            return
        finally:
            self._strangers.discard(connected)
        attach(bulk, letter)

    def _admitted(self, connected: socket.socket) -> tuple[BulkSocket, Letter, Attach]:
        preamble = bytearray(_PREAMBLE.size)
        _fill(connected, memoryview(preamble))
        magic, version, ticket = _PREAMBLE.unpack(preamble)
        offer = self._offers.get(ticket)
        if magic != wire.MAGIC or version != wire.VERSION or offer is None:
            raise WireError("no ticket")
        keys, attach = offer
        bulk = BulkSocket(connected, keys)
        frame, more = bulk.receive(_MAX_FIRST)
        letter = wire.read(frame)
        # Keys serve one connection: of two that show the same ticket at once, one finds it gone.
        is_good = letter.kind is Kind.ATTACH and not more
        if not is_good or self._offers.pop(ticket, None) is None:
            raise WireError("a ticket that was used")
        return bulk, letter, attach


def _fill(connected: socket.socket, memory: memoryview) -> None:
    """Wait until memory is full; an EOFError where the other side ends before."""
    while memory.nbytes:
        count = connected.recv_into(memory, 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError
        memory = memory[count:]


def _shut_down(connected: socket.socket) -> None:
    with suppress(OSError):  # the other side was faster
        connected.shutdown(socket.SHUT_RDWR)


def _configure(connected: socket.socket) -> None:
    """Have the system cut a connection whose other host is gone, as heartbeats do elsewhere."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_PATIENCE * 1000))
