"""Export of graphs with control flow as Switch, Merge, Enter and the other TensorFlow primitives.

A graph is unfolded as steps are, and each vertex becomes a node to be written to a GraphDef. Nodes,
including those of bodies, keep their names, which are unique in the whole graph. A node with the
name of the control node returns its outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np

from thalweg.control import primitives
from thalweg.control.branches import common_shape
from thalweg.control.list_ops import TensorArrayNew, TensorArrayWrite
from thalweg.control.traces import LoopCount, Trace, traced_tensor
from thalweg.graph import dtypes
from thalweg.graph.analysis.order import Order
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.subgraph import needed
from thalweg.lower.regions import Unit
from thalweg.lower.specialise import ControlRegion
from thalweg.ops.core import basic
from thalweg.ops.math import arithmetic, compare
from thalweg.runtime.dataflow.tokens import Input, Loop, Source, Vertex, VertexKind
from thalweg.runtime.dataflow.unfold import PRIMITIVES, Section, Unfolder
from thalweg.runtime.kernels import Call

_TYPES = {kind: name for name, kind in PRIMITIVES.items()}
#: Node constructors by vertex kind; other kinds with one input become identities.
_MAKERS = {
    VertexKind.EXIT: primitives.exit_,
    VertexKind.NEXT_ITERATION: primitives.next_iteration,
    VertexKind.LOOP_COND: primitives.loop_cond,
}
#: (inputs) -> a node
Make = Callable[..., Node]


def unfolded(graph: Graph) -> list[list[Node]]:
    """For each node of a graph, the exported nodes that replace it; none for a trace."""
    exporter, root = _Exporter(), Section()
    order = {node: dict.fromkeys(node.controls).keys() for node in graph.nodes}
    exported: list[list[Node]] = []
    with exporter.graph.as_default():
        for node in graph.nodes:
            first = len(exporter.graph.nodes)
            for unit in exporter.units([node], (), root, order):
                exporter.unit(unit, root, order)
            exported.append(exporter.graph.nodes[first:])
        exporter.close_loops(graph.nodes, root)
    return exported


operators["unfolded"] = unfolded


class _Exporter(Unfolder):
    """Unfolds to nodes: the function of a call constructs the node of its vertex."""

    folds = False
    needed = staticmethod(needed)

    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph()
        self._outputs: list[Sequence[Tensor]] = []  # of each vertex
        self._nodes: list[Node] = []
        self._owner = ""  # the control node being unfolded
        self._names = Counter[str]()
        #: By branch index tensor: whether each branch, except the last, is taken.
        self._is_chosen: dict[Tensor, list[Tensor]] = {}
        self._groups: set[bytes] = set()  # colocation groups of the nodes so far

    def append(self, vertex: Vertex) -> None:
        super().append(vertex)
        after = [self._nodes[place] for place in sorted(vertex.controls)]
        with self.graph.control_dependencies(after):
            node, outputs = self._build(vertex, [self._tensor(each) for each in vertex.inputs])
        self._nodes.append(node)
        self._outputs.append(outputs)

    def _tensor(self, source: Input) -> Tensor:
        vertex, output = cast("Source", source)  # never Known: constants are nodes
        return self._outputs[vertex][output]

    def _build(self, vertex: Vertex, inputs: list[Tensor]) -> tuple[Node, Sequence[Tensor]]:
        if vertex.kind is VertexKind.SWITCH and _is_unfolded(vertex):
            data, chosen = inputs
            ends = self._switch_outputs(data, chosen, vertex.outputs)
            return ends[-1].op, ends
        node = self._node(vertex, inputs)
        return node, node.outputs

    def _node(self, vertex: Vertex, inputs: list[Tensor]) -> Node:
        if not _is_unfolded(vertex):
            return self._copy(cast("Node", vertex.node), *inputs)
        if vertex.call is not None:
            return vertex.call.function(*inputs)
        name = self._name(_TYPES.get(vertex.kind, "Identity"))
        if vertex.kind is VertexKind.MERGE:
            return primitives.merge(inputs, name=name).output.op
        if vertex.loop is None:
            return _MAKERS.get(vertex.kind, basic.identity)(inputs[0], name=name).op
        frame, parallel = vertex.loop
        attributes = frame, vertex.is_constant, parallel, vertex.is_constant
        return primitives.enter(inputs[0], *attributes, name=name).op

    def _name(self, part: str) -> str:
        """A unique name for a node that is not the user's."""
        name = f"{self._owner}/{part}"
        self._names[name] += 1
        return f"{name}_{self._names[name] - 1}/"

    def _switch_outputs(self, data: Tensor, chosen: Tensor, count: int) -> list[Tensor]:
        """The outputs of a switch, one for each branch: a chain of two-way switches."""
        if chosen.dtype is dtypes.bool:
            return list(primitives.switch(data, chosen, name=self._name("Switch")))
        if chosen not in self._is_chosen:
            with self.graph.control_dependencies([chosen]):  # the constants must be in its frame
                self._is_chosen[chosen] = [
                    compare.equal(chosen, number, name=self._name("is_chosen"))
                    for number in range(count - 1)
                ]
        ends: list[Tensor] = []
        for truth in self._is_chosen[chosen]:
            data, end = primitives.switch(data, truth, name=self._name("Switch"))
            ends.append(end)
        return [*ends, data]

    def _copy(self, node: Node, *inputs: Tensor) -> Node:
        copy = self.graph.copied(node, inputs, (), f"{node.name}/")
        # Keep the colocation groups of exported nodes; arguments of bodies are not exported.
        self._groups.add(b"loc:@" + copy.name.encode())
        groups = copy.annotations.get("_class", ())
        kept = [group for group in groups if group in self._groups]
        if len(kept) < len(groups):
            copy.annotations = {**copy.annotations, "_class": kept or None}
        return copy

    def connect(self, merge: int, inputs: Sequence[Input]) -> None:
        node, tensors = self._nodes[merge], tuple(map(self._tensor, inputs))
        self.graph.reconnect(node, tensors)
        if _is_unfolded(self.vertices[merge]):
            node.outputs[0].widen_shape(common_shape([tensor.shape for tensor in tensors]))

    def control(self, unit: ControlRegion, section: Section, order: Order) -> None:
        """Unfold a control node; an IdentityN of its name returns its outputs."""
        node, outer = unit.node, self._owner
        self._owner = node.name
        super().control(unit, section, order)
        ends = [section.values[tensor] for tensor in node.outputs]
        leave = self._call(node, section, partial(_identity_n, node), *ends)
        self.bind_outputs(section, node.outputs, leave)
        section.ends.update(dict.fromkeys(unit.nodes, leave.vertex))
        self._owner = outer

    def _call(self, node: Node, section: Section, make: Make, *inputs: Input) -> Source:
        call = Call(make, False, (), node, (node,))
        return self.add(section, VertexKind.CALL, inputs, node=node, call=call)

    def units(
        self, nodes: Sequence[Node], wanted: Sequence[Tensor], section: Section, order: Order
    ) -> list[Unit]:
        return [_unit(node) for node in nodes if not isinstance(node.op, Trace)]

    def call(self, unit: Unit) -> Call | None:
        if not isinstance(unit, Node):
            return None
        return Call(partial(self._copy, unit), False, (), unit, (unit,))

    def choice(self, node: Node, count: int) -> Call:
        def make(tensor: Tensor) -> Node:
            return basic.identity(tensor, name=f"{node.name}/choice/").op

        return Call(make, False, (), node, (node,))

    def value(self, node: Node, place: int, section: Section) -> Input:
        return section.values[node.inputs[place]]

    def read(self, source: Input, node: Node, section: Section) -> Input:
        return source  # an exported node reads references itself

    def branch_trace(self, trace: Node, number: int, parts: Sequence[Section]) -> Input:
        """The traced tensor of a branch, merged with a dummy value from each other branch."""
        tensor = traced_tensor(trace)
        dummy = partial(self._dummy, tensor.dtype.base_dtype)
        ends = [self._call(trace, part, dummy) for part in parts]
        ends[number] = self.alive(parts[number].values[tensor], parts[number])
        return self.add(Section(), VertexKind.MERGE, ends, node=trace)

    def loop_traces(
        self, unit: ControlRegion, section: Section, part: Section, truth: Source, loop: Loop
    ) -> None:
        """Add a loop variable that counts iterations, and one list for each traced tensor."""

        def variable(
            start: Source, next_value: Callable[[Source], Source]
        ) -> tuple[Source, Source]:
            enter = self.add(Section(), VertexKind.ENTER, (start,), loop=loop)
            merge = self.add(Section(), VertexKind.MERGE, (enter,))
            switch = self.add(Section(), VertexKind.SWITCH, (merge, truth), outputs=2)
            inside = Source(switch.vertex, 1)
            back = self.add(part, VertexKind.NEXT_ITERATION, (next_value(inside),))
            self.connect(merge.vertex, (enter, back))
            return inside, self.add(Section(), VertexKind.EXIT, (switch,))

        def call(where: Section, make: Make, *inputs: Input) -> Source:
            return self._call(unit.node, where, make, *inputs)

        section.ends[unit.node] = truth.vertex
        if not unit.nodes[1:]:
            return
        one = call(part, lambda: basic.constant(1, name=self._name("one")).op)
        zero = call(section, partial(self._dummy, dtypes.int32))
        index, count = variable(zero, lambda index: call(part, self._sum, index, one))
        for trace in unit.nodes[1:]:
            result = count
            if not isinstance(trace.op, LoopCount):
                tensor = traced_tensor(trace)
                dtype, value = tensor.dtype.base_dtype, part.values[tensor]
                start = call(section, partial(self._new_list, dtype))
                write = partial(call, part, partial(self._write, dtype), value, index)
                _, result = variable(start, write)
            section.values[trace.outputs[0]] = result

    # Nodes that are not the user's

    def _dummy(self, dtype: DType) -> Node:
        """A dummy value of a dtype."""
        if dtype is dtypes.variant:
            return self._new_list(dtypes.float32)
        zero = "" if dtype is dtypes.string else np.zeros((), dtype.as_numpy_dtype)
        return basic.constant(zero, dtype, name=self._name("zero")).op

    def _new_list(self, element: DType) -> Node:
        size = basic.constant(0, name=self._name("size"))
        op = TensorArrayNew(dtype=element, dynamic_size=True, clear_after_read=False)
        return op(size, name=self._name("list")).op

    def _sum(self, x: Tensor, y: Tensor) -> Node:
        return arithmetic.add(x, y, name=self._name("next")).op

    def _write(self, element: DType, value: Tensor, index: Tensor, array: Tensor) -> Node:
        name = self._name("write")
        return TensorArrayWrite(dtype=element)(array, index, value, name=name).op


def _is_unfolded(vertex: Vertex) -> bool:
    """Whether a vertex stems from a control node, not from a primitive of the user's graph."""
    return vertex.node is None or not isinstance(vertex.node.op, primitives.Primitive)


def _identity_n(node: Node, *ends: Tensor) -> Node:
    outputs: list[Tensor] = basic.IdentityN()(list(ends), name=f"{node.name}/")
    outputs[0].op.device = node.device
    return outputs[0].op


def _unit(node: Node) -> Unit:
    """A node; a control node with all its traces."""
    if not node.op.bodies:
        return node
    traces = [n for n in node.graph.consumers(node.outputs[0]) if isinstance(n.op, Trace)]
    return ControlRegion(node, (node, *traces), node.inputs, node.outputs)
