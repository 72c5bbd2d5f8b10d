"""Stages that call a function for each element: map, filter, flat_map, interleave.

A parallel map calls its function on threads, and returns the results in the order of the elements.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np

from thalweg.data.channels import Failure, Item, attempt
from thalweg.data.columns import joined
from thalweg.data.flow import Element, Flow, Pipeline, Rows, UnaryFlow
from thalweg.data.functions import Function, FunctionStage, as_bool, is_random
from thalweg.data.state_code import packed_elements, unpacked_elements
from thalweg.data.transformations.prefetch import PrefetchedPipeline, packed_items, unpacked_items
from thalweg.data.transformations.vectorise import vectorised
from thalweg.errors import invalid
from thalweg.graph.node import Node
from thalweg.platform import spans

AUTOTUNE = -1


class MapFlow(UnaryFlow):
    """The results of a function; vectorized over many elements if the results are exactly equal."""

    def open(self, source: Pipeline, function: Function, *_: Any) -> None:
        self.source = source.start(self.puller)
        node, run = self.pipeline.node, self.puller.run
        self.call = function.bound(run, node)
        self._unmapped: list[Element] = []  # pulled from the source but not mapped, in reverse
        self._error: Exception | None = None
        if self.source.gives_rows and self.pipeline.has_rows:
            batched = vectorised(function, source.stage)
            self._batch_call = self._row_function() if batched is None else batched.bound(run, node)
            self.gives_rows = self._batch_call is not None

    def _row_function(self) -> Callable[..., Rows] | None:
        """The function called for each row, if that is supported."""
        return self.call.run_rows if self.call.supports_rows else None

    def next(self) -> Element | None:
        element = self._unmapped.pop() if self._unmapped else self.source.next()
        return None if element is None else self.result(element)

    def result(self, element: Element) -> Element:
        """The function's result for an element."""
        try:
            return self.call(*element)
        except Exception as error:
            raise self.failed(error) from error

    def rows(self, most: int) -> Rows | None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._unmapped:
            return self._one_by_one(most)
        columns = self._pull_rows(most)
        if columns is None:
            return None
        count = len(columns[0])
        try:
            results = self._batch_call(*columns)  # pyright: ignore[reportOptionalCall] - it gives rows
            if all(len(result) == count for result in results):
                return results
        except Exception:  # mapped one by one below, so that the error is attributed to its element
            pass
        self._unmapped = list(zip(*columns, strict=True))[::-1]
        return self._one_by_one(most)

    def _pull_rows(self, most: int) -> Rows | None:
        """Pull rows until there are `most`: programs are specialized for the number of rows."""
        parts: list[Rows] = []
        while most > 0 and self._error is None:
            try:
                part = self.source.rows(most)
            except Exception as error:
                if not parts:
                    raise
                self._error = error
                break
            if part is None:
                break
            parts.append(part)
            most -= len(part[0])
        return tuple([joined(column) for column in zip(*parts, strict=True)]) if parts else None

    def _one_by_one(self, most: int) -> Rows | None:
        done: list[Element] = []
        while self._unmapped and len(done) < most:
            try:
                done.append(self.result(self._unmapped.pop()))
            except Exception as error:
                if not done:
                    raise
                self._error = error
                break
        return tuple(
            [np.stack([np.asarray(v) for v in column]) for column in zip(*done, strict=True)]
        )

    def own_state(self) -> dict[str, Any]:
        failure = [] if self._error is None else [Failure(self._error)]
        return {"left": packed_elements(self._unmapped), "error": packed_items(failure)}

    def set_own_state(self, state: Any) -> None:
        self._unmapped = unpacked_elements(state["left"])
        errors = unpacked_items(state["error"])
        self._error = errors[0].error if errors and isinstance(errors[0], Failure) else None


class MapDataset(FunctionStage):
    """A dataset of the results of a function for each element"""

    signature = "input_dataset: variant, other_arguments: [Targuments] -> handle: variant"
    flow = MapFlow


class _Job:
    """A call of the function on a worker thread."""

    __slots__ = ("done", "element", "item")

    def __init__(self, element: Element) -> None:
        self.element = element
        self.item: Item = None
        self.done: SimpleQueue[Any] = SimpleQueue()


class _Workers:
    """Worker threads, which stop when this object is dropped."""

    def __init__(self, node: Node, call: Callable[..., Element], count: int) -> None:
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._finalize = weakref.finalize(self, _stop_workers, self.jobs, count)
        self._finalize.atexit = False
        for _ in range(count):
            args, name = (self.jobs, call, node), f"thalweg-data {node.name}"
            threading.Thread(target=_work, args=args, name=name, daemon=True).start()

    def close(self) -> None:
        """Stop the threads."""
        self._finalize()


def _stop_workers(jobs: SimpleQueue[_Job | None], count: int) -> None:
    for _ in range(count):
        jobs.put(None)


def _work(jobs: SimpleQueue[_Job | None], call: Callable[..., Element], node: Node) -> None:
    with np.errstate(all="ignore"):
        while True:
            job = jobs.get()
            if job is None:
                return
            with spans.BlockSpan("calls the function", node):
                job.item = _attempted(call, job.element)
            job.done.put(True)
            del job


def _attempted(call: Callable[..., Element], element: Element) -> Item:
    return attempt(lambda: call(*element))


class ParallelMapFlow(MapFlow):
    """The results of a function that is called for several elements in parallel, in order."""

    def open(self, source: Pipeline, function: Function, *others: Any) -> None:
        super().open(source, function)
        wanted = int(others[0])
        if wanted < 1 and wanted != AUTOTUNE:
            raise self.failed(invalid("num_parallel_calls must be greater than zero."))
        self._most = os.cpu_count() or 1 if wanted == AUTOTUNE else wanted
        self._is_inline = self._most == 1 or is_random(function.body)
        self._pending: deque[_Job] = deque()
        self._workers: _Workers | None = None
        self._is_first = True
        self._is_over = False

    def _row_function(self) -> None:
        """None: the threads call the function for single elements."""

    def next(self) -> Element | None:
        if not self._pending and self._runs_inline():
            return super().next()
        self._fill()
        if not self._pending:
            return None
        item = self._finished(self._pending[0])
        self._pending.popleft()
        if isinstance(item, Failure):
            raise self.failed(item.error) from item.error
        return item

    def _runs_inline(self) -> bool:
        """Whether the next call runs on this thread: the first one, and calls that hold the GIL."""
        is_first, self._is_first = self._is_first, False
        return self._is_inline or is_first or self.call.holds_gil

    def _fill(self) -> None:
        """Submit jobs up to the limit."""
        if self._workers is None:
            self._workers = _Workers(self.pipeline.node, self.call, self._most)
        workers = self._workers
        while len(self._pending) < self._most and not self._is_over:
            item = attempt(self.source.next)
            self._is_over = item is None
            if item is not None:
                job = _Job(item if not isinstance(item, Failure) else ())
                self._pending.append(job)
                self._submit(workers, job, item)

    def _submit(self, workers: _Workers, job: _Job, item: Item) -> None:
        if isinstance(item, Failure):
            job.item = item
            job.done.put(True)
        else:
            workers.jobs.put(job)

    def _finished(self, job: _Job) -> Item:
        if job.item is None:
            self.puller.get(job.done, self.pipeline.node)
        return job.item

    def own_state(self) -> dict[str, Any]:
        results = [self._finished(job) for job in self._pending]
        return {**super().own_state(), "results": packed_items(results), "over": self._is_over}

    def set_own_state(self, state: Any) -> None:
        super().set_own_state(state)
        self._is_over = bool(state["over"])
        self._pending = deque(_done(item) for item in unpacked_items(state["results"]))

    def close(self) -> None:
        super().close()
        if self._workers is not None:
            self._workers.close()
            self._workers = None


def _done(item: Item) -> _Job:
    job = _Job(())
    job.item = item
    return job


class ParallelMapDataset(FunctionStage):
    """As MapDataset, with parallel calls"""

    signature = (
        "input_dataset: variant, other_arguments: [Targuments], num_parallel_calls: int32 "
        "-> handle: variant"
    )
    flow = ParallelMapFlow


class FilterFlow(UnaryFlow):
    """The elements for which a predicate holds."""

    def open(self, source: Pipeline, function: Function) -> None:
        self.source = source.start(self.puller)
        self._call = function.bound(self.puller.run, self.pipeline.node)

    def next(self) -> Element | None:
        while True:
            element = self.source.next()
            if element is None or self._holds(element):
                return element

    def _holds(self, element: Element) -> bool:
        try:
            return as_bool(self._call.flat(*element)[0])
        except Exception as error:
            raise self.failed(error) from error


class FilterDataset(FunctionStage):
    """A dataset of the elements for which a predicate holds"""

    signature = "input_dataset: variant, other_arguments: [Targuments] -> handle: variant"
    graphdef_names: ClassVar = {"f": "predicate"}
    flow = FilterFlow


class _OpenDataset:
    """An open dataset, and the element that the function was called for."""

    def __init__(self, element: Element, flow: Flow | PrefetchedPipeline) -> None:
        self.element = element
        self.flow = flow


class InterleaveFlow(UnaryFlow):
    """The interleaved elements of datasets that a function returns for each element."""

    def open(
        self,
        source: Pipeline,
        function: Function,
        cycle_length: Any = 1,
        block_length: Any = 1,
        num_parallel_calls: Any = 0,
    ) -> None:
        self.source = source.start(self.puller)
        self._call = function.bound(self.puller.run, self.pipeline.node)
        self._cycle = int(cycle_length)
        if self._cycle == AUTOTUNE:
            self._cycle = os.cpu_count() or 1
        self._block = int(block_length)
        if self._cycle < 1 or self._block < 1:
            raise self.failed(invalid("cycle_length and block_length must be greater than zero."))
        self._is_parallel = int(num_parallel_calls) not in (0, 1)
        self._slots: list[_OpenDataset | None] = [None] * self._cycle
        self._place = self._in_block = 0
        self._is_over = False

    def next(self) -> Element | None:
        while not self._is_over or any(self._slots):
            current = self._slots[self._place]
            if current is not None:
                element = self._read(current)
                if element is not None:
                    return element
            elif not self._is_over:
                self._open_dataset()
            else:
                self._advance()
        return None

    def _read(self, current: _OpenDataset) -> Element | None:
        element = current.flow.next()
        if element is None:
            current.flow.close()
            self._slots[self._place] = None
            self._advance()
            return None
        self._in_block += 1
        if self._in_block == self._block:
            self._advance()
        return element

    def _advance(self) -> None:
        self._in_block = 0
        self._place = (self._place + 1) % self._cycle

    def _open_dataset(self) -> None:
        """Open the next dataset in the empty slot."""
        element = self.source.next()
        if element is None:
            self._is_over = True
        else:
            self._slots[self._place] = self._opened(element)

    def _opened(self, element: Element) -> _OpenDataset:
        try:
            (pipeline,) = self._call.flat(*element)
            return _OpenDataset(element, self._started(pipeline.fresh()))
        except Exception as error:
            raise self.failed(error) from error

    def _started(self, pipeline: Pipeline) -> Flow | PrefetchedPipeline:
        if self._is_parallel:
            return PrefetchedPipeline(self.pipeline.node, pipeline, self.puller, 2 * self._block)
        return pipeline.start(self.puller)

    def own_state(self) -> dict[str, Any]:
        opened = [
            None if slot is None else [packed_elements([slot.element]), slot.flow.save()]
            for slot in self._slots
        ]
        place = [self._place, self._in_block, self._is_over]
        return {"open": opened, "place": place}

    def set_own_state(self, state: Any) -> None:
        self._place, self._in_block, self._is_over = state["place"]
        self._slots = [None if saved is None else self._restored(*saved) for saved in state["open"]]

    def _restored(self, element: Any, state: Any) -> _OpenDataset:
        result = self._opened(unpacked_elements(element)[0])
        result.flow.load(state)
        return result

    def close(self) -> None:
        super().close()
        for slot in self._slots:
            if slot is not None:
                slot.flow.close()


class FlatMapDataset(FunctionStage):
    """A dataset of the concatenated datasets that a function returns"""

    signature = "input_dataset: variant, other_arguments: [Targuments] -> handle: variant"
    flow = InterleaveFlow


class InterleaveDataset(FunctionStage):
    """A dataset of the interleaved datasets that a function returns"""

    signature = (
        "input_dataset: variant, other_arguments: [Targuments], cycle_length: int64, "
        "block_length: int64 -> handle: variant"
    )
    flow = InterleaveFlow


class ParallelInterleaveDatasetV2(FunctionStage):
    """As InterleaveDataset; each dataset is prefetched by a thread"""

    signature = (
        "input_dataset: variant, other_arguments: [Targuments], cycle_length: int64, "
        "block_length: int64, num_parallel_calls: int64 -> handle: variant"
    )
    flow = InterleaveFlow
