"""Execution of plans: in order on the caller's thread, or as token graphs if nodes may block.

The partitions of a step run concurrently as token graphs and share one rendezvous. The first error
ends the step and aborts the rendezvous, which wakes its waiters. For partitions in other processes
only the rendezvous is different.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.ops.core.buffer import Buffer, HostBuffer
from thalweg.ops.core.context import VariableCell
from thalweg.partition.rendezvous import Key, Rendezvous
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.dataflow.prologue import Prologue
from thalweg.runtime.dataflow.run import Dataflow, Graph, Run, Submit, Threads, run_all
from thalweg.runtime.kernels import Context, raise_at, run
from thalweg.runtime.plan import PartitionPlan, Plan
from thalweg.runtime.resources import Resources

#: The content of a fetched slot -> the value that the caller gets
Fetch = Callable[[Any], Any]
#: (fetched values by fetch index, error)
Done = Callable[[dict[int, Any], BaseException | None], None]


def fresh(item: Any) -> Any:
    """A fetched value that the caller owns and may write to; state and feeds are copied."""
    value = item.snapshot() if isinstance(item, VariableCell) else item
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        if not array.flags.writeable or array.base is not None:
            array = array.copy()
        return array if array.ndim else array[()]
    return value.snapshot()[()] if isinstance(value, Buffer) else value


def on_device(item: Any) -> Any:
    """A fetched value where it was computed: a variable as its cell, a device buffer as it is. Any
    other value is `fresh`."""
    stays = isinstance(item, Buffer | VariableCell) and not isinstance(item, HostBuffer)
    return item if stays else fresh(item)


def execute(
    plan: Plan,
    feeds: Sequence[Any],
    resources: Resources,
    cancellation: Cancellation,
    fetch: Fetch = fresh,
) -> list[Any]:
    """Run a plan and return the fetched values, which share no memory with state."""
    with np.errstate(all="ignore"):
        if plan.partitions:
            return _run_partitions(plan.partitions, feeds, resources, cancellation, fetch)
        device_resources = resources.on(plan.device)
        if plan.may_block and not plan.blocks_last:
            context = Context(plan.instructions[0].node, device_resources, cancellation)
            return _fetched(plan, plan.dataflow(context, *feeds), fetch)
        slots = plan.slots(feeds)
        run(plan.instructions, slots, device_resources, cancellation)
        if not plan.may_block:  # otherwise dequeued elements would be lost
            cancellation.check()  # native code does not check for timeouts
        return _fetched(plan, [slots[slot] for slot in plan.fetches], fetch)


def _run_partitions(
    partitions: Sequence[PartitionPlan],
    feeds: Sequence[Any],
    resources: Resources,
    cancellation: Cancellation,
    fetch: Fetch,
) -> list[Any]:
    """Run the partitions of a step and return its fetched values."""
    rendezvous = Rendezvous()
    undo = cancellation.on_cancel(
        lambda: rendezvous.abort(cast("errors.OpError", cancellation.error))
    )
    try:
        graphs = [
            (
                part.plan.dataflow,
                part.feeds(feeds),
                Context(part.node, resources.on(part.plan.device), cancellation, rendezvous),
            )
            for part in partitions
        ]
        results = run_all(graphs, cancellation)
    finally:
        undo()
    by_index = _by_fetch_index(partitions, results, fetch)
    return [by_index[index] for index in range(len(by_index))]


class StartablePartitions:
    """The partitions of a step that are in this process, for repeated runs without a blocked
    thread. `is_local`: no control node has nodes in other processes, for which it would block."""

    def __init__(
        self, partitions: Sequence[PartitionPlan], resources: Resources, is_local: bool = True
    ) -> None:
        self._partitions, self._is_local = partitions, is_local
        self._parts = [(part, part.node, resources.on(part.plan.device)) for part in partitions]
        calls = [vertex for part in partitions for vertex in part.plan.dataflow.calls()]
        self._never_blocks = is_local and not any(vertex.blocks for vertex in calls)

    def prologue(self, keys: Sequence[Key]) -> Prologue | None:
        """The prologue of the partitions, given the values of these rendezvous keys; None if it has
        no advantage over a run."""
        if len(self._partitions) > 1 or not self._is_local:
            return None
        ((part, node, resources),) = self._parts
        prologue = Prologue(part.plan.dataflow, keys, Context(node, resources, Cancellation()))
        needs_no_run = prologue.rest is None or prologue.epilogue is not None
        return prologue if prologue.is_usable and (needs_no_run or keys) else None

    def start(
        self,
        feeds: Mapping[int, Any],
        cancellation: Cancellation,
        rendezvous: Rendezvous,
        submit_short: Submit,
        submit_long: Submit,
        done: Done,
        rest: Dataflow | None = None,
    ) -> bool:
        """Run the partitions, but never block. The keys of feeds and results are feed and fetch
        indices of the step. Returns whether calls passed to `submit_long` do not block either.

        When a value arrives, `submit_short` continues the run. `submit_long` makes a long call on
        another thread, which continues the run; it does everything if control nodes have nodes in
        other processes. `done` is called exactly once. The caller aborts the rendezvous if it
        cancels the step. `rest`: the part of the graph that a prologue has not run.
        """
        graphs: list[Graph] = []
        for part, node, resources in self._parts:
            context = Context(node, resources, cancellation, rendezvous)
            graphs.append((rest or part.plan.dataflow, part.feeds(feeds) if feeds else (), context))
        threads: Threads = submit_long, submit_long, operator.call
        if self._is_local:
            threads = submit_short, submit_long, rendezvous.run_batched

        def ended(results: list[list[Any]], error: BaseException | None) -> None:
            values: dict[int, Any] = {}
            if any(results):
                try:
                    values = _by_fetch_index(self._partitions, results)
                except Exception as failure:
                    error = failure
            done(values, error)

        try:
            run = Run(graphs, cancellation, threads, ended)
        except errors.OpError as error:  # of a queue that is looked up, for example
            done({}, error)
            return self._never_blocks
        if self._is_local:
            run.begin()
        else:
            submit_long(run.begin)
        return self._never_blocks


def _by_fetch_index(
    partitions: Sequence[PartitionPlan], results: Sequence[Sequence[Any]], fetch: Fetch = fresh
) -> dict[int, Any]:
    by_index: dict[int, Any] = {}
    for part, values in zip(partitions, results, strict=True):
        indices = [index for index, _ in part.partition.fetches]
        by_index.update(zip(indices, _fetched(part.plan, values, fetch), strict=True))
    return by_index


def _fetched(plan: Plan, values: Sequence[Any], fetch: Fetch) -> list[Any]:
    """Fetch the contents of slots; a failing read is attributed to the variable's node."""
    results: list[Any] = []
    try:
        for value in values:
            results.append(fetch(value))
    except errors.OpError as error:
        slot = plan.fetches[len(results)]
        (node,) = (
            i.node for i in plan.instructions if i.output <= slot < i.output + i.output_count
        )
        raise_at(error, node)
    return results
