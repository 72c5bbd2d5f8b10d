"""Task addresses ("host:port"): parsing, normalization, name lookup; free ports."""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack
from pathlib import Path

from thalweg import errors

_FIRST_PORT = 10_240  # many services have theirs below
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


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
        raise errors.invalid(f"Cannot listen at {address}: {error.strerror or error}") from error


def parsed(address: str) -> tuple[str, int]:
    """The host and the port of an address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise errors.invalid(
            f"Could not parse port for the task at {address!r}: expected 'host:port'"
        )
    return host, int(port)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports of this machine that are free at the moment; they are not reserved.

    Where possible they are not among those that the system chooses for outgoing connections: such
    a connection could take one before its server listens.
    """
    below = range(_FIRST_PORT, max(_first_ephemeral_port(), _FIRST_PORT))
    wanted = secrets.SystemRandom().sample(below, min(len(below), 100 + 10 * count))
    ports: list[int] = []
    with ExitStack() as sockets:
        for port in [*wanted, *[0] * count]:
            listener = sockets.enter_context(socket.socket())
            try:
                listener.bind((host, port))
            except OSError:
                if port == 0:
                    raise
                continue
            ports.append(listener.getsockname()[1])
            if len(ports) == count:
                break
    return ports


def _first_ephemeral_port() -> int:
    try:
        return int(_EPHEMERAL_PORTS.read_text().split()[0])
    except OSError:  # no Linux
        return _FIRST_PORT
