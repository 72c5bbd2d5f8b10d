"""Connects a session to its target: creates the master."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from thalweg import errors
from thalweg.cluster.master import Master
from thalweg.cluster.member import Client, Member
from thalweg.cluster.server import SCHEME, server_at
from thalweg.graph.graph import Graph
from thalweg.runtime.config import SessionOptions

_SCHEMES = (SCHEME, "grpc://")  # TensorFlow programs use grpc://: an alias


def connect(target: str, graph: Graph, options: SessionOptions) -> Master:
    """The master of a session with a target."""
    member = _member(target)
    try:
        master = Master(member, graph, options)
    except BaseException:
        _close_client(member)
        raise
    weakref.finalize(master, _close_client, member)  # for sessions that are never closed
    return master


def reset(target: str, containers: Sequence[str] | None, options: SessionOptions) -> None:
    """Clear the state of a cluster's tasks and close their sessions."""
    member = _member(target)
    try:
        member.reset(containers, options)
    finally:
        _close_client(member)


def _close_client(member: Member) -> None:
    """Close the endpoint of a client; a server keeps running."""
    if isinstance(member, Client):
        member.endpoint.close()


def _member(target: str) -> Member:
    """The server at the target if it is in this process, else a new client of it."""
    address = next((target.removeprefix(s) for s in _SCHEMES if target.startswith(s)), "")
    if not address:
        raise errors.NotFoundError(
            None,
            None,
            f"No session factory registered for the given session options: {{target: {target!r}}}. "
            "A target is the `target` of a tf.train.Server, such as 'thalweg://host:2222'",
        )
    return server_at(address) or Client(address)
