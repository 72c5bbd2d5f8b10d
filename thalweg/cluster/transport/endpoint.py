"""Endpoints: a process's end of the cluster's transport.

A server's endpoint listens; those of servers and clients connect to servers. Each connection is one
peer at either end, so two servers that connect to each other have two.
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
from thalweg.cluster.transport.listener import Listener
from thalweg.cluster.transport.loop import Loop
from thalweg.cluster.transport.outbound import Outbound
from thalweg.cluster.transport.peer import Done, Handler, Peer, unavailable
from thalweg.cluster.transport.security import Security, ZapHandler
from thalweg.cluster.transport.shared_buffers import SharedAllocator
from thalweg.cluster.transport.shared_memory import Probe
from thalweg.cluster.transport.sockets import zeromq
from thalweg.cluster.transport.streams import Recycler
from thalweg.platform.forks import renewed_after_fork

if TYPE_CHECKING:
    import zmq

__all__ = ["Done", "Endpoint", "Handler", "Peer", "Security"]

_PATIENCE = 5.0  # seconds: timeout of the handshake
_TRIM_EVERY = 10.0  # seconds
_LOOPBACK = "127.0.0.1"
_MAX_REASONS = 100  # distinct keys of `refused`, which unauthenticated input can influence
_LINGER_MS = 500  # for queued messages at close


class Endpoint:
    """Sends and receives the messages of one server or client.

    Args:
        handler: receives messages and the loss of peers.
        bind: "host:port" to listen at, port 0 for any; None for a client, which only connects.
        security: the cluster's key; by default that of this process.
        shares_memory: whether peers on the same host use shared memory for tensors and Unix sockets
            for messages; by default unless THALWEG_SHARED_MEMORY is 0.
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
        self.refused: Counter[str] = Counter()  # number of dropped messages by reason
        self.recycler = Recycler()
        self.loop = Loop("thalweg-cluster")
        self._context: zmq.Context[zmq.Socket[bytes]] = zeromq().Context()
        self._security = security or Security.of_process()
        self._zap_handler: ZapHandler | None = None
        self._peers: dict[str, Outbound] = {}
        self._last_sessions: dict[str, int] = {}  # last session of lost peers, by address
        self._lock = threading.Lock()
        self._is_closed = False
        if shares_memory is None:
            shares_memory = os.environ.get("THALWEG_SHARED_MEMORY") != "0"
        self._probe = Probe() if shares_memory else None
        self.allocator = SharedAllocator() if shares_memory and bind is not None else None
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
        self.loop.call_later(_TRIM_EVERY, self._trim)

    def renew_locks(self) -> None:
        """Close in the child of a fork, which has no I/O thread and must not use the sockets."""
        self._lock, self._is_closed = threading.Lock(), True
        for peer in self._all_peers():
            peer.inherit()

    @property
    def address(self) -> str:
        """ "host:port" where it listens; "" for a client."""
        return self._listener.address if self._listener else ""

    def peer(self, address: str, patience: float = _PATIENCE) -> Peer:
        """The peer at an address, one per address while it is alive; connects in the background.

        Args:
            patience: seconds until a peer that does not answer is lost.
        """
        with self._lock:
            if self._is_closed:
                raise unavailable(address, "this endpoint is closed")
            known = self._peers.get(address)
            if known is None or not known.is_alive:
                known = self._peers[address] = self._connect(address, patience)
            return known

    def close(self) -> None:
        """Send BYE to all peers and shut down; pending requests fail."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self.loop.is_current:  # the I/O thread cannot join itself
            threading.Thread(target=self._end, name="thalweg-cluster-end", daemon=True).start()
        else:
            self._end()

    def forget(self, peer: Peer) -> None:
        """Remove a lost peer, and remember its session for the next HELLO to its address."""
        with self._lock:
            known = self._peers.get(peer.address)
            if known is not None and known is peer:
                del self._peers[peer.address]
                self._last_sessions[peer.address] = known.session or self._last_sessions.get(
                    peer.address, 0
                )

    @staticmethod
    def initiated(peer: Peer) -> bool:
        """Whether this side opened the connection to a peer."""
        return isinstance(peer, Outbound)

    def refuse(self, reason: str) -> None:
        """Count a dropped message."""
        is_known = reason in self.refused or len(self.refused) < _MAX_REASONS
        self.refused[reason if is_known else "other reasons"] += 1

    def _listen(self, bind: str) -> Listener:
        host, _, port = bind.rpartition(":")
        host = host or _LOOPBACK
        self._security.warn_if_exposed(host)
        if self._security.is_on:
            self._zap_handler = ZapHandler(self.loop, self._context, self._security, self.refuse)
        socket = self._context.socket(zeromq().ROUTER)
        self._security.protect(socket, is_server=True)
        return Listener(self, socket, host, int(port))

    def _connect(self, address: str, patience: float) -> Outbound:
        replaces = self._last_sessions.get(address, 0)
        return Outbound(self, address, self._make_dealer, self._identity, patience, replaces)

    def _make_dealer(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zeromq().DEALER)
        self._security.protect(socket, is_server=False)
        return socket

    def _trim(self) -> None:
        forgotten = self.allocator.unmappable() if self.allocator else ()
        for peer in self._all_peers():
            peer.trim(forgotten)
        self.loop.call_later(_TRIM_EVERY, self._trim)

    def _all_peers(self) -> list[Peer]:
        inbound = self._listener.peers if self._listener else []
        return [*self._peers.values(), *inbound]

    def _end(self) -> None:
        ended = threading.Event()
        self.loop.call(lambda: self._disconnect_all(ended))
        ended.wait()
        self.loop.stop()
        self._context.destroy(_LINGER_MS)
        if self._probe:
            self._probe.close()
        if self.allocator:
            self.allocator.close()

    def _disconnect_all(self, ended: threading.Event) -> None:
        try:
            for peer in self._all_peers():
                peer.part(_LINGER_MS)
            if self._listener:
                self._listener.close(_LINGER_MS)
            if self._zap_handler:
                self._zap_handler.close()
        finally:
            ended.set()


_endpoints: WeakSet[Endpoint] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Leave no thread inside ZeroMQ when the interpreter exits."""
    for endpoint in list(_endpoints):
        endpoint.close()
