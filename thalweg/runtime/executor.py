"""Running a plan: in order on the caller's thread, or by readiness where nodes may block.

The partitions of a step run at once, by readiness; they meet at one rendezvous. The first error of
any of them ends the step, and whoever waits at the rendezvous. Partitions in other processes
differ in the rendezvous alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.ops.core.buffer import Buffer, HostBuffer
from thalweg.ops.core.context import VariableCell
from thalweg.partition.rendezvous import Key, Rendezvous
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.dataflow.opening import Opening
from thalweg.runtime.dataflow.run import run_all
from thalweg.runtime.dataflow.scheduler import Soon
from thalweg.runtime.dataflow.straight import StraightGraph, StraightRun
from thalweg.runtime.kernels import Context, raise_at, run
from thalweg.runtime.plan import PartitionPlan, Plan
from thalweg.runtime.resources import Resources

#: What a fetched slot holds -> the value that the caller gets
Fetch = Callable[[Any], Any]
#: (the fetched values by their places, an error)
Done = Callable[[dict[int, Any], BaseException | None], None]


def fresh(item: Any) -> Any:
    """A fetched value the caller may keep and write to. State and feeds are read-only views."""
    value = item.snapshot() if isinstance(item, VariableCell) else item
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        if not array.flags.writeable or array.base is not None:
            array = array.copy()
        return array if array.ndim else array[()]
    return value.snapshot()[()] if isinstance(value, Buffer) else value


def on_device(item: Any) -> Any:
    """A fetched value where it was computed: what is in the memory of a device stays there, and
    never changes. Else it is fresh."""
    if not isinstance(item, Buffer) or isinstance(item, HostBuffer):
        return fresh(item)
    item.freeze()
    return item


def execute(
    plan: Plan,
    feeds: Sequence[Any],
    resources: Resources,
    cancellation: Cancellation,
    fetch: Fetch = fresh,
) -> list[Any]:
    """Run a plan and return the fetched values: nothing in them is shared with state."""
    with np.errstate(all="ignore"):
        if plan.partitions:
            fed, rendezvous = dict(enumerate(feeds)), Rendezvous()
            about = resources, cancellation, rendezvous
            found = run_partitions(plan.partitions, fed, *about, fetch)
            return [found[place] for place in range(len(found))]
        own = resources.on(plan.device)
        if plan.may_block and not plan.blocks_last:
            context = Context(plan.instructions[0].node, own, cancellation)
            return _fetched(plan, plan.dataflow.run(feeds, context), fetch)
        slots: list[Any] = [None] * plan.slot_count
        for slot, value in zip(plan.feeds, feeds, strict=True):
            slots[slot] = value
        run(plan.instructions, slots, own, cancellation)
        if not plan.may_block:  # else what was taken from a queue would be lost
            cancellation.check()  # native code does not check: a step that ended late is late
        return [_fetch(slots[slot], slot, plan, fetch) for slot in plan.fetches]


def run_partitions(
    partitions: Sequence[PartitionPlan],
    feeds: Mapping[int, Any],
    resources: Resources,
    cancellation: Cancellation,
    rendezvous: Rendezvous,
    fetch: Fetch = fresh,
) -> dict[int, Any]:
    """Run the partitions of a step that are in this process. Feeds and fetched values go by their
    places among those of the step; other processes may run other partitions."""
    undo = cancellation.on_cancel(lambda: _abort(rendezvous, cancellation))
    try:
        graphs = [
            (
                part.plan.dataflow,
                part.feeds(feeds),
                Context(part.node, resources.on(part.device.name), cancellation, rendezvous),
            )
            for part in partitions
        ]
        results = run_all(graphs, cancellation)
    finally:
        undo()
    return _by_place(partitions, results, fetch)


class StartablePartitions:
    """The partitions of a step that are in this process, to be run again and again without a
    thread that waits."""

    def __init__(self, partitions: Sequence[PartitionPlan], resources: Resources) -> None:
        self._partitions, self._resources = partitions, resources
        self._has_fetches = any(part.partition.fetches for part in partitions)
        dataflows = [part.plan.dataflow for part in partitions]
        self._straight = dataflows[0].straight if len(partitions) == 1 else None
        self._node = partitions[0].node
        self._own = resources.on(partitions[0].device.name)
        self.context = Context(self._node, self._own, Cancellation())  # of openings

    def opening(self, keys: Sequence[Key]) -> Opening | None:
        """What they begin with where the values under some keys are there; None where a run does
        all of it as well."""
        found = None if self._straight is None else Opening(self._straight, keys)
        if found is None or not found.is_there or (found.rest is not None and not keys):
            return None
        return found

    def start(
        self,
        feeds: Mapping[int, Any],
        cancellation: Cancellation,
        rendezvous: Rendezvous,
        soon: Soon,
        later: Callable[[Callable[[], None]], None],
        done: Done,
        rest: StraightGraph | None = None,
    ) -> None:
        """Run like `run_partitions`, but never wait: they go on by `soon` when something comes.
        From the first call that may take long, `later` does the rest; of what is not straight, or
        has calls that take long at once, all. `done` is called once. Who cancels the step also
        aborts the rendezvous. `rest`: what is left after an opening."""
        straight = rest or self._straight
        if straight is None or (rest is None and not straight.is_sequential):
            later(partial(self._run, feeds, cancellation, rendezvous, done))
            return
        given = self._partitions[0].feeds(feeds) if feeds else ()
        context = Context(self._node, self._own, cancellation, rendezvous)
        StraightRun(straight, given, context, soon, later, partial(self._end, done)).begin()

    def _run(
        self,
        feeds: Mapping[int, Any],
        cancellation: Cancellation,
        rendezvous: Rendezvous,
        done: Done,
    ) -> None:
        """Run on a thread that may wait."""
        about = self._resources, cancellation, rendezvous
        try:
            with np.errstate(all="ignore"):
                found = run_partitions(self._partitions, feeds, *about)
        except BaseException as error:
            done({}, error)
        else:
            done(found, None)

    def _end(
        self,
        done: Done,
        results: Sequence[Sequence[Any]],
        error: BaseException | None,
    ) -> None:
        found: dict[int, Any] = {}
        if error is None and self._has_fetches:
            try:
                found = _by_place(self._partitions, results)
            except Exception as failure:
                error = failure
        done(found, error)


def _by_place(
    partitions: Sequence[PartitionPlan], results: Sequence[Sequence[Any]], fetch: Fetch = fresh
) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for part, values in zip(partitions, results, strict=True):
        places = [place for place, _ in part.partition.fetches]
        found.update(zip(places, _fetched(part.plan, values, fetch), strict=True))
    return found


def _abort(rendezvous: Rendezvous, cancellation: Cancellation) -> None:
    if cancellation.error is not None:
        rendezvous.abort(cancellation.error)


def _fetched(plan: Plan, values: Sequence[Any], fetch: Fetch) -> list[Any]:
    pairs = zip(values, plan.fetches, strict=True)
    return [_fetch(value, slot, plan, fetch) for value, slot in pairs]


def _fetch(item: Any, slot: int, plan: Plan, fetch: Fetch) -> Any:
    """What a fetched slot holds; a variable that cannot be read fails at its own node."""
    try:
        return fetch(item)
    except errors.OpError as error:
        (node,) = (
            i.node for i in plan.instructions if i.output <= slot < i.output + i.output_count
        )
        raise_at(error, node)
