"""From a step's signature to what the executor runs.

`plan(step, devices)` prunes the graph to what the fetches need, places it, gathers what is compiled
together in regions, gives what flows between regions and host ops a slot, and frees each slot after
its last use. Any number of threads may run a plan at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from thalweg.control.liveness import needed
from thalweg.device.device import Device
from thalweg.graph.node import Node, Tensor
from thalweg.lower.regions import Unit, ordered, regions, with_traces
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.place.placer import Placement, place
from thalweg.runtime.calls import Instruction, call_of, dereferenced
from thalweg.runtime.compiled import Executable
from thalweg.runtime.control_region import DataflowStep, controlled_call
from thalweg.runtime.dataflow import Dataflow
from thalweg.runtime.restoring import Restoring, reordered, restorings
from thalweg.runtime.tokens import of_instructions
from thalweg.runtime.unfold import has_primitives

_Unit = Unit | DataflowStep | Restoring


class Step(NamedTuple):
    """The signature of a step: what is fetched, what is only run, and what is fed."""

    fetches: tuple[Tensor, ...]
    targets: tuple[Node, ...]
    feeds: tuple[Tensor, ...]


@dataclass(frozen=True)
class Plan:
    """A step, ready to run."""

    instructions: tuple[Instruction, ...]
    slot_count: int
    feeds: tuple[int, ...]  # the slot of each feed
    fetches: tuple[int, ...]  # the slot of each fetched tensor
    placement: Placement
    order: Mapping[Node, Collection[Node]]  # what each node comes after

    @cached_property
    def may_block(self) -> bool:
        """Whether a node of the step may wait for another step, or for a node of this one."""
        return any(node.op.blocking for step in self.instructions for node in step.nodes)

    @cached_property
    def blocks_last(self) -> bool:
        """Whether a step has nothing left to do when it blocks: it may then run in order."""
        *before, last = self.instructions
        return last.node.op.blocking and not any(step.node.op.blocking for step in before)

    @cached_property
    def dataflow(self) -> Dataflow:
        """The step by readiness: a node that blocks does not hold up those it may wait for."""
        graph = of_instructions(self.instructions, self.feeds, self.fetches, self.order)
        return Dataflow(graph)

    def __str__(self) -> str:
        lines = [f"{len(self.instructions)} nodes, {self.slot_count} slots"]
        for step in self.instructions:
            outputs = range(step.output, step.output + step.output_count)
            lines.append(
                f"  {', '.join(f'%{o}' for o in outputs) or '-':<12} = {step.node.type}"
                f"({', '.join(f'%{i}' for i in step.inputs)})  # {step.node.name}, "
                f"{step.node.origin}"
            )
        return "\n".join(lines)


def plan(
    step: Step,
    devices: Sequence[Device],
    soft_placement: bool = False,
    compiled: bool = True,
) -> Plan:
    """Plan a step on these devices: prune, place, cut into regions, schedule."""
    nodes = prune(step.fetches, step.targets, step.feeds)
    placement = place(nodes, [device.name for device in devices], soft_placement)
    order = ordered(nodes, step.feeds)
    # What is only run is computed all the same: it may fail, and its time may be what is asked.
    wanted = [*step.fetches, *(tensor for node in step.targets for tensor in node.outputs)]
    units: Sequence[_Unit]
    if has_primitives(nodes):
        fetched = [t for t in dict.fromkeys(step.fetches) if t not in step.feeds]
        units = [DataflowStep(tuple(nodes), step.feeds, tuple(fetched))]
    elif compiled:
        units = _units(nodes, wanted, step.feeds, order)
    else:
        units = with_traces(nodes, wanted)
    return schedule(units, step.fetches, step.feeds, placement, devices[0], order, compiled)


def _units(
    nodes: Sequence[Node],
    wanted: Collection[Tensor],
    feeds: Collection[Tensor],
    order: Mapping[Node, Collection[Node]],
) -> Sequence[_Unit]:
    """Nodes to run one by one and what runs as one."""
    joined = restorings(nodes, wanted, feeds, order)
    if not joined:
        return regions(nodes, wanted, feeds, order)
    unit_of = {unit.node: unit for unit in joined}
    again = reordered(order, joined)
    found = regions([node for node in nodes if node in again], wanted, feeds, again)
    return [unit_of.get(unit, unit) if isinstance(unit, Node) else unit for unit in found]


def prune(
    fetches: Iterable[Tensor], targets: Iterable[Node], feeds: Iterable[Tensor]
) -> list[Node]:
    """The nodes the step needs, in an order that runs.

    A node is made after everything it depends on, so the order of creation is such an order.
    """
    return needed(fetches, targets, dict.fromkeys(feeds))


def schedule(
    units: Sequence[_Unit],
    fetches: Sequence[Tensor],
    feeds: Sequence[Tensor],
    placement: Placement,
    device: Device,
    order: Mapping[Node, Collection[Node]] | None = None,
    compiled: bool = True,
) -> Plan:
    """Give each tensor a slot and each node or region an instruction."""
    slots: dict[Tensor, int] = {tensor: index for index, tensor in enumerate(feeds)}
    starts: list[int] = []
    count = len(feeds)
    for unit in units:
        starts.append(count)
        for place_, tensor in enumerate(unit.outputs):
            slots.setdefault(tensor, count + place_)
        count += len(unit.outputs)
    fed = set(feeds)
    frees = _last_uses(units, slots, {slots[tensor] for tensor in fetches})
    instructions = tuple(
        _instruction(unit, start, slots, tuple(dead), fed, device, compiled)
        for unit, start, dead in zip(units, starts, frees, strict=True)
    )
    return Plan(
        instructions,
        count,
        tuple(slots[tensor] for tensor in feeds),
        tuple(slots[tensor] for tensor in fetches),
        placement,
        order or {},
    )


def _taken(unit: _Unit) -> tuple[Tensor, ...]:
    """What a unit reads."""
    return (*unit.inputs, *unit.references) if isinstance(unit, Region) else unit.inputs


def _last_uses(units: Sequence[_Unit], slots: dict[Tensor, int], kept: set[int]) -> list[list[int]]:
    """For each unit, the slots that nothing after it reads."""
    seen = set(kept)
    frees: list[list[int]] = [[] for _ in units]
    for position in range(len(units) - 1, -1, -1):
        unit = units[position]
        for tensor in (*unit.outputs, *_taken(unit)):
            slot = slots[tensor]
            if slot not in seen:
                seen.add(slot)
                frees[position].append(slot)
    return frees


def _instruction(
    unit: _Unit,
    start: int,
    slots: dict[Tensor, int],
    frees: tuple[int, ...],
    fed: set[Tensor],
    device: Device,
    compiled: bool,
) -> Instruction:
    if isinstance(unit, ControlRegion):
        call = controlled_call(unit, fed, device, compiled, _fallback)
    elif isinstance(unit, DataflowStep):
        call = unit.call(device, _fallback)
    elif isinstance(unit, Restoring):
        call = unit.call()
    else:
        call = call_of(unit, fed, device, _fallback)
    return Instruction(
        call.function,
        call.takes_context,
        tuple(slots[tensor] for tensor in _taken(unit)),
        call.references,
        start,
        len(unit.outputs),
        frees,
        call.node,
        call.nodes,
    )


def _fallback(region: Region, on_host: Node | None, device: Device) -> Callable[..., list[Any]]:
    """A function that runs a region's nodes: all one by one on their NumPy kernels, or only one
    of them so and the others compiled."""
    outside = [t for t in region.roots if t.op not in region.nodes]
    feeds = [*region.inputs, *outside]
    units: Sequence[Unit] = region.nodes
    if on_host is not None:
        order = ordered(region.nodes, region.inputs)
        units = regions(region.nodes, region.outputs, region.inputs, order, {on_host})
    step = schedule(units, region.outputs, feeds, {}, device)
    places = [region.references.index(region.roots[tensor]) for tensor in outside]
    # A reference that comes in is read when it is used, unlike a value that was fed in its place.
    instructions = tuple(
        instruction
        if isinstance(instruction.call, Executable)
        else instruction._replace(references=dereferenced(instruction.node, region.inputs))
        for instruction in step.instructions
    )

    def run(context: Any, arrays: Sequence[Any], cells: Sequence[Any]) -> list[Any]:
        slots: list[Any] = [None] * step.slot_count
        slots[: len(feeds)] = [*arrays, *(cells[place] for place in places)]
        context.run(instructions, slots)
        return [slots[slot] for slot in step.fetches]

    return run
