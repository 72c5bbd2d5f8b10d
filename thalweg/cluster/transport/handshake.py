"""What two endpoints tell each other first: who they are, or why they will not talk."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from thalweg import errors
from thalweg.cluster import wire
from thalweg.cluster.wire import Kind, Letter, Message, WireError
from thalweg.version import __version__

if TYPE_CHECKING:
    import zmq


class Greeting(NamedTuple):
    """Who is at the other end."""

    address: str  # where it listens, or a name for it where it does not
    incarnation: int  # which of the processes that there were at this address


def greeting(kind: Kind, address: str, incarnation: int) -> Message:
    """A HELLO or a WELCOME."""
    name = address or f"{socket.gethostname()} (client, process {os.getpid()})"
    fields = {"release": __version__, "address": name, "incarnation": incarnation}
    return Message(kind, 0, fields)


def read_greeting(letter: Letter) -> Greeting:
    """What a HELLO or WELCOME says."""
    fields = letter.fields
    return Greeting(field(fields, "address", str), field(fields, "incarnation", int))


def field(fields: Any, name: str, kind: type[Any]) -> Any:
    """A field of a message, which must be there and of a type."""
    value = fields.get(name)
    if not isinstance(value, kind):
        raise WireError(f"field {name} is {value!r}")
    return value


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


def opened(frames: list[zmq.Frame]) -> Letter:
    """A message of one frame, read."""
    if len(frames) != 1:
        raise WireError(f"a message of {len(frames)} frames")
    frame = frames[0].bytes
    return wire.read(frame, wire.read_envelope(frame))
