"""Local connections: Unix sockets between processes on one host.

ZeroMQ has I/O threads of its own at both ends, and a message wakes them one after the other. On one
host the sender writes to a Unix socket that the receiver's I/O thread polls, which takes a quarter
of the time. The ZeroMQ connection stays open for heartbeats, chunks and oversized messages.

The socket's name is random and sent over the ZeroMQ connection only; both processes must belong to
the same user. It is an abstract address: no file, and it ends with its process.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex

from thalweg.cluster.transport.loop import Loop
from thalweg.cluster.wire import MAX_PACKET

_BUFFER = 4 << 20  # bytes of the send buffer; the kernel may cap it
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_BACKLOG = 128


class LocalSocket:
    """One end of a local connection."""

    def __init__(self, loop: Loop, connected: socket.socket) -> None:
        self._loop, self._socket = loop, connected
        self._file = connected.fileno()
        self.lock = threading.Lock()  # held to send and to close the descriptor
        self._buffer = memoryview(bytearray(MAX_PACKET))
        self._received: Callable[[bytes], None] | None = None
        self._ended: Callable[[], None] = self.close
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)

    def watch(self, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        """Set, or replace, the callbacks for packets and for the end of the connection."""
        is_watched = self._received is not None
        self._received, self._ended = received, ended
        if not is_watched:
            self._loop.watch(self._file, self._read)

    def send(self, frame: bytearray, *more: bytearray) -> bool:
        """Send frames concatenated as one packet; the caller holds the lock. Returns False if the
        send buffer is full, raises ConnectionError if the connection is broken."""
        try:
            if more:
                self._socket.sendmsg((frame, *more))
            else:
                self._socket.send(frame)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionError(str(error)) from error
        return True

    def close(self) -> None:
        """Close, on the I/O thread; the other side can still read sent packets."""
        self._loop.unwatch(self._file)
        with self.lock:
            self._socket.close()

    def _read(self) -> None:
        """Read one packet; epoll is level-triggered, so the loop calls again for more."""
        try:
            count = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if count and self._received is not None:
            self._received(self._buffer[:count].tobytes())
        else:
            self._ended()


class LocalListener:
    """Accepts local connections from processes of the same user."""

    def __init__(self, loop: Loop, accepted: Callable[[LocalSocket], None]) -> None:
        self._loop, self._accepted = loop, accepted
        self.name = f"thalweg-{token_hex(16)}"
        self._socket = _new_socket()
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)
        loop.watch(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting."""
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the client has disconnected already
            connected, _ = self._socket.accept()
            if _user(connected) == os.geteuid():
                self._accepted(LocalSocket(self._loop, connected))
            else:
                connected.close()


def connect(loop: Loop, name: str) -> LocalSocket | None:
    """Connect to a process on this host; None on failure, as in another network namespace."""
    client = _new_socket()
    try:
        client.setblocking(False)
        client.connect(f"\0{name}")
    except (OSError, ValueError):
        client.close()
        return None
    return LocalSocket(loop, client)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _user(connected: socket.socket) -> int:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[1]
