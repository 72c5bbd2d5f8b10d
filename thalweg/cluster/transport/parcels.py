"""Packing of values: inline in the message, through shared memory, or as chunks after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from mmap import mmap
from typing import Any, NamedTuple

from thalweg.cluster import wire
from thalweg.cluster.transport.lending import Lender, Lent
from thalweg.cluster.transport.shared_memory import Mappings, Pool
from thalweg.cluster.transport.streams import Recycler, Streams
from thalweg.cluster.wire import Content, Letter, Message, Place, ValueHeader, WireError

MAX_INLINE = 32 << 10  # bytes of one inline value
_MAX_INLINE_SUM = 128 << 10  # bytes of all inline values of a message
_MAX_COPIED = 1 << 20  # bytes that the I/O thread itself copies to shared memory


class Stream(NamedTuple):
    """A value to be sent in chunks after its message."""

    number: int
    content: memoryview


class Parcel(NamedTuple):
    """A message ready to be sent, and its streams."""

    frame: bytearray
    streams: Sequence[Stream]


class Packer:
    """Packs the messages to one peer; on any thread."""

    def __init__(self, lender: Lender | None) -> None:
        self.pool: Pool | None = None  # if the peer can map memory of this process
        self._lender = lender
        self._lent = deque[Lent]()
        self._numbers = count(1)

    def pack(self, message: Message, contents: Sequence[Content], is_answer: bool) -> Parcel:
        """Choose the place of each value, copy or lend it there, and encode the message."""
        if not contents:
            return Parcel(wire.write(message, is_answer=is_answer), ())
        headers, inline, streams = list[ValueHeader](), list[Content](), list[Stream]()
        inline_left = _MAX_INLINE_SUM
        for content in contents:
            if content.nbytes <= min(MAX_INLINE, inline_left):
                inline_left -= content.nbytes
                inline.append(content)
                headers.append(ValueHeader(Place.INLINE, *content[:3]))
            elif (header := self._lend_or_copy(content)) is not None:
                headers.append(header)
            else:
                streams.append(Stream(next(self._numbers), content.contiguous()))
                headers.append(ValueHeader(Place.STREAM, *content[:3], streams[-1].number))
        return Parcel(wire.write(message, headers, inline, is_answer), streams)

    def is_slow(self, contents: Sequence[Content]) -> bool:
        """Whether packing or sending these values takes longer than waking another thread."""
        large = [content for content in contents if content.nbytes > MAX_INLINE]
        if self.pool is None or not large:
            return bool(large)
        find_lent = self._lender.find if self._lender else None
        copied = [
            content.nbytes
            for content in large
            if find_lent is None or find_lent(content.source) is None
        ]
        return sum(copied) > _MAX_COPIED

    def _lend_or_copy(self, content: Content) -> ValueHeader | None:
        """Lend a value, or copy it to shared memory; None if neither is possible."""
        if self.pool is not None and (lent := self._lend(content)) is not None:
            return ValueHeader(Place.LENT, *content[:3], lent.segment.number, lent.place)
        slot = self.pool.take(content.nbytes) if self.pool and content.nbytes else None
        if slot is None:
            return None
        content.copy_to(slot.memory[: content.nbytes])
        return ValueHeader(Place.SHARED, *content[:3], slot.segment, slot.offset)

    def _lend(self, content: Content) -> Lent | None:
        lent = self._lender.lend(content.source) if self._lender else None
        if lent is not None:
            while self._lent and self._lent[0].is_over:
                self._lent.popleft()
            self._lent.append(lent)
        return lent

    def close(self) -> None:
        """End all leases of the lost peer, and free the pool."""
        while self._lent:
            lent = self._lent.popleft()
            lent.segment.forfeit(lent.place)
        if self.pool is not None:
            self.pool.close()


class Unpacker:
    """Unpacks the values that one peer sent; on the I/O thread."""

    def __init__(self, recycler: Recycler) -> None:
        self.mappings: Mappings | None = None  # if this process can map memory of the peer
        self._recycler = recycler
        self.streams = Streams(recycler)

    def unpack(self, letter: Letter, done: Callable[[list[Any]], None]) -> None:
        """Call `done` with the values of a message, now or when their last chunk has arrived."""
        streamed = [value for value in letter.values if _is_streamed(value)]
        if not streamed:
            done([self._value(value) for value in letter.values])
            return
        memory = self.streams.expect(streamed, lambda: done(self._values(letter, memory)))

    def close(self) -> None:
        """Drop the mappings of the peer's memory; live arrays keep theirs mapped."""
        self.mappings = None

    def _values(self, letter: Letter, memory: Sequence[mmap]) -> list[Any]:
        streamed = iter(memory)
        return [
            self._value_of_stream(value, next(streamed))
            if _is_streamed(value)
            else self._value(value)
            for value in letter.values
        ]

    def _value(self, header: Any) -> Any:
        if not isinstance(header, ValueHeader):
            return header  # an inline value, decoded already
        if self.mappings is None:
            raise WireError("a value in shared memory of another host")
        mapping = self.mappings.find(header.number)
        if header.place is Place.LENT:
            value = wire.value_of(header, mapping.memory(0, header.nbytes))
            mapping.clear_with(value, header.offset)
            return value
        value = wire.value_of(header, mapping.memory(header.offset, header.nbytes))
        if header.is_view:
            mapping.release_with(value, header.offset)
        else:
            mapping.release(header.offset)
        return value

    def _value_of_stream(self, header: ValueHeader, memory: mmap) -> Any:
        value = wire.value_of(header, memory)
        if header.is_view:
            self._recycler.keep_after(value, memory)
        else:
            self._recycler.keep(memory)
        return value


def _is_streamed(value: Any) -> bool:
    return isinstance(value, ValueHeader) and value.place is Place.STREAM
