"""What two endpoints tell each other first: who they are, or why they will not talk."""

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
from thalweg.cluster.wire import Kind, Letter, Message, WireError
from thalweg.version import __version__

_ADDRESS = re.compile(r"\S+:\d+")


class Identity(NamedTuple):
    """Who an endpoint is."""

    address: str  # where it listens; "" where it does not
    incarnation: int  # which of the processes that there were at this address
    probe: Mapping[str, Any] | None  # whether its memory can be mapped; None: nor does it map
    is_secret: bool  # nobody else reads what is told to it: the cluster has a key
    takes_bulk: bool  # whether it can have connections for chunks

    def hello(self, replaces: int = 0) -> Message:
        """The first message to a process that this one connects to; `replaces` is the session of
        its former connection there, which the other may not know to be gone."""
        return Message(Kind.HELLO, 0, self._told() | {"replaces": replaces})

    def welcome(self, hello: Greeting, local: str | None, bulk: Offer | None) -> Message:
        """The answer to it; `local` is the name of this endpoint's socket within the host, `bulk`
        where to connect to for chunks."""
        is_local = hello.process is not None
        more = {"maps": is_local, "local": local if is_local else None, "bulk": bulk}
        return Message(Kind.WELCOME, 0, self._told() | more)

    def read(self, letter: Letter) -> Greeting:
        """What the HELLO or WELCOME of another endpoint says to this one."""
        fields = letter.fields
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

    def _offer(self, given: Any) -> Offer | None:
        """What a WELCOME says of a connection for chunks, if this process can have it."""
        match given:
            case [int(port), int(ticket), None] if not self.is_secret:
                return Offer(port, ticket, None)
            case [int(port), int(ticket), [str(outgoing), str(incoming)]] if self.takes_bulk:
                return Offer(port, ticket, Keys(outgoing, incoming))
            case _:
                return None

    def _told(self) -> dict[str, Any]:
        name = self.address or f"{socket.gethostname()} (client, process {os.getpid()})"
        return {
            "release": __version__,
            "address": name,
            "incarnation": self.incarnation,
            "probe": self.probe,
            "takes_bulk": self.takes_bulk,
        }


class Greeting(NamedTuple):
    """Who is at the other end."""

    address: str
    incarnation: int
    process: int | None  # whose memory this process can map
    maps: bool  # whether it can map that of this process; in a WELCOME
    local: str | None  # the name of its socket within the host; in a WELCOME
    replaces: int = 0  # the session of a former connection of the same process; in a HELLO
    takes_bulk: bool = False  # whether it can have connections for chunks
    bulk: Offer | None = None  # where it expects one; in a WELCOME

    @property
    def listens(self) -> bool:
        """Whether others connect to its address."""
        return _ADDRESS.fullmatch(self.address) is not None


def confirm(welcome: Greeting) -> Message:
    """Tell who accepted whether this process can map its memory."""
    return Message(Kind.CONFIRM, 0, {"maps": welcome.process is not None})


def field(fields: Any, name: str, kind: type[Any]) -> Any:
    """A field of a message, which must be there and of a type."""
    value = fields.get(name)
    if not isinstance(value, kind):
        raise WireError(f"field {name} is of another type")
    return value


def numbers(fields: Any, name: str) -> list[int]:
    """A field that is a list of integers."""
    found = field(fields, name, list)
    if not all(isinstance(each, int) for each in found):
        raise WireError(f"field {name} has more than integers")
    return found


def refused(error: errors.OpError) -> Message:
    """Why this endpoint will not talk to another."""
    return Message(Kind.REFUSED, 0, {"code": error.error_code, "reason": error.message})


def refusal(address: str, letter: Letter) -> errors.OpError:
    """The error that a REFUSED stands for."""
    code = field(letter.fields, "code", int)
    text = f"{address} refuses this process: {field(letter.fields, 'reason', str)}"
    try:
        return errors.exception_type_from_error_code(code)(None, None, text)
    except KeyError:
        return errors.UnknownError(None, None, text)
