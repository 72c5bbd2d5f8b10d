"""The process at the other end of a connection: messages, requests, and loss of the peer.

A peer is ready once the handshake is complete; messages sent before that are queued. A peer is lost
once and for good: its connection broke, its heartbeats timed out, it refused this process, or it
closed. From then on every send raises, and pending requests fail.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from threading import get_ident
from typing import Any, NamedTuple, Protocol

from thalweg import errors
from thalweg.cluster import wire
from thalweg.cluster.transport import handshake
from thalweg.cluster.transport.bulk import BulkSocket
from thalweg.cluster.transport.channel import Channel
from thalweg.cluster.transport.local import LocalSocket
from thalweg.cluster.transport.loop import Loop, guarded, log_failure
from thalweg.cluster.transport.packing import MAX_INLINE, PackedMessage, Packer, Unpacker
from thalweg.cluster.transport.send_thread import SendThread
from thalweg.cluster.transport.shared_buffers import SharedAllocator
from thalweg.cluster.transport.shared_memory import Mappings, Pool
from thalweg.cluster.transport.streams import WINDOW, Recycler, Window, chunks
from thalweg.cluster.wire import (
    MAX_PACKET,
    Content,
    DecodedMessage,
    FixedFields,
    Kind,
    Message,
    WireError,
    new_tuple,
)
from thalweg.platform import tf_logging

#: (answer, None) or (None, error); on the I/O thread, or on the requesting one if the send fails.
Done = Callable[[Message | None, Exception | None], None]

_RETRY = 0.001  # seconds between attempts while the send queue is full
_CHECK_EVERY = 1.0  # seconds between checks of a waiting thread that the peer is not lost
_MAX_QUEUED = 1000  # messages queued for a peer that is not ready
_CREDIT = WINDOW // 4  # bytes received after which credit is returned to the sender
_FIRST_OF_HANDLERS = int(Kind.STATUS)  # lower kinds are the transport's own


class Handler(Protocol):
    """Receives the events of peers; on the I/O thread, so it must not block."""

    def received(self, peer: Peer, message: Message) -> None:
        """A message arrived. If it is a request, `peer.reply(message, answer)` answers it."""
        ...

    def lost(self, peer: Peer, error: errors.OpError) -> None:
        """A peer is dead, paused, unreachable, restarted, or refuses this process; called once."""
        ...


class EndpointInterface(Protocol):
    """What a peer uses of its endpoint."""

    loop: Loop
    handler: Handler
    recycler: Recycler
    allocator: SharedAllocator | None

    def forget(self, peer: Peer) -> None:
        """Remove a lost peer."""
        ...

    def refuse(self, reason: str) -> None:
        """Count a dropped message."""
        ...


class _Outgoing(NamedTuple):
    """A message to be packed and sent."""

    message: Message
    contents: Sequence[Content]
    is_answer: bool


class Peer(ABC):
    """One end of a session with another process."""

    def __init__(self, endpoint: EndpointInterface, address: str) -> None:
        self.address = address
        self.incarnation = 0  # of its endpoint, random; 0 while unknown
        self._endpoint, self._outboxes = endpoint, endpoint.loop.outboxes
        self._received_by = endpoint.handler.received
        self._control = Channel(self._write)
        self._bulk: Channel | None = None  # so that chunks do not delay messages
        self._bulk_socket: BulkSocket | None = None
        self._local: Channel | None = None  # Unix socket, for messages of at most MAX_PACKET bytes
        self._local_socket: LocalSocket | None = None
        self._error: errors.OpError | None = None
        self.is_alive = True  # not lost: connected or connecting
        self._is_settled = threading.Event()  # set when ready or lost
        self._is_lost = threading.Event()
        self._queued: deque[_Outgoing] | None = deque()  # queued until ready; None from then on
        self._postponed: deque[Callable[[], bool]] = deque()  # for the send thread
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._requests: dict[int, Done] = {}
        self._packer = Packer(endpoint.allocator)
        self._unpacker = Unpacker(endpoint.recycler)
        self._window, self._received_bytes = Window(), 0
        self._send_thread = SendThread(f"thalweg-cluster-send {address}")

    def send(self, message: Message) -> None:
        """Send a message, from any thread. Messages of one thread arrive in order, except that
        later ones may overtake those with large values or fields. The values must not be written
        to afterwards. Blocks while the send queue is full, except on the I/O thread.

        Raises UnavailableError, or the error the peer was lost with, once it is lost.
        """
        self._send(message, False, 0)

    def push(self, kind: Kind, step: int, fields: FixedFields, value: Any) -> None:
        """Like `send` for a message with one value; faster if its header is cached."""
        if self._queued is None and not self._send_thread.is_busy:
            frame = wire.write_again(kind, step, fields, value)
            if frame is not None and self._attempt_small(frame):  # the fast path
                return
        self._send(Message(kind, step, fields, (value,)), False, 0)

    def request(self, message: Message, done: Done) -> None:
        """Send a request. `done` is called exactly once, with the answer or an error."""
        number = next(self._numbers)
        self._requests[number] = done
        try:
            self._send(message, False, number)
        except Exception as error:
            self._answer(number, None, error)

    def reply(self, request: Message, answer: Message) -> None:
        """Answer a request from this peer."""
        self._send(answer, True, request.request)

    # Sending

    @abstractmethod
    def _write(self, *frames: Any) -> bool:
        """Pass frames to the control socket; returns False if its send queue is full."""

    @abstractmethod
    def _disconnect(self, linger_ms: int) -> None:
        """Close the control connection; queued messages may be sent for `linger_ms`."""

    def _send(self, message: Message, is_answer: bool, request: int) -> None:
        if self._queued is None and not self._send_thread.is_busy:
            frame = wire.write_inline(message, is_answer, request, MAX_INLINE)
            if frame is not None and self._attempt_small(frame):  # the fast path
                return
        if self._error is not None:
            raise _copy_error(self._error)
        contents = [wire.content_of(value) for value in message.values]
        outgoing = _Outgoing(message._replace(request=request), contents, is_answer)
        if self._enqueue(outgoing):
            return
        if self._endpoint.loop.is_current:
            self._dispatch(outgoing)
        else:
            self._transmit(outgoing)

    def _enqueue(self, outgoing: _Outgoing) -> bool:
        """Queue a message if the peer is not ready; returns whether it did. If the queue is full,
        wait until the peer is ready or lost, except on the I/O thread."""
        with self._lock:
            if self._queued is None or self._error is not None:
                return False
            if len(self._queued) < _MAX_QUEUED or self._endpoint.loop.is_current:
                self._queued.append(outgoing)
                return True
        self._is_settled.wait()
        return False

    def _transmit(self, outgoing: _Outgoing) -> None:
        """Pack and send; may block."""
        self._send_packed(self._packer.pack(*outgoing))

    def _send_packed(self, packed: PackedMessage) -> None:
        if not packed.streams:
            self._put(self._channel(packed.frame), packed.frame)
            return
        self._endpoint.loop.flush()
        channel = self._channel_of_chunks()
        self._put(channel, packed.frame)
        for stream in packed.streams:
            for chunk in chunks(stream.content):
                if channel is self._control:
                    self._window.consume(chunk.nbytes)
                self._put(channel, wire.write(Message(Kind.CHUNK, stream.number)), chunk)

    def _dispatch(self, outgoing: _Outgoing) -> None:
        """Send from the I/O thread, which must not block: slow sends go to the send thread."""
        if self._send_thread.is_busy or self._packer.is_slow(outgoing.contents):
            self._delegate(lambda: self._transmit(outgoing))
            return
        packed = self._packer.pack(*outgoing)
        if packed.streams:  # the pool of shared memory is exhausted
            self._delegate(lambda: self._send_packed(packed))
        else:
            self._post(packed.frame)

    def _post(self, frame: bytearray) -> None:
        """Send a frame from the I/O thread; by the send thread if the send queue is full."""
        channel = self._channel(frame)
        if not self._attempt(channel, frame):
            self._delegate(lambda: self._put(channel, frame))

    def _channel(self, frame: bytearray) -> Channel:
        """The channel for a message."""
        if self._local is not None and len(frame) <= MAX_PACKET:
            return self._local
        return self._control

    def _channel_of_chunks(self) -> Channel:
        """The channel for a message with streams, and for their chunks."""
        return self._bulk or self._control

    def _delegate(self, task: Callable[[], None]) -> None:
        def run() -> None:
            with suppress(errors.OpError):  # the peer is lost, which `mark_lost` reports
                task()

        self._endpoint.loop.flush()
        self._send_thread.submit(run)

    def _put(self, channel: Channel, frame: bytearray, *more: Any) -> None:
        while not self._attempt(channel, frame, *more):
            self._is_lost.wait(_RETRY)

    def _attempt_small(self, frame: bytearray) -> bool:
        """Send a message without streams, or add it to this thread's outbox."""
        local = self._local
        if local is None or len(frame) > MAX_PACKET:
            return self._attempt_now(self._control.put, frame)
        outbox = self._outboxes.get(get_ident())
        if self._error is not None:
            raise _copy_error(self._error)
        if outbox is None:
            try:
                return local.put(frame)
            except ConnectionError as error:
                raise self._on_broken_connection(error) from error
        if self in outbox.pending:
            outbox.add(self, frame)
        else:
            outbox.pending[self] = [frame]
        return True

    def _attempt(self, channel: Channel, frame: bytearray, *more: Any) -> bool:
        if channel is self._local:
            return self._attempt_small(frame)
        return self._attempt_now(channel.put, frame, *more)

    def send_batch(self, frames: Sequence[bytearray]) -> None:
        """Send the messages of an outbox in one packet."""
        channel: Any = self._local  # not None: outboxes hold messages of local channels only
        is_one = len(frames) == 1
        if not self._postponed and self._error is None:  # the fast path
            try:
                if channel.put(frames[0]) if is_one else channel.put_batch(frames):
                    return
            except ConnectionError:
                tf_logging.debug("%s: a packet did not leave", self.address)  # retried below
        put = partial(channel.put, frames[0]) if is_one else partial(channel.put_batch, frames)
        with suppress(errors.OpError):  # the peer is lost, which `mark_lost` reports
            if not self._endpoint.loop.is_current:
                self._retry(put)
            elif self._postponed or not self._attempt_now(put):
                self._postponed.append(put)
                self._delegate(self._catch_up)

    def _catch_up(self) -> None:
        """Send the packets that found the queue full, in order; on the send thread."""
        while self._postponed:
            self._retry(self._postponed[0])
            self._postponed.popleft()

    def _retry(self, put: Callable[[], bool]) -> None:
        while not self._attempt_now(put):
            self._is_lost.wait(_RETRY)

    def _attempt_now(self, put: Callable[..., bool], *frames: Any) -> bool:
        if self._error is not None:
            raise _copy_error(self._error)
        try:
            return put(*frames)
        except ConnectionError as error:
            raise self._on_broken_connection(error) from error

    def _on_broken_connection(self, error: ConnectionError) -> errors.OpError:
        """Lose the peer because of a broken connection; returns the error to raise."""
        lost = unavailable(self.address, str(error))
        self._endpoint.loop.call(lambda: self.mark_lost(lost))
        return _copy_error(lost)

    # Receiving; on the I/O thread

    def handle(self, channel: Channel, decoded: DecodedMessage, data: Sequence[Any]) -> None:
        """Handle a message that arrived over one of this peer's connections."""
        kind, session, sequence, step, request, is_answer, fields, values, is_complete = decoded
        if session != channel.session or sequence <= channel.last_sequence:
            channel.check(decoded)
        channel.last_sequence = sequence
        if kind >= _FIRST_OF_HANDLERS:
            if not is_complete:
                self._unpack(decoded)
                return
            message = new_tuple(Message, (kind, step, fields, values, request))
            if not is_answer:
                self._received_by(self, message)
                return
            done = self._requests.pop(request, None)
            if done is not None:
                done(message, None)
        elif kind is Kind.CHUNK and data:
            self._handle_chunk(decoded.step, data[0])
        elif kind is Kind.CREDIT:
            self._window.add(handshake.field(decoded.fields, "bytes", int))
        else:
            self._handle_rare(kind, decoded)

    def _handle_rare(self, kind: Kind, decoded: DecodedMessage) -> None:
        if kind is Kind.FORGET and self._unpacker.mappings:
            self._unpacker.mappings.forget(handshake.numbers(decoded.fields, "segments"))
        elif kind is Kind.BYE:
            self.mark_lost(unavailable(self.address, "it was closed"))
        elif kind is Kind.REFUSED:
            self.mark_lost(handshake.refusal(self.address, decoded))
        else:
            raise WireError(f"a {kind.name} that is out of place")

    def _unpack(self, decoded: DecodedMessage) -> None:
        try:
            self._unpacker.unpack(decoded, lambda values: self._deliver(decoded, values))
        except errors.ResourceExhaustedError as error:
            self.mark_lost(error)

    def _deliver(self, decoded: DecodedMessage, values: Sequence[Any]) -> None:
        kind, _, _, step, request, is_answer, fields, _, _ = decoded
        message = Message(kind, step, fields, values, request)
        if is_answer:
            self._answer(request, message, None)
        else:
            self._received_by(self, message)

    def _answer(self, number: int, answer: Message | None, error: Exception | None) -> None:
        done = self._requests.pop(number, None)
        if done is not None:
            done(answer, error)

    def _handle_chunk(self, number: int, data: Any) -> None:
        chunk, streams = memoryview(data), self._unpacker.streams
        streams.buffer_for(number, chunk.nbytes)[:] = chunk
        if streams.is_received(number):
            streams.complete(number)
        self._received_bytes += chunk.nbytes
        if self._received_bytes >= _CREDIT:
            self._post(wire.write(Message(Kind.CREDIT, 0, {"bytes": self._received_bytes})))
            self._received_bytes = 0

    # The bulk connection; on its reader thread

    def _read_bulk(self, bulk: BulkSocket, channel: Channel) -> None:
        """Read the bulk connection until it ends; then the peer is lost."""
        try:
            while self._error is None:
                self._take_bulk(bulk, channel)
            reason = "it was closed"
        except WireError as error:  # framing can no longer be trusted
            reason = str(error)
            self._endpoint.loop.call(lambda: self._endpoint.refuse(reason))
        except (OSError, EOFError):
            reason = "the connection broke"
        bulk.free()
        self._endpoint.loop.call(lambda: self.mark_lost(unavailable(self.address, reason)))

    def _take_bulk(self, bulk: BulkSocket, channel: Channel) -> None:
        frame, nbytes = bulk.receive()
        decoded, loop = wire.read(frame), self._endpoint.loop
        if decoded.kind is Kind.CHUNK:
            channel.check(decoded)
            streams, number = self._unpacker.streams, decoded.step
            bulk.receive_into(streams.buffer_for(number, nbytes))
            if streams.is_received(number):  # the I/O thread has nothing to do before
                loop.call(lambda: streams.complete(number))
            return
        if nbytes:
            raise WireError(f"a {decoded.kind.name} with data")
        is_taken = threading.Event()  # the chunks that follow need its streams
        loop.call(lambda: self._handle_bulk(channel, decoded, is_taken))
        while not is_taken.wait(_CHECK_EVERY) and self._error is None:
            pass

    def _handle_bulk(
        self, channel: Channel, decoded: DecodedMessage, is_taken: threading.Event
    ) -> None:
        try:
            self.handle(channel, decoded, ())
        except WireError as error:
            self._endpoint.refuse(str(error))
        finally:
            is_taken.set()

    # Ready, lost, and forked

    def _share_memory(self, can_map_ours: bool, process: int | None) -> None:
        """Set up shared memory for each direction in which it can be mapped."""
        if can_map_ours:
            self._packer.pool = Pool()
        if process is not None:
            self._unpacker.mappings = Mappings(process)

    def _use_local(self, local: LocalSocket, session: int) -> Channel:
        """Use a local connection from now on."""
        channel = self._local = Channel(local.send, session, lock=local.lock)
        self._local_socket = local
        error = unavailable(self.address, "the connection broke")
        local.watch(partial(self._received_local, channel), lambda: self.mark_lost(error))
        return channel

    def _received_local(self, channel: Channel, packet: bytes) -> None:
        try:
            for frame in wire.frames_of(packet):
                try:
                    self.handle(channel, wire.read(frame), ())
                except WireError as error:  # drops this message only
                    self._endpoint.refuse(str(error))
                except Exception:
                    log_failure()
        except WireError as error:
            self._endpoint.refuse(str(error))

    def _become_ready(self) -> None:
        """Send the queued messages in order, before any others."""
        while self._queued is not None:
            while outgoing := self._next_queued():
                self._dispatch(outgoing)
            self._endpoint.loop.flush()
            with self._lock:
                if not self._queued:  # else more were queued meanwhile
                    self._queued = None
        self._is_settled.set()

    def _next_queued(self) -> _Outgoing | None:
        with self._lock:
            return self._queued.popleft() if self._queued else None

    def trim(self, unmappable: Sequence[int] = ()) -> None:
        """Free idle segments of the pool; the peer may unmap them and those in `unmappable`."""
        if self._packer.pool and (segments := [*self._packer.pool.trim(), *unmappable]):
            self._post(wire.write(Message(Kind.FORGET, 0, {"segments": segments})))

    def mark_lost(self, error: errors.OpError) -> None:
        """Mark the peer as lost: fails pending requests and notifies the handler; idempotent."""
        with self._lock:
            if self._error is not None:
                return
            self._error, self.is_alive = error, False
        self._end(error, 0)
        guarded(self._endpoint.handler.lost, self, error)

    def part(self, linger_ms: int) -> None:
        """Send BYE and disconnect, as this endpoint closes."""
        closed = unavailable(self.address, "this endpoint is closed")
        if not self._control.session:
            self._end(closed, 0)  # the handshake never completed, so do not linger
            return
        frame = wire.write(Message(Kind.BYE))
        with suppress(errors.OpError):
            self._attempt_now(self._channel(frame).put, frame)
        self._end(closed, linger_ms)

    def inherit(self) -> None:
        """Make every send raise in the child of a fork, with a new lock."""
        self._lock = threading.Lock()
        self._error = unavailable(self.address, "its connection is that of the parent process")
        self.is_alive = False

    def _end(self, error: errors.OpError, linger_ms: int) -> None:
        """Release all resources, and wake every waiting thread."""
        self._error, self.is_alive = self._error or error, False
        self._is_lost.set()
        self._is_settled.set()
        self._window.close()
        self._send_thread.close()
        self._packer.close()
        self._unpacker.close()
        self._disconnect(linger_ms)
        if self._local_socket is not None:
            self._local_socket.close()
        if self._bulk_socket is not None:
            self._bulk_socket.close()
        self._endpoint.forget(self)
        for number in list(self._requests):
            guarded(self._answer, number, None, _copy_error(error))


def unavailable(address: str, reason: str) -> errors.UnavailableError:
    """The error with which a peer is lost."""
    return errors.UnavailableError(None, None, f"The task at {address} is lost: {reason}")


def _copy_error(error: errors.OpError) -> errors.OpError:
    """A copy of an error, with a traceback of its own, to raise in another thread."""
    return type(error)(None, None, error.message)
