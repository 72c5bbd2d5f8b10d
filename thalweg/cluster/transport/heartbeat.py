"""Failure detection: whether the process at the other end of a connection still runs.

ZeroMQ sends a heartbeat over every connection twice a second, from a native thread that does not
need the interpreter. The kernel counts the bytes received; a connection whose count does not change
for several checks in a row is shut down. The limit is in checks, not seconds: a process that was
stopped itself makes one check for all that time, and receives heartbeats before it makes the rest.
"""

from __future__ import annotations

import fcntl
import socket
import termios
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from struct import Struct

_MAX_SILENT_CHECKS = 6  # consecutive checks without received bytes, until shutdown
_BYTES_RECEIVED = Struct("=128xQ")  # tcpi_bytes_received in the kernel's tcp_info
_WAITING = Struct("=i")


class HeartbeatMonitor:
    """Monitors the received bytes of a connection; ZeroMQ owns the file descriptor."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._received = -1
        self._silent_checks = 0

    def is_silent(self) -> bool:
        """Make one check; returns whether too many in a row found nothing received."""
        try:
            received, is_unread = bytes_received(self._file), _has_unread_bytes(self._file)
        except OSError:
            return False  # it is closed: ZeroMQ is about to report that
        if received != self._received or is_unread:  # unread bytes: this side lags
            self._received, self._silent_checks = received, 0
        else:
            self._silent_checks += 1
        return self._silent_checks >= _MAX_SILENT_CHECKS

    def shut_down(self) -> None:
        """Shut the connection down: ZeroMQ then reports it as disconnected."""
        with suppress(OSError), _borrowed(self._file) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def bytes_received(file: int) -> int:
    """The number of bytes received over a TCP connection."""
    with _borrowed(file) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
    return _BYTES_RECEIVED.unpack(info.ljust(_BYTES_RECEIVED.size, b"\0"))[0]


@contextmanager
def _borrowed(file: int) -> Generator[socket.socket]:
    """A socket object for a descriptor whose owner closes it."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, file)
    try:
        yield connection
    finally:
        connection.detach()


def _has_unread_bytes(file: int) -> bool:
    return _WAITING.unpack(fcntl.ioctl(file, termios.FIONREAD, bytes(_WAITING.size))) != (0,)


@cache
def is_counted() -> bool:
    """Whether this kernel counts the bytes received; some emulations of Linux do not."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        client.sendall(b"1")
        accepted.recv(1)
        return bytes_received(accepted.fileno()) == 1
