"""Addresses of tasks: "host:port", as numbers where somebody listens; ports that are free."""

from __future__ import annotations

import socket

from thalweg import errors


def numeric(address: str) -> str:
    """An address in the form that servers are known by: `localhost` is 127.0.0.1."""
    host, port = parsed(address)
    return f"{'127.0.0.1' if host == 'localhost' else host}:{port}"


def bindable(address: str) -> str:
    """An address to listen at: sockets are bound to numbers, so a name is looked up."""
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
    """Ports of this machine that nobody listens at just now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
