"""Stages that select and order elements: repeat, take, skip, shard, zip, concatenate."""

from __future__ import annotations

from typing import Any

from thalweg.data.flow import Element, Flow, Interrupted, Pipeline, Rows, Stage, UnaryFlow
from thalweg.data.state_code import packed_elements, unpacked_elements
from thalweg.errors import invalid

_AT_ONCE = 1024  # rows that are read together to be skipped


class RepeatFlow(UnaryFlow):
    """The elements, repeated, perhaps indefinitely."""

    def open(self, source: Pipeline, count: Any) -> None:
        self._pipeline = source
        self.source = source.start(self.puller)
        self._left = int(count)  # passes, including the current one; negative: unlimited
        self._is_new = True  # this pass has produced nothing yet
        self.gives_rows = self.source.gives_rows

    def next(self) -> Element | None:
        while self._left:
            element = self.source.next()
            if element is not None:
                self._is_new = False
                return element
            self._restart()
        return None

    def rows(self, most: int) -> Rows | None:
        while self._left:
            rows = self.source.rows(most)
            if rows is not None:
                self._is_new = False
                return rows
            self._restart()
        return None

    def _restart(self) -> None:
        self._left = 0 if self._is_new and self._left < 0 else self._left - 1
        if self._left:
            self._is_new = True
            self.source.close()
            self.source = self._pipeline.start(self.puller)

    def own_state(self) -> dict[str, Any]:
        return {"left": self._left, "new": self._is_new}

    def set_own_state(self, state: Any) -> None:
        self._left, self._is_new = int(state["left"]), bool(state["new"])


class RepeatDataset(Stage):
    """A dataset of repeated elements"""

    signature = "input_dataset: variant, count: int64 -> handle: variant"
    flow = RepeatFlow


class TakeFlow(UnaryFlow):
    """The first elements."""

    def open(self, source: Pipeline, count: Any) -> None:
        self.source = source.start(self.puller)
        self._left = int(count)  # negative: all
        self.gives_rows = self.source.gives_rows

    def next(self) -> Element | None:
        if not self._left:
            return None
        element = self.source.next()
        self._left -= element is not None
        return element

    def rows(self, most: int) -> Rows | None:
        if not self._left:
            return None
        rows = self.source.rows(most if self._left < 0 else min(most, self._left))
        self._left -= 0 if rows is None else len(rows[0])
        return rows

    def own_state(self) -> dict[str, Any]:
        return {"left": self._left}

    def set_own_state(self, state: Any) -> None:
        self._left = int(state["left"])


class TakeDataset(Stage):
    """A dataset of the first elements."""

    signature = "input_dataset: variant, count: int64 -> handle: variant"
    flow = TakeFlow


class SkipFlow(UnaryFlow):
    """All but the first elements."""

    def open(self, source: Pipeline, count: Any) -> None:
        self.source = source.start(self.puller)
        self._left = int(count)  # negative: all are skipped
        self.gives_rows = self.source.gives_rows

    def next(self) -> Element | None:
        while self._left:
            if self._left < 0 or self.source.next() is None:
                return None
            self._left -= 1
        return self.source.next()

    def rows(self, most: int) -> Rows | None:
        while self._left:
            rows = None if self._left < 0 else self.source.rows(min(self._left, _AT_ONCE))
            if rows is None:
                return None
            self._left -= len(rows[0])
        return self.source.rows(most)

    def own_state(self) -> dict[str, Any]:
        return {"left": self._left}

    def set_own_state(self, state: Any) -> None:
        self._left = int(state["left"])


class SkipDataset(Stage):
    """A dataset without the first elements."""

    signature = "input_dataset: variant, count: int64 -> handle: variant"
    flow = SkipFlow


class ShardFlow(UnaryFlow):
    """Every n-th element."""

    def open(self, source: Pipeline, num_shards: Any, index: Any) -> None:
        count, place = int(num_shards), int(index)
        if count < 1:
            raise self.failed(invalid("num_shards must be greater than zero."))
        if not 0 <= place < count:
            raise self.failed(invalid(f"index must be between 0 and {count - 1}, not {place}."))
        self.source = source.start(self.puller)
        self._count, self._before = count, place
        self._skipped = 0

    def next(self) -> Element | None:
        while self._skipped < self._before:
            if self.source.next() is None:
                return None
            self._skipped += 1
        element = self.source.next()
        self._before, self._skipped = self._count - 1, 0
        return element

    def own_state(self) -> dict[str, Any]:
        return {"before": self._before, "skipped": self._skipped}

    def set_own_state(self, state: Any) -> None:
        self._before, self._skipped = int(state["before"]), int(state["skipped"])


class ShardDataset(Stage):
    """A dataset of every n-th element."""

    signature = "input_dataset: variant, num_shards: int64, index: int64 -> handle: variant"
    flow = ShardFlow


class ZipFlow(Flow):
    """Tuples of one element of each of several datasets."""

    def open(self, sources: list[Pipeline]) -> None:
        self._sources = [source.start(self.puller) for source in sources]
        self._taken: list[Element] = []  # the beginning of the next element
        self._is_over = False

    def next(self) -> Element | None:
        if self._is_over:
            return None
        taken, self._taken = self._taken, []
        try:
            for source in self._sources[len(taken) :]:
                element = source.next()
                if element is None:
                    self._is_over = True
                    return None
                taken.append(element)
        except Interrupted:
            self._taken = taken
            raise
        return tuple([value for element in taken for value in element])

    def save(self) -> Any:
        return {
            "sources": [source.save() for source in self._sources],
            "taken": [packed_elements([element]) for element in self._taken],
            "over": self._is_over,
        }

    def load(self, state: Any) -> None:
        for source, saved in zip(self._sources, state["sources"], strict=True):
            source.load(saved)
        self._taken = [unpacked_elements(saved)[0] for saved in state["taken"]]
        self._is_over = bool(state["over"])

    def close(self) -> None:
        for source in self._sources:
            source.close()


class ZipDataset(Stage):
    """A dataset of tuples of elements of several datasets"""

    signature = "input_datasets: N*variant -> handle: variant"
    flow = ZipFlow


class ConcatenateFlow(Flow):
    """The elements of one dataset, then those of another."""

    def open(self, first: Pipeline, second: Pipeline) -> None:
        self._flows = [first.start(self.puller), second.start(self.puller)]
        self._place = 0
        self.gives_rows = self.pipeline.has_rows and all(f.gives_rows for f in self._flows)

    def next(self) -> Element | None:
        element = self._flows[self._place].next()
        if element is None and not self._place:
            self._place = 1
            return self.next()
        return element

    def rows(self, most: int) -> Rows | None:
        rows = self._flows[self._place].rows(most)
        if rows is None and not self._place:
            self._place = 1
            return self.rows(most)
        return rows

    def save(self) -> Any:
        return {"place": self._place, "flows": [flow.save() for flow in self._flows]}

    def load(self, state: Any) -> None:
        self._place = int(state["place"])
        for flow, saved in zip(self._flows, state["flows"], strict=True):
            flow.load(saved)

    def close(self) -> None:
        for flow in self._flows:
            flow.close()


class ConcatenateDataset(Stage):
    """A dataset of the elements of one dataset, then those of another"""

    signature = "input_dataset: variant, another_dataset: variant -> handle: variant"
    flow = ConcatenateFlow
