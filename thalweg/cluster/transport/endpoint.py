"""Endpoints: where a process sends and receives messages of a cluster.

A server's endpoint listens, and both a server's and a client's connect to others. Each connection
is one peer at either end; two servers that connect to each other have two.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections import Counter
from typing import TYPE_CHECKING
from weakref import WeakSet

from thalweg.cluster.transport import sealing
from thalweg.cluster.transport.handshake import Identity
from thalweg.cluster.transport.lending import Lender
from thalweg.cluster.transport.listener import Listener
from thalweg.cluster.transport.loop import Loop
from thalweg.cluster.transport.outbound import Outbound
from thalweg.cluster.transport.peer import Done, Handler, Peer, unavailable
from thalweg.cluster.transport.security import Doorkeeper, Security
from thalweg.cluster.transport.shared_memory import Probe
from thalweg.cluster.transport.sockets import zeromq
from thalweg.cluster.transport.streams import Recycler
from thalweg.platform.forks import renewed_after_fork

if TYPE_CHECKING:
    import zmq

__all__ = ["Done", "Endpoint", "Handler", "Peer", "Security"]

_PATIENCE = 5.0  # seconds in which a peer must answer the first time
_TRIM_EVERY = 10.0  # seconds
_LOOPBACK = "127.0.0.1"
_MAX_REASONS = 100  # that are counted one by one: a stranger may think of any number
_LINGER_MS = 500  # for what was sent before the end


class Endpoint:
    """Where a process sends and receives messages: one per server or client.

    Args:
        handler: who is told of messages, and of peers that are lost.
        bind: "host:port" to listen at, port 0 for any; None for a client, which only connects.
        security: the cluster's key; that of this process if None.
        shares_memory: whether tensors may go through shared memory within the host, and messages
            past the network; if None, they may unless THALWEG_SHARED_MEMORY is 0.
    """

    def __init__(
        self,
        handler: Handler,
        bind: str | None = None,
        security: Security | None = None,
        shares_memory: bool | None = None,
    ) -> None:
        self.handler = handler
        self.incarnation = secrets.randbits(63) | 1
        self.refused: Counter[str] = Counter()  # messages that were dropped, by reason
        self.recycler = Recycler()
        self.loop = Loop("thalweg-cluster")
        self._context: zmq.Context[zmq.Socket[bytes]] = zeromq().Context()
        self._security = security or Security.of_process()
        self._doorkeeper: Doorkeeper | None = None
        self._peers: dict[str, Outbound] = {}
        self._former: dict[str, int] = {}  # sessions of lost ones, by address
        self._lock = threading.Lock()
        self._is_closed = False
        if shares_memory is None:
            shares_memory = os.environ.get("THALWEG_SHARED_MEMORY") != "0"
        self._probe = Probe() if shares_memory else None
        self.lender = Lender() if shares_memory and bind is not None else None
        self._listener: Listener | None = None
        self.loop.start()
        try:
            self._open(bind)
        except BaseException:
            self._end()
            raise
        renewed_after_fork(self)
        _endpoints.add(self)

    def _open(self, bind: str | None) -> None:
        self._listener = self._listen(bind) if bind is not None else None
        probe = self._probe.fields() if self._probe else None
        is_secret = self._security.is_on
        takes_bulk = not is_secret or sealing.is_available()
        self._identity = Identity(self.address, self.incarnation, probe, is_secret, takes_bulk)
        if self._listener:
            self._listener.open(self._identity)
        self.loop.later(_TRIM_EVERY, self._trim)

    def renew_locks(self) -> None:
        """The child of a fork has no I/O thread, and its sockets are the parent's."""
        self._lock, self._is_closed = threading.Lock(), True
        for peer in self._all_peers():
            peer.inherit()

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
            known = self._peers.get(peer.address)
            if known is not None and known is peer:
                del self._peers[peer.address]
                self._former[peer.address] = known.session or self._former.get(peer.address, 0)

    @staticmethod
    def has_made(peer: Peer) -> bool:
        """Whether the connection to a peer is one that this side made."""
        return isinstance(peer, Outbound)

    def refuse(self, reason: str) -> None:
        """Count a message that was dropped."""
        is_known = reason in self.refused or len(self.refused) < _MAX_REASONS
        self.refused[reason if is_known else "other reasons"] += 1

    def _listen(self, bind: str) -> Listener:
        host, _, port = bind.rpartition(":")
        host = host or _LOOPBACK
        self._security.warn_if_exposed(host)
        if self._security.is_on:
            self._doorkeeper = Doorkeeper(self.loop, self._context, self._security, self.refuse)
        socket = self._context.socket(zeromq().ROUTER)
        self._security.protect(socket, is_server=True)
        return Listener(self, socket, host, int(port))

    def _connect(self, address: str, patience: float) -> Outbound:
        replaces = self._former.get(address, 0)
        return Outbound(self, address, self._make_dealer, self._identity, patience, replaces)

    def _make_dealer(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zeromq().DEALER)
        self._security.protect(socket, is_server=False)
        return socket

    def _trim(self) -> None:
        forgotten = self.lender.forgotten() if self.lender else ()
        for peer in self._all_peers():
            peer.trim(forgotten)
        self.loop.later(_TRIM_EVERY, self._trim)

    def _all_peers(self) -> list[Peer]:
        inbound = self._listener.peers if self._listener else []
        return [*self._peers.values(), *inbound]

    def _end(self) -> None:
        ended = threading.Event()
        self.loop.call(lambda: self._part(ended))
        ended.wait()
        self.loop.stop()
        self._context.destroy(_LINGER_MS)
        if self._probe:
            self._probe.close()
        if self.lender:
            self.lender.close()

    def _part(self, ended: threading.Event) -> None:
        try:
            for peer in self._all_peers():
                peer.part(_LINGER_MS)
            if self._listener:
                self._listener.close(_LINGER_MS)
            if self._doorkeeper:
                self._doorkeeper.close()
        finally:
            ended.set()


_endpoints: WeakSet[Endpoint] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Leave no thread inside ZeroMQ when the interpreter goes."""
    for endpoint in list(_endpoints):
        endpoint.close()
