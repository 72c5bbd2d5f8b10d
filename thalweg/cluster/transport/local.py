"""Messages between processes of one host: over a Unix socket, from thread to thread.

ZeroMQ has threads of its own at both ends, which a message must wake one after the other. Within a
host the sender writes to a socket that the receiver's I/O thread waits for, which takes a fourth of
the time. ZeroMQ's connection stays, for heartbeats, chunks and what is too large.

The socket's name is random and told over that connection only, and both sides are processes of the
same user. It is in no folder, and gone with its process.
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

_BUFFER = 4 << 20  # bytes that may wait to be read, where the system allows it
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_BACKLOG = 128


class LocalSocket:
    """One end of a connection within the host."""

    def __init__(self, loop: Loop, connected: socket.socket) -> None:
        self._loop, self._socket = loop, connected
        self._file = connected.fileno()
        self.lock = threading.Lock()  # of who sends: nobody does on a descriptor that is closed
        self._buffer = memoryview(bytearray(MAX_PACKET))
        self._received: Callable[[bytes], None] | None = None
        self._ended: Callable[[], None] = self.close
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)

    def watch(self, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        """Tell of messages, and of the end of the other side, or tell somebody else from now on."""
        is_watched = self._received is not None
        self._received, self._ended = received, ended
        if not is_watched:
            self._loop.watch(self._file, self._read)

    def send(self, frame: bytearray, *more: bytearray) -> bool:
        """Send a packet, as the sockets of ZeroMQ do a message, whose frames it has one after the
        other; whoever does so holds the lock."""
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
        """Close, on the I/O thread; what was sent is still read."""
        self._loop.unwatch(self._file)
        with self.lock:
            self._socket.close()

    def _read(self) -> None:
        """One packet: while there are more, the loop calls again."""
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
    """Where processes of this user and host connect."""

    def __init__(self, loop: Loop, accepted: Callable[[LocalSocket], None]) -> None:
        self._loop, self._accepted = loop, accepted
        self.name = f"thalweg-{token_hex(16)}"
        self._socket = _new_socket()
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)
        loop.watch(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more."""
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):  # who connected is gone already
            connected, _ = self._socket.accept()
            if _user(connected) == os.geteuid():
                self._accepted(LocalSocket(self._loop, connected))
            else:
                connected.close()


def connect(loop: Loop, name: str) -> LocalSocket | None:
    """A connection to a process of this host; None where it is in another network namespace."""
    made = _new_socket()
    try:
        made.setblocking(False)
        made.connect(f"\0{name}")
    except (OSError, ValueError):
        made.close()
        return None
    return LocalSocket(loop, made)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _user(connected: socket.socket) -> int:
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(told)[1]
