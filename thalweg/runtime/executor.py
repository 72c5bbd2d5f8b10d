"""Running a plan: in order on the caller's thread, or by readiness where nodes may block.

A plan of several partitions runs them at once; what crosses from one to another goes through their
rendezvous.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg import errors
from thalweg.graph.node import Node
from thalweg.ops.core.context import VariableCell
from thalweg.partition.rendezvous import Rendezvous
from thalweg.partition.transfers import Send, SendReference, SendToken, Transfer
from thalweg.runtime.calls import Instruction
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.dataflow import run_by_readiness
from thalweg.runtime.kernels import located, run
from thalweg.runtime.partitions import run_partitions
from thalweg.runtime.plan import PartitionPlan, Plan
from thalweg.runtime.resources import Resources


class Timed(NamedTuple):
    """One node of a traced step: when it began and ended in nanoseconds, where, and its values."""

    node: Node
    start: int
    end: int
    device: str
    outputs: list[tuple[Any, tuple[int, ...], int]]  # dtype, shape and bytes of each


class Timing(list[Timed]):
    """What a traced step records."""


def execute(
    plan: Plan,
    feeds: Sequence[Any],
    resources: Resources,
    cancellation: Cancellation,
    timing: Timing | None = None,
) -> list[Any]:
    """Run a plan and return the fetched values, fresh: nothing in them is shared with state."""
    if not plan.partitions:
        return _execute(plan, feeds, resources.on(plan.device), cancellation, timing, None)

    def run_one(part: PartitionPlan, values: Sequence[Any], rendezvous: Rendezvous) -> list[Any]:
        own = resources.on(part.device.name)
        return _execute(part.plan, values, own, cancellation, timing, rendezvous)

    return run_partitions(plan.partitions, feeds, cancellation, run_one)


def _execute(
    plan: Plan,
    feeds: Sequence[Any],
    resources: Resources,
    cancellation: Cancellation,
    timing: Timing | None,
    rendezvous: Rendezvous | None,
) -> list[Any]:
    """Run the plan of one device."""
    slots: list[Any] = [None] * plan.slot_count
    for slot, value in zip(plan.feeds, feeds, strict=True):
        slots[slot] = value
    with np.errstate(all="ignore"):
        if rendezvous is not None:
            call = _single(plan, slots, resources, cancellation, timing)
            _run_partition(plan, slots, call, cancellation, rendezvous)
        elif plan.may_block and (timing is not None or not plan.blocks_last):
            call = _single(plan, slots, resources, cancellation, timing)
            run_by_readiness(plan, call, cancellation)
        elif timing is not None:
            call = _single(plan, slots, resources, cancellation, timing)
            for instruction in plan.instructions:
                call(instruction)
        else:
            run(plan.instructions, slots, resources, cancellation)
            if not plan.may_block:  # else what was taken from a queue would be lost
                cancellation.check()  # native code does not look: a step that ended late is late
        return [_fetched(slots[slot], slot, plan) for slot in plan.fetches]


def _run_partition(
    plan: Plan,
    slots: list[Any],
    call: Callable[[Instruction], None],
    cancellation: Cancellation,
    rendezvous: Rendezvous,
) -> None:
    """Run one of several partitions: by readiness, for each may wait for any other."""

    def call_or_send(instruction: Instruction) -> None:
        op = instruction.node.op
        if isinstance(op, Send | SendReference | SendToken):
            rendezvous.send(op.key, _sent(instruction, slots))
        else:
            call(instruction)

    def receive(instruction: Instruction, done: Callable[[BaseException | None], None]) -> None:
        def received(value: Any, error: BaseException | None) -> None:
            if instruction.output_count:
                slots[instruction.output] = value
            done(error)

        op = cast("Transfer", instruction.node.op)
        rendezvous.receive(op.key, received)

    run_by_readiness(plan, call_or_send, cancellation, receive)


def _sent(instruction: Instruction, slots: list[Any]) -> Any:
    """What a Send takes: a variable is read, unless the variable itself is sent."""
    values = [slots[slot] for slot in instruction.inputs]
    return values[0].read() if instruction.references else values[0] if values else None


def _single(
    plan: Plan,
    slots: list[Any],
    resources: Resources,
    cancellation: Cancellation,
    timing: Timing | None,
) -> Callable[[Instruction], None]:
    """A function that runs one instruction, noting when it began and ended and what it gave.

    It frees no slots: the plan's order of freeing holds only for a run in the plan's order.
    """

    def call(instruction: Instruction) -> None:
        start = time.perf_counter_ns()
        run((instruction._replace(frees=()),), slots, resources, cancellation)
        if timing is not None:
            timing.append(_timed(plan, instruction, slots, start))

    return call


def _timed(plan: Plan, instruction: Instruction, slots: list[Any], start: int) -> Timed:
    end = time.perf_counter_ns()
    first, node = instruction.output, instruction.node
    given = slots[first : first + instruction.output_count]
    return Timed(node, start, end, plan.placement[node], [_described(value) for value in given])


def _described(value: Any) -> tuple[Any, tuple[int, ...], int]:
    """The dtype, shape and bytes of a value; a reference has none of its own."""
    if not isinstance(value, np.ndarray | np.generic):
        return None, (), 0
    array = np.asarray(cast("Any", value))
    return array.dtype, array.shape, array.nbytes


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
