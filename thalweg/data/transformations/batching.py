"""Stages that batch and unbatch elements: batch, padded_batch, unbatch."""

from __future__ import annotations

from typing import Any

from thalweg.data.columns import joined, padded, row, row_count, stacked
from thalweg.data.flow import Element, Interrupted, Pipeline, Rows, Stage, UnaryFlow
from thalweg.data.state_code import packed_elements, unpacked_elements
from thalweg.errors import invalid
from thalweg.graph.composite import SparseTensorValue


class BatchFlow(UnaryFlow):
    """Batches of elements."""

    def open(self, source: Pipeline, batch_size: Any, *rest: Any) -> None:
        self._size = int(batch_size)
        if self._size < 1:
            raise self.failed(invalid("Batch size must be greater than zero."))
        self.source = source.start(self.puller)
        self._drops_remainder = bool(rest[-1])
        self._taken: list[Element] = []  # the begun batch of an interrupted pull
        self._reads_rows = self.source.gives_rows

    def next(self) -> Element | None:
        return self._next_rows() if self._reads_rows else self._next_elements()

    def _next_rows(self) -> Element | None:
        parts: list[Rows] = []
        missing = self._size
        while missing:
            part = self.source.rows(missing)
            if part is None:
                break
            parts.append(part)
            missing -= len(part[0])
        if not parts or (missing and self._drops_remainder):
            return None
        return tuple([joined(column) for column in zip(*parts, strict=True)])

    def _next_elements(self) -> Element | None:
        taken = self._collected()
        if not taken or (len(taken) < self._size and self._drops_remainder):
            return None
        try:
            return self.join(taken)
        except Exception as error:
            raise self.failed(error) from error

    def _collected(self) -> list[Element]:
        taken, pull = self._taken, self.source.next
        self._taken = []
        try:
            while len(taken) < self._size:
                element = pull()
                if element is None:
                    break
                taken.append(element)
        except Interrupted:
            self._taken = taken
            raise
        return taken

    def join(self, elements: list[Element]) -> Element:
        """Stack elements to a batch."""
        return tuple([stacked(column) for column in zip(*elements, strict=True)])

    def own_state(self) -> dict[str, Any]:
        return {"taken": packed_elements(self._taken)}

    def set_own_state(self, state: Any) -> None:
        self._taken = unpacked_elements(state["taken"])


class BatchDatasetV2(Stage):
    """A dataset of batches of elements."""

    signature = "input_dataset: variant, batch_size: int64, drop_remainder: bool -> handle: variant"
    flow = BatchFlow


class PaddedBatchFlow(BatchFlow):
    """Batches of elements that are padded to one shape."""

    def open(self, source: Pipeline, batch_size: Any, *rest: Any) -> None:
        super().open(source, batch_size, *rest)
        shapes, fillings, _ = rest
        self._shapes = [[int(size) for size in shape] for shape in shapes]
        self._fillings = list(fillings)
        self._reads_rows = False

    def join(self, elements: list[Element]) -> Element:
        columns = zip(*elements, strict=True)
        rows = zip(columns, self._shapes, self._fillings, strict=True)
        return tuple([_padded(*row) for row in rows])


def _padded(values: Any, shape: list[int], filling: Any) -> Any:
    if isinstance(values[0], SparseTensorValue):
        raise invalid("Batching of padded sparse tensors is not supported")
    return padded(values, shape, filling)


class PaddedBatchDatasetV2(Stage):
    """A dataset of batches of elements that are padded to one shape"""

    signature = (
        "input_dataset: variant, batch_size: int64, padded_shapes: N*int64, "
        "padding_values: [Toutput_types], drop_remainder: bool -> handle: variant"
    )
    flow = PaddedBatchFlow


class UnbatchFlow(UnaryFlow):
    """The rows of elements."""

    def open(self, source: Pipeline) -> None:
        self.source = source.start(self.puller)
        self._batch: Element = ()
        self._place = self._count = 0

    def next(self) -> Element | None:
        while self._place >= self._count:
            batch = self.source.next()
            if batch is None:
                return None
            self._open_batch(batch)
        self._place += 1
        return tuple([row(value, self._place - 1) for value in self._batch])

    def _open_batch(self, batch: Element) -> None:
        counts = {row_count(value) for value in batch}
        if len(counts) != 1:
            raise self.failed(
                invalid(
                    "Input tensors must have the same number of rows, not "
                    f"{', '.join(map(str, sorted(counts)))}"
                )
            )
        self._batch, self._place, self._count = batch, 0, counts.pop()

    def own_state(self) -> dict[str, Any]:
        batch = [] if self._place >= self._count else [self._batch]
        return {"batch": packed_elements(batch), "place": self._place}

    def set_own_state(self, state: Any) -> None:
        for batch in unpacked_elements(state["batch"]):
            self._open_batch(batch)
            self._place = int(state["place"])


class UnbatchDataset(Stage):
    """A dataset of the rows of elements."""

    signature = "input_dataset: variant -> handle: variant"
    flow = UnbatchFlow
