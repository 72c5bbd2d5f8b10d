"""ZeroMQ sockets that any thread may send on while the I/O thread receives.

A lock guards each socket, so a message leaves on the thread that sends it, without a hop. The I/O
thread waits for the socket's file descriptor outside of the lock. ZeroMQ signals news on it once: a
send may swallow the signal, and then the sender wakes the I/O thread itself.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from socket import gethostbyname
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from thalweg import errors
from thalweg.cluster.transport import pulse
from thalweg.cluster.transport.loop import Loop, guarded
from thalweg.cluster.transport.pulse import Pulse
from thalweg.cluster.wire import MAX_FRAME

if TYPE_CHECKING:
    import zmq

_HEARTBEAT_MS = 500
_SILENCE_MS = 3000  # after which ZeroMQ cuts a peer off where only it can tell
_HANDSHAKE_MS = 5000
_RECONNECT_MS, _MAX_RECONNECT_MS = 50, 500
_HIGH_WATER = 4096  # messages that wait in a direction; more make the sender wait
_BATCH = 64  # messages that are read before the lock is free for a moment
_MIN_UNCOPIED = 64 << 10  # bytes of a frame that is sent from where it lies, as chunks are
_EVENT = struct.Struct("=HI")
_NOBLOCK, _SNDMORE, _POLLIN, _EVENTS = 1, 2, 1, 15  # ZeroMQ's numbers: its enums are slow


def zeromq():  # pyright infers the module: what it returns is typed as if imported above
    """The library; an ImportError that says how to get it where it is missing."""
    try:
        import zmq
    except ImportError as error:
        raise ImportError(
            "Clusters need ZeroMQ: install it with `pip install 'thalweg[cluster]'`"
        ) from error
    return zmq


class ConnectionEvent(NamedTuple):
    """What happened to a connection of a socket: which of ZeroMQ's events, and to which file."""

    event: int
    file: int
    was_open: bool = False  # of a connection that ends: both sides had agreed on it


class Socket:
    """A ZeroMQ socket, the lock around it, and who is told of its messages and connections."""

    def __init__(
        self,
        loop: Loop,
        socket: zmq.Socket[bytes],
        received: Callable[[list[zmq.Frame]], None],
        happened: Callable[[ConnectionEvent], None],
    ) -> None:
        self._zmq = zeromq()
        self._loop, self._socket, self._received, self._happened = loop, socket, received, happened
        self._lock = threading.Lock()
        self._pulses: dict[int, Pulse] = {}  # of connections, by their files
        self._connecting = -1  # the file of a connection that this side has made
        self._configure()
        self._monitor = socket.get_monitor_socket(self._zmq.EVENT_ALL)
        self._files = int(socket.get(self._zmq.FD)), int(self._monitor.get(self._zmq.FD))

    def _configure(self) -> None:
        zmq, socket = self._zmq, self._socket
        socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        # Its own timers run out first and then look, once this process was stopped for a while.
        silence = 0 if pulse.is_counted() else _SILENCE_MS
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
        """Take an address; returns it, "host:port"."""
        try:
            self._socket.bind(f"tcp://{gethostbyname(host)}:{port or '*'}")
        except (OSError, self._zmq.ZMQError) as error:
            why = f"Cannot listen at {host}:{port}: {error.strerror}"
            raise errors.UnknownError(None, None, why) from error
        bound = cast("bytes", self._socket.get(self._zmq.LAST_ENDPOINT))
        return f"{host}:{bound.decode().rstrip(chr(0)).rpartition(':')[2]}"

    def connect(self, address: str) -> None:
        """Connect in the background, again and again until it succeeds."""
        try:
            self._socket.connect(f"tcp://{address}")
        except self._zmq.ZMQError as error:
            self.close()
            why = f"{address!r} is not an address like host:port: {error.strerror}"
            raise errors.InvalidArgumentError(None, None, why) from error

    def watch(self) -> None:
        """Begin to tell of messages and connections."""
        self._loop.watch(self._files[0], self._drain)
        self._loop.watch(self._files[1], self.read_events)
        # ZeroMQ signals nothing before the first look has found a queue empty.
        self._loop.call(self._drain)
        self._loop.call(self.read_events)
        if pulse.is_counted():
            self._loop.later(_HEARTBEAT_MS / 1000, self._check_pulses)

    def send(self, *frames: Any) -> bool:
        """Send a message from any thread, without waiting: False where the queue is full.

        A ConnectionError where nobody is at the other end.
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
            is_swallowed = int(socket.get(_EVENTS)) & _POLLIN
        if is_swallowed:
            self._loop.call(self._drain)
        return True

    def close(self, linger_ms: int = 0) -> None:
        """Close, on the I/O thread; what was sent may still leave for a time."""
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
            batch, is_more = self._batch()
            for frames in batch:
                guarded(self._received, frames)

    def _batch(self) -> tuple[list[list[zmq.Frame]], bool]:
        """Some messages, and whether there are more."""
        batch = list[list["zmq.Frame"]]()
        with self._lock:
            try:
                while len(batch) < _BATCH:
                    batch.append(self._next())
                    if not int(self._socket.get(_EVENTS)) & _POLLIN:
                        return batch, False
            except self._zmq.ZMQError:  # there is nothing after all, or the socket is closed
                return batch, False
        return batch, True

    def _next(self) -> list[zmq.Frame]:
        socket = self._socket
        frames = [socket.recv(_NOBLOCK, False)]
        while frames[-1].more:
            frames.append(socket.recv(_NOBLOCK, False))
        return frames

    def read_events(self) -> None:
        """Tell of what happened to connections until now; on the I/O thread."""
        while not self._monitor.closed:
            try:
                event, _ = self._monitor.recv_multipart(_NOBLOCK)
            except self._zmq.Again:
                return
            self._happened(self._tracked(ConnectionEvent(*_EVENT.unpack(event))))

    def _tracked(self, event: ConnectionEvent) -> ConnectionEvent:
        """Begin and end to check connections. The other side's I/O thread has a part in opening
        one, which may be long in coming: until then silence means nothing."""
        zmq = self._zmq
        if event.event == zmq.EVENT_ACCEPTED:
            self._pulses[event.file] = Pulse(event.file)
        elif event.event == zmq.EVENT_CONNECTED:
            self._connecting = event.file
        elif event.event == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._connecting >= 0:
            self._pulses[self._connecting] = Pulse(self._connecting)
        elif event.event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
            return event._replace(was_open=self._pulses.pop(event.file, None) is not None)
        return event

    def _check_pulses(self) -> None:
        """Cut connections over which no heartbeat comes, now and then."""
        self.read_events()
        if self._monitor.closed:
            return
        for each in self._pulses.values():
            if each.is_silent():
                each.cut()
        self._loop.later(_HEARTBEAT_MS / 1000, self._check_pulses)
