"""Lowering of control nodes to token graphs: conditionals to switches and merges, loops to frames.

An `Unfolder` creates the vertices of bodies, at any nesting depth, and of control primitives.
Subclasses define how other nodes are computed: `runtime/dataflow/control_region.py` unfolds steps
for execution, `runtime/dataflow/exported.py` unfolds graphs for export to files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import numpy as np

from thalweg.control.branches import Branching
from thalweg.control.lists import ListValue
from thalweg.control.liveness import needed
from thalweg.control.loops import While
from thalweg.control.primitives import Enter, Merge, Primitive
from thalweg.control.traces import LoopCount, LoopTrace, traced_tensor
from thalweg.graph.analysis.node_effects import has_state, is_sequential
from thalweg.graph.analysis.order import Order, step_order, touches_state
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument, Body, is_constant
from thalweg.lower.regions import Unit
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.runtime.compiled import host_arrays
from thalweg.runtime.dataflow.tokens import (
    Input,
    Known,
    Loop,
    Source,
    Vertex,
    VertexKind,
)
from thalweg.runtime.kernels import Call, dereferenced

#: Adds a vertex by which a tensor enters a loop.
_Enter = Callable[[Tensor], Source]
#: Adds a switch, which sends a value (default: the branch index) to the chosen branch.
_Switch = Callable[..., Source]

#: Vertex kinds of control primitives, by op name.
PRIMITIVES = {
    "Switch": VertexKind.SWITCH,
    "Merge": VertexKind.MERGE,
    "Enter": VertexKind.ENTER,
    "Exit": VertexKind.EXIT,
    "NextIteration": VertexKind.NEXT_ITERATION,
    "LoopCond": VertexKind.LOOP_COND,
    "ControlTrigger": VertexKind.TRIGGER,
}


@dataclass(eq=False)
class Section:
    """A part of a graph that is live or dead as a whole: a branch, a loop's condition or body."""

    #: creates a vertex that is live when the section is; None if the section always is
    make_pivot: Callable[[], int] | None = None
    values: dict[Tensor, Input] = field(default_factory=dict[Tensor, Input])
    #: for each node, the vertex that fires at its completion, or a function that creates it
    ends: dict[Node, int | Callable[[], int]] = field(
        default_factory=dict[Node, "int | Callable[[], int]"]
    )

    @cached_property
    def pivot(self) -> int | None:
        """The control input of vertices that have no other input."""
        return None if self.make_pivot is None else self.make_pivot()


class Unfolder(ABC):
    """Builds vertices. Subclasses define the calls and the handling of traces."""

    folds: ClassVar[bool] = True  # constants become Known inputs instead of vertices
    #: (tensors, targets, known tensors) -> the nodes of a body that they need, in program order
    needed = staticmethod(needed)

    def __init__(self, fed: Collection[Tensor] = ()) -> None:
        self.vertices: list[Vertex] = []
        self._fed = fed  # fed tensors: values, even if their nodes return references
        self._constants: set[int] = set()  # vertices whose tokens are in every iteration

    def add(
        self,
        section: Section,
        kind: VertexKind,
        inputs: Sequence[Input] = (),
        controls: Iterable[int] = (),
        **more: Any,
    ) -> Source:
        """Add a vertex to a section. It waits for the pivot if all its inputs are invariant."""
        after = tuple(dict.fromkeys(controls))
        if not after and all(self._is_ambient(source) for source in inputs):
            after = () if section.pivot is None else (section.pivot,)
        vertex = Vertex(kind, tuple(inputs), after, **more)
        if vertex.is_constant:
            self._constants.add(len(self.vertices))
        self.append(vertex)
        return Source(len(self.vertices) - 1)

    def append(self, vertex: Vertex) -> None:
        """Append a new vertex."""
        self.vertices.append(vertex)

    def connect(self, merge: int, inputs: Sequence[Input]) -> None:
        """Set the inputs of a merge, once the vertices of its back edges exist."""
        self.vertices[merge] = self.vertices[merge]._replace(inputs=tuple(inputs))

    def _is_ambient(self, source: Input) -> bool:
        return isinstance(source, Known) or source.vertex in self._constants

    def alive(self, source: Input, section: Section) -> Source:
        """A source with the value of `source` whose token is live exactly when the section is."""
        if isinstance(source, Source) and source.vertex not in self._constants:
            return source
        return self.add(section, VertexKind.PASS, (source,))

    def done(self, section: Section, node: Node) -> int:
        """The vertex that fires when a node of a section has completed, side effects included."""
        end = section.ends[node]
        if not isinstance(end, int):
            end = section.ends[node] = end()
        return end

    @abstractmethod
    def units(
        self, nodes: Sequence[Node], wanted: Sequence[Tensor], section: Section, order: Order
    ) -> Sequence[Unit]:
        """Group the nodes of a body into units of execution."""

    @abstractmethod
    def call(self, unit: Unit) -> Call | None:
        """The call that computes a unit; None for a control node that is unfolded."""

    # Bodies

    def body(self, body: Body, wanted: Sequence[Tensor], section: Section) -> None:
        """Unfold what the wanted tensors of a body need; `section.values` has its arguments."""
        nodes = [n for n in self.needed(wanted, body.targets, {}) if not isinstance(n.op, Argument)]
        order = step_order(nodes, values_in(section))
        for unit in self.units(nodes, wanted, section, order):
            self.unit(unit, section, order)
        self.close_loops(nodes, section)

    def unit(self, unit: Unit, section: Section, order: Order) -> None:
        """Unfold a node, a region or a control node."""
        if isinstance(unit, Node) and self.folds and is_constant(unit):
            section.values.setdefault(unit.outputs[0], Known(unit.op.numpy()))
        elif isinstance(unit, Node) and isinstance(unit.op, Primitive):
            self._primitive(unit, section, order)
        elif (call := self.call(unit)) is not None:
            self._add_call(call, unit, section, order)
        else:
            self.control(cast("ControlRegion", unit), section, order)

    def _add_call(self, call: Call, unit: Unit, section: Section, order: Order) -> None:
        inputs = (*unit.inputs, *unit.references) if isinstance(unit, Region) else unit.inputs
        source = self.add(
            section,
            VertexKind.CALL,
            [section.values[tensor] for tensor in inputs],
            self._before(unit, section, order),
            outputs=len(unit.outputs),
            node=call.node,
            call=call,
        )
        self.bind_outputs(section, unit.outputs, source)
        for node in call.nodes:
            end = source.vertex
            if node in section.ends and not is_constant(node):  # several regions have the read
                ends = self.done(section, node), end
                end = self.add(section, VertexKind.PASS, (Known(None),), ends).vertex
            section.ends[node] = end

    def bind_outputs(self, section: Section, outputs: Sequence[Tensor], source: Source) -> None:
        """Have the outputs of a vertex for tensors, unless these are fed."""
        for index, tensor in enumerate(outputs):
            if tensor not in self._fed:
                section.values[tensor] = Source(source.vertex, index)

    def _before(self, unit: Unit, section: Section, order: Order) -> list[int]:
        """The control inputs of a unit: its order edges that are not data edges. Nothing waits for
        a constant: it may be in a region that consumes the unit's outputs. A write waits for the
        copies of a read in other regions, even if its own has one."""
        nodes = (unit,) if isinstance(unit, Node) else unit.nodes
        producers = {tensor.op for tensor in unit.inputs if not _has_late_effects(tensor.op)}
        if isinstance(unit, ControlRegion):  # its bodies run before inputs that they do not use
            awaited = {each for each in producers if touches_state(each)}
            producers -= awaited.union(unit.node.controls)
        return [
            self.done(section, each)
            for node in nodes
            for each in order.get(node, ())
            if each in section.ends
            and each not in producers
            and not is_constant(each)
            and (each not in nodes or node.op.footprint or node.op.bodies)
        ]

    # Primitives

    def _primitive(self, node: Node, section: Section, order: Order) -> None:
        """Add the vertex of a primitive. `close_loops` adds the back edges of merges."""
        op: Any = node.op
        is_enter = isinstance(op, Enter)
        loop = Loop(op.frame_name, op.parallel_iterations) if is_enter else None
        known = [place for place, tensor in enumerate(node.inputs) if tensor in section.values]
        source = self.add(
            section,
            PRIMITIVES[type(op).__name__.removeprefix("Ref")],
            [self.value(node, place, section) for place in known],
            self._before(node, section, order),
            outputs=max(1, len(node.outputs)),
            node=node,
            loop=loop,
            is_constant=is_enter and op.is_constant,
        )
        self.bind_outputs(section, node.outputs, source)
        section.ends[node] = source.vertex

    def value(self, node: Node, place: int, section: Section) -> Input:
        """An input of a primitive; a reference is read if the op takes a value."""
        source = section.values[node.inputs[place]]
        if isinstance(node.op, Merge):
            source = self.alive(source, section)
        is_read = place in dereferenced(node, self._fed)
        return self.read(source, node, section) if is_read else source

    def read(self, source: Input, node: Node, section: Section) -> Input:
        """Add a call that reads a reference."""
        call = Call(_identity, False, (0,), node, (node,))
        return self.add(section, VertexKind.CALL, (source,), node=node, call=call)

    def close_loops(self, nodes: Iterable[Node], section: Section) -> None:
        """Connect the back edges of merges, whose vertices exist by now."""
        for node in nodes:
            if isinstance(node.op, Merge):
                place = cast("int", section.ends[node])
                inputs = [self.value(node, each, section) for each in range(len(node.inputs))]
                self.connect(place, inputs)

    # Conditionals

    def control(self, unit: ControlRegion, section: Section, order: Order) -> None:
        """Unfold a conditional or a loop, with its traces."""
        controls = self._before(unit, section, order)
        if isinstance(unit.node.op, Branching):
            self._conditional(unit, section, controls)
        else:
            self._loop(unit, section, controls)
        section.ends.update(dict.fromkeys(unit.nodes, section.ends[unit.node]))

    def _conditional(self, unit: ControlRegion, section: Section, controls: Sequence[int]) -> None:
        node, op = unit.node, cast("Branching", unit.node.op)
        source, choice = section.values[node.inputs[0]], self.choice(node, len(op.branches))
        chosen = self.add(section, VertexKind.CALL, (source,), controls, node=node, call=choice)

        switches: dict[Source, Source] = {}

        def switch(source: Source = chosen) -> Source:
            if source not in switches:
                inputs, count = (source, chosen), len(op.branches)
                switches[source] = self.add(
                    section, VertexKind.SWITCH, inputs, outputs=count, node=node
                )
            return switches[source]

        traces = [
            [t for t in unit.nodes[1:] if traced_tensor(t).graph is body.graph]
            for body in op.branches
        ]
        sections: list[Section] = []
        for number, body in enumerate(op.branches):
            wanted = [*body.outputs, *map(traced_tensor, traces[number])]
            sections.append(self._branch(node, number, section, wanted, switch))
        for number, branch_traces in enumerate(traces):
            for trace in branch_traces:
                section.values[trace.outputs[0]] = self.branch_trace(trace, number, sections)
        for index, tensor in enumerate(node.outputs):
            ends = [
                self.alive(branch.values[body.outputs[index]], branch)
                for branch, body in zip(sections, op.branches, strict=True)
            ]
            section.values[tensor] = self.add(section, VertexKind.MERGE, ends, node=node)
        section.ends[node] = lambda: self._join_branches(sections, section)

    def choice(self, node: Node, count: int) -> Call:
        """The call that converts a conditional's first input to a branch index."""
        references = (0,) if node.inputs[0].dtype.is_ref_dtype else ()
        choose = _truth if node.type == "If" else partial(_branch_number, count)
        return Call(choose, False, references, node, (node,))

    def _branch(
        self, node: Node, number: int, section: Section, wanted: Sequence[Tensor], switch: _Switch
    ) -> Section:
        """Unfold one branch; returns its section."""
        body = cast("Branching", node.op).branches[number]

        def pivot() -> int:
            return self.add(section, VertexKind.PASS, (Source(switch().vertex, number),)).vertex

        branch = Section(pivot)
        used_tensors = self._used(body, wanted)
        for argument, outer in zip(body.arguments, node.inputs[1:], strict=True):
            source = section.values[outer]
            if argument not in used_tensors:
                continue
            is_known = isinstance(source, Known)
            branch.values[argument] = source if is_known else Source(switch(source).vertex, number)
        self.body(body, wanted, branch)
        return branch

    def branch_trace(self, trace: Node, number: int, parts: Sequence[Section]) -> Input:
        """The traced tensor of a branch as an outer value; dead if another branch is taken."""
        return self.alive(parts[number].values[traced_tensor(trace)], parts[number])

    def _join_branches(self, branches: Sequence[Section], section: Section) -> int:
        """Add a vertex that fires when all nodes of the taken branch have completed."""
        ends: list[Input] = []
        for branch in branches:
            done = [self.done(branch, node) for node in list(branch.ends)]
            ends.append(self.add(branch, VertexKind.PASS, (Known(None),), done))
        return self.add(section, VertexKind.MERGE, ends).vertex

    # Loops

    def _loop(self, unit: ControlRegion, section: Section, controls: Sequence[int]) -> None:
        node, op = unit.node, cast("While", unit.node.op)
        loop = Loop(node.name, 1 if is_sequential(node) else op.parallel_iterations)

        def enter(tensor: Tensor, is_constant: bool = False) -> Source:
            attributes = {"node": node, "loop": loop, "is_constant": is_constant}
            source = section.values[tensor]
            return self.add(section, VertexKind.ENTER, (source,), controls, **attributes)

        enters = [enter(tensor) for tensor in node.inputs[: len(node.outputs)]]
        merges = [self.add(Section(), VertexKind.MERGE, (each,), node=node) for each in enters]
        traced = [traced_tensor(t) for t in unit.nodes[1:] if isinstance(t.op, LoopTrace)]
        invariants = self._invariants(node, traced, section, partial(enter, is_constant=True))
        condition = Section(
            lambda: merges[0].vertex, _by_argument(op.condition, merges, invariants)
        )
        self.body(op.condition, op.condition.outputs, condition)
        truth = self._truth(op.condition, node, condition)
        switches = [
            self.add(condition, VertexKind.SWITCH, (merge, truth), outputs=2, node=node)
            for merge in merges
        ]
        inside = [Source(switch.vertex, 1) for switch in switches]
        values = _by_argument(op.body, inside, invariants)
        body = Section(lambda: self._body_pivot(truth, condition), values)
        self.body(op.body, [*op.body.outputs, *traced], body)
        for merge, entered, tensor in zip(merges, enters, op.body.outputs, strict=True):
            back = self.add(body, VertexKind.NEXT_ITERATION, (body.values[tensor],), node=node)
            self.connect(merge.vertex, (entered, back))
        for tensor, switch in zip(node.outputs, switches, strict=True):
            section.values[tensor] = self.add(condition, VertexKind.EXIT, (switch,), node=node)
        self.loop_traces(unit, section, body, truth, loop)

    def _truth(self, condition: Body, node: Node, test: Section) -> Source:
        """Add the LOOP_COND vertex."""
        tensor = condition.outputs[0]
        source = test.values[tensor]
        if tensor.dtype.is_ref_dtype:
            source = self.read(source, node, test)
        return self.add(test, VertexKind.LOOP_COND, (source,), node=node)

    def _body_pivot(self, truth: Source, condition: Section) -> int:
        """Add a vertex that is live in the iterations in which the body runs."""
        switch = self.add(condition, VertexKind.SWITCH, (truth, truth), outputs=2)
        return self.add(condition, VertexKind.PASS, (Source(switch.vertex, 1),)).vertex

    def _invariants(
        self, node: Node, traced: Sequence[Tensor], section: Section, enter: _Enter
    ) -> dict[int, Input]:
        """The loop-invariant inputs, by argument index."""
        op, count = cast("While", node.op), len(node.outputs)
        used = self._used(op.condition, op.condition.outputs)
        used |= self._used(op.body, [*op.body.outputs, *traced])
        sources: dict[int, Input] = {}
        entered: dict[Tensor, Input] = {}
        for index, tensor in enumerate(node.inputs[count:], count):
            if used.isdisjoint((op.condition.arguments[index], op.body.arguments[index])):
                continue
            if tensor not in entered:
                source = section.values[tensor]
                entered[tensor] = source if isinstance(source, Known) else enter(tensor)
            sources[index] = entered[tensor]
        return sources

    def loop_traces(
        self, unit: ControlRegion, section: Section, part: Section, truth: Source, loop: Loop
    ) -> None:
        """Add the traces of a loop: its iteration count, and the values of traced tensors."""
        counted = partial(self.add, Section(), VertexKind.COUNT, (truth,), node=unit.node)
        section.ends[unit.node] = lambda: counted(collects=_iteration_count).vertex
        for trace in unit.nodes[1:]:
            if isinstance(trace.op, LoopCount):
                result = Source(self.done(section, unit.node))
            else:
                tensor = traced_tensor(trace)
                source, collects = part.values[tensor], partial(_collected, tensor)
                result = self.add(
                    part, VertexKind.COLLECT, (source,), collects=collects, node=unit.node
                )
            section.values[trace.outputs[0]] = result

    def _used(self, body: Body, wanted: Sequence[Tensor]) -> set[Tensor]:
        """The tensors of a body that computing the wanted ones reads, themselves included."""
        nodes = self.needed(wanted, body.targets, {})
        return {*wanted, *(tensor for node in nodes for tensor in node.inputs)}


def _truth(value: Any) -> int:
    return int(bool(value))


def _branch_number(count: int, value: Any) -> int:
    return int(value) if 0 <= value < count else count - 1


def _collected(tensor: Tensor, by_iteration: Mapping[int, Any], count: int) -> ListValue:
    """The list of the values that a tensor had in the iterations of a loop."""
    dtype = tensor.dtype.base_dtype
    is_taken = len(by_iteration) >= count
    absent = None if is_taken else untaken_value(tensor, by_iteration.values())
    values = host_arrays(by_iteration.get(index, absent) for index in range(count))
    is_numeric = dtype.is_numpy_compatible and np.dtype(dtype.as_numpy_dtype).kind in "biufc"
    if is_numeric and len({np.shape(value) for value in values}) == 1:
        return ListValue(dtype).take_over(np.stack(values))
    result = ListValue(dtype, count)
    for index, value in enumerate(values):
        result.write(index, value)
    return result


def untaken_value(tensor: Tensor, others: Iterable[Any] = ()) -> Any:
    """A placeholder for a tensor whose branch was not taken, shaped like the first of its other
    values. It is read, but its value is never used."""
    dtype = tensor.dtype.base_dtype
    if not dtype.is_numpy_compatible:
        return None
    sizes = [size or 0 for size in tensor.shape.sizes or ()]
    return np.zeros(next(map(np.shape, others), sizes), dtype.as_numpy_dtype)


def has_primitives(nodes: Iterable[Node]) -> bool:
    """Whether some node is a control primitive, which only a token graph can run."""
    return any(isinstance(node.op, Primitive) for node in nodes)


def _iteration_count(_: Mapping[int, Any], count: int) -> Any:
    return np.int32(count)


def _identity(value: Any) -> Any:
    return value


def values_in(section: Section) -> list[Tensor]:
    """The tensors that a section has values for, except references."""
    return [tensor for tensor in section.values if not tensor.dtype.is_ref_dtype]


def _by_argument(
    body: Body, variables: Sequence[Source], invariants: Mapping[int, Input]
) -> dict[Tensor, Input]:
    """The sources of a loop body's arguments: loop variables, then loop invariants."""
    sources = {**dict(enumerate(variables)), **invariants}
    return {body.arguments[place]: source for place, source in sources.items()}


def _has_late_effects(node: Node) -> bool:
    """Whether a node may still have side effects to perform when its outputs are available."""
    return bool(node.op.bodies) and has_state(node)
