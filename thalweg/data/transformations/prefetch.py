"""Prefetching by a background thread: `prefetch`, parallel interleave, and copies to the memory of
a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.data.channels import Channel, Failure, Item
from thalweg.data.flow import Element, Flow, Pipeline, Puller, Stage, UnaryFlow
from thalweg.data.state_code import packed_elements, unpacked_elements
from thalweg.errors import invalid
from thalweg.graph.node import Node
from thalweg.ops.core.buffer import HostBuffer
from thalweg.platform.compat import as_str

_AUTOMATIC = 4  # elements prefetched by default
_MIN_COPIED = 1 << 12  # bytes; smaller values are copied with a step's other arguments


class PrefetchedPipeline:
    """A flow whose elements are prefetched by a background thread."""

    def __init__(self, node: Node, pipeline: Pipeline, puller: Puller, capacity: int) -> None:
        self._node = node
        self._puller = puller
        self._inner = Puller(puller.run)
        self._flow = pipeline.start(self._inner)
        self._capacity = capacity
        self._channel: Channel | None = None
        self._items: list[Item] = []
        self._is_over = False

    def next(self) -> Element | None:
        """The next element; blocks until it is computed."""
        if self._is_over:
            return None
        if self._channel is None:
            self._channel = self._started()
        item = self._channel.take(self._puller)
        self._is_over = item is None
        if isinstance(item, Failure):
            raise item.error
        return item

    def _started(self) -> Channel:
        inner, flow, items = self._inner, self._flow, self._items
        self._items = []
        return Channel(self._node, lambda: flow.next(), flow.close, self._capacity, items, inner)

    def save(self) -> Any:
        """The queued items, and the position of the source after them."""
        items = self._items
        if self._channel is not None:
            self._puller.run.holds.enter_context(self._channel.producing)
            items = self._channel.pending_items()
        source = self._flow.save()
        return {"made": packed_items(items), "over": self._is_over, "source": source}

    def load(self, state: Any) -> None:
        """Continue at a saved position."""
        self._items = unpacked_items(state["made"])
        self._is_over = bool(state["over"])
        self._flow.load(state["source"])

    def close(self) -> None:
        """End the thread, which closes its source."""
        if self._channel is None:
            self._flow.close()
        else:
            self._channel.close()


def packed_items(items: Sequence[Item]) -> Any:
    """Encode items (elements, errors, the end) for a saved state."""
    elements = [item for item in items if item is not None and not isinstance(item, Failure)]
    marks = [_mark(item) for item in items]
    return {"elements": packed_elements(elements), "marks": marks}


def _mark(item: Item) -> Any:
    if not isinstance(item, Failure):
        return "end" if item is None else "element"
    error = item.error
    code = error.error_code if isinstance(error, errors.OpError) else errors.UNKNOWN
    return [code, error.message if isinstance(error, errors.OpError) else str(error)]


def unpacked_items(packed: Any) -> list[Item]:
    """The inverse of `packed_items`."""
    elements = iter(unpacked_elements(packed["elements"]))
    return [_item(mark, elements) for mark in packed["marks"]]


def _item(mark: Any, elements: Any) -> Item:
    if isinstance(mark, str):
        return next(elements) if mark == "element" else None
    code, message = mark
    return Failure(errors.exception_type_from_error_code(code)(None, None, message))


class PrefetchFlow(Flow):
    """The same elements, prefetched."""

    def open(self, source: Pipeline, buffer_size: Any) -> None:
        size = int(buffer_size)
        if size < -1:
            raise self.failed(invalid("buffer_size must be >= -1."))
        capacity = _AUTOMATIC if size < 0 else size
        node, puller = self.pipeline.node, self.puller
        self._source = (
            PrefetchedPipeline(node, source, puller, capacity) if capacity else source.start(puller)
        )

    def next(self) -> Element | None:
        return self._source.next()

    def save(self) -> Any:
        return self._source.save()

    def load(self, state: Any) -> None:
        self._source.load(state)

    def close(self) -> None:
        self._source.close()


class PrefetchDataset(Stage):
    """A dataset of the same elements, prefetched."""

    signature = "input_dataset: variant, buffer_size: int64 -> handle: variant"
    flow = PrefetchFlow


class CopyToDeviceFlow(UnaryFlow):
    """The same elements, with large arrays as buffers of a device."""

    def open(self, source: Pipeline, device: Any) -> None:
        self.source = source.start(self.puller)
        self._allocate = self.puller.run.resources.allocator(as_str(device.item()))

    def next(self) -> Element | None:
        element = self.source.next()
        return None if element is None else tuple([self._copied(value) for value in element])

    def _copied(self, value: Any) -> Any:
        if type(value) is not np.ndarray or value.nbytes < _MIN_COPIED:
            return value
        buffer = self._allocate(np.shape(value), value.dtype)
        if isinstance(buffer, HostBuffer):
            return value
        buffer.fill(value)
        return buffer


class CopyToDeviceDataset(Stage):
    """A dataset of the same elements in the memory of a device"""

    signature = "input_dataset: variant, device: string -> handle: variant"
    flow = CopyToDeviceFlow
