"""Graphs as other systems know them: conditionals and loops as Switch, Merge, Enter and the like.

What comes in is a graph with control nodes; what goes out are nodes to be written to a GraphDef.
Nodes keep their names, those of bodies too: they are unique in the whole graph. The outputs of a
control node leave by a node of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from thalweg.control import primitives
from thalweg.control.branches import Branching
from thalweg.control.loops import While
from thalweg.control.tensor_array import TensorArrayNew, TensorArrayWrite
from thalweg.control.traces import LoopCount, LoopTrace, Trace, traced_tensor
from thalweg.graph import dtypes
from thalweg.graph.analysis.node_effects import is_sequential
from thalweg.graph.analysis.order import Order, step_order
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.subgraph import Argument, Body, needed
from thalweg.ops.core import basic
from thalweg.ops.math import arithmetic, compare


def unfolded(graph: Graph) -> list[list[Node]]:
    """For each node of a graph, the nodes that stand for it outside."""
    exporter, around = _Exporter(), _Section()
    found: list[list[Node]] = []
    for node in graph.nodes:
        before = len(exporter.graph.nodes)
        exporter.node(node, around, {})
        found.append(exporter.graph.nodes[before:])
    exporter.close_loops(graph.nodes, around)
    return found


operators["unfolded"] = unfolded


@dataclass(eq=False)
class _Section:
    """A branch, or the condition or body of a loop."""

    make_pivot: Callable[[], Node] | None = None  # makes a node that runs where the section does
    tensors: dict[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])
    nodes: dict[Node, Node] = field(default_factory=dict[Node, Node])
    constant: set[Tensor] = field(default_factory=set[Tensor])  # there in every iteration
    _pivot: Node | None = None

    @property
    def pivot(self) -> list[Node]:
        """What a node waits for that takes nothing from its section."""
        if self._pivot is None and self.make_pivot is not None:
            self._pivot = self.make_pivot()
        return [] if self._pivot is None else [self._pivot]

    def waits(self, tensors: Iterable[Tensor]) -> list[Node]:
        """The pivot, if nothing else says when these tensors are used."""
        return self.pivot if all(tensor in self.constant for tensor in tensors) else []


class _Exporter:
    """A graph of primitives in the making."""

    def __init__(self) -> None:
        self.graph = Graph()
        self._groups: set[bytes] = set()  # of the nodes made so far

    def after(self, nodes: Iterable[Node]) -> AbstractContextManager[Any]:
        """Where nodes are made that come after others."""
        scopes = ExitStack()
        scopes.enter_context(self.graph.as_default())
        scopes.enter_context(self.graph.control_dependencies(list(nodes)))
        return scopes

    def node(self, node: Node, section: _Section, order: Order) -> None:
        """Whatever stands for a node."""
        if isinstance(node.op, Argument | Trace):
            return  # traces are made with the node they read from
        controls = [section.nodes[c] for c in node.control_inputs if c in section.nodes]
        controls += [section.nodes[c] for c in order.get(node, ()) if c in section.nodes]
        if isinstance(node.op, Branching):
            self._conditional(node, section, controls)
        elif isinstance(node.op, While):
            self._loop(node, section, controls)
        else:
            self._copy(node, section, controls)

    def _copy(self, node: Node, section: _Section, controls: Sequence[Node]) -> None:
        first = next((section.tensors[t] for t in node.inputs if t in section.tensors), None)
        inputs = tuple(section.tensors.get(tensor, first) for tensor in node.inputs)
        taken = {tensor.op for tensor in cast("tuple[Tensor, ...]", inputs)}
        after = [control for control in dict.fromkeys(controls) if control not in taken]
        after += [] if after else section.waits(cast("tuple[Tensor, ...]", inputs))
        made = self.graph.copied(
            node, cast("tuple[Tensor, ...]", inputs), tuple(after), f"{node.name}/"
        )
        self._colocate(made)
        section.nodes[node] = made
        section.tensors.update(zip(node.outputs, made.outputs, strict=True))

    def _colocate(self, made: Node) -> None:
        """Keep the groups of nodes that are there: an argument of a body is none."""
        self._groups.add(b"loc:@" + made.name.encode())
        groups = made.annotations.get("_class", ())
        kept = [group for group in groups if group in self._groups]
        if len(kept) < len(groups):
            made.annotations = {**made.annotations, "_class": kept or None}

    def close_loops(self, nodes: Iterable[Node], section: _Section) -> None:
        """Give merges of the graph itself what was made after them."""
        for node in nodes:
            if isinstance(node.op, primitives.Merging):
                inputs = tuple(section.tensors[tensor] for tensor in node.inputs)
                self.graph.reconnect(section.nodes[node], inputs)

    def _body(self, body: Body, wanted: Sequence[Tensor], section: _Section) -> None:
        """The nodes of a body; what is only ordered by the program is so by control edges."""
        nodes = needed(wanted, body.targets, {})
        order = step_order([node for node in nodes if not isinstance(node.op, Argument)], ())
        for node in nodes:
            self.node(node, section, order)

    def _leave(self, node: Node, ends: Sequence[Tensor], section: _Section) -> None:
        """The outputs of a control node, by a node of its name."""
        with self.after(()):
            made: list[Tensor] = basic.IdentityN()(list(ends), name=f"{node.name}/")
        made[0].op.device = node.device
        section.nodes[node] = made[0].op
        section.tensors.update(zip(node.outputs, made, strict=True))

    # Conditionals

    def _conditional(self, node: Node, section: _Section, controls: Sequence[Node]) -> None:
        op = cast("Branching", node.op)
        choice = section.tensors[node.inputs[0]]
        with self.after([*controls, *([] if controls else section.waits([choice]))]):
            choice = basic.identity(choice, name=f"{node.name}/choice/")
        truths = self._truths(node, choice, len(op.branches))
        traces = _traces_of(node)
        parts: list[_Section] = []
        for number, body in enumerate(op.branches):
            part = self._branch(node, number, truths[number], body, section)
            inner = [t for t in map(traced_tensor, traces) if t.graph is body.graph]
            self._body(body, [*body.outputs, *inner], part)
            parts.append(part)
        ends = [
            self._merged(f"{node.name}/Merge_{place}/", row, parts)
            for place, row in enumerate(zip(*(b.outputs for b in op.branches), strict=True))
        ]
        self._leave(node, ends, section)
        for trace in traces:
            self._branch_trace(trace, op, parts, section)

    def _truths(self, node: Node, choice: Tensor, count: int) -> list[tuple[Tensor, int]]:
        """For each branch a truth, and the output of a switch by it."""
        if node.type == "If":
            return [(choice, 0), (choice, 1)]
        never = f"{node.name}/never/"
        with self.after(()):
            chosen = [
                compare.equal(choice, number, name=f"{node.name}/is_{number}/")
                for number in range(count - 1)
            ]
            any_chosen = chosen[0] if chosen else compare.less(choice, choice, name=never)
            for number, truth in enumerate(chosen[1:], 1):
                name = f"{node.name}/any_{number}/"
                any_chosen = compare.logical_or(any_chosen, truth, name=name)
        return [*((truth, 1) for truth in chosen), (any_chosen, 0)]

    def _branch(
        self, node: Node, number: int, truth: tuple[Tensor, int], body: Body, section: _Section
    ) -> _Section:
        predicate, output = truth

        def pivot() -> Node:
            with self.after(()):
                name = f"{node.name}/pivot_{number}"
                ends = primitives.switch(predicate, predicate, name=f"{name}/Switch/")
                return basic.identity(ends[output], name=f"{name}/").op

        part = _Section(pivot)
        for place, (argument, outer) in enumerate(
            zip(body.arguments, node.inputs[1:], strict=True)
        ):
            name = f"{node.name}/Switch_{number}_{place}/"
            with self.after(()):
                ends = primitives.switch(section.tensors[outer], predicate, name=name)
            part.tensors[argument] = ends[output]
        return part

    def _merged(self, name: str, row: Sequence[Tensor], parts: Sequence[_Section]) -> Tensor:
        ends = [part.tensors[tensor] for tensor, part in zip(row, parts, strict=True)]
        with self.after(()):
            return primitives.merge(ends, name=name).output

    def _branch_trace(
        self, trace: Node, op: Branching, parts: Sequence[_Section], section: _Section
    ) -> None:
        """A value from inside a branch, and something else where another one was taken."""
        tensor = traced_tensor(trace)
        ends: list[Tensor] = []
        for number, (body, part) in enumerate(zip(op.branches, parts, strict=True)):
            if tensor.graph is body.graph:
                ends.append(part.tensors[tensor])
                continue
            with self.after(part.pivot):
                ends.append(_something(tensor.dtype.base_dtype, f"{trace.name}/none_{number}/"))
        with self.after(()):
            made = primitives.merge(ends, name=f"{trace.name}/").output
        section.tensors[trace.outputs[0]], section.nodes[trace] = made, made.op

    # Loops

    def _loop(self, node: Node, section: _Section, controls: Sequence[Node]) -> None:
        op, loop = cast("While", node.op), _Loop(self, node, section, controls)
        count = len(node.outputs)
        merges = [loop.enter(section.tensors[t], str(p)) for p, t in enumerate(node.inputs[:count])]
        traces = _traces_of(node)
        counter = loop.enter(loop.constant(0, "zero"), "count") if traces else None
        lists = {
            trace: loop.enter(loop.list_of(traced_tensor(trace), trace), f"list_{place}")
            for place, trace in enumerate(traces)
            if isinstance(trace.op, LoopTrace)
        }
        invariants = [
            loop.invariant(section.tensors[t], place)
            for place, t in enumerate(node.inputs[count:], count)
        ]
        test = _Section(lambda: merges[0].op)
        test.tensors |= dict(zip(op.condition.arguments, [*merges, *invariants], strict=True))
        test.constant |= set(invariants)
        self._body(op.condition, op.condition.outputs, test)
        truth = test.tensors[op.condition.outputs[0]]
        loop.decide(truth, test.waits([truth]))
        part = _Section(loop.pivot)
        inside = [loop.switch(merge) for merge in merges]
        part.tensors |= dict(zip(op.body.arguments, [*inside, *invariants], strict=True))
        part.constant |= set(invariants)
        self._body(op.body, [*op.body.outputs, *map(traced_tensor, lists)], part)
        for merge, tensor in zip(merges, op.body.outputs, strict=True):
            end = part.tensors[tensor]
            loop.go_on(merge, end, part.waits([end]))
        if counter is not None:
            self._loop_traces(loop, traces, counter, lists, part, section)
        self._leave(node, [loop.exits[merge] for merge in merges], section)

    def _loop_traces(
        self,
        loop: _Loop,
        traces: Sequence[Node],
        counter: Tensor,
        lists: Mapping[Node, Tensor],
        part: _Section,
        section: _Section,
    ) -> None:
        """A counter, and lists that each iteration writes to."""
        at = loop.switch(counter)
        with self.after(part.pivot):
            one = basic.constant(1, name=loop.name("one"))
            following = arithmetic.add(at, one, name=loop.name("following"))
        loop.go_on(counter, following)
        for trace, merge in lists.items():
            tensor = traced_tensor(trace)
            write = TensorArrayWrite(dtype=tensor.dtype.base_dtype)
            with self.after(()):
                written = write(
                    loop.switch(merge), at, part.tensors[tensor], name=f"{trace.name}/write/"
                )
            loop.go_on(merge, written)
        for trace in traces:
            found = counter if isinstance(trace.op, LoopCount) else lists[trace]
            section.tensors[trace.outputs[0]] = loop.exits[found]
            section.nodes[trace] = loop.exits[found].op


class _Loop:
    """The frame of one loop."""

    def __init__(
        self, exporter: _Exporter, node: Node, section: _Section, controls: Sequence[Node]
    ) -> None:
        self._after = exporter.after
        self._node = node
        self._section = section
        self._controls = controls
        self._parallel = 1 if is_sequential(node) else cast("While", node.op).parallel_iterations
        self._truth: Tensor | None = None
        self._switches: dict[Tensor, tuple[Tensor, Tensor]] = {}
        self.exits: dict[Tensor, Tensor] = {}

    def name(self, part: str) -> str:
        return f"{self._node.name}/{part}/"

    def _enter(self, tensor: Tensor, name: str, is_constant: bool) -> Tensor:
        after = self._controls or self._section.waits([tensor])
        with self._after(after):
            return primitives.enter(
                tensor, self._node.name, is_constant, self._parallel, is_constant, self.name(name)
            )

    def enter(self, tensor: Tensor, part: str) -> Tensor:
        """A loop variable: what its merge gives."""
        entered = self._enter(tensor, f"Enter_{part}", False)
        with self._after(()):
            return primitives.merge([entered, entered], name=self.name(f"Merge_{part}")).output

    def invariant(self, tensor: Tensor, place: int) -> Tensor:
        """What is there in every iteration."""
        return self._enter(tensor, f"Enter_{place}", True)

    def constant(self, value: Any, part: str) -> Tensor:
        with self._after(self._section.pivot):
            return basic.constant(value, name=self.name(part))

    def list_of(self, tensor: Tensor, trace: Node) -> Tensor:
        """A list that grows by a value of a tensor in each iteration."""
        with self._after(self._section.pivot):
            return _something(dtypes.variant, f"{trace.name}/list/", tensor.dtype.base_dtype)

    def decide(self, truth: Tensor, after: Sequence[Node]) -> None:
        """Go on as long as a truth holds."""
        with self._after(after):
            self._truth = primitives.loop_cond(truth, name=self.name("LoopCond"))

    def switch(self, merge: Tensor) -> Tensor:
        """A loop variable in the body."""
        if merge not in self._switches:
            part = _part(merge)
            with self._after(()):
                truth = cast("Tensor", self._truth)  # made before any body is
                ends = primitives.switch(merge, truth, name=self.name(f"Switch_{part}"))
                self._switches[merge] = ends
                self.exits[merge] = primitives.exit_(ends[0], name=self.name(f"Exit_{part}"))
        return self._switches[merge][1]

    def go_on(self, merge: Tensor, end: Tensor, after: Sequence[Node] = ()) -> None:
        """A loop variable in the next iteration."""
        with self._after(after):
            name = self.name(f"NextIteration_{_part(merge)}")
            back = primitives.next_iteration(end, name=name)
        primitives.update_input(merge.op, 1, back)

    def pivot(self) -> Node:
        """A node that runs in the iterations in which the body does."""
        with self._after(()):
            truth = cast("Tensor", self._truth)  # made before any body is
            ends = primitives.switch(truth, truth, name=self.name("pivot/Switch"))
            return basic.identity(ends[1], name=self.name("pivot")).op


def _part(merge: Tensor) -> str:
    """Which loop variable a merge is of, as names say it."""
    return merge.op.name.rpartition("/Merge_")[2]


def _something(dtype: DType, name: str, element: DType = dtypes.float32) -> Tensor:
    """Any value of a dtype."""
    if dtype is not dtypes.variant:
        zero = "" if dtype is dtypes.string else np.zeros((), dtype.as_numpy_dtype)
        return basic.constant(zero, dtype, name=name)
    size = basic.constant(0, name=f"{name}size/")
    op = TensorArrayNew(dtype=element, dynamic_size=True, clear_after_read=False)
    return op(size, name=name)


def _traces_of(node: Node) -> list[Node]:
    return [other for other in node.graph.consumers(node.outputs[0]) if isinstance(other.op, Trace)]
