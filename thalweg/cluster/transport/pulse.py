"""Whether the process at the other end of a connection still runs.

ZeroMQ sends a heartbeat over every connection twice a second, on a thread of its own that needs no
interpreter. The system counts the bytes that come in; a connection whose count stands still for
some checks in a row is cut. Checks are counted, not seconds: a process that was stopped itself has
made one of them meanwhile, and hears its peers before it judges them.
"""

from __future__ import annotations

import fcntl
import socket
import termios
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from struct import Struct

_MAX_SILENT_CHECKS = 6  # of a connection over which nothing came, until it is cut
_BYTES_RECEIVED = Struct("=128xQ")  # in the system's tcp_info
_WAITING = Struct("=i")


class Pulse:
    """The bytes that came over a connection of ZeroMQ's, which owns the file."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._received = -1
        self._silent_checks = 0

    def is_silent(self) -> bool:
        """Check: whether nothing came for too many times in a row."""
        try:
            received, is_unread = bytes_received(self._file), _is_unread(self._file)
        except OSError:
            return False  # it is closed: ZeroMQ says so in a moment
        if received != self._received or is_unread:  # what is unread is no fault of the other side
            self._received, self._silent_checks = received, 0
        else:
            self._silent_checks += 1
        return self._silent_checks >= _MAX_SILENT_CHECKS

    def cut(self) -> None:
        """End the connection: ZeroMQ finds it closed."""
        with suppress(OSError), _borrowed(self._file) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def bytes_received(file: int) -> int:
    """How many bytes came over a TCP connection."""
    with _borrowed(file) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
    return _BYTES_RECEIVED.unpack(info.ljust(_BYTES_RECEIVED.size, b"\0"))[0]


@contextmanager
def _borrowed(file: int) -> Generator[socket.socket]:
    """A connection that somebody else has, and closes."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, file)
    try:
        yield connection
    finally:
        connection.detach()


def _is_unread(file: int) -> bool:
    return _WAITING.unpack(fcntl.ioctl(file, termios.FIONREAD, bytes(_WAITING.size))) != (0,)


@cache
def is_counted() -> bool:
    """Whether this system counts the bytes of connections; some that only imitate Linux do not."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        one.sendall(b"1")
        other.recv(1)
        return bytes_received(other.fileno()) == 1
