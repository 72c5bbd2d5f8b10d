"""Running a plan: in order on the caller's thread, or by readiness where nodes may block.

A plan of several partitions runs them at once; what crosses from one to another goes through their
rendezvous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.ops.core.context import VariableCell
from thalweg.partition.rendezvous import Rendezvous
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.kernels import Context, located, run
from thalweg.runtime.partitions import run_partitions
from thalweg.runtime.plan import PartitionPlan, Plan
from thalweg.runtime.resources import Resources


def execute(
    plan: Plan, feeds: Sequence[Any], resources: Resources, cancellation: Cancellation
) -> list[Any]:
    """Run a plan and return the fetched values, fresh: nothing in them is shared with state."""
    if not plan.partitions:
        return _execute(plan, feeds, resources.on(plan.device), cancellation)

    def run_one(part: PartitionPlan, values: Sequence[Any], rendezvous: Rendezvous) -> list[Any]:
        own = resources.on(part.device.name)
        return _execute(part.plan, values, own, cancellation, rendezvous)

    return run_partitions(plan.partitions, feeds, cancellation, run_one)


def _execute(
    plan: Plan,
    feeds: Sequence[Any],
    resources: Resources,
    cancellation: Cancellation,
    rendezvous: Rendezvous | None = None,
) -> list[Any]:
    """Run the plan of one device; a partition by readiness, for it may wait for any other."""
    with np.errstate(all="ignore"):
        waits = rendezvous is not None or (plan.may_block and not plan.blocks_last)
        if waits and plan.instructions:
            context = Context(plan.instructions[0].node, resources, cancellation, rendezvous)
            values = plan.dataflow.run(feeds, context)
        else:
            values = _run_in_order(plan, feeds, resources, cancellation)
        pairs = zip(values, plan.fetches, strict=True)
        return [_fetched(value, slot, plan) for value, slot in pairs]


def _run_in_order(
    plan: Plan, feeds: Sequence[Any], resources: Resources, cancellation: Cancellation
) -> list[Any]:
    slots: list[Any] = [None] * plan.slot_count
    for slot, value in zip(plan.feeds, feeds, strict=True):
        slots[slot] = value
    run(plan.instructions, slots, resources, cancellation)
    if not plan.may_block:  # else what was taken from a queue would be lost
        cancellation.check()  # native code does not check: a step that ended late is late
    return [slots[slot] for slot in plan.fetches]


def _fetched(item: Any, slot: int, plan: Plan) -> Any:
    """What a fetched slot holds; a variable that cannot be read fails at its own node."""
    try:
        return fresh(item)
    except errors.OpError as error:
        (node,) = (
            i.node for i in plan.instructions if i.output <= slot < i.output + i.output_count
        )
        raise located(error, node) from error


def fresh(item: Any) -> Any:
    """A fetched value the caller may keep and write to. State and feeds are read-only views."""
    value = item.snapshot() if isinstance(item, VariableCell) else item
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        if not array.flags.writeable or array.base is not None:
            array = array.copy()
        return array if array.ndim else array[()]
    return value
