"""Planning: from the signature of a step to the instructions that the executor runs.

`plan(step, devices)` prunes the graph to what the fetches need, places it, optimises it, cuts it at
device borders, groups nodes into regions that are compiled as one, and assigns slots to the values
that flow between regions and host ops; each slot is freed after its last use. Any number of threads
may run a plan concurrently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

from thalweg.control.liveness import needed
from thalweg.device.device import Device
from thalweg.graph.analysis.order import Order, step_order, touches_state
from thalweg.graph.device import is_cpu
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import is_constant
from thalweg.ir.target import Target
from thalweg.lower.regions import Unit, regions, with_traces
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.optimize.options import DEFAULT, OptimizerSwitches
from thalweg.optimize.pipeline import PassReport, optimize
from thalweg.partition.cut import Partition, partition
from thalweg.place.placer import Placement, Placer, used_devices, with_inner
from thalweg.runtime.compiled import Backend, RemoteDevice, Run
from thalweg.runtime.dataflow.control_region import DataflowStep, control_call
from thalweg.runtime.dataflow.run import Dataflow
from thalweg.runtime.dataflow.tokens import Source, TokenGraph, Vertex, VertexKind
from thalweg.runtime.dataflow.unfold import has_primitives
from thalweg.runtime.kernels import Call, Instruction, call_of
from thalweg.runtime.restoring import Restoring, reordered, restorings
from thalweg.runtime.sending import with_sends

_Unit = Unit | DataflowStep | Restoring


class Step(NamedTuple):
    """The signature of a step: fetched tensors, target nodes (run, not fetched), fed tensors."""

    fetches: tuple[Tensor, ...]
    targets: tuple[Node, ...]
    feeds: tuple[Tensor, ...]


@dataclass(frozen=True)
class Plan:
    """An executable plan of a step."""

    placement: Placement
    order: Order  # the predecessors of each node
    instructions: tuple[Instruction, ...] = ()
    slot_count: int = 0
    feeds: tuple[Tensor, ...] = ()  # have the leading slots
    fetches: tuple[int, ...] = ()  # the slot of each fetched tensor
    device: str = ""  # the device whose state it uses
    #: the plan of each device of a step on several: `instructions` is then empty
    partitions: tuple[PartitionPlan, ...] = ()
    #: the reports of the optimiser's passes
    passes: tuple[PassReport, ...] = ()

    def slots(self, feeds: Sequence[Any]) -> list[Any]:
        """The slots at the start of a run."""
        return [*feeds, *[None] * (self.slot_count - len(feeds))]

    def parts(self, feeds: Sequence[Any]) -> list[tuple[Plan, Sequence[Any]]]:
        """The plan of each device that the step uses, with its part of the step's feeds."""
        return [(part.plan, part.feeds(feeds)) for part in self.partitions] or [(self, feeds)]

    @cached_property
    def may_block(self) -> bool:
        """Whether a node may block on another step or on another node of this step."""
        return any(node.op.blocking for step in self.instructions for node in step.nodes)

    @cached_property
    def blocks_last(self) -> bool:
        """Whether only the last instruction may block: the step can then run in order."""
        *before, last = self.instructions
        return last.node.op.blocking and not any(step.node.op.blocking for step in before)

    @cached_property
    def dataflow(self) -> Dataflow:
        """The step as a token graph without frames: a blocking node does not hold up nodes it may
        wait for."""
        count = len(self.feeds)
        sources = {slot: Source(slot) for slot in range(count)}
        holders: dict[Node, list[int]] = defaultdict(list)  # several for constants and reads
        for place, step in enumerate(self.instructions, count):
            for output in range(step.output_count):
                sources.setdefault(step.output + output, Source(place, output))
            for node in step.nodes:
                holders[node].append(place)
        vertices = [Vertex(VertexKind.PASS)] * count
        for place, step in enumerate(self.instructions, count):
            inputs, outputs = tuple(sources[slot] for slot in step.inputs), step.output_count
            before = {at for node in step.nodes for at in self._predecessors(node, place, holders)}
            after = tuple(sorted(before - {source.vertex for source in inputs}))
            call = Call(*step[:5])
            vertices.append(Vertex(VertexKind.CALL, inputs, after, outputs, step.node, call))
        fetches = tuple(sources[slot] for slot in self.fetches)
        return Dataflow(TokenGraph(tuple(vertices), count, fetches))

    def _predecessors(
        self, node: Node, place: int, holders: Mapping[Node, Sequence[int]]
    ) -> Iterator[int]:
        """The other vertices that a node of vertex `place` must wait for. If several vertices
        compute a predecessor, its own copy or the first one suffices, but a write waits for all
        copies of a read. Nothing waits for a constant: it may be in a region that consumes the
        node's outputs."""
        writes = bool(node.op.footprint or node.op.bodies)
        for earlier in self.order.get(node, ()):
            copies = holders[earlier]
            if writes and touches_state(earlier):
                yield from (at for at in copies if at != place)
            elif place not in copies and not is_constant(earlier):
                yield from copies[:1]


@dataclass(frozen=True)
class PartitionPlan:
    """The plan of one device's partition of a step."""

    partition: Partition
    plan: Plan

    @property
    def node(self) -> Node:
        """A node of the partition, for contexts and errors."""
        return self.partition.graph.nodes[0]

    def feeds(self, values: Mapping[int, Any] | Sequence[Any]) -> list[Any]:
        """The feeds of this partition, selected from the step's feeds by index."""
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

    Without a placer, placement is soft: a node gets the device that it requests if it can. Without
    `compiled`, the step is not optimised either: the reference kernels run it as written.
    """
    placer = placer or Placer([device.name for device in devices], soft=True)
    nodes: Sequence[Node] = prune(step.fetches, step.targets, step.feeds)
    placement = placer.place(nodes)
    passes: tuple[PassReport, ...] = ()
    if compiled and switches.enabled:
        processors = {device.name: device.target for device in devices}
        step, nodes, placement, passes = optimized(step, nodes, placement, switches, processors)
    order = step_order(nodes, step.feeds)
    used = _used_devices(placement, devices)
    if len(used) == 1 or has_primitives(nodes):
        backend = backend_of(used[0], placement, devices, compiled)
        return replace(_plan_one(step, nodes, placement, order, backend), passes=passes)
    cut = partition(nodes, *step, placement, order)
    parts = tuple(plan_partition(part, devices, compiled) for part in cut)
    return Plan(placement, order, partitions=parts, passes=passes)


def optimized(
    step: Step,
    nodes: Sequence[Node],
    placement: Placement,
    switches: OptimizerSwitches,
    processors: Mapping[str, Target] = MappingProxyType({}),
) -> tuple[Step, Sequence[Node], Placement, tuple[PassReport, ...]]:
    """Run the optimiser's passes on a placed step. Placement comes first: a node of the user's
    graph has the same device in all steps of a session, and nodes that replace it inherit that
    device. `processors`: the targets of the devices, as far as this process knows them."""
    if has_primitives(nodes):  # the graph may have cycles: the executor orders it
        return step, nodes, placement, ()
    used = {*placement.values()}
    is_host = len(used) <= 1 and all(map(is_cpu, used))
    if is_host and used and (name := used.pop()) in processors:
        processors = {"": processors[name]}
    devices = None if is_host else placement
    result = optimize(nodes, *step, devices, switches, processors=processors)
    if result.nodes is not nodes:
        step = Step(result.fetches, result.targets, step.feeds)
        placement = _optimized_placement(result.nodes, placement)
    return step, result.nodes, placement, result.passes


def _optimized_placement(nodes: Sequence[Node], placement: Placement) -> Placement:
    """The devices of optimised nodes and of nodes in their bodies: those of the originals."""
    devices = {*placement.values()}
    if len(devices) == 1:
        return dict.fromkeys(nodes, devices.pop())
    devices_of: Placement = {}
    for node in nodes:
        for inner in with_inner(node):  # a new node in a body inherits the outer node's device
            devices_of[inner] = (
                placement.get(inner) or placement.get(inner.original) or devices_of[node]
            )
    return devices_of


def _used_devices(placement: Placement, devices: Sequence[Device]) -> Sequence[Device]:
    """The devices that a step uses."""
    if len(devices) == 1:
        return devices
    names = used_devices(placement)
    return [device for device in devices if device.name in names] or devices[:1]


def _plan_one(
    step: Step,
    nodes: Sequence[Node],
    placement: Placement,
    order: Order,
    backend: Backend,
) -> Plan:
    """Plan a step on one device, or a step with control primitives: one token graph on several."""
    # Outputs of targets are computed too: they may fail, or the user may be timing them.
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
    remote_device: Callable[[str], RemoteDevice] | None = None,
) -> PartitionPlan:
    """Plan a partition for its device; `remote_device` resolves devices of other processes."""
    step = Step(
        tuple(slot.tensor for slot in part.fetches),
        part.targets,
        tuple(slot.tensor for slot in part.feeds),
    )
    device = next(device for device in devices if device.name == part.device)
    backend = backend_of(device, part.placement, devices, compiled, remote_device)
    return PartitionPlan(part, _plan_one(step, part.nodes, part.placement, part.order, backend))


def backend_of(
    device: Device,
    placement: Placement,
    devices: Sequence[Device],
    compiled: bool = True,
    remote_device: Callable[[str], RemoteDevice] | None = None,
) -> Backend:
    """The backend of a device; with the device of each node if some are on other devices."""
    by_name: dict[str, Device | RemoteDevice] = {device.name: device for device in devices}
    if remote_device is not None:
        absent = {*placement.values()} - by_name.keys()
        by_name.update((name, remote_device(name)) for name in absent)
    is_alone = used_devices(placement) <= {device.name}
    device_of = None if is_alone else {node: by_name[name] for node, name in placement.items()}
    has_accelerator = not all(each.is_host for each in devices)
    return Backend(device, _fallback, compiled, device_of, has_accelerator)


def _units(
    nodes: Sequence[Node],
    wanted: Collection[Tensor],
    feeds: Collection[Tensor],
    order: Order,
) -> Sequence[_Unit]:
    """Group nodes into units: regions, fused restores and single nodes."""
    fused = restorings(nodes, wanted, feeds, order)
    if not fused:
        return regions(nodes, wanted, feeds, order)
    unit_of = {unit.node: unit for unit in fused}
    fused_order = reordered(order, fused)
    units = regions([node for node in nodes if node in fused_order], wanted, feeds, fused_order)
    return [unit_of.get(unit, unit) if isinstance(unit, Node) else unit for unit in units]


def prune(
    fetches: Iterable[Tensor], targets: Iterable[Node], feeds: Iterable[Tensor]
) -> list[Node]:
    """The nodes that the step needs, in program order."""
    return needed(fetches, targets, dict.fromkeys(feeds))


def schedule(
    units: Sequence[_Unit],
    fetches: Sequence[Tensor],
    feeds: Sequence[Tensor],
    placement: Placement,
    backend: Backend,
    order: Order | None = None,
    fed: Collection[Tensor] | None = None,
) -> Plan:
    """Assign a slot to each tensor and an instruction to each unit. `fed`: the feeds that are
    values (default: all); the others are references, which are read when used."""
    slots: dict[Tensor, int] = {tensor: index for index, tensor in enumerate(feeds)}
    *starts, count = accumulate((len(unit.outputs) for unit in units), initial=len(feeds))
    for unit, start in zip(units, starts, strict=True):
        for slot, tensor in enumerate(unit.outputs, start):
            slots.setdefault(tensor, slot)
    fed = set(feeds if fed is None else fed)
    frees = _last_uses(units, slots, {slots[tensor] for tensor in fetches})
    instructions: list[Instruction] = []
    for unit, start, dead in zip(units, starts, frees, strict=True):
        inputs = tuple(slots[tensor] for tensor in _read_tensors(unit))
        operands = inputs, start, len(unit.outputs), tuple(dead)
        instructions.append(Instruction(*_call(unit, fed, backend)[:5], *operands))
    fetched = tuple(slots[tensor] for tensor in fetches)
    values = tuple(instructions), count, tuple(feeds), fetched
    return Plan(placement, order or {}, *values, backend.device.name)


def _read_tensors(unit: _Unit) -> tuple[Tensor, ...]:
    """The tensors that a unit reads."""
    return (*unit.inputs, *unit.references) if isinstance(unit, Region) else unit.inputs


def _last_uses(units: Sequence[_Unit], slots: dict[Tensor, int], kept: set[int]) -> list[list[int]]:
    """For each unit, the slots whose last use it is."""
    seen = set(kept)
    frees: list[list[int]] = [[] for _ in units]
    for unit, dead in zip(reversed(units), reversed(frees), strict=True):
        for tensor in (*unit.outputs, *_read_tensors(unit)):
            slot = slots[tensor]
            if slot not in seen:
                seen.add(slot)
                dead.append(slot)
    return frees


def _call(unit: _Unit, fed: set[Tensor], backend: Backend) -> Call:
    if isinstance(unit, ControlRegion):
        return control_call(unit, fed, backend)
    if isinstance(unit, DataflowStep):
        return unit.call(backend)
    return unit.call() if isinstance(unit, Restoring) else call_of(unit, fed, backend)


def region_plan(region: Region, on_host: Node | None, device: Device) -> Plan:
    """The fallback plan of a region. Without `on_host`, all nodes run on their NumPy kernels. With
    it, that node and its equals from the same source line do; the others are compiled.

    The feeds are the region's inputs, then its outer references.
    """
    units: Sequence[Unit] = region.nodes
    if on_host is not None:
        order = step_order(region.nodes, region.inputs)
        alike = _same_op_and_line(region.nodes, on_host)
        units = regions(region.nodes, region.outputs, region.inputs, order, alike)
    feeds = [*region.inputs, *_outer_references(region)]
    backend = Backend(device, _fallback, has_accelerator=not device.is_host)
    return schedule(units, region.outputs, feeds, {}, backend, fed=region.inputs)


def _same_op_and_line(nodes: Iterable[Node], node: Node) -> set[Node]:
    """Nodes with the same op and source line as `node`: if one cannot be compiled, none of them
    can. Finding that out one by one would split the region once for each."""
    origin = node.origin
    return {each for each in nodes if each.op == node.op and each.origin == origin} | {node}


def _outer_references(region: Region) -> list[Tensor]:
    return [tensor for tensor in region.roots if tensor.op not in region.nodes]


def _fallback(region: Region, device: Device, on_host: Node | None) -> Run:
    """A function that runs a region by its `region_plan`."""
    fallback_plan = region_plan(region, on_host, device)
    outer = _outer_references(region)
    places = [region.references.index(region.roots[tensor]) for tensor in outer]

    def run(context: Any, arrays: Sequence[Any], cells: Sequence[Any]) -> list[Any]:
        slots = fallback_plan.slots([*arrays, *(cells[place] for place in places)])
        context.run(fallback_plan.instructions, slots)
        return [slots[slot] for slot in fallback_plan.fetches]

    return run
