"""Packing of values: inline in the message, through shared memory, or as chunks after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from mmap import mmap
from typing import Any, NamedTuple

from thalweg.cluster import wire
from thalweg.cluster.transport.shared_buffers import PeerLease, SharedAllocator
from thalweg.cluster.transport.shared_memory import Mappings, Pool
from thalweg.cluster.transport.streams import Recycler, Streams
from thalweg.cluster.wire import (
    Content,
    DecodedMessage,
    Message,
    ValueHeader,
    ValueLocation,
    WireError,
)

MAX_INLINE = 32 << 10  # bytes of one inline value
_MAX_INLINE_SUM = 128 << 10  # bytes of all inline values of a message
_MAX_COPIED = 1 << 20  # bytes that the I/O thread itself copies to shared memory


class Stream(NamedTuple):
    """A value to be sent in chunks after its message."""

    number: int
    content: memoryview


class PackedMessage(NamedTuple):
    """A message ready to be sent, and its streams."""

    frame: bytearray
    streams: Sequence[Stream]


class Packer:
    """Packs the messages to one peer; on any thread."""

    def __init__(self, allocator: SharedAllocator | None) -> None:
        self.pool: Pool | None = None  # if the peer can map memory of this process
        self._allocator = allocator
        self._leases = deque[PeerLease]()
        self._numbers = count(1)

    def pack(self, message: Message, contents: Sequence[Content], is_answer: bool) -> PackedMessage:
        """Choose the place of each value, copy or lease it there, and encode the message."""
        if not contents:
            return PackedMessage(wire.write(message, is_answer=is_answer), ())
        headers, inline, streams = list[ValueHeader](), list[Content](), list[Stream]()
        inline_left = _MAX_INLINE_SUM
        for content in contents:
            if content.nbytes <= min(MAX_INLINE, inline_left):
                inline_left -= content.nbytes
                inline.append(content)
                headers.append(ValueHeader(ValueLocation.INLINE, *content[:3]))
            elif (header := self._lease_or_copy(content)) is not None:
                headers.append(header)
            else:
                streams.append(Stream(next(self._numbers), content.contiguous()))
                headers.append(ValueHeader(ValueLocation.STREAM, *content[:3], streams[-1].number))
        return PackedMessage(wire.write(message, headers, inline, is_answer), streams)

    def is_slow(self, contents: Sequence[Content]) -> bool:
        """Whether packing or sending these values takes longer than waking another thread."""
        large = [content for content in contents if content.nbytes > MAX_INLINE]
        if self.pool is None or not large:
            return bool(large)
        find_shared = self._allocator.find if self._allocator else None
        copied = [
            content.nbytes
            for content in large
            if find_shared is None or find_shared(content.source) is None
        ]
        return sum(copied) > _MAX_COPIED

    def _lease_or_copy(self, content: Content) -> ValueHeader | None:
        """Lease a value, or copy it to shared memory; None if neither is possible."""
        if self.pool is not None and (lease := self._lease(content)) is not None:
            return ValueHeader(ValueLocation.LENT, *content[:3], lease.segment.number, lease.offset)
        slot = self.pool.allocate(content.nbytes) if self.pool and content.nbytes else None
        if slot is None:
            return None
        content.copy_to(slot.memory[: content.nbytes])
        return ValueHeader(ValueLocation.SHARED, *content[:3], slot.segment, slot.offset)

    def _lease(self, content: Content) -> PeerLease | None:
        lease = self._allocator.lease(content.source) if self._allocator else None
        if lease is not None:
            while self._leases and self._leases[0].is_over:
                self._leases.popleft()
            self._leases.append(lease)
        return lease

    def close(self) -> None:
        """End all leases of the lost peer, and free the pool."""
        while self._leases:
            lease = self._leases.popleft()
            lease.segment.revoke(lease.offset)
        if self.pool is not None:
            self.pool.close()


class Unpacker:
    """Unpacks the values that one peer sent; on the I/O thread."""

    def __init__(self, recycler: Recycler) -> None:
        self.mappings: Mappings | None = None  # if this process can map memory of the peer
        self._recycler = recycler
        self.streams = Streams(recycler)

    def unpack(self, decoded: DecodedMessage, done: Callable[[list[Any]], None]) -> None:
        """Call `done` with the values of a message, now or when their last chunk has arrived."""
        streamed = [value for value in decoded.values if _is_streamed(value)]
        if not streamed:
            done([self._value(value) for value in decoded.values])
            return
        memory = self.streams.expect(streamed, lambda: done(self._values(decoded, memory)))

    def close(self) -> None:
        """Drop the mappings of the peer's memory; live arrays keep theirs mapped."""
        self.mappings = None

    def _values(self, decoded: DecodedMessage, memory: Sequence[mmap]) -> list[Any]:
        streamed = iter(memory)
        return [
            self._value_of_stream(value, next(streamed))
            if _is_streamed(value)
            else self._value(value)
            for value in decoded.values
        ]

    def _value(self, header: Any) -> Any:
        if not isinstance(header, ValueHeader):
            return header  # an inline value, decoded already
        if self.mappings is None:
            raise WireError("a value in shared memory of another host")
        mapping = self.mappings.find(header.number)
        if header.location is ValueLocation.LENT:
            value = wire.value_of(header, mapping.memory(0, header.nbytes))
            mapping.clear_with(value, header.offset)
            return value
        value = wire.value_of(header, mapping.memory(header.offset, header.nbytes))
        if header.is_view:
            mapping.clear_with(value, mapping.lease_of(header.offset))
        else:
            mapping.clear(mapping.lease_of(header.offset))
        return value

    def _value_of_stream(self, header: ValueHeader, memory: mmap) -> Any:
        value = wire.value_of(header, memory)
        if header.is_view:
            self._recycler.keep_after(value, memory)
        else:
            self._recycler.keep(memory)
        return value


def _is_streamed(value: Any) -> bool:
    return isinstance(value, ValueHeader) and value.location is ValueLocation.STREAM
