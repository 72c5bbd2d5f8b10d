"""The handshake of two endpoints: HELLO, then WELCOME and CONFIRM, or REFUSED."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from thalweg import errors
from thalweg.cluster.transport.bulk import Offer
from thalweg.cluster.transport.sealing import Keys
from thalweg.cluster.transport.shared_memory import mappable_process
from thalweg.cluster.wire import DecodedMessage, Kind, Message, WireError
from thalweg.version import __version__

_ADDRESS = re.compile(r"\S+:\d+")


class Identity(NamedTuple):
    """The identity and capabilities of an endpoint."""

    address: str  # where it listens; "" for a client
    incarnation: int  # random, tells apart successive processes at one address
    probe: Mapping[str, Any] | None  # fields of its `Probe`; None: it uses no shared memory
    is_secret: bool  # the cluster has a key: control connections are encrypted
    takes_bulk: bool  # whether it supports bulk connections

    def hello(self, replaces: int = 0) -> Message:
        """The first message of the connecting side; `replaces` is the session of its previous
        connection to the same address, whose loss the other side may not have noticed."""
        return Message(Kind.HELLO, 0, self._common_fields() | {"replaces": replaces})

    def welcome(self, hello: Greeting, local: str | None, bulk: Offer | None) -> Message:
        """The answer to a HELLO; `local` is the name of this endpoint's Unix socket, sent to peers
        on this host only, `bulk` the offer of a bulk connection."""
        is_local = hello.process is not None
        more = {"maps": is_local, "local": local if is_local else None, "bulk": bulk}
        return Message(Kind.WELCOME, 0, self._common_fields() | more)

    def read(self, decoded: DecodedMessage) -> Greeting:
        """Parse the HELLO or WELCOME of another endpoint."""
        fields = decoded.fields
        probe = fields.get("probe") if self.probe else None
        return Greeting(
            field(fields, "address", str),
            field(fields, "incarnation", int),
            mappable_process(probe),
            fields.get("maps") is True,
            field(fields, "local", str) if self.probe and fields.get("local") else None,
            field(fields, "replaces", int) if fields.get("replaces") else 0,
            fields.get("takes_bulk") is True,
            self._offer(fields.get("bulk")),
        )

    def _offer(self, offer: Any) -> Offer | None:
        """Parse the bulk offer of a WELCOME; None if this process cannot use it."""
        match offer:
            case [int(port), int(ticket), None] if not self.is_secret:
                return Offer(port, ticket, None)
            case [int(port), int(ticket), [str(outgoing), str(incoming)]] if self.takes_bulk:
                return Offer(port, ticket, Keys(outgoing, incoming))
            case _:
                return None

    def _common_fields(self) -> dict[str, Any]:
        name = self.address or f"{socket.gethostname()} (client, process {os.getpid()})"
        return {
            "release": __version__,
            "address": name,
            "incarnation": self.incarnation,
            "probe": self.probe,
            "takes_bulk": self.takes_bulk,
        }


class Greeting(NamedTuple):
    """The contents of a HELLO or WELCOME."""

    address: str
    incarnation: int
    process: int | None  # its process ID if this process can map its memory
    maps: bool  # whether it can map the memory of this process; in a WELCOME
    local: str | None  # the name of its Unix socket; in a WELCOME
    replaces: int = 0  # the session of its previous connection; in a HELLO
    takes_bulk: bool = False  # whether it supports bulk connections
    bulk: Offer | None = None  # its bulk offer; in a WELCOME

    @property
    def listens(self) -> bool:
        """Whether its address is one to connect to, as a server's is."""
        return _ADDRESS.fullmatch(self.address) is not None


def confirm(welcome: Greeting) -> Message:
    """The CONFIRM to a WELCOME: whether this process can map the accepting side's memory."""
    return Message(Kind.CONFIRM, 0, {"maps": welcome.process is not None})


def field(fields: Any, name: str, kind: type[Any]) -> Any:
    """A required field of a message; raises WireError unless it has the type `kind`."""
    value = fields.get(name)
    if not isinstance(value, kind):
        raise WireError(f"field {name} is of another type")
    return value


def numbers(fields: Any, name: str) -> list[int]:
    """A required field that is a list of integers."""
    items = field(fields, name, list)
    if not all(isinstance(item, int) for item in items):
        raise WireError(f"field {name} has more than integers")
    return items


def refused(error: errors.OpError) -> Message:
    """The REFUSED message for an error."""
    return Message(Kind.REFUSED, 0, {"code": error.error_code, "reason": error.message})


def refusal(address: str, decoded: DecodedMessage) -> errors.OpError:
    """The error that a REFUSED message carries."""
    code = field(decoded.fields, "code", int)
    reason = field(decoded.fields, "reason", str)
    return errors.of_code(code, None, f"{address} refuses this process: {reason}")
