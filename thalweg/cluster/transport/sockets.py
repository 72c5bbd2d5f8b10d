"""ZeroMQ sockets on which any thread may send while the I/O thread receives.

A lock guards each socket, so that the calling thread itself sends, without a handover. The I/O
thread polls the socket's file descriptor without the lock. That descriptor is edge-triggered: a
send may consume an edge for received messages, and then the sender wakes the I/O thread.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from socket import gethostbyname
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from thalweg import errors
from thalweg.cluster.transport import heartbeat
from thalweg.cluster.transport.heartbeat import HeartbeatMonitor
from thalweg.cluster.transport.loop import Loop, guarded
from thalweg.cluster.wire import MAX_FRAME

if TYPE_CHECKING:
    import zmq

_HEARTBEAT_MS = 500
_SILENCE_MS = 3000  # heartbeat timeout of ZeroMQ, where `heartbeat` is not supported
_HANDSHAKE_MS = 5000
_RECONNECT_MS, _MAX_RECONNECT_MS = 50, 500
_HIGH_WATER = 4096  # messages queued in each direction before sends fail
_BATCH = 64  # messages received per acquisition of the lock
_MIN_UNCOPIED = 64 << 10  # bytes from which a frame, such as a chunk, is sent without a copy
_EVENT = struct.Struct("=HI")
_NOBLOCK, _SNDMORE, _POLLIN, _EVENTS = 1, 2, 1, 15  # as integers: ZeroMQ's enums are slow


def zeromq():  # no annotation: pyright infers the module's type
    """Import ZeroMQ lazily; the ImportError says how to install it."""
    try:
        import zmq
    except ImportError as error:
        raise ImportError(
            "Clusters need ZeroMQ: install it with `pip install 'thalweg[cluster]'`"
        ) from error
    return zmq


class ConnectionEvent(NamedTuple):
    """An event of ZeroMQ's socket monitor, and the file descriptor of its connection."""

    event: int
    file: int
    was_open: bool = False  # of a disconnect: it was accepted, or its handshake was complete


class Socket:
    """A ZeroMQ socket, its lock, and the callbacks for messages and connection events."""

    def __init__(
        self,
        loop: Loop,
        socket: zmq.Socket[bytes],
        received: Callable[[list[zmq.Frame]], None],
        on_event: Callable[[ConnectionEvent], None],
    ) -> None:
        self._zmq = zeromq()
        self._loop, self._socket, self._received, self._on_event = loop, socket, received, on_event
        self._lock = threading.Lock()
        self._monitors: dict[int, HeartbeatMonitor] = {}  # of open connections, by file descriptor
        self._connecting = -1  # the descriptor of a connection that this side opened
        self._configure()
        self._monitor = socket.get_monitor_socket(self._zmq.EVENT_ALL)
        self._files = int(socket.get(self._zmq.FD)), int(self._monitor.get(self._zmq.FD))

    def _configure(self) -> None:
        zmq, socket = self._zmq, self._socket
        socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        # ZeroMQ's timeouts expire before it reads if this process was stopped: prefer `heartbeat`.
        silence = 0 if heartbeat.is_counted() else _SILENCE_MS
        socket.set(zmq.HEARTBEAT_TIMEOUT, silence)
        socket.set(zmq.HEARTBEAT_TTL, silence)
        socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.set(zmq.RECONNECT_IVL_MAX, _MAX_RECONNECT_MS)
        socket.set(zmq.SNDHWM, _HIGH_WATER)
        socket.set(zmq.RCVHWM, _HIGH_WATER)
        socket.set(zmq.MAXMSGSIZE, MAX_FRAME)
        if socket.type == zmq.ROUTER:
            socket.set(zmq.ROUTER_MANDATORY, 1)

    def bind(self, host: str, port: int) -> str:
        """Bind to an address; returns it with the actual port, "host:port"."""
        try:
            self._socket.bind(f"tcp://{gethostbyname(host)}:{port or '*'}")
        except (OSError, self._zmq.ZMQError) as error:
            text = f"Cannot listen at {host}:{port}: {error.strerror}"
            raise errors.UnknownError(None, None, text) from error
        bound = cast("bytes", self._socket.get(self._zmq.LAST_ENDPOINT))
        return f"{host}:{bound.decode().rstrip(chr(0)).rpartition(':')[2]}"

    def connect(self, address: str) -> None:
        """Connect in the background, with retries until it succeeds."""
        try:
            self._socket.connect(f"tcp://{address}")
        except self._zmq.ZMQError as error:
            self.close()
            text = f"{address!r} is not an address like host:port: {error.strerror}"
            raise errors.invalid(text) from error

    def watch(self) -> None:
        """Start to deliver messages and connection events."""
        self._loop.watch(self._files[0], self._drain)
        self._loop.watch(self._files[1], self.read_events)
        # The descriptors are edge-triggered: each queue must be drained once to arm its own.
        self._loop.call(self._drain)
        self._loop.call(self.read_events)
        if heartbeat.is_counted():
            self._loop.call_later(_HEARTBEAT_MS / 1000, self._check_heartbeats)

    def send(self, *frames: Any) -> bool:
        """Send a message without blocking, from any thread; returns False if the queue is full.

        Raises ConnectionError if there is no connection.
        """
        socket = self._socket
        with self._lock:
            try:
                for frame in frames[:-1]:
                    socket.send(frame, _NOBLOCK | _SNDMORE)
                socket.send(frames[-1], _NOBLOCK, len(frames[-1]) < _MIN_UNCOPIED)
            except self._zmq.Again:
                return False
            except self._zmq.ZMQError as error:
                raise ConnectionError(str(error)) from error
            has_unread = int(socket.get(_EVENTS)) & _POLLIN
        if has_unread:
            self._loop.call(self._drain)
        return True

    def close(self, linger_ms: int = 0) -> None:
        """Close, on the I/O thread; queued messages may be sent for `linger_ms`."""
        for file in self._files:
            self._loop.unwatch(file)
        with self._lock:
            if not self._socket.closed:
                self._socket.disable_monitor()
                self._monitor.close(0)
                self._socket.close(linger_ms)

    def _drain(self) -> None:
        is_more = True
        while is_more:
            batch, is_more = self._receive_batch()
            for frames in batch:
                guarded(self._received, frames)

    def _receive_batch(self) -> tuple[list[list[zmq.Frame]], bool]:
        """Receive some messages; returns them and whether there are more."""
        batch = list[list["zmq.Frame"]]()
        with self._lock:
            try:
                while len(batch) < _BATCH:
                    batch.append(self._receive())
                    if not int(self._socket.get(_EVENTS)) & _POLLIN:
                        return batch, False
            except self._zmq.ZMQError:  # no message after all, or the socket is closed
                return batch, False
        return batch, True

    def _receive(self) -> list[zmq.Frame]:
        socket = self._socket
        frames = [socket.recv(_NOBLOCK, False)]
        while frames[-1].more:
            frames.append(socket.recv(_NOBLOCK, False))
        return frames

    def read_events(self) -> None:
        """Deliver all pending connection events; on the I/O thread."""
        while not self._monitor.closed:
            try:
                event, _ = self._monitor.recv_multipart(_NOBLOCK)
            except self._zmq.Again:
                return
            self._on_event(self._tracked(ConnectionEvent(*_EVENT.unpack(event))))

    def _tracked(self, event: ConnectionEvent) -> ConnectionEvent:
        """Start and stop the monitors of connections. An outgoing one starts after the handshake,
        which needs the other side's I/O thread and may take long: silence until then is normal."""
        zmq = self._zmq
        if event.event == zmq.EVENT_ACCEPTED:
            self._monitors[event.file] = HeartbeatMonitor(event.file)
        elif event.event == zmq.EVENT_CONNECTED:
            self._connecting = event.file
        elif event.event == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._connecting >= 0:
            self._monitors[self._connecting] = HeartbeatMonitor(self._connecting)
        elif event.event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
            return event._replace(was_open=self._monitors.pop(event.file, None) is not None)
        return event

    def _check_heartbeats(self) -> None:
        """Shut down connections without heartbeats; a periodic timer."""
        self.read_events()
        if self._monitor.closed:
            return
        for connection in self._monitors.values():
            if connection.is_silent():
                connection.shut_down()
        self._loop.call_later(_HEARTBEAT_MS / 1000, self._check_heartbeats)
