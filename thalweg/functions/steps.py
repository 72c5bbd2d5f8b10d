"""Recorded work as steps: what is wanted of a piece is planned and compiled once, then found.

Comes in: a place in the tree, and which tensors are wanted. Goes out: a `RecordedStep` that takes
the values of the leaves. Pieces that differ only in the shapes of their leaves share one plan,
which compiles for the shapes that come, as plans of sessions do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.device.cpu.program import Program
from thalweg.device.local import local_devices
from thalweg.functions.trace import REFERENCE, VALUE, Leaf, Reference, TraceNode, has_effect
from thalweg.functions.trace import steps as recorded
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.node_effects import reference_roots
from thalweg.graph.shapes import unknown_shape
from thalweg.graph.subgraph import Body, needed
from thalweg.ops.core.basic import Const, Placeholder
from thalweg.platform.caches import Bounded
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.compiled import Executable
from thalweg.runtime.config import ConfigProto
from thalweg.runtime.executor import execute
from thalweg.runtime.kernels import Context
from thalweg.runtime.plan import Plan, Step, plan
from thalweg.runtime.resources import Resources
from thalweg.runtime.session import COMPILES

Array = NDArray[Any]

_MOST_STEPS = 256  # plans that are kept for all threads; the oldest ones go first

#: What outlives pieces of work and is no variable: queues, tables, the counts of printed lines.
resources = Resources()


class Drawing(Resources):
    """The process's resources, with the random streams of one run."""

    def __init__(self, streams: Mapping[Node, Any]) -> None:
        self._streams = streams
        self.version = 0

    def get(self, name: str, container: str, make: Callable[[], Any]) -> Any:
        """The object kept under (container, name), made on first use."""
        return resources.get(name, container, make)

    def delete(self, name: str, container: str) -> bool:
        """Forget an object; whether there was one."""
        return resources.delete(name, container)

    def state(self, node: Any, make: Callable[[], Any]) -> Any:
        """A node's own object: for a random op, the stream that its call was given."""
        found = self._streams.get(node)
        return resources.state(node, make) if found is None else found


class PlannedStep:
    """A plan that takes values and variables from outside."""

    def __init__(self, step: Step, references: Sequence[Tensor], randoms: Sequence[Node]) -> None:
        devices = local_devices(ConfigProto().device_count)
        planned = plan(step, devices, compiled=COMPILES)
        given = {tensor.op for tensor in references}
        slots = {i.node: i.output for i in planned.instructions if i.node in given}
        rest = tuple(i for i in planned.instructions if i.node not in given)
        self._references = [number for number, t in enumerate(references) if t.op in slots]
        taken = tuple(slots[references[number].op] for number in self._references)
        self._plan: Plan = replace(planned, instructions=rest, feeds=planned.feeds + taken)
        self._randoms = randoms
        self.context = Context(
            step.fetches[0].op if step.fetches else step.targets[0], resources, Cancellation()
        )
        self.region: Executable | None = None
        self._direct(step, references)

    def _direct(self, step: Step, references: Sequence[Tensor]) -> None:
        """Note how to run a step that is one region, without slots."""
        instructions = self._plan.instructions
        if len(instructions) != 1 or not isinstance(instructions[0].call, Executable):
            return
        (instruction,), call = instructions, instructions[0].call
        first, count = instruction.output, instruction.output_count
        region = call.region
        if any(not first <= slot < first + count for slot in self._plan.fetches):
            return
        if any(tensor not in step.feeds for tensor in region.inputs):
            return
        if any(tensor not in references for tensor in region.references):
            return
        self.region = call
        self.inputs = [step.feeds.index(tensor) for tensor in region.inputs]
        self.cells = [references.index(tensor) for tensor in region.references]
        self._fetches = [slot - first for slot in self._plan.fetches]
        self._is_whole = self._fetches == list(range(count))

    def run(self, values: Sequence[Any], cells: Sequence[Any], streams: Sequence[Any]) -> Any:
        """The fetched values."""
        context = self.context
        if streams:
            drawing = Drawing(dict(zip(self._randoms, streams, strict=True)))
            context = Context(context.node, drawing, Cancellation())
        if self.region is None:
            feeds = [*values, *[cells[number] for number in self._references]]
            return execute(self._plan, feeds, context.resources, Cancellation())
        arrays = [values[number] for number in self.inputs]
        variables = [cells[number] for number in self.cells]
        return self.run_region(self.region, context, arrays, variables)

    def run_region(
        self,
        region: Executable,
        context: Context | None,
        arrays: Sequence[Any],
        variables: Sequence[Any],
    ) -> Any:
        """The fetched values of a step that is one region, of its own inputs."""
        context = context or self.context
        step = region.steps.get(tuple([array.shape for array in arrays]))
        results = None
        if type(step) is Program:
            results = step(context, arrays, variables)
        if results is None:
            with np.errstate(all="ignore"):
                results = region.run(context, arrays, variables)
        # Tapes tell values apart by their arrays: a number becomes one once for all who want it.
        results = [cast("Any", np.asarray(r)) if isinstance(r, np.generic) else r for r in results]
        return results if self._is_whole else [results[place] for place in self._fetches]

    def native(self, arrays: Sequence[Any]) -> Program | None:
        """The machine code for inputs like these, if its results are just what is wanted."""
        region = self.region
        step = region and region.steps.get(tuple([array.shape for array in arrays]))
        if not isinstance(step, Program) or not self._is_whole:
            return None
        has_numbers = any(not shape for _, shape, _, _ in step.outputs)  # which become arrays
        return None if has_numbers else step


@dataclass
class RecordedStep:
    """What is wanted of a piece of work: which of its leaves a planned step takes."""

    step: PlannedStep | None
    values: list[int]
    references: list[int]
    randoms: list[int]
    cells: dict[int, int]  # wanted references: the number of the variable each is of
    origins: dict[Node, int]  # a node of the plan → the recorded op that it is part of

    def __post_init__(self) -> None:
        """Where the step is one region and nothing more: which leaves the region takes."""
        step = self.step
        self._region = None if step is None or self.randoms or self.cells else step.region
        self._native: Program | None = None
        if step is not None and self._region is not None:
            self._inputs = [self.values[number] for number in step.inputs]
            self._cells = [self.references[number] for number in step.cells]

    def run(self, values: Sequence[Any], cells: Sequence[Any], streams: Sequence[Any]) -> Any:
        """The wanted values, in order."""
        found: Any = []
        if self._region is not None and self.step is not None:
            arrays = [values[number] for number in self._inputs]
            variables = [cells[number] for number in self._cells] if self._cells else ()
            native = self._native
            if native is not None:
                found = native(self.step.context, arrays, variables)
                if found is not None:
                    return found
            found = self.step.run_region(self._region, None, arrays, variables)
            self._native = self.step.native(arrays)
            return found
        if self.step is not None:
            found = self.step.run(
                [values[number] for number in self.values],
                [cells[number] for number in self.references],
                [streams[number] for number in self.randoms] if self.randoms else (),
            )
        if not self.cells:
            return found
        rest, wanted = iter(found), len(found) + len(self.cells)
        return [cells[self.cells[i]] if i in self.cells else next(rest) for i in range(wanted)]


_steps = Bounded[Any, "tuple[PlannedStep, list[Node]]"]("plans of eager code", _MOST_STEPS)
_lock = threading.Lock()


def record_step(place: TraceNode, wanted: Sequence[Tensor], values: Sequence[Any]) -> RecordedStep:
    """A step that gives the wanted tensors of a piece, and has its effects."""
    return _Piece(place, values).step(wanted)


class _Piece:
    """The nodes and leaves of a piece of work."""

    def __init__(self, place: TraceNode, values: Sequence[Any]) -> None:
        path = place.path()
        self._values = [p.outputs[0] for p in path if p.leaf == VALUE]
        self._references = [p.outputs[0] for p in path if p.leaf == REFERENCE]
        fixed = {leaf for p in path for leaf in p.consulted}
        self._fixed = {self._values[leaf]: np.asarray(values[leaf]) for leaf in sorted(fixed)}
        self._nodes = [node for p in path for node in p.nodes]
        self._places = {node: n for n, p in enumerate(recorded(path)) for node in p.nodes}
        self._randoms = [node for p in path for node in p.randoms]

    def step(self, wanted: Sequence[Tensor]) -> RecordedStep:
        """A step that gives some tensors."""
        roots = reference_roots(self._nodes)
        cells = {
            position: self._references.index(roots[tensor])
            for position, tensor in enumerate(wanted)
            if tensor.dtype.is_ref_dtype and roots.get(tensor) in self._references
        }
        fetches = [t for position, t in enumerate(wanted) if position not in cells]
        targets = [node for node in self._nodes if has_effect(node)]
        leaves = dict.fromkeys([*self._values, *self._references])
        nodes = needed(fetches, targets, leaves)
        if not fetches and not targets:
            return RecordedStep(None, [], [], [], cells, {})
        used = {tensor for node in nodes for tensor in node.inputs} | set(fetches)
        self._used = [t for t in self._values if t in used and t not in self._fixed]
        self._cells = [t for t in self._references if t in used]
        planned, copies = self._planned(nodes, fetches, targets)
        running = set(nodes)
        randoms = [number for number, node in enumerate(self._randoms) if node in running]
        return RecordedStep(
            planned,
            [self._values.index(tensor) for tensor in self._used],
            [self._references.index(tensor) for tensor in self._cells],
            randoms,
            cells,
            {
                copy: self._places[n]
                for n, copy in zip(nodes, copies, strict=True)
                if n in self._places
            },
        )

    def _planned(
        self, nodes: Sequence[Node], fetches: Sequence[Tensor], targets: Sequence[Node]
    ) -> tuple[PlannedStep, list[Node]]:
        key = self._key(nodes, fetches)
        with _lock:
            found = _steps.get(key)
            if found is not None:
                _steps.renew(key)
                return found
        made = self._copied(nodes, fetches, targets)
        with _lock:
            _steps[key] = made
        return made

    def _key(self, nodes: Sequence[Node], fetches: Sequence[Tensor]) -> Any:
        """The structure of a step: ops, attributes, wiring, what comes in."""
        numbers: dict[Tensor, int] = {}
        parts: list[Any] = []
        places = {node: place for place, node in enumerate(nodes)}
        for tensor in self._used:
            numbers[tensor] = len(numbers)
            parts.append(tensor.dtype)
        for tensor in self._cells:
            numbers[tensor] = len(numbers)
            parts.append((tensor.dtype, tensor.shape))
        for tensor, value in self._fixed.items():
            numbers[tensor] = len(numbers)
            parts.append((tensor.dtype, value.shape, value.tobytes()))
        for node in nodes:
            inputs = tuple(numbers[tensor] for tensor in node.inputs)
            controls = tuple(places[c] for c in node.control_inputs if c in places)
            parts.append((op_key(node.op), inputs, controls, node.annotations.get("_counts")))
            for tensor in node.outputs:
                numbers[tensor] = len(numbers)
        parts.append(tuple(numbers[tensor] for tensor in fetches))
        return tuple(parts)

    def _copied(
        self, nodes: Sequence[Node], fetches: Sequence[Tensor], targets: Sequence[Node]
    ) -> tuple[PlannedStep, list[Node]]:
        graph = Graph()
        tensors: dict[Tensor, Tensor] = {}
        with graph.as_default():
            for tensor in self._used:
                made = Placeholder(dtype=tensor.dtype.base_dtype, given_shape=unknown_shape())
                tensors[tensor] = _added(graph, made, tensor.dtype, unknown_shape())
            for tensor in self._cells:
                made = Reference(dtype=tensor.dtype.base_dtype, given_shape=tensor.shape)
                tensors[tensor] = _added(graph, made, tensor.dtype, tensor.shape)
            for tensor, value in self._fixed.items():
                made = Const(value=value, dtype=as_dtype(tensor.dtype.base_dtype))
                tensors[tensor] = _added(graph, made, tensor.dtype, tensor.shape)
            copies = _copies(graph, nodes, tensors)
        step = Step(
            tuple(tensors[tensor] for tensor in fetches),
            tuple(copies[node] for node in targets),
            tuple(tensors[tensor] for tensor in self._used),
        )
        randoms = [copies[node] for node in self._randoms if node in copies]
        planned = PlannedStep(step, [tensors[tensor] for tensor in self._cells], randoms)
        return planned, [copies[node] for node in nodes]


def _added(graph: Graph, op: Any, dtype: Any, shape: Any) -> Tensor:
    return graph.add(op, (), [dtype], [shape], "value").outputs[0]


def _copies(graph: Graph, nodes: Iterable[Node], tensors: dict[Tensor, Tensor]) -> dict[Node, Node]:
    """The nodes again, effects one after the other."""
    copies: dict[Node, Node] = {}
    last: Node | None = None
    for node in nodes:
        controls = [copies[control] for control in node.control_inputs if control in copies]
        if last is not None and _is_ordered(node):
            controls.append(last)
        inputs = tuple(tensors[tensor] for tensor in node.inputs)
        copies[node] = copy = graph.copied(node, inputs, tuple(controls), node.type)
        for tensor, again in zip(node.outputs, copy.outputs, strict=True):
            if not tensor.dtype.is_ref_dtype:
                cast("Any", again)._shape = unknown_shape()  # one plan serves all shapes
            tensors[tensor] = again
        last = copy if _is_ordered(node) else last
    return copies


def _is_ordered(node: Node) -> bool:
    """Whether a node is seen from outside: what it does comes in the order of the program."""
    return has_effect(node) and node.op.host_only


def op_key(op: Any) -> Any:
    """What tells ops apart, as a hashable value."""
    if isinstance(op, Const):
        value: Array = op.value
        held = repr(value.tolist()) if value.dtype.hasobject else value.tobytes()
        return "Const", op.dtype, value.shape, held
    if isinstance(op, Leaf):
        return op
    return type(op), *[frozen(value) for value in op.__dict__.values()]


def frozen(value: Any) -> Any:
    """An attribute as a hashable value; bodies that do the same are the same."""
    if isinstance(value, Body):
        return _body_key(value)
    if isinstance(value, list | tuple):
        return tuple([frozen(part) for part in cast("Sequence[Any]", value)])
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return tuple([(key, frozen(part)) for key, part in items])
    if isinstance(value, np.ndarray):
        array = cast("Array", value)
        return array.dtype.str, array.shape, array.tobytes()
    return value


def _body_key(body: Body) -> Any:
    arguments = [(tensor.dtype, tensor.shape) for tensor in body.arguments]
    numbers = {tensor: number for number, tensor in enumerate(body.arguments)}
    nodes = needed(body.outputs, body.targets, numbers)
    places = {node: place for place, node in enumerate(nodes)}
    parts: list[Any] = [*arguments]
    for node in nodes:
        inputs = tuple(numbers[tensor] for tensor in node.inputs)
        controls = tuple(places[c] for c in node.control_inputs if c in places)
        parts.append((op_key(node.op), inputs, controls, node.annotations.get("_counts")))
        for tensor in node.outputs:
            numbers[tensor] = len(numbers)
    outputs = tuple(numbers[tensor] for tensor in body.outputs)
    return *parts, outputs, tuple(places[node] for node in body.targets)
