"""Stages with state: scan, take_while, unique, and the choice among several datasets."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from thalweg.data.columns import as_array, frozen
from thalweg.data.flow import Element, Flow, Interrupted, Pipeline, Stage, UnaryFlow
from thalweg.data.functions import Function, FunctionStage, as_bool, captured_values
from thalweg.data.state_code import packed_elements, unpacked_elements
from thalweg.errors import invalid
from thalweg.graph.graphdef.attributes import FunctionName
from thalweg.runtime.kernels import Context


class ScanFlow(UnaryFlow):
    """The outputs of a function that also maps a state and each element to the next state."""

    def open(self, source: Pipeline, initial_state: list[Any], function: Function) -> None:
        self.source = source.start(self.puller)
        self._call = function.bound(self.puller.run, self.pipeline.node)
        self._state: Element = tuple(initial_state)

    def next(self) -> Element | None:
        element = self.source.next()
        if element is None:
            return None
        try:
            given = self._call(*self._state, *element)
        except Exception as error:
            raise self.failed(error) from error
        count = len(self._state)
        self._state = frozen(tuple(given[:count]))
        return tuple(given[count:])

    def own_state(self) -> dict[str, Any]:
        return {"state": packed_elements([self._state])}

    def set_own_state(self, state: Any) -> None:
        self._state = unpacked_elements(state["state"])[0]


class ScanDataset(Stage):
    """A dataset of the outputs of a function that also updates a state"""

    signature = (
        "input_dataset: variant, initial_state: [Tstate], other_arguments: [Targuments] "
        "-> handle: variant"
    )
    flow = ScanFlow
    f: FunctionName

    def kernel(self, context: Context, source: Any, state: list[Any], captured: list[Any]) -> Any:
        function = Function(self.f, captured_values(context, 1 + len(state), captured))
        return Pipeline(self, context.node, (source, state, function))


class TakeWhileFlow(UnaryFlow):
    """The elements before the first for which a predicate is false."""

    def open(self, source: Pipeline, function: Function) -> None:
        self.source = source.start(self.puller)
        self._call = function.bound(self.puller.run, self.pipeline.node)
        self._is_over = False

    def next(self) -> Element | None:
        element = None if self._is_over else self.source.next()
        if element is None or not self._holds(element):
            self._is_over = True
            return None
        return element

    def _holds(self, element: Element) -> bool:
        try:
            return as_bool(self._call.flat(*element)[0])
        except Exception as error:
            raise self.failed(error) from error

    def own_state(self) -> dict[str, Any]:
        return {"over": self._is_over}

    def set_own_state(self, state: Any) -> None:
        self._is_over = bool(state["over"])


class TakeWhileDataset(FunctionStage):
    """A dataset of the elements before the first for which a predicate is false"""

    signature = "input_dataset: variant, other_arguments: [Targuments] -> handle: variant"
    graphdef_names: ClassVar = {"f": "predicate"}
    flow = TakeWhileFlow


class UniqueFlow(UnaryFlow):
    """The distinct elements, in order of first occurrence."""

    def open(self, source: Pipeline) -> None:
        self.source = source.start(self.puller)
        self._seen: dict[Any, Element] = {}

    def next(self) -> Element | None:
        while True:
            element = self.source.next()
            if element is None:
                return None
            if self._added(element):
                return element

    def _added(self, element: Element) -> bool:
        key = as_array(element[0]).item()
        if key in self._seen:
            return False
        self._seen[key] = frozen(element)
        return True

    def own_state(self) -> dict[str, Any]:
        return {"seen": packed_elements(list(self._seen.values()))}

    def set_own_state(self, state: Any) -> None:
        self._seen = {}
        for element in unpacked_elements(state["seen"]):
            self._added(element)


class UniqueDataset(Stage):
    """A dataset of the distinct elements"""

    signature = "input_dataset: variant -> handle: variant"
    flow = UniqueFlow


class DirectedInterleaveFlow(Flow):
    """Elements of the datasets whose indices another dataset gives; exhausted ones are skipped."""

    def open(self, selector: Pipeline, sources: list[Pipeline]) -> None:
        self._selector = selector.start(self.puller)
        self._sources = [source.start(self.puller) for source in sources]
        self._left = len(sources)
        self._ended = [False] * len(sources)
        self._chosen: int | None = None  # the index that was read but not used yet

    def next(self) -> Element | None:
        while self._left:
            if self._chosen is None and not self._choose():
                return None
            number, self._chosen = self._chosen, None
            element = None if number is None else self._taken(number)
            if element is not None:
                return element
        return None

    def _choose(self) -> bool:
        element = self._selector.next()
        if element is None:
            return False
        number = int(np.asarray(element[0]))
        if not 0 <= number < len(self._sources):
            count = len(self._sources)
            raise self.failed(invalid(f"Selector index out of range: {number} >= {count}"))
        self._chosen = number
        return True

    def _taken(self, number: int) -> Element | None:
        if self._ended[number]:
            return None
        try:
            element = self._sources[number].next()
        except Interrupted:
            self._chosen = number
            raise
        if element is None:
            self._ended[number] = True
            self._left -= 1
        return element

    def save(self) -> Any:
        return {
            "selector": self._selector.save(),
            "sources": [source.save() for source in self._sources],
            "ended": list(self._ended),
            "chosen": self._chosen,
        }

    def load(self, state: Any) -> None:
        self._selector.load(state["selector"])
        for source, saved in zip(self._sources, state["sources"], strict=True):
            source.load(saved)
        self._ended = [bool(ended) for ended in state["ended"]]
        self._left = self._ended.count(False)
        self._chosen = None if state["chosen"] is None else int(state["chosen"])

    def close(self) -> None:
        for flow in (self._selector, *self._sources):
            flow.close()


class DirectedInterleaveDataset(Stage):
    """A dataset of the elements of several datasets, in an order given by another one"""

    signature = "selector_input_dataset: variant, data_input_datasets: N*variant -> handle: variant"
    flow = DirectedInterleaveFlow
