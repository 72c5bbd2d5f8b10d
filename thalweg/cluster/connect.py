"""From the target of a session to its master."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from thalweg import errors
from thalweg.cluster.master import Master
from thalweg.cluster.member import Client, Member
from thalweg.cluster.server import SCHEME, server_at
from thalweg.graph.graph import Graph
from thalweg.runtime.config import SessionOptions

_SCHEMES = (SCHEME, "grpc://")  # old programs write the latter, and mean the former


def connect(target: str, graph: Graph, options: SessionOptions) -> Master:
    """The master of a session with a target."""
    member = _member(target)
    try:
        master = Master(member, graph, options)
    except BaseException:
        _leave(member)
        raise
    weakref.finalize(master, _leave, member)  # of a session that nobody closed
    return master


def reset(target: str, containers: Sequence[str] | None, options: SessionOptions) -> None:
    """Have the tasks of a cluster forget state and sessions."""
    member = _member(target)
    try:
        member.reset(containers, options)
    finally:
        _leave(member)


def _leave(member: Member) -> None:
    """End a client; a server goes on."""
    if isinstance(member, Client):
        member.endpoint.close()


def _member(target: str) -> Member:
    """This process as one of a cluster: a server that it has, or a client of one."""
    address = next((target.removeprefix(s) for s in _SCHEMES if target.startswith(s)), "")
    if not address:
        raise errors.NotFoundError(
            None,
            None,
            f"No session factory registered for the given session options: {{target: {target!r}}}. "
            "A target is the `target` of a tf.train.Server, such as 'thalweg://host:2222'",
        )
    return server_at(address) or Client(address)
