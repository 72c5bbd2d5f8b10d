"""Endpoints: where a process sends and receives messages of a cluster.

A server's endpoint listens, and both a server's and a client's connect to others. Each connection
is one peer at either end; two servers that connect to each other have two.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from typing import TYPE_CHECKING

from thalweg import errors
from thalweg.cluster.transport import handshake
from thalweg.cluster.transport.listener import Listener
from thalweg.cluster.transport.loop import Loop
from thalweg.cluster.transport.outbound import Outbound
from thalweg.cluster.transport.peer import Done, Handler, Peer, unavailable
from thalweg.cluster.transport.sockets import zeromq
from thalweg.cluster.wire import Kind

if TYPE_CHECKING:
    import zmq

__all__ = ["Done", "Endpoint", "Handler", "Peer"]

_PATIENCE = 5.0  # seconds in which a peer must answer the first time
_LINGER_MS = 500  # for what was sent before the end


class Endpoint:
    """Where a process sends and receives messages: one per server or client.

    Args:
        handler: who is told of messages, and of peers that are lost.
        bind: "host:port" to listen at, port 0 for any; None for a client, which only connects.
    """

    def __init__(self, handler: Handler, bind: str | None = None) -> None:
        self.handler = handler
        self.incarnation = secrets.randbits(63) | 1
        self.refused: Counter[str] = Counter()  # messages that were dropped, by reason
        self.loop = Loop("thalweg-cluster")
        self._context: zmq.Context[zmq.Socket[bytes]] = zeromq().Context()
        self._peers: dict[str, Outbound] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._listener = self._listen(bind) if bind is not None else None
        self.loop.start()

    @property
    def address(self) -> str:
        """ "host:port" where it listens; "" for a client."""
        return self._listener.address if self._listener else ""

    def peer(self, address: str, patience: float = _PATIENCE) -> Peer:
        """The peer at an address, the same one while it is alive; connects in the background.

        Args:
            patience: seconds until one that does not answer is lost.
        """
        with self._lock:
            if self._is_closed:
                raise unavailable(address, "this endpoint is closed")
            known = self._peers.get(address)
            if known is None or not known.is_alive:
                known = self._peers[address] = self._connect(address, patience)
            return known

    def close(self) -> None:
        """Say goodbye and end; requests that wait are told."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self.loop.is_current:  # which cannot wait for its own end
            threading.Thread(target=self._end, name="thalweg-cluster-end", daemon=True).start()
        else:
            self._end()

    def forget(self, peer: Peer) -> None:
        """A peer is lost."""
        with self._lock:
            if self._peers.get(peer.address) is peer:
                del self._peers[peer.address]

    def refuse(self, reason: str) -> None:
        """Count a message that was dropped."""
        self.refused[reason] += 1

    def _listen(self, bind: str) -> Listener:
        try:
            return Listener(self, self._context.socket(zeromq().ROUTER), bind, self.incarnation)
        except errors.OpError:  # the address is taken, say
            self._context.destroy(0)
            raise

    def _connect(self, address: str, patience: float) -> Outbound:
        hello = handshake.greeting(Kind.HELLO, self.address, self.incarnation)
        socket = self._context.socket(zeromq().DEALER)
        return Outbound(self, address, socket, hello, patience)

    def _end(self) -> None:
        ended = threading.Event()
        self.loop.call(lambda: self._part(ended))
        ended.wait()
        self.loop.stop()
        self._context.term()

    def _part(self, ended: threading.Event) -> None:
        try:
            inbound = self._listener.peers if self._listener else []
            for peer in [*self._peers.values(), *inbound]:
                peer.part(_LINGER_MS)
            if self._listener:
                self._listener.close(_LINGER_MS)
        finally:
            ended.set()
