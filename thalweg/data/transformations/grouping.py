"""The stage group_by_window: groups elements by key; a function maps full groups to datasets."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from thalweg.data.columns import frozen
from thalweg.data.flow import Element, Flow, InMemoryPipeline, Pipeline, Stage, UnaryFlow
from thalweg.data.functions import Function, captured_values
from thalweg.data.state_code import packed_elements, unpacked_elements
from thalweg.errors import invalid
from thalweg.graph.graphdef.attributes import FunctionName
from thalweg.runtime.kernels import Context


class GroupByWindowFlow(UnaryFlow):
    """The elements of the datasets that the function returns for groups."""

    def open(self, source: Pipeline, *functions: Function) -> None:
        self.source = source.start(self.puller)
        node, run = self.pipeline.node, self.puller.run
        self._key, self._reduced, self._size = (f.bound(run, node) for f in functions)
        self._groups: dict[int, list[Element]] = {}
        self._current: tuple[int, list[Element], Flow] | None = None
        self._is_over = False

    def next(self) -> Element | None:
        while True:
            element = None if self._current is None else self._current[2].next()
            if element is not None:
                return element
            if not self._open_next():
                return None

    def _open_next(self) -> bool:
        """Open the dataset of the next full group or, at the end, of the next remaining one."""
        self._current = None
        while not self._is_over:
            element = self.source.next()
            if element is None:
                self._is_over = True
            elif self._added(element):
                return True
        for key in self._groups:
            self._current = self._opened(key, self._groups.pop(key))
            return True
        return False

    def _added(self, element: Element) -> bool:
        try:
            key = int(self._key.flat(*element)[0])
            wanted = int(self._size.flat(np.int64(key))[0])
        except Exception as error:
            raise self.failed(error) from error
        if wanted < 1:
            raise self.failed(invalid("Window size must be greater than zero."))
        group = self._groups.setdefault(key, [])
        group.append(frozen(element))
        if len(group) < wanted:
            return False
        self._current = self._opened(key, self._groups.pop(key))
        return True

    def _opened(self, key: int, group: list[Element]) -> tuple[int, list[Element], Flow]:
        try:
            (made,) = self._reduced.flat(np.int64(key), InMemoryPipeline(group))
            return key, group, made.fresh().start(self.puller)
        except Exception as error:
            raise self.failed(error) from error

    def own_state(self) -> dict[str, Any]:
        groups = [[key, packed_elements(group)] for key, group in self._groups.items()]
        current = None
        if self._current is not None:
            key, group, flow = self._current
            current = [key, packed_elements(group), flow.save()]
        return {"groups": groups, "current": current, "over": self._is_over}

    def set_own_state(self, state: Any) -> None:
        self._groups = {int(key): unpacked_elements(group) for key, group in state["groups"]}
        self._is_over = bool(state["over"])
        self._current = None
        if state["current"] is not None:
            key, group, flow = state["current"]
            self._current = self._opened(int(key), unpacked_elements(group))
            self._current[2].load(flow)

    def close(self) -> None:
        super().close()
        if self._current is not None:
            self._current[2].close()


class GroupByWindowDataset(Stage):
    """A dataset of the elements of datasets that a function returns for groups of elements"""

    signature = (
        "input_dataset: variant, key_func_other_arguments: [Tkey], "
        "reduce_func_other_arguments: [Treduce], window_size_func_other_arguments: [Tsize] "
        "-> handle: variant"
    )
    graphdef_names: ClassVar = {
        "Tkey": "Tkey_func_other_arguments",
        "Treduce": "Treduce_func_other_arguments",
        "Tsize": "Twindow_size_func_other_arguments",
    }
    flow = GroupByWindowFlow
    key_func: FunctionName
    reduce_func: FunctionName
    window_size_func: FunctionName

    def kernel(self, context: Context, source: Any, *captured: list[Any]) -> Any:
        start = 1
        functions: list[Function] = []
        names = (self.key_func, self.reduce_func, self.window_size_func)
        for name, values in zip(names, captured, strict=True):
            functions.append(Function(name, captured_values(context, start, values)))
            start += len(values)
        return Pipeline(self, context.node, (source, *functions))
