"""Task addresses ("host:port"): parsing, normalization, name lookup; free ports."""

from __future__ import annotations

import socket

from thalweg import errors


def numeric(address: str) -> str:
    """The normalized address, as servers are registered: `localhost` becomes 127.0.0.1."""
    host, port = parsed(address)
    return f"{'127.0.0.1' if host == 'localhost' else host}:{port}"


def bindable(address: str) -> str:
    """The address with its host name resolved: sockets bind to IP addresses."""
    host, port = parsed(address)
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError as error:
        raise errors.InvalidArgumentError(
            None, None, f"Cannot listen at {address}: {error.strerror or error}"
        ) from error


def parsed(address: str) -> tuple[str, int]:
    """The host and the port of an address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise errors.InvalidArgumentError(
            None, None, f"Could not parse port for the task at {address!r}: expected 'host:port'"
        )
    return host, int(port)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports of this machine that are free at the moment; they are not reserved."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind((host, 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()
