"""The stages cache, in memory or in a file, and ignore_errors."""

from __future__ import annotations

import os
from typing import Any

from thalweg import errors
from thalweg.data.columns import frozen
from thalweg.data.flow import Element, Flow, Interrupted, Pipeline, Stage, UnaryFlow
from thalweg.data.state_code import decode, encode, packed_elements, unpacked_elements
from thalweg.ops.text import text
from thalweg.platform.files.durable import file_errors
from thalweg.platform.files.records import RecordReader, framed


class Store:
    """The elements of a first pass, stored for the next ones."""

    is_complete = False

    def add(self, element: Element) -> None:
        """Append an element."""
        raise TypeError(f"{type(self).__name__} must define add")

    def at(self, place: int) -> Element | None:
        """The element at an index; None after the last. Indices are read in order."""
        raise TypeError(f"{type(self).__name__} must define at")

    def finish(self) -> None:
        """Mark the store as complete."""
        self.is_complete = True

    def save(self) -> Any:
        """The stored elements, for `load`."""
        raise TypeError(f"{type(self).__name__} must define save")

    def load(self, state: Any) -> None:
        """Restore the elements that `save` returned."""
        raise TypeError(f"{type(self).__name__} must define load")


class MemoryStore(Store):
    """Elements in memory."""

    def __init__(self) -> None:
        self._elements: list[Element] = []

    def add(self, element: Element) -> None:
        self._elements.append(frozen(element))

    def at(self, place: int) -> Element | None:
        return self._elements[place] if place < len(self._elements) else None

    def save(self) -> Any:
        return {"elements": packed_elements(self._elements), "complete": self.is_complete}

    def load(self, state: Any) -> None:
        self._elements = unpacked_elements(state["elements"])
        self.is_complete = bool(state["complete"])


class FileStore(Store):
    """Elements in a file of records, which is renamed to its path once it is complete."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._partial = f"{path}.partial"
        self._writer: Any = None
        self._reader: Any = None
        self._next = 0
        self.is_complete = os.path.exists(path)

    def add(self, element: Element) -> None:
        with file_errors(self._partial):
            if self._writer is None:
                self._writer = open(self._partial, "wb")  # noqa: SIM115 - until it is complete
            self._writer.write(framed(encode(packed_elements([element]))))

    def __del__(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def finish(self) -> None:
        with file_errors(self._partial):
            if self._writer is None:
                self._writer = open(self._partial, "wb")  # noqa: SIM115 - closed below
            self._writer.close()
            self._writer = None
            os.replace(self._partial, self._path)
        super().finish()

    def at(self, place: int) -> Element | None:
        if self._reader is None or place != self._next:
            self._reader = iter(RecordReader(self._path))
            for _ in range(place):
                next(self._reader, None)
        self._next = place + 1
        record = next(self._reader, None)
        return None if record is None else unpacked_elements(decode(record))[0]

    def save(self) -> Any:
        if self._writer is not None:
            self._writer.flush()
        return {"size": 0 if self._writer is None else self._writer.tell()}

    def load(self, state: Any) -> None:
        if self.is_complete or not state["size"]:
            return
        size = int(state["size"])
        if not os.path.exists(self._partial) or os.path.getsize(self._partial) < size:
            raise errors.DataLossError(
                None, None, f"{self._partial}: the first {size} bytes of a cache are missing"
            )
        self._writer = open(self._partial, "r+b")  # noqa: SIM115 - until it is complete
        self._writer.truncate(size)
        self._writer.seek(size)


class CacheFlow(Flow):
    """Stores the elements in the first pass and reads them from the store in later ones."""

    def open(self, source: Pipeline, filename: Any) -> None:
        path = text.text_item(filename).decode()
        memory = self.pipeline.memory
        if "store" not in memory or not memory["store"].is_complete:
            memory["store"] = FileStore(path) if path else MemoryStore()
        self._store: Store = memory["store"]
        self._position = 0
        self._is_over = False
        self._open_source(source, not self._store.is_complete)

    def _open_source(self, source: Pipeline, is_first: bool) -> None:
        self._source = source.start(self.puller) if is_first else None

    def next(self) -> Element | None:
        if self._is_over:
            return None
        element = (
            self._read_stored() if self._source is None else self._pull_and_store(self._source)
        )
        self._is_over = element is None
        self._position += not self._is_over
        return element

    def _pull_and_store(self, source: Flow) -> Element | None:
        element = source.next()
        try:
            if element is None:
                self._store.finish()
            else:
                self._store.add(element)
        except Exception as error:
            raise self.failed(error) from error
        return element

    def _read_stored(self) -> Element | None:
        try:
            return self._store.at(self._position)
        except Exception as error:
            raise self.failed(error) from error

    def save(self) -> Any:
        source = None if self._source is None else self._source.save()
        place = {"given": self._position, "over": self._is_over}
        return {**place, "source": source, "store": self._store.save()}

    def load(self, state: Any) -> None:
        self._position, self._is_over = int(state["given"]), bool(state["over"])
        self._store.load(state["store"])
        self._open_source(self.pipeline.inputs[0], state["source"] is not None)
        if self._source is not None:
            self._source.load(state["source"])

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


class CacheDataset(Stage):
    """A dataset that computes its elements once"""

    signature = "input_dataset: variant, filename: string -> handle: variant"
    flow = CacheFlow


class IgnoreErrorsFlow(UnaryFlow):
    """The elements that were computed without an error."""

    def open(self, source: Pipeline) -> None:
        self.source = source.start(self.puller)

    def next(self) -> Element | None:
        while True:
            try:
                return self.source.next()
            except Interrupted:
                raise
            except errors.OpError:
                continue


class IgnoreErrorsDataset(Stage):
    """A dataset that skips elements whose computation fails"""

    signature = "input_dataset: variant -> handle: variant"
    flow = IgnoreErrorsFlow
