"""Lazy traces as steps: what is wanted of one is planned and compiled once, then found.

Comes in: a trace node, and which tensors are wanted. Goes out: a `RecordedStep` that takes
the values of the leaves. Traces that differ only in the shapes of their leaves share one plan,
which compiles for the shapes that come, as plans of sessions do.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np

from thalweg import errors
from thalweg.device.device import Device
from thalweg.functions.devices import eager_devices, forget_lost, generation, resources
from thalweg.functions.trace import REFERENCE, VALUE, Reference, TraceNode, has_effect
from thalweg.functions.trace import steps as recorded
from thalweg.graph.analysis.node_effects import reference_roots
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.graph.subgraph import needed
from thalweg.lower.fingerprint import Unnamed, flow_text
from thalweg.ops.core.basic import Const, Placeholder
from thalweg.ops.core.buffer import Buffer
from thalweg.place.placer import Placer
from thalweg.platform.caches import Bounded
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.compiled import host_arrays
from thalweg.runtime.engine import COMPILES
from thalweg.runtime.executor import execute, on_device
from thalweg.runtime.fast_path import BoundProgram, FastPath, fast_path
from thalweg.runtime.kernels import Context
from thalweg.runtime.plan import Plan, Step, plan
from thalweg.runtime.resources import Resources

_MAX_PLANS = 256  # plans that are kept for all threads; the oldest ones go first

Bound = tuple[BoundProgram, "list[tuple[int, ...]]"]


class StepResources(Resources):
    """The process's resources on one device, with what one run was given: variables, by the nodes
    that stand for them, and random streams."""

    def __init__(self, shared: Resources, given: Mapping[Node, Any]) -> None:
        vars(self).update(vars(shared))  # the objects are the same
        self._shared, self._given = shared, given
        self.allocate = shared.allocate

    def state(self, node: Any, make: Callable[[], Any]) -> Any:
        """A node's own object: that which the run was given, where it is one."""
        found = self._given.get(node)
        return super().state(node, make) if found is None else found

    def on(self, device: str) -> Resources:
        """The same run on another device."""
        other = self._shared.on(device)
        return self if other is self._shared else StepResources(other, self._given)


class PlannedStep:
    """A plan that takes values and variables from outside."""

    #: The devices of what is fetched, in a process that has other ones than a CPU.
    devices: Sequence[str] | None = None

    def __init__(self, step: Step, references: Sequence[Tensor], randoms: Sequence[Node]) -> None:
        self._plan = self._planned(step)
        self._fetches: Sequence[Any] = self._plan.fetches or step.fetches
        self._given = [*(tensor.op for tensor in references), *randoms]
        self.context = Context(
            step.fetches[0].op if step.fetches else step.targets[0], resources, Cancellation()
        )
        path = fast_path(self._plan, step.feeds, downloads=False)
        self.path = path if path and set(references).issuperset(path.references) else None
        #: Which of the variables the fast path takes.
        self.cells = [references.index(t) for t in self.path.references] if self.path else []

    def _planned(self, step: Step) -> Plan:
        return plan(step, eager_devices().all, compiled=COMPILES)

    @property
    def repeats(self) -> bool:
        """Whether one value is fetched twice."""
        return len(set(self._fetches)) < len(self._fetches)

    def run(
        self,
        values: Sequence[Any],
        cells: Sequence[Any],
        streams: Sequence[Any],
        kept: Collection[int] | None = None,
    ) -> list[Any]:
        """The fetched values. Of the values that come in, nobody writes to those of eager tensors:
        all, or those that are `kept`, by number."""
        results = None
        if self.path is not None:
            context = self._context(cells, streams) if streams else self.context
            arrays = [values[number] for number in self.path.inputs]
            variables = [cells[number] for number in self.cells]
            results = self.path.run(context, arrays, variables)
        if results is None:
            context = self._context(cells, streams)
            found = context.resources, context.cancellation
            results = execute(self._plan, values, *found, on_device)
        return self._with_arrays(results)

    def _context(self, cells: Sequence[Any], streams: Sequence[Any]) -> Context:
        """A run with these variables and random streams."""
        given = dict(zip(self._given, [*cells, *streams], strict=True))
        return Context(self.context.node, StepResources(resources, given), Cancellation())

    def _with_arrays(self, results: Sequence[Any]) -> list[Any]:
        """Scalars as arrays. Tapes tell values apart by identity: of a slot there is one array."""
        of_slot = {
            slot: np.asarray(cast("Any", result)) if isinstance(result, np.generic) else result
            for slot, result in zip(self._fetches, results, strict=True)
        }
        return [of_slot[slot] for slot in self._fetches]

    def bind(self, arrays: Sequence[Any], kept: Collection[int] | None = None) -> Bound | None:
        """`run` for arrays of these shapes alone, which the fast path takes, and the shapes of what
        it gives."""
        return None if self.path is None else self.path.bind(arrays)


class AcceleratedStep(PlannedStep):
    """A plan in a process that has GPUs. What they compute stays in their memory; what they are
    given goes there once."""

    def _planned(self, step: Step) -> Plan:
        devices = eager_devices()
        placer = Placer(devices.names, soft=True)
        planned = plan(step, devices.all, placer, COMPILES)
        placement = placer.place([tensor.op for tensor in step.fetches])
        self.devices = ["" if t in step.feeds else placement[t.op] for t in step.fetches]
        self._copy_of, self._generation = devices.copy_of, generation[0]
        self._dtypes = [np.dtype(t.dtype.base_dtype.as_numpy_dtype) for t in step.feeds]
        #: For feeds that GPUs take, by number: the device.
        self._takers: dict[int, Device] = {}
        for part in planned.partitions:
            if not part.device.is_host:
                taken = [place for place, _ in part.partition.feeds]
                self._takers.update(dict.fromkeys(taken, part.device))
        if planned.device and not devices[planned.device].is_host:
            self._takers = dict.fromkeys(range(len(step.feeds)), devices[planned.device])
        return planned

    def run(
        self,
        values: Sequence[Any],
        cells: Sequence[Any],
        streams: Sequence[Any],
        kept: Collection[int] | None = None,
    ) -> list[Any]:
        given = [*values]
        try:
            for number, device in self._takers.items():
                if kept is None or number in kept:
                    self._upload(given, number, number, device)
            if self.path is not None and self.path.executable.device.is_host:
                given = host_arrays(given)
            return _frozen(super().run(given, cells, streams))
        except errors.OpError as error:
            self._fail(error)

    def bind(self, arrays: Sequence[Any], kept: Collection[int] | None = None) -> Bound | None:
        if self.path is None:
            return None
        device = self.path.executable.device
        found = super().bind(host_arrays(arrays) if device.is_host else arrays)
        if found is None:
            return None
        program, shapes = found
        if device.is_host:
            return lambda context, given, cells: program(context, host_arrays(given), cells), shapes
        places = range(len(arrays)) if kept is None else kept
        return self._located(program, device, places), shapes

    def _located(
        self, program: BoundProgram, device: Device, kept: Collection[int]
    ) -> BoundProgram:
        """A program of a GPU, given arrays of the host."""
        inputs, made = cast("FastPath", self.path).inputs, self._generation

        def run(context: Any, given: Sequence[Any], cells: Any) -> list[Any] | None:
            if generation[0] != made:
                return None  # the device is gone
            located = [*given]
            try:
                for place in kept:
                    self._upload(located, place, inputs[place], device)
                results = program(context, located, cells)
            except errors.OpError as error:
                self._fail(error)
            return None if results is None else _frozen(results)

        return run

    def _upload(self, values: list[Any], place: int, feed: int, device: Device) -> None:
        """Have a feed that nobody writes to in the memory of a device."""
        if type(values[place]) is np.ndarray:
            values[place] = self._copy_of(values[place], self._dtypes[feed], device)

    def _fail(self, error: errors.OpError) -> NoReturn:
        """Raise an error of a device at a node of the step. Where it has closed the device, what
        comes later is planned without that."""
        if isinstance(error, errors.InternalError):
            forget_lost()
        if error.op is not None:
            raise error
        raise error.at(self.context.node) from error


def _frozen(results: list[Any]) -> list[Any]:
    """What a step gave, to which nobody writes."""
    for result in results:
        if type(result) is not np.ndarray and isinstance(result, Buffer):
            result.freeze()
    return results


def planned_step(step: Step, references: Sequence[Tensor], randoms: Sequence[Node]) -> PlannedStep:
    """A step, planned for the devices that are there."""
    kind = AcceleratedStep if eager_devices().has_gpus else PlannedStep
    return kind(step, references, randoms)


@dataclass
class RecordedStep:
    """What is wanted of a lazy trace: which of its leaves a planned step takes."""

    step: PlannedStep | None
    values: list[int]
    references: list[int]
    randoms: list[int]
    cells: dict[int, int]  # wanted references: the number of the variable each is of
    origins: dict[Node, int]  # a node of the plan → the recorded op that it is part of

    def __post_init__(self) -> None:
        """The leaves have fixed shapes: once the step ran, one program serves it."""
        self._program: BoundProgram | None = None
        path = self.step and self.step.path
        self._inputs = [self.values[number] for number in path.inputs] if path else []
        self._cells = [self.references[number] for number in self.step.cells] if self.step else []
        found = None if self.step is None else self.step.devices
        #: of what is wanted, "" for variables; None in a process without GPUs
        self.devices = None if found is None else self._with_cells([*found], defaultdict(str))

    def run(self, values: Sequence[Any], cells: Sequence[Any], streams: Sequence[Any]) -> list[Any]:
        """The wanted values, in order."""
        if self.step is None:
            return self._with_cells([], cells)
        if self._program is not None:
            arrays = [values[number] for number in self._inputs]
            variables = [cells[number] for number in self._cells] if self._cells else ()
            found = self._program(self.step.context, arrays, variables)
            if found is not None:
                return found
        found = self.step.run(
            [values[number] for number in self.values],
            [cells[number] for number in self.references],
            [streams[number] for number in self.randoms] if self.randoms else (),
        )
        if not self.randoms and not self.cells and not self.step.repeats:
            bound = self.step.bind([values[number] for number in self._inputs])
            self._program = bound and bound[0]
        return self._with_cells(found, cells)

    def _with_cells(self, found: list[Any], cells: Any) -> list[Any]:
        if not self.cells:
            return found
        rest, wanted = iter(found), len(found) + len(self.cells)
        return [cells[self.cells[i]] if i in self.cells else next(rest) for i in range(wanted)]


_steps = Bounded[Any, "tuple[PlannedStep, list[Node]]"]("plans of eager code", _MAX_PLANS)
_lock = threading.Lock()


def record_step(end: TraceNode, wanted: Sequence[Tensor], values: Sequence[Any]) -> RecordedStep:
    """A step that gives the wanted tensors of a lazy trace, and has its effects."""
    return _RecordedTrace(end, values).step(wanted)


class _RecordedTrace:
    """The nodes and leaves of a lazy trace."""

    def __init__(self, trace_node: TraceNode, values: Sequence[Any]) -> None:
        path = trace_node.path()
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
        parts: list[Any] = [generation[0]]
        for tensor in self._used:
            numbers[tensor] = len(numbers)
            parts.append(tensor.dtype)
        for tensor in self._cells:
            numbers[tensor] = len(numbers)
            parts.append((tensor.dtype, tensor.shape, tensor.op.device))
        for tensor, value in self._fixed.items():
            numbers[tensor] = len(numbers)
            parts.append((tensor.dtype, value.shape, value.tobytes()))
        try:
            texts, flow = flow_text(nodes, numbers)
        except Unnamed:
            return object()  # nothing is known to be the same
        asked = tuple(node.device for node in nodes)
        return *parts, *texts, asked, flow.tobytes(), tuple(numbers[tensor] for tensor in fetches)

    def _copied(
        self, nodes: Sequence[Node], fetches: Sequence[Tensor], targets: Sequence[Node]
    ) -> tuple[PlannedStep, list[Node]]:
        again = Rewriter(Graph())
        with again.graph.as_default():
            for tensor in self._used:
                op = Placeholder(dtype=tensor.dtype.base_dtype, given_shape=unknown_shape())
                _stand_in(again, tensor, op, unknown_shape())
            for tensor in self._cells:
                op = Reference(dtype=tensor.dtype.base_dtype, given_shape=tensor.shape)
                _stand_in(again, tensor, op, tensor.shape)
            for tensor, value in self._fixed.items():
                op = Const(value=value, dtype=tensor.dtype.base_dtype)
                _stand_in(again, tensor, op, tensor.shape)
            _copy(again, nodes)
        step = Step(
            tuple(again.tensors[tensor] for tensor in fetches),
            tuple(again.mapped(targets)),
            tuple(again.tensors[tensor] for tensor in self._used),
        )
        cells = [again.tensors[tensor] for tensor in self._cells]
        return planned_step(step, cells, again.mapped(self._randoms)), again.mapped(nodes)


def _stand_in(again: Rewriter, tensor: Tensor, op: Op, shape: TensorShape) -> None:
    made = again.graph.add(op, (), [tensor.dtype], [shape], "value")
    made.device = tensor.op.device if tensor.dtype.is_ref_dtype else ""
    again.tensors[tensor] = made.outputs[0]


def _copy(again: Rewriter, nodes: Iterable[Node]) -> None:
    """The nodes again: what is seen from outside comes in the order of the program, and one plan
    serves all shapes."""
    last: Node | None = None
    for node in nodes:
        is_ordered = has_effect(node) and node.op.host_only
        made = again.copy(node, node.type, [last] if is_ordered and last is not None else ())
        for tensor in made.outputs:
            if not tensor.dtype.is_ref_dtype:
                tensor.widen_shape(unknown_shape())
        last = made if is_ordered else last
