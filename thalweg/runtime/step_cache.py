"""Programs of whole steps, kept on disk: a later process with an equal step does not plan it.

Comes in: a step that one program of the host runs, as most do, pruned and placed, before anything
looks at what its nodes compute. Goes out, in a process that has an equal step: its program, with
which feeds and variables it takes. The name of an entry stands for all that planning and lowering
depend on: what is fed and fetched, the content of the nodes, their static shapes, the passes of the
optimiser, the device, and the code of this package. What the entry does not serve, other shapes or
a value that native code leaves to the reference kernels, is planned as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from typing import Any

from thalweg.codegen.cache import shared_disk
from thalweg.codegen.contraction.tune import winners
from thalweg.codegen.sources import own_digest
from thalweg.device import tuning
from thalweg.device.device import Device
from thalweg.device.program_template import Stream
from thalweg.graph.node import Node, Tensor
from thalweg.lower.fingerprint import Unnamed, flow_text
from thalweg.lower.specialise import Region
from thalweg.ops.core.basic import Const
from thalweg.optimize.custom import are_any_registered
from thalweg.optimize.options import OptimizerSwitches
from thalweg.platform.collector import gc_paused
from thalweg.runtime.fast_path import FastPath, ProgramPath, StepBorder
from thalweg.runtime.plan import Step
from thalweg.runtime.program_cache import MAX_BYTES, entry_name, read_entry, write_entry

#: Shapes and program, what the step and it give each other, the variables by node and output.
_Entry = tuple[Any, Any, tuple[Any, ...], list[tuple[int, int]]]


class StepEntry:
    """Where the program of a step is kept."""

    def __init__(self, name: str, nodes: Sequence[Node], device: Device) -> None:
        self._name, self._device = name, device
        self._nodes = Region(tuple(nodes), (), (), (), {})  # by whose numbers entries name them
        self._is_stored = False

    def find(self) -> ProgramPath | None:
        """The step on the program that an earlier process made; None where there is none."""
        with gc_paused():
            found: _Entry | None = read_entry(self._name, self._nodes)
            kernels = None if found is None else self._device.find_kernels(found[1].kernels)
        if found is None or kernels is None:
            return None
        shapes, template, border, references = found
        nodes = self._nodes.nodes
        program = self._device.restore(template, kernels, self._nodes, _unlisted)
        variables = [nodes[place].outputs[output] for place, output in references]
        return ProgramPath(nodes[-1], StepBorder(*border), variables, {shapes: program})

    def store(self, path: FastPath) -> None:
        """Keep the program that the step ran last, unless one is kept."""
        programs = list(path.executable.programs.items())
        if self._is_stored or not programs:
            return
        self._is_stored = True
        places = {node: place for place, node in enumerate(self._nodes.nodes)}
        shapes, program = programs[-1]
        drawing = [node.original for node, _ in program.streams]
        if not places.keys() >= {*drawing, *(tensor.op for tensor in path.references)}:
            return  # a pass made some of them
        if self._folded_bytes(program.template.constants) > MAX_BYTES:
            return  # to write them would take longer than to find them again
        values = [stream.values for stream in program.template.streams]
        streams = [Stream(places[node], each) for node, each in zip(drawing, values, strict=True)]
        template = replace(program.template, streams=streams)
        references = [(places[tensor.op], tensor.value_index) for tensor in path.references]
        entry: _Entry = shapes, template, tuple(path.border), references
        write_entry(self._name, self._nodes, lambda: entry, MAX_BYTES)

    def _folded_bytes(self, constants: Sequence[Any]) -> int:
        """The size of the constants that no node of the step has: passes made them."""
        ops = [node.op for node in self._nodes.nodes]
        own = {id(op.value) for op in ops if isinstance(op, Const)}
        return sum(constant.nbytes for constant in constants if id(constant) not in own)


def _unlisted() -> Any:
    raise NotImplementedError("The program of a step that was not planned has no listing.")


def step_entry(
    step: Step, nodes: Sequence[Node], device: Device, switches: OptimizerSwitches
) -> StepEntry | None:
    """The entry of a step, pruned to these nodes, on one device; None where nothing is kept."""
    if tuning.TUNES or are_any_registered() or not device.is_host or shared_disk() is None:
        return None
    if not nodes or any(node.op.bodies or node.op.blocking for node in nodes):
        return None  # more than one region, or none
    passes = f"{switches.enabled} {sorted(switches.toggles.items())} {sorted(switches.without)}"
    code = own_digest(("optimize",))
    name = entry_name(
        _fingerprint(step, nodes), f"step {passes} {code} {winners().state} {device.key}"
    )
    return None if name is None else StepEntry(name, nodes, device)


def _fingerprint(step: Step, nodes: Sequence[Node]) -> bytes | None:
    """A digest of all that planning and lowering a step depend on, besides the shapes of what is
    fed; None for one with an op that only this process knows. Of names, those of nodes with state
    matter: one name is one state."""
    numbers = {tensor: number for number, tensor in enumerate(dict.fromkeys(step.feeds))}
    fed = [(tensor.dtype.name, tensor.shape.sizes) for tensor in numbers]
    try:
        texts, flow = flow_text(nodes, numbers)
    except Unnamed:
        return None
    places = {node: place for place, node in enumerate(nodes)}
    feeds, fetches = ([numbers[tensor] for tensor in each] for each in (step.feeds, step.fetches))
    targets = [places[node] for node in step.targets]
    names = [node.name for node in nodes if node.op.stateful]
    text = f"{fed}{feeds}{fetches}{targets}{names}{_shapes(nodes)}\n" + "\n".join(texts)
    digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=20)
    digest.update(b"\0" + flow.tobytes())  # no text has such a character
    return digest.digest()


def _shapes(nodes: Sequence[Node]) -> str:
    """The static shapes of what nodes give: the distinct ones, and the number of each."""
    numbers: dict[tuple[int | None, ...] | None, int] = {}
    tensors: chain[Tensor] = chain.from_iterable(node.outputs for node in nodes)
    found = [numbers.setdefault(tensor.shape.sizes, len(numbers)) for tensor in tensors]
    return f"{list(numbers)}{found}"
