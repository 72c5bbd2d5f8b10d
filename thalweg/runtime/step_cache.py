"""Programs of whole steps on disk: a process that runs a step of an earlier one does not plan it.

An entry holds the program of a step that is one region of the host, with the shapes it was compiled
for and how its inputs and outputs map to feeds, variables and fetches. It is looked up before
planning, by a key of everything that planning and lowering depend on: the nodes of the pruned step
with their attributes, constants, static shapes and order, feeds and fetches, the optimiser's
switches, the device, tuned schedules, and the code of this package. A step whose key would not be
complete has no entry. Calls that the program does not serve, because of other shapes or because
only reference kernels can report an error, are planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from thalweg.codegen.cache import shared_disk
from thalweg.codegen.contraction.tune import winners
from thalweg.codegen.sources import own_digest
from thalweg.device import tuning
from thalweg.device.device import Device
from thalweg.device.program_template import Stream
from thalweg.graph.node import Node
from thalweg.lower.fingerprint import Unnamed, flow_digest, flow_text, types_text
from thalweg.lower.specialise import Region
from thalweg.ops.core.basic import Const
from thalweg.optimize.custom import are_any_registered
from thalweg.optimize.options import OptimizerSwitches
from thalweg.platform.collector import gc_paused
from thalweg.runtime.compiled import Shapes
from thalweg.runtime.fast_path import FastPath, ProgramPath
from thalweg.runtime.plan import Step
from thalweg.runtime.program_cache import MAX_BYTES, entry_name, read_entry, write_entry

#: The package's own tests set this to False: they test the planner, and patch parts of it that no
#: key contains.
ENABLED = True

#: The subpackages that plan steps, besides those that compile programs.
FOLDERS = ("optimize", "partition", "place", "platform", "variables")
_MAX_CONSTANT_BYTES = 16 << 20  # of a step's constants; the key hashes them, and the plan again

#: Shapes of the inputs, template, positions of a `ProgramPath`, and of each variable the positions
#: of its node and among the outputs of that.
_Entry = tuple[Shapes, Any, tuple[Any, ...], list[tuple[int, int]]]


class StepEntry:
    """The disk entry of a step's program."""

    def __init__(self, name: str, nodes: Sequence[Node], device: Device) -> None:
        self.name, self._device = name, device
        self._nodes = Region(tuple(nodes), (), (), (), {})  # entries refer to nodes by position
        self._is_stored = False

    def find(self) -> ProgramPath | None:
        """The program that an earlier process stored; None if there is none that is valid here."""
        with gc_paused():
            entry: _Entry | None = read_entry(self.name, self._nodes)
            if entry is None:
                return None
            shapes, template, interface, references = entry
            kernels = self._device.find_kernels(template.kernels)
        if kernels is None:
            return None
        nodes = self._nodes.nodes
        program = self._device.restore(template, kernels, self._nodes, _no_listing)
        variables = [nodes[position].outputs[output] for position, output in references]
        return ProgramPath(nodes[-1], variables, {shapes: program}, *interface)

    def store(self, path: FastPath) -> None:
        """Store the program that the step ran, once. A step is not stored if its random ops or
        variables are not those of the user's graph, or if it has large folded constants."""
        if self._is_stored or not path.programs:
            return
        self._is_stored = True
        positions = {node: position for position, node in enumerate(self._nodes.nodes)}
        last: tuple[Shapes, Any] = list(path.programs.items())[-1]
        shapes, program = last
        template, random = program.template, [node for node, _ in program.streams]
        used = {*(node.original for node in random), *(t.op for t in path.references)}
        if not positions.keys() >= used or any(node.op != node.original.op for node in random):
            return
        if self._folded_bytes(template.constants) > MAX_BYTES:
            return  # writing them takes longer than folding them again
        streams = [
            Stream(positions[node.original], stream.values)
            for node, stream in zip(random, template.streams, strict=True)
        ]
        references = [(positions[tensor.op], tensor.value_index) for tensor in path.references]
        template = replace(template, streams=streams)
        interface = path.inputs, path.fetches, path.cells, path.is_whole
        entry: _Entry = shapes, template, interface, references
        write_entry(self.name, self._nodes, lambda: entry, MAX_BYTES)

    def _folded_bytes(self, constants: Sequence[Any]) -> int:
        """The total size of the constants that are not the user's: their elements are stored."""
        user_constants = {id(value) for value in _constants(self._nodes.nodes)}
        return sum(constant.nbytes for constant in constants if id(constant) not in user_constants)


def _no_listing() -> Any:
    raise NotImplementedError("A restored step has no listing: plan the step.")


def step_entry(
    step: Step, nodes: Sequence[Node], device: Device, switches: OptimizerSwitches
) -> StepEntry | None:
    """The entry of a step that is pruned to these nodes, on one device. None if its program cannot
    be stored, or depends on state that no key contains: user-defined rules and passes, tuning."""
    if not ENABLED or tuning.TUNES or are_any_registered() or not device.is_host:
        return None
    if shared_disk() is None or not nodes or not all(map(_may_be_in_region, nodes)):
        return None
    if sum(value.nbytes for value in _constants(nodes)) > _MAX_CONSTANT_BYTES:
        return None
    passes = f"{switches.enabled} {sorted(switches.toggles.items())} {sorted(switches.without)}"
    dependencies = f"step {passes} {own_digest(FOLDERS)} {winners().state} {device.key}"
    name = entry_name(_digest(step, nodes), dependencies)
    return None if name is None else StepEntry(name, nodes, device)


def _may_be_in_region(node: Node) -> bool:
    """Whether a step with this node can be one region: host ops on values, control flow and
    blocking nodes split it."""
    op = node.op
    return not (op.bodies or op.blocking or (op.host_only and node.inputs))


def _constants(nodes: Sequence[Node]) -> list[Any]:
    return [node.op.value for node in nodes if isinstance(node.op, Const)]


def _digest(step: Step, nodes: Sequence[Node]) -> bytes | None:
    """A digest of a pruned step; None if an op has no meaning in other processes. Names count for
    stateful nodes only: nodes of one name share their state."""
    numbers = {tensor: number for number, tensor in enumerate(dict.fromkeys(step.feeds))}
    inputs = types_text(list(numbers))
    try:
        texts, flow = flow_text(nodes, numbers)
    except Unnamed:
        return None
    positions = {node: position for position, node in enumerate(nodes)}
    feeds, fetches = ([numbers[tensor] for tensor in each] for each in (step.feeds, step.fetches))
    targets = [positions[node] for node in step.targets]
    names = [node.name for node in nodes if node.op.stateful]
    results = types_text(list(chain.from_iterable(node.outputs for node in nodes)))
    return flow_digest(f"{inputs}{feeds}{fetches}{targets}{names}{results}", texts, flow)
