"""From a step's signature to what the executor runs.

`plan(step, placer)` prunes the graph to what the fetches need, places it, optimises it, cuts it at
device borders, gathers what is compiled together in regions, gives what flows between regions and
host ops a slot, and frees each slot after its last use. Any number of threads may run a plan at
once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from thalweg.control.liveness import needed
from thalweg.device.device import Device
from thalweg.graph.analysis.order import Order, step_order, touches_state
from thalweg.graph.node import Node, Tensor
from thalweg.ir.target import Target
from thalweg.lower.regions import Unit, regions, with_traces
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.optimize.options import DEFAULT, OptimizerSwitches
from thalweg.optimize.pipeline import PassReport, optimize
from thalweg.partition.cut import Partition, partition
from thalweg.place.placer import Placement, Placer, is_replicated, with_inner
from thalweg.runtime.compiled import Backend, Elsewhere, Executable, Run
from thalweg.runtime.dataflow.control_region import DataflowStep, control_call
from thalweg.runtime.dataflow.run import Dataflow
from thalweg.runtime.dataflow.tokens import of_instructions
from thalweg.runtime.dataflow.unfold import has_primitives, is_constant
from thalweg.runtime.kernels import Call, Instruction, call_of, dereferenced
from thalweg.runtime.restoring import Restoring, reordered, restorings
from thalweg.runtime.sending import with_sends

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
    order: Order  # what each node comes after
    device: str = ""  # whose state it uses
    #: of a step on several devices, the plan of each: the instructions are theirs
    partitions: tuple[PartitionPlan, ...] = ()
    #: what each pass of the optimiser did to the step
    passes: tuple[PassReport, ...] = ()

    @property
    def every_instruction(self) -> list[Instruction]:
        """The instructions of all partitions, or its own."""
        parts = [part.plan for part in self.partitions] or [self]
        return [instruction for each in parts for instruction in each.instructions]

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
        holders: dict[Node, list[int]] = defaultdict(list)  # constants and reads have several
        for index, step in enumerate(self.instructions):
            for node in step.nodes:
                holders[node].append(index)
        before = [
            {at for node in step.nodes for at in self._before(node, index, holders)}
            for index, step in enumerate(self.instructions)
        ]
        return Dataflow(of_instructions(self.instructions, self.feeds, self.fetches, before))

    def _before(
        self, node: Node, index: int, holders: Mapping[Node, Sequence[int]]
    ) -> Iterator[int]:
        """The other instructions that a node of one waits for. Of a node that several have, the
        own copy or the first one is enough; but a write comes after all copies of a read. Nothing
        waits for a constant: it may be in a region that takes what the node gives."""
        writes = bool(node.op.footprint or node.op.bodies)
        for earlier in self.order.get(node, ()):
            found = holders[earlier]
            if writes and touches_state(earlier):
                yield from (at for at in found if at != index)
            elif index not in found and not is_constant(earlier):
                yield from found[:1]

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


@dataclass(frozen=True)
class PartitionPlan:
    """What one device does in a step, ready to run."""

    partition: Partition
    plan: Plan
    device: Device

    @property
    def node(self) -> Node:
        """One of its nodes."""
        return self.partition.graph.nodes[0]

    def feeds(self, values: Mapping[int, Any]) -> list[Any]:
        """Of the values that the step is fed, by place, those that this partition takes."""
        return [values[place] for place, _ in self.partition.feeds]


def plan(
    step: Step,
    devices: Sequence[Device],
    placer: Placer | None = None,
    compiled: bool = True,
    switches: OptimizerSwitches = DEFAULT,
) -> Plan:
    """Plan a step on these devices: prune, place, optimise, cut into partitions and regions,
    schedule.

    Without a placer, nodes go where they ask to if they can. What is not compiled is not optimised:
    the reference kernels run the step as it is written.
    """
    placer = placer or Placer([device.name for device in devices], soft=True)
    nodes: Sequence[Node] = prune(step.fetches, step.targets, step.feeds)
    placement = placer.place(nodes)
    passes: tuple[PassReport, ...] = ()
    if compiled and switches.enabled:
        processors = {device.name: device.target for device in devices}
        step, nodes, placement, passes = optimized(step, nodes, placement, switches, processors)
    order = step_order(nodes, step.feeds)
    used = _used(placement, devices)
    if len(used) == 1 or has_primitives(nodes):
        spread = devices if len(used) > 1 else used
        backend = backend_of(used[0], placement, spread, compiled)
        if not all(device.is_host for device in devices):
            backend = replace(backend, has_accelerator=True)
        return replace(_plan_one(step, nodes, placement, order, backend), passes=passes)
    cut = partition(nodes, *step, placement, order)
    parts = tuple(plan_partition(part, devices, compiled) for part in cut)
    return Plan((), 0, (), (), placement, order, partitions=parts, passes=passes)


def optimized(
    step: Step,
    nodes: Sequence[Node],
    placement: Placement,
    switches: OptimizerSwitches,
    processors: Mapping[str, Target] = MappingProxyType({}),
) -> tuple[Step, Sequence[Node], Placement, tuple[PassReport, ...]]:
    """A placed step after the optimiser's passes. It is placed before: a node of the user's graph
    has one device in all steps of a session, and what is made for it goes there. `processors` are
    those of the devices, as far as they are known here."""
    if has_primitives(nodes):  # a cycle, whose order is the executor's
        return step, nodes, placement, ()
    used = {*placement.values()}
    is_host = len(used) <= 1 and all("CPU" in name for name in used)
    if is_host and used and (name := used.pop()) in processors:
        processors = {"": processors[name]}
    devices = None if is_host else placement
    done = optimize(nodes, *step, devices, switches, processors=processors)
    if done.nodes is not nodes:
        step = Step(done.fetches, done.targets, step.feeds)
        placement = _placed_again(done.nodes, placement)
    return step, done.nodes, placement, done.passes


def _placed_again(nodes: Sequence[Node], placement: Placement) -> Placement:
    """The devices of nodes, and of those inside them, by what they stand for."""
    devices = {*placement.values()}
    if len(devices) == 1:
        return dict.fromkeys(nodes, devices.pop())
    found: Placement = {}
    for node in nodes:
        for each in with_inner(node):  # what bodies were given anew is where their node is
            found[each] = placement.get(each) or placement.get(each.original) or found[node]
    return found


def _used(placement: Placement, devices: Sequence[Device]) -> Sequence[Device]:
    """The devices that a step uses; what is replicated needs none of its own."""
    if len(devices) == 1:
        return devices
    names = {name for node, name in placement.items() if not is_replicated(node)}
    return [device for device in devices if device.name in names] or devices[:1]


def _plan_one(
    step: Step,
    nodes: Sequence[Node],
    placement: Placement,
    order: Order,
    backend: Backend,
) -> Plan:
    """Plan a step on one device, or what control primitives make one token graph on several."""
    # What is only run is computed all the same: it may fail, and its time may be what is asked.
    wanted = [*step.fetches, *(tensor for node in step.targets for tensor in node.outputs)]
    units: Sequence[_Unit]
    if has_primitives(nodes):
        fetched = [t for t in dict.fromkeys(step.fetches) if t not in step.feeds]
        units = [DataflowStep(tuple(nodes), step.feeds, tuple(fetched))]
    elif backend.compiled:
        units = with_sends(_units(nodes, wanted, step.feeds, order), order)
    else:
        units = with_traces(nodes, wanted)
    return schedule(units, step.fetches, step.feeds, placement, backend, order)


def plan_partition(
    part: Partition,
    devices: Sequence[Device],
    compiled: bool = True,
    elsewhere: Callable[[str], Elsewhere] | None = None,
) -> PartitionPlan:
    """Plan what one of these devices does in a step; `elsewhere` knows those of other processes."""
    step = Step(
        tuple(slot.tensor for slot in part.fetches),
        part.targets,
        tuple(slot.tensor for slot in part.feeds),
    )
    device = next(device for device in devices if device.name == part.device)
    backend = backend_of(device, part.placement, devices, compiled, elsewhere)
    made = _plan_one(step, part.nodes, part.placement, part.order, backend)
    return PartitionPlan(part, made, device)


def backend_of(
    device: Device,
    placement: Placement,
    devices: Sequence[Device],
    compiled: bool = True,
    elsewhere: Callable[[str], Elsewhere] | None = None,
) -> Backend:
    """A device that runs a plan; where a step uses several, with those of its nodes."""
    by_name: dict[str, Device | Elsewhere] = {device.name: device for device in devices}
    if elsewhere is not None:
        absent = {*placement.values()} - by_name.keys()
        by_name.update((name, elsewhere(name)) for name in absent)
    found = {node: by_name[name] for node, name in placement.items()} if len(by_name) > 1 else None
    has_accelerator = not all(each.is_host for each in (device, *devices))
    return Backend(device, _fallback, compiled, found, has_accelerator)


def _units(
    nodes: Sequence[Node],
    wanted: Collection[Tensor],
    feeds: Collection[Tensor],
    order: Order,
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
    """The nodes the step needs, in the order of the program."""
    return needed(fetches, targets, dict.fromkeys(feeds))


def schedule(
    units: Sequence[_Unit],
    fetches: Sequence[Tensor],
    feeds: Sequence[Tensor],
    placement: Placement,
    backend: Backend,
    order: Order | None = None,
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
    instructions: list[Instruction] = []
    for unit, start, dead in zip(units, starts, frees, strict=True):
        inputs = tuple(slots[tensor] for tensor in _taken(unit))
        ends = inputs, start, len(unit.outputs), tuple(dead)
        instructions.append(Instruction(*_call(unit, fed, backend)[:5], *ends))
    return Plan(
        tuple(instructions),
        count,
        tuple(slots[tensor] for tensor in feeds),
        tuple(slots[tensor] for tensor in fetches),
        placement,
        order or {},
        backend.device.name,
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


def _call(unit: _Unit, fed: set[Tensor], backend: Backend) -> Call:
    if isinstance(unit, ControlRegion):
        return control_call(unit, fed, backend)
    if isinstance(unit, DataflowStep):
        return unit.call(backend)
    return unit.call() if isinstance(unit, Restoring) else call_of(unit, fed, backend)


def region_plan(region: Region, on_host: Node | None, device: Device) -> Plan:
    """The nodes of a region: all on their NumPy kernels, or one of them, with those that one line
    made alike, and the others compiled.

    It is fed the region's inputs, then the references that come in.
    """
    units: Sequence[Unit] = region.nodes
    if on_host is not None:
        order = step_order(region.nodes, region.inputs)
        alike = _made_alike(region.nodes, on_host)
        units = regions(region.nodes, region.outputs, region.inputs, order, alike)
    feeds = [*region.inputs, *_outer_references(region)]
    backend = Backend(device, _fallback, has_accelerator=not device.is_host)
    return schedule(units, region.outputs, feeds, {}, backend)


def _made_alike(nodes: Iterable[Node], node: Node) -> set[Node]:
    """Nodes with the op of one, from the same line of the program: what one cannot, none of them
    can. To find that out one by one would cut the region once more for each."""
    origin = node.origin
    return {each for each in nodes if each.op == node.op and each.origin == origin} | {node}


def _outer_references(region: Region) -> list[Tensor]:
    return [tensor for tensor in region.roots if tensor.op not in region.nodes]


def _fallback(region: Region, on_host: Node | None, device: Device) -> Run:
    """A function that runs a region as `region_plan` has it."""
    step = region_plan(region, on_host, device)
    outside = _outer_references(region)
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
        slots[: len(step.feeds)] = [*arrays, *(cells[place] for place in places)]
        context.run(instructions, slots)
        return [slots[slot] for slot in step.fetches]

    return run
