"""From control nodes to token graphs: conditionals become switches and merges, loops frames.

An `Unfolder` makes the vertices of bodies, to any depth, and of nodes that are control primitives.
Steps are unfolded to be run (`runtime/dataflow/control_region.py`), graphs to be written to files
(`runtime/dataflow/exported.py`): these say what computes the nodes between control nodes.
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
from thalweg.control.primitives import Enter, Merging, Primitive
from thalweg.control.traces import LoopCount, LoopTrace, traced_tensor
from thalweg.graph.analysis.node_effects import has_state, is_sequential
from thalweg.graph.analysis.order import Order, step_order
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument, Body
from thalweg.lower.regions import Unit
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.ops.core.basic import Const
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

#: What the vertices of control primitives do, by the names of their ops.
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
    """A part of a graph that runs or not as a whole: a branch, the condition or body of a loop."""

    #: makes a vertex that is alive where the section is; none where it always is
    make_pivot: Callable[[], int] | None = None
    values: dict[Tensor, Input] = field(default_factory=dict[Tensor, Input])
    #: for each node, a vertex that fires when it is done, or how to make one
    ends: dict[Node, int | Callable[[], int]] = field(
        default_factory=dict[Node, "int | Callable[[], int]"]
    )

    @cached_property
    def pivot(self) -> int | None:
        """The vertex that what has no other input waits for."""
        return None if self.make_pivot is None else self.make_pivot()


class Unfolder(ABC):
    """Vertices in the making. What computes them and what becomes of traces, subclasses say."""

    folds: ClassVar[bool] = True  # constants: they are known, and no vertices

    def __init__(self, fed: Collection[Tensor] = ()) -> None:
        self.vertices: list[Vertex] = []
        self._fed = fed  # tensors that are values whatever their nodes give
        self._closed: set[Node] = set()
        self._constants: set[int] = set()  # vertices whose tokens are there in every iteration

    def add(
        self,
        section: Section,
        kind: VertexKind,
        inputs: Sequence[Input] = (),
        controls: Iterable[int] = (),
        **more: Any,
    ) -> Source:
        """A vertex of a section: what only takes what is always there waits for its pivot."""
        after = tuple(dict.fromkeys(controls))
        if not after and all(self._is_ambient(source) for source in inputs):
            after = () if section.pivot is None else (section.pivot,)
        made = Vertex(kind, tuple(inputs), after, **more)
        if made.is_constant:
            self._constants.add(len(self.vertices))
        self.append(made)
        return Source(len(self.vertices) - 1)

    def append(self, vertex: Vertex) -> None:
        """Take a vertex that was made."""
        self.vertices.append(vertex)

    def connect(self, merge: int, inputs: Sequence[Input]) -> None:
        """Have a merge take what was made after it."""
        self.vertices[merge] = self.vertices[merge]._replace(inputs=tuple(inputs))

    def _is_ambient(self, source: Input) -> bool:
        return isinstance(source, Known) or source.vertex in self._constants

    def alive(self, source: Input, section: Section) -> Source:
        """A value as a token that is alive where its section is."""
        if isinstance(source, Source) and source.vertex not in self._constants:
            return source
        return self.add(section, VertexKind.PASS, (source,))

    def done(self, section: Section, node: Node) -> int:
        """A vertex that fires when a node of a section is done with all it does."""
        end = section.ends[node]
        if not isinstance(end, int):
            end = section.ends[node] = end()
        return end

    @abstractmethod
    def units(
        self, nodes: Sequence[Node], wanted: Sequence[Tensor], section: Section, order: Order
    ) -> Sequence[Unit]:
        """The nodes of a body as what runs as one."""

    @abstractmethod
    def call(self, unit: Unit) -> Call | None:
        """What computes a unit; None for a control node that is unfolded."""

    # Bodies

    def body(self, body: Body, wanted: Sequence[Tensor], section: Section) -> None:
        """What tensors of a body need, whose arguments the section has as values."""
        nodes = [n for n in self.needed(body, wanted) if not isinstance(n.op, Argument)]
        order = step_order(nodes, values_in(section))
        for unit in self.units(nodes, wanted, section, order):
            self.unit(unit, section, order)
        self.close_loops(nodes, section)

    def unit(self, unit: Unit, section: Section, order: Order) -> None:
        """A node, a region or a control node."""
        if isinstance(unit, Node) and self.folds and is_constant(unit):
            section.values.setdefault(unit.outputs[0], Known(unit.op.numpy()))
        elif isinstance(unit, Node) and isinstance(unit.op, Primitive):
            self._primitive(unit, section, order)
        elif (call := self.call(unit)) is not None:
            self._add_call(call, unit, section, order)
        else:
            self.control(cast("ControlRegion", unit), section, order)

    def needed(self, body: Body, wanted: Sequence[Tensor]) -> list[Node]:
        """The nodes of a body that tensors of it need, in the order of the program."""
        return needed(wanted, body.targets, {})

    def _add_call(self, call: Call, unit: Unit, section: Section, order: Order) -> None:
        taken = (*unit.inputs, *unit.references) if isinstance(unit, Region) else unit.inputs
        made = self.add(
            section,
            VertexKind.CALL,
            [section.values[tensor] for tensor in taken],
            self._before(unit, section, order),
            outputs=len(unit.outputs),
            node=call.node,
            call=call,
            blocks=call.node.op.blocking,
        )
        self._gives(section, unit.outputs, made)
        section.ends.update(dict.fromkeys(call.nodes, made.vertex))

    def _gives(self, section: Section, outputs: Sequence[Tensor], made: Source) -> None:
        for place, tensor in enumerate(outputs):
            if tensor not in self._fed:
                section.values[tensor] = Source(made.vertex, place)

    def _before(self, unit: Unit, section: Section, order: Order) -> list[int]:
        """What a unit comes after besides what it takes. A constant may be in a region that takes
        what the unit gives: nothing has to wait for it."""
        nodes = (unit,) if isinstance(unit, Node) else unit.nodes
        came = {tensor.op for tensor in unit.inputs if not _goes_on_after(tensor.op)}
        earlier = dict.fromkeys(e for node in nodes for e in order.get(node, ()))
        return [
            self.done(section, each)
            for each in earlier
            if each in section.ends
            and each not in nodes
            and each not in came
            and not is_constant(each)
        ]

    # Primitives

    def _primitive(self, node: Node, section: Section, order: Order) -> None:
        """A vertex for a primitive. What a merge takes from later nodes is added at the end."""
        op: Any = node.op
        loop = None
        if isinstance(op, Enter):
            loop = Loop(op.frame_name, op.parallel_iterations)
        known = [place for place, tensor in enumerate(node.inputs) if tensor in section.values]
        made = self.add(
            section,
            PRIMITIVES[type(op).__name__.removeprefix("Ref")],
            [self.value(node, place, section) for place in known],
            self._before(node, section, order),
            outputs=max(1, len(node.outputs)),
            node=node,
            loop=loop,
            is_constant=loop is not None and op.is_constant,
        )
        self._gives(section, node.outputs, made)
        section.ends[node] = made.vertex

    def value(self, node: Node, place: int, section: Section) -> Input:
        """An input of a primitive, read where it is a reference and a value is wanted."""
        source = section.values[node.inputs[place]]
        if isinstance(node.op, Merging):
            source = self.alive(source, section)
        is_read = place in dereferenced(node, self._fed)
        return self.read(source, node, section) if is_read else source

    def read(self, source: Input, node: Node, section: Section) -> Input:
        """The value of a reference."""
        call = Call(_same, False, (0,), node, (node,))
        return self.add(section, VertexKind.CALL, (source,), node=node, call=call)

    def close_loops(self, nodes: Iterable[Node], section: Section) -> None:
        """Have merges take what was made after them."""
        for node in nodes:
            if isinstance(node.op, Merging) and node not in self._closed:
                self._closed.add(node)
                place = cast("int", section.ends[node])
                inputs = [self.value(node, each, section) for each in range(len(node.inputs))]
                self.connect(place, inputs)

    # Conditionals

    def control(self, unit: ControlRegion, section: Section, order: Order) -> None:
        """A conditional or a loop, with its traces."""
        controls = self._before(unit, section, order)
        if isinstance(unit.node.op, Branching):
            self._conditional(unit, section, controls)
        else:
            self._loop(unit, section, controls)
        for node in unit.nodes:
            section.ends[node] = section.ends[unit.node]

    def _conditional(self, unit: ControlRegion, section: Section, controls: Sequence[int]) -> None:
        node, op = unit.node, cast("Branching", unit.node.op)
        source, choice = section.values[node.inputs[0]], self.choice(node, len(op.branches))
        chosen = self.add(section, VertexKind.CALL, (source,), controls, node=node, call=choice)
        switched: dict[Tensor, Source] = {}
        traces = [
            [t for t in unit.nodes[1:] if traced_tensor(t).graph is body.graph]
            for body in op.branches
        ]
        parts: list[Section] = []
        for number, body in enumerate(op.branches):
            wanted = [*body.outputs, *map(traced_tensor, traces[number])]
            parts.append(self._branch(node, number, body, chosen, switched, section, wanted))
        for number, found in enumerate(traces):
            for trace in found:
                section.values[trace.outputs[0]] = self.branch_trace(trace, number, parts)
        for place, tensor in enumerate(node.outputs):
            ends = [
                self.alive(part.values[body.outputs[place]], part)
                for part, body in zip(parts, op.branches, strict=True)
            ]
            section.values[tensor] = self.add(section, VertexKind.MERGE, ends, node=node)
        section.ends[node] = lambda: self._joined(parts, section)

    def choice(self, node: Node, count: int) -> Call:
        """What makes the number of a branch of what chooses it."""
        references = (0,) if node.inputs[0].dtype.is_ref_dtype else ()
        choose = _truth if node.type == "If" else partial(_branch_number, count)
        return Call(choose, False, references, node, (node,))

    def _branch(
        self,
        node: Node,
        number: int,
        body: Body,
        chosen: Source,
        switched: dict[Tensor, Source],
        section: Section,
        wanted: Sequence[Tensor],
    ) -> Section:
        """The section of one branch."""
        count = len(cast("Branching", node.op).branches)

        def pivot() -> int:
            switch = self.add(
                section, VertexKind.SWITCH, (chosen, chosen), outputs=count, node=node
            )
            return self.add(section, VertexKind.PASS, (Source(switch.vertex, number),)).vertex

        part = Section(pivot)
        used = self._used(body, wanted)
        for argument, outer in zip(body.arguments, node.inputs[1:], strict=True):
            source = section.values[outer]
            if argument not in used:
                continue
            if isinstance(source, Known):
                part.values[argument] = source
                continue
            if outer not in switched:
                switched[outer] = self.add(
                    section, VertexKind.SWITCH, (source, chosen), outputs=count, node=node
                )
            part.values[argument] = Source(switched[outer].vertex, number)
        self.body(body, wanted, part)
        return part

    def branch_trace(self, trace: Node, number: int, parts: Sequence[Section]) -> Input:
        """A tensor of a branch, seen from outside: dead where another branch is taken."""
        return self.alive(parts[number].values[traced_tensor(trace)], parts[number])

    def _joined(self, parts: Sequence[Section], section: Section) -> int:
        """A vertex that fires when all of the branch that was taken is done."""
        ends: list[Input] = []
        for part in parts:
            done = [self.done(part, node) for node in list(part.ends)]
            ends.append(self.add(part, VertexKind.PASS, (Known(None),), done))
        return self.add(section, VertexKind.MERGE, ends).vertex

    # Loops

    def _loop(self, unit: ControlRegion, section: Section, controls: Sequence[int]) -> None:
        node, op = unit.node, cast("While", unit.node.op)
        loop = Loop(node.name, op.parallel_iterations, is_sequential(node))
        count = len(node.outputs)
        enters = [
            self.add(
                section, VertexKind.ENTER, (section.values[t],), controls, node=node, loop=loop
            )
            for t in node.inputs[:count]
        ]
        merges = [self.add(Section(), VertexKind.MERGE, (each,), node=node) for each in enters]
        traced = [traced_tensor(t) for t in unit.nodes[1:] if isinstance(t.op, LoopTrace)]
        invariants = self._invariants(node, traced, section, controls, loop)
        test = Section(lambda: merges[0].vertex, _by_argument(op.condition, merges, invariants))
        self.body(op.condition, op.condition.outputs, test)
        truth = self._truth(op.condition, node, test)
        switches = [
            self.add(test, VertexKind.SWITCH, (merge, truth), outputs=2, node=node)
            for merge in merges
        ]
        inside = [Source(switch.vertex, 1) for switch in switches]
        values = _by_argument(op.body, inside, invariants)
        part = Section(lambda: self._goes_on(truth, test), values)
        self.body(op.body, [*op.body.outputs, *traced], part)
        for merge, enter, tensor in zip(merges, enters, op.body.outputs, strict=True):
            back = self.add(part, VertexKind.NEXT_ITERATION, (part.values[tensor],), node=node)
            self.connect(merge.vertex, (enter, back))
        for tensor, switch in zip(node.outputs, switches, strict=True):
            section.values[tensor] = self.add(test, VertexKind.EXIT, (switch,), node=node)
        self.loop_traces(unit, section, part, truth, loop)

    def _truth(self, condition: Body, node: Node, test: Section) -> Source:
        """What decides whether the loop goes on."""
        tensor = condition.outputs[0]
        source = test.values[tensor]
        if tensor.dtype.is_ref_dtype:
            source = self.read(source, node, test)
        return self.add(test, VertexKind.LOOP_COND, (source,), node=node)

    def _goes_on(self, truth: Source, test: Section) -> int:
        """A vertex that is alive in the iterations in which the body runs."""
        switch = self.add(test, VertexKind.SWITCH, (truth, truth), outputs=2)
        return self.add(test, VertexKind.PASS, (Source(switch.vertex, 1),)).vertex

    def _invariants(
        self,
        node: Node,
        traced: Sequence[Tensor],
        section: Section,
        controls: Sequence[int],
        loop: Loop,
    ) -> dict[int, Input]:
        """What the loop takes and does not change, by the place of the argument."""
        op, count = cast("While", node.op), len(node.outputs)
        used = self._used(op.condition, op.condition.outputs)
        used |= self._used(op.body, [*op.body.outputs, *traced])
        found: dict[int, Input] = {}
        entered: dict[Tensor, Source] = {}
        for place, tensor in enumerate(node.inputs[count:], count):
            if used.isdisjoint((op.condition.arguments[place], op.body.arguments[place])):
                continue
            found[place] = source = section.values[tensor]
            if isinstance(source, Known):
                continue
            if tensor not in entered:
                how = {"node": node, "loop": loop, "is_constant": True}
                entered[tensor] = self.add(section, VertexKind.ENTER, (source,), controls, **how)
            found[place] = entered[tensor]
        return found

    def loop_traces(
        self, unit: ControlRegion, section: Section, part: Section, truth: Source, loop: Loop
    ) -> None:
        """What is known of a loop when it is done: how many iterations, and values of each."""

        def counted() -> Source:
            return self.add(Section(), VertexKind.COUNT, (truth,), collects=_count, node=unit.node)

        section.ends[unit.node] = lambda: counted().vertex
        for trace in unit.nodes[1:]:
            if isinstance(trace.op, LoopCount):
                made = counted()
                section.ends[unit.node] = made.vertex
            else:
                tensor = traced_tensor(trace)
                source, collects = part.values[tensor], _Collected(tensor)
                made = self.add(
                    part, VertexKind.COLLECT, (source,), collects=collects, node=unit.node
                )
            section.values[trace.outputs[0]] = made

    def _used(self, body: Body, wanted: Sequence[Tensor]) -> set[Tensor]:
        """The tensors of a body that are taken to get those that are wanted."""
        return {t for node in self.needed(body, wanted) for t in node.inputs} | set(wanted)


def _truth(value: Any) -> int:
    return int(bool(value))


def _branch_number(count: int, value: Any) -> int:
    return int(value) if 0 <= value < count else count - 1


@dataclass(frozen=True)
class _Collected:
    """The list of the values that a tensor had in the iterations of a loop."""

    tensor: Tensor

    def __call__(self, found: Mapping[int, Any], count: int) -> ListValue:
        dtype = self.tensor.dtype.base_dtype
        absent = self._absent(found) if len(found) < count else None
        values = host_arrays(found.get(index, absent) for index in range(count))
        if self._is_numeric() and len({np.shape(value) for value in values}) == 1:
            return ListValue.of_stacked(np.stack(values), dtype=dtype)
        made = ListValue(dtype, count)
        for index, value in enumerate(values):
            made.write(index, value)
        return made

    def _is_numeric(self) -> bool:
        dtype = self.tensor.dtype.base_dtype
        return dtype.is_numpy_compatible and np.dtype(dtype.as_numpy_dtype).kind in "biufc"

    def _absent(self, found: Mapping[int, Any]) -> Any:
        """What stands for the value in iterations that did not take its branch: it is never
        looked at, but read all the same."""
        if not self.tensor.dtype.base_dtype.is_numpy_compatible:
            return None
        sizes = self.tensor.shape.sizes or ()
        shape = np.shape(next(iter(found.values()))) if found else [size or 0 for size in sizes]
        return np.zeros(shape, self.tensor.dtype.base_dtype.as_numpy_dtype)


def is_constant(node: Node) -> bool:
    """Whether a node gives a constant, whatever happens."""
    return isinstance(node.op, Const) and not node.control_inputs


def has_primitives(nodes: Iterable[Node]) -> bool:
    """Whether only a token graph can run these nodes."""
    return any(isinstance(node.op, Primitive) for node in nodes)


def _count(_: Mapping[int, Any], count: int) -> Any:
    return np.int32(count)


def _same(value: Any) -> Any:
    return value


def values_in(section: Section) -> list[Tensor]:
    """What a section has as values from outside, references apart."""
    return [tensor for tensor in section.values if not tensor.dtype.is_ref_dtype]


def _by_argument(
    body: Body, variables: Sequence[Source], invariants: Mapping[int, Input]
) -> dict[Tensor, Input]:
    """What the body of a loop takes: the loop's variables, then what the loop does not change."""
    every = {**dict(enumerate(variables)), **invariants}
    return {body.arguments[place]: source for place, source in every.items()}


def _goes_on_after(node: Node) -> bool:
    """Whether a node may still do something when its values are there."""
    return bool(node.op.bodies) and has_state(node)
