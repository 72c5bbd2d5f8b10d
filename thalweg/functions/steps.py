"""Steps of lazy traces: planned and compiled once, then cached.

Input: a trace node, and which of its tensors to compute. Output: a `RecordedStep` that takes the
values of the leaves. Traces that differ only in the shapes of their leaves share one plan, which
compiles for each set of shapes, as plans of sessions do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np

from thalweg import errors
from thalweg.device.device import Device
from thalweg.functions.devices import drop_lost_devices, eager_devices, generation, resources
from thalweg.functions.trace import (
    REFERENCE,
    VALUE,
    TraceNode,
    add_reference,
    has_effect,
)
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.rewriter import Rewriter
from thalweg.graph.shapes import unknown_shape
from thalweg.graph.subgraph import needed
from thalweg.lower.fingerprint import Unnamed, flow_text
from thalweg.ops.core.basic import Placeholder, constant
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.random.random import Random
from thalweg.optimize.options import DEFAULT
from thalweg.place.placer import Placer
from thalweg.platform.caches import Bounded
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.compiled import host_arrays
from thalweg.runtime.engine import COMPILES
from thalweg.runtime.executor import execute, on_device
from thalweg.runtime.fast_path import BoundProgram, FastPath, ProgramPath, fast_path
from thalweg.runtime.kernels import Context
from thalweg.runtime.plan import Plan, Step, plan, prune
from thalweg.runtime.resources import Resources
from thalweg.runtime.step_cache import step_entry

_MAX_PLANS = 256  # cached for all threads; the least recently used goes first

Bound = tuple[BoundProgram, "list[tuple[int, ...]]"]


class StepResources(Resources):
    """The process's resources on one device, and the variables and random streams of one run, by
    the nodes that take them."""

    def __init__(self, shared: Resources, states: Mapping[Node, Any]) -> None:
        vars(self).update(vars(shared))  # the objects are the same
        self._shared, self._run_states = shared, states

    def state(self, node: Any, make: Callable[[], Any]) -> Any:
        """A node's state: that of the run if it has one."""
        state = self._run_states.get(node)
        return super().state(node, make) if state is None else state

    def on(self, device: str) -> Resources:
        """The same run on another device."""
        other = self._shared.on(device)
        return self if other is self._shared else StepResources(other, self._run_states)


class PlannedStep:
    """A step that takes values, variables and random streams from its caller. If an earlier process
    has stored its program, it is planned when a call comes that the program does not serve.

    With GPUs, results stay in their memory, and immutable feeds are uploaded once.
    """

    #: The devices of the fetches; None without GPUs.
    devices: Sequence[str] | None = None

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Tensor],
        fetches: Sequence[Tensor],
        targets: Sequence[Node],
    ) -> None:
        """`inputs` are those that `add_input` adds to the graph of the step."""
        feeds = tuple(tensor for tensor in inputs if not tensor.dtype.is_ref_dtype)
        self._references = [tensor for tensor in inputs if tensor.dtype.is_ref_dtype]
        self.randoms = [node for node in graph.nodes if isinstance(node.op, Random)]
        self._state_nodes = [*(tensor.op for tensor in self._references), *self.randoms]
        self._step = step = Step(tuple(fetches), tuple(targets), feeds)
        node = fetches[0].op if fetches else targets[0]
        self.context = Context(node, resources, Cancellation())
        self._plan: Plan | None = None
        #: Index of a feed → the GPU that takes it.
        self._feed_devices: dict[int, Device] = {}
        has_entry = COMPILES and not eager_devices().has_accelerators
        host = eager_devices().all[0]
        self._entry = step_entry(step, prune(*step), host, DEFAULT) if has_entry else None
        restored = None if self._entry is None else self._entry.find()
        if restored is None:
            self._use_plan()
        else:
            self._use(restored)

    def _use(self, path: ProgramPath | None) -> None:
        """Run by a path, if that needs no other variables."""
        references = self._references
        self.path = path if path and set(references).issuperset(path.references) else None
        #: The indices of the variables that the fast path takes.
        self.cells = [references.index(t) for t in self.path.references] if self.path else []

    def _use_plan(self) -> Plan:
        devices, step = eager_devices(), self._step
        placer = Placer(devices.names, soft=True)
        self._plan = planned = plan(step, devices.all, placer, COMPILES)
        self._use(fast_path(planned, downloads=False))
        if devices.has_accelerators:
            self._set_devices(planned, placer)
        return planned

    def _set_devices(self, planned: Plan, placer: Placer) -> None:
        """Set the devices of the feeds and fetches."""
        devices, step = eager_devices(), self._step
        placement = placer.place([tensor.op for tensor in step.fetches])
        self.devices = ["" if t in step.feeds else placement[t.op] for t in step.fetches]
        self._dtypes = [np.dtype(t.dtype.base_dtype.as_numpy_dtype) for t in step.feeds]
        for part, indices in planned.parts(range(len(step.feeds))):
            if not devices[part.device].is_host:
                self._feed_devices.update(dict.fromkeys(indices, devices[part.device]))

    def run(
        self,
        values: Sequence[Any],
        cells: Sequence[Any],
        streams: Sequence[Any],
        immutable: Collection[int] | None = None,
    ) -> list[Any]:
        """The fetched values. `immutable` are the indices of the values that nobody writes to, as
        those of eager tensors; all of them if None."""
        results = None
        try:
            located = self._located(values, range(len(values)), immutable)
            if self.path is not None:
                context = self._context(cells, streams) if streams else self.context
                arrays = [located[number] for number in self.path.inputs]
                variables = [cells[number] for number in self.cells]
                results = self.path.run(context, arrays, variables)
            if results is None:
                results = self._execute(located, cells, streams)
            return self._frozen(results)
        except errors.OpError as error:
            self._raise_located(error)

    def _execute(
        self, values: Sequence[Any], cells: Sequence[Any], streams: Sequence[Any]
    ) -> list[Any]:
        """Run the plan, which a restored step makes now; stores the program of the fast path."""
        planned, restored = self._plan, self.path
        if planned is None:
            planned = self._use_plan()
            if isinstance(self.path, FastPath) and restored is not None:
                self.path.compile_like(restored.programs, [cells[n] for n in self.cells])
        context = self._context(cells, streams)
        results = execute(planned, values, context.resources, context.cancellation, on_device)
        if self._entry is not None and isinstance(self.path, FastPath):
            self._entry.store(self.path)
        return results

    def _context(self, cells: Sequence[Any], streams: Sequence[Any]) -> Context:
        """The context of a run with these variables and random streams."""
        states = dict(zip(self._state_nodes, [*cells, *streams], strict=True))
        return Context(self.context.node, StepResources(resources, states), Cancellation())

    def bind(self, arrays: Sequence[Any], immutable: Collection[int] | None = None) -> Bound | None:
        """The program of the fast path for arrays of these shapes, and the shapes of its results;
        None if there is no fast path."""
        bound = None if self.path is None else self.path.bind(arrays)
        if bound is None or self.devices is None:
            return bound
        program, shapes = bound
        inputs, bound_generation = cast("ProgramPath", self.path).inputs, generation[0]

        def run(context: Any, values: Sequence[Any], cells: Any) -> list[Any] | None:
            if generation[0] != bound_generation:
                return None  # the device is lost
            try:
                results = program(context, self._located(values, inputs, immutable), cells)
            except errors.OpError as error:
                self._raise_located(error)
            return results and self._frozen(results)

        return run, shapes

    # With GPUs

    def _located(
        self, values: Sequence[Any], feeds: Sequence[int], immutable: Collection[int] | None
    ) -> Sequence[Any]:
        """The values of feeds: immutable arrays as their copies in the memory of the GPUs that take
        them, and device buffers as arrays if the step runs on the host."""
        if self.devices is None:
            return values
        if not self._feed_devices and self.path is not None:
            return host_arrays(values)
        located, copy = [*values], eager_devices().device_copy
        for index, feed in enumerate(feeds):
            device, value = self._feed_devices.get(feed), values[index]
            is_immutable = immutable is None or index in immutable
            if device is not None and is_immutable and type(value) is np.ndarray:
                located[index] = copy(value, self._dtypes[feed], device)
        return located

    def _frozen(self, results: list[Any]) -> list[Any]:
        """The results, whose device buffers are immutable now."""
        for result in results if self.devices else ():
            if type(result) is not np.ndarray and isinstance(result, Buffer):
                result.freeze()
        return results

    def _raise_located(self, error: errors.OpError) -> NoReturn:
        """Raise an error of a device at a node of the step. A lost device is not used again."""
        if isinstance(error, errors.InternalError):
            drop_lost_devices()
        if error.op is not None or self.devices is None:
            raise error
        raise error.at(self.context.node) from error


def add_input(graph: Graph, tensor: Tensor, device: str) -> Tensor:
    """Add an input of a step to the default graph: a reference to a variable on a device, or a
    value of any shape."""
    if tensor.dtype.is_ref_dtype:
        return add_reference(graph, tensor.dtype, tensor.shape, device)
    return Placeholder(dtype=tensor.dtype, given_shape=unknown_shape())(name=tensor.op.name)


@dataclass
class RecordedStep:
    """A planned step that computes tensors of a lazy trace, and the leaves that it takes."""

    step: PlannedStep
    wanted: Sequence[Tensor]
    values: list[int]  # indices among the trace's values
    references: list[int]  # indices among its variables
    randoms: list[int]  # indices among its random streams
    originals: dict[Node, Node]  # node of the plan → node of the hidden graph
    #: The leaves have static shapes: after the first run, one bound program serves all.
    _program: BoundProgram | None = None

    def run(self, values: Sequence[Any], cells: Sequence[Any], streams: Sequence[Any]) -> list[Any]:
        """The wanted values, in order."""
        if self._program is not None:
            arrays = [values[number] for number in self._inputs]
            variables = [cells[number] for number in self._cells] if self._cells else ()
            results = self._program(self.step.context, arrays, variables)
            if results is not None:
                return results
        results = self.step.run(
            [values[number] for number in self.values],
            [cells[number] for number in self.references],
            [streams[number] for number in self.randoms] if self.randoms else (),
        )
        if not self.randoms and self.step.path is not None:
            self._inputs = [self.values[number] for number in self.step.path.inputs]
            self._cells = [self.references[number] for number in self.step.cells]
            bound = self.step.bind([values[number] for number in self._inputs])
            self._program = bound and bound[0]
        return results


_steps = Bounded[Any, "tuple[PlannedStep, list[Node]]"]("plans of eager code", _MAX_PLANS)
_lock = threading.Lock()


class StepBuilder:
    """Builds steps from the nodes and leaves of a lazy trace."""

    def __init__(self, trace_node: TraceNode, values: Sequence[Any]) -> None:
        path = trace_node.path()
        self._values = [p.outputs[0] for p in path if p.kind == VALUE]
        self._references = [p.outputs[0] for p in path if p.kind == REFERENCE]
        consulted = {leaf for p in path for leaf in p.consulted}
        # Shapes depend on these values: they are constants of the step.
        self._constants = {self._values[i]: np.asarray(values[i]) for i in sorted(consulted)}
        self._nodes = [node for p in path for node in p.nodes]
        self._randoms = [node for p in path for node in p.randoms]

    def build(self, wanted: Sequence[Tensor], runs_effects: bool = True) -> RecordedStep:
        """A step that computes these tensors, and runs the effects of the trace."""
        targets = [node for node in self._nodes if has_effect(node)] if runs_effects else []
        leaves = dict.fromkeys([*self._values, *self._references])
        nodes = needed(wanted, targets, leaves)
        used = {tensor for node in nodes for tensor in node.inputs} | set(wanted)
        self._feeds = [t for t in self._values if t in used and t not in self._constants]
        self._variables = [t for t in self._references if t in used]
        planned, copies = self._cached_plan(nodes, wanted, targets)
        running = set(nodes)
        randoms = [number for number, node in enumerate(self._randoms) if node in running]
        return RecordedStep(
            planned,
            wanted,
            [self._values.index(tensor) for tensor in self._feeds],
            [self._references.index(tensor) for tensor in self._variables],
            randoms,
            dict(zip(copies, nodes, strict=True)),
        )

    def _cached_plan(
        self, nodes: Sequence[Node], fetches: Sequence[Tensor], targets: Sequence[Node]
    ) -> tuple[PlannedStep, list[Node]]:
        key = self._key(nodes, fetches)
        with _lock:
            cached = _steps.get(key)
            if cached is not None:
                _steps.renew(key)
                return cached
        planned = self._plan_copy(nodes, fetches, targets)
        with _lock:
            _steps[key] = planned
        return planned

    def _key(self, nodes: Sequence[Node], fetches: Sequence[Tensor]) -> Any:
        """The structure of a step: ops, attributes, edges, inputs, requested devices."""
        inputs = [*self._feeds, *self._variables, *self._constants]
        numbers = {tensor: number for number, tensor in enumerate(inputs)}
        dtypes = [tensor.dtype for tensor in self._feeds]
        variables = [(t.dtype, t.shape, t.op.device) for t in self._variables]
        constants = [(t.dtype, v.shape, v.tobytes()) for t, v in self._constants.items()]
        parts = generation[0], *dtypes, *variables, *constants
        try:
            texts, flow = flow_text(nodes, numbers)
        except Unnamed:
            return object()  # equal to no other key
        devices = tuple(node.device for node in nodes)
        return *parts, *texts, devices, flow.tobytes(), tuple(numbers[tensor] for tensor in fetches)

    def _plan_copy(
        self, nodes: Sequence[Node], fetches: Sequence[Tensor], targets: Sequence[Node]
    ) -> tuple[PlannedStep, list[Node]]:
        graph = Graph()
        with graph.as_default():
            leaves = [*self._feeds, *self._variables]
            inputs = [add_input(graph, tensor, tensor.op.device) for tensor in leaves]
            rewriter = Rewriter(graph, dict(zip(leaves, inputs, strict=True)))
            for tensor, value in self._constants.items():
                rewriter.tensors[tensor] = constant(value, tensor.dtype)
            _copy_nodes(rewriter, nodes)
        computed = [rewriter.tensors[tensor] for tensor in fetches]
        planned = PlannedStep(graph, inputs, computed, rewriter.mapped(targets))
        return planned, rewriter.mapped(nodes)


def _copy_nodes(rewriter: Rewriter, nodes: Iterable[Node]) -> None:
    """Copy nodes with unknown shapes, so that one plan serves all shapes. Host ops with effects
    keep the order of the program."""
    last: Node | None = None
    for node in nodes:
        is_ordered = has_effect(node) and node.op.host_only
        copied = rewriter.copy(node, node.type, [last] if is_ordered and last is not None else ())
        for tensor in copied.outputs:
            if not tensor.dtype.is_ref_dtype:
                tensor.widen_shape(unknown_shape())
        last = copied if is_ordered else last
