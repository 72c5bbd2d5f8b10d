"""Windows: elements that are small datasets of consecutive elements."""

from __future__ import annotations

from typing import Any

from thalweg.data.columns import frozen
from thalweg.data.flow import Element, InMemoryPipeline, Pipeline, Stage, UnaryFlow
from thalweg.data.state_code import packed_elements, unpacked_elements
from thalweg.errors import invalid


class WindowFlow(UnaryFlow):
    """Windows of `size` elements, whose starts are `shift` elements apart."""

    def open(self, source: Pipeline, size: Any, shift: Any, stride: Any, drops: Any) -> None:
        self._size, self._shift, self._stride = int(size), int(shift), int(stride)
        if min(self._size, self._shift, self._stride) < 1:
            raise self.failed(invalid("size, shift and stride must be greater than zero."))
        self._drops = bool(drops)
        self.source = source.start(self.puller)
        self._buffer: list[Element] = []
        self._to_skip = 0
        self._is_over = False

    def next(self) -> Element | None:
        span = (self._size - 1) * self._stride + 1
        self._fill(span)
        if not self._buffer or (self._drops and len(self._buffer) < span):
            return None
        chosen = self._buffer[: span : self._stride]
        self._to_skip = max(0, self._shift - len(self._buffer))
        self._buffer = self._buffer[self._shift :]
        return tuple(
            [InMemoryPipeline([(v,) for v in column]) for column in zip(*chosen, strict=True)]
        )

    def _fill(self, span: int) -> None:
        while not self._is_over and (self._to_skip or len(self._buffer) < span):
            element = self.source.next()
            if element is None:
                self._is_over = True
            elif self._to_skip:
                self._to_skip -= 1
            else:
                self._buffer.append(frozen(element))

    def own_state(self) -> dict[str, Any]:
        rest = {"skip": self._to_skip, "over": self._is_over}
        return {"buffer": packed_elements(self._buffer), **rest}

    def set_own_state(self, state: Any) -> None:
        self._buffer = unpacked_elements(state["buffer"])
        self._to_skip, self._is_over = int(state["skip"]), bool(state["over"])


class WindowDataset(Stage):
    """A dataset of windows: datasets of consecutive elements, one per leaf"""

    signature = (
        "input_dataset: variant, size: int64, shift: int64, stride: int64, drop_remainder: bool "
        "-> handle: variant"
    )
    flow = WindowFlow
