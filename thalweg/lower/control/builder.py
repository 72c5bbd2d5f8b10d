"""Lowers loops and conditionals to native programs: lowered regions in nested control flow.

A loop variable is memory that the body updates in place, like a variable. The entry of a loop is
one region (initial values, and the condition), an iteration is another (the body, new values, and
the condition): a small loop is one kernel and one jump per iteration. Lists become arrays that
are read and written by rows. A control node that cannot be lowered in this way raises
`NotCompiled`, and the executor runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from thalweg.control.branches import Branching, If
from thalweg.control.liveness import is_control, needed
from thalweg.control.loops import While
from thalweg.control.traces import LoopCount, traced_tensor, traced_tensors
from thalweg.graph.analysis.node_effects import locks_updates
from thalweg.graph.analysis.order import step_order
from thalweg.graph.dtypes import variant
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Body
from thalweg.ir.target import Target
from thalweg.lower.control.inlining import Bound, Inlining, is_changed, list_origin, list_source
from thalweg.lower.control.program import (
    LISTS,
    Binding,
    BufferView,
    Capacity,
    Conditional,
    ControlInterface,
    ControlProgram,
    Count,
    Drawing,
    Item,
    ListBuffer,
    Loop,
    Part,
    Storage,
)
from thalweg.lower.control.scratch import LoopTraces, Scratch, outliving_root
from thalweg.lower.lowered import Lowered
from thalweg.lower.memory.buffers import STREAM_WORDS
from thalweg.lower.regions import regions
from thalweg.lower.specialise import ControlRegion, NotCompiled, Region, Shape
from thalweg.ops.core.basic import Const, Identity
from thalweg.ops.math.arithmetic import Add
from thalweg.ops.math.compare import Equal, Less, LogicalOr
from thalweg.ops.random.philox import Philox
from thalweg.ops.random.random import SkipRandom
from thalweg.ops.state.scatter import ScatterUpdate

#: (region, the shapes of its inputs and variables, target) -> its lowering
Lower = Callable[[Region, Mapping[Tensor, Shape], Target], Lowered]
OuterTraces = Mapping[Tensor, LoopTraces]  # the outer loop's traces, by the lists that they keep


def lower_control(
    unit: ControlRegion,
    bindings: Sequence[Binding],
    capacity: Capacity,
    target: Target,
    lower: Lower,
) -> ControlProgram:
    """The program of a control node on inputs of known shapes, with this capacity for traces."""
    return _Lowering(capacity, target, lower).program(unit, bindings)


@dataclass(frozen=True, eq=False)
class _Site:
    """A control node to lower: what its inputs are bound to, the storage of its results, and the
    outer loop's traces that its outputs belong to."""

    unit: ControlRegion
    bindings: Sequence[Binding]
    where: Storage
    outer_traces: OuterTraces


@dataclass(frozen=True, eq=False)
class _LoopContext:
    """A loop that is being lowered."""

    node: Node
    op: While
    variables: Sequence[Binding]
    invariants: Sequence[Binding]
    condition: BufferView
    traces: LoopTraces


class _Lowering:
    """Builds one program."""

    def __init__(self, capacity: Capacity, target: Target, lower: Lower) -> None:
        self._capacity, self._target, self._lower = capacity, target, lower
        self._items: list[Item] = []
        self._counts: list[Count] = []
        self._drawings: list[Drawing] = []
        self._resets: list[BufferView] = []  # counters and starts to zero before the outermost loop

    def program(self, unit: ControlRegion, bindings: Sequence[Binding]) -> ControlProgram:
        """The program of a control node."""
        if isinstance(unit.node.op, While):
            bindings = self._copied_lists(unit.node.op.body, bindings)
        outputs = self._lowered(_Site(unit, bindings, Storage.RESULT, {}))
        views = [bound.view for bound in outputs if isinstance(bound, ListBuffer)]
        if any(view is not None and view.where is Storage.OWN for view in views):
            raise NotCompiled(unit.node, "it gives a list that was made inside")
        lists = {n: bound for n, bound in enumerate(bindings) if isinstance(bound, ListBuffer)}
        counts, drawings = tuple(self._counts), tuple(self._drawings)
        capacity = self._capacity.of(LISTS)
        interface = ControlInterface(tuple(outputs), counts, lists, drawings, capacity)
        return ControlProgram(tuple(self._items), interface, locks_updates(unit.node))

    def _lowered(self, site: _Site) -> list[Binding]:
        """Lower a control node to items."""
        return self._loop(site) if isinstance(site.unit.node.op, While) else self._branching(site)

    def _nested(self, lower: Callable[[], None]) -> list[Item]:
        """The items that a call adds, which belong inside a loop or conditional."""
        outer, self._items = self._items, []
        lower()
        items, self._items = self._items, outer
        return items

    def _copied_lists(self, body: Body, bindings: Sequence[Binding]) -> list[Binding]:
        """The inputs of a loop; lists that it changes are copied to new arrays of the call."""
        inputs = list(bindings)
        for position, bound in enumerate(bindings[: len(body.outputs)]):
            if isinstance(bound, ListBuffer) and is_changed(body, position):
                inputs[position] = self._copy_of_list(bound)
        return inputs

    def _copy_of_list(self, rows: ListBuffer) -> ListBuffer:
        """A list like this one in a new array of the call."""
        if rows.entries is not None:
            return replace(rows, entries=self._copy_of_list(rows.entries))
        count = max(rows.count, self._capacity.of(LISTS)) if rows.grows else rows.count
        changed = replace(rows, where=Storage.RESULT, count=count)
        if rows.element is not None:
            changed.view = BufferView(Storage.RESULT, rows.dtype.as_numpy_dtype, changed.shape)
        for uses in ("writes", "reads"):
            if getattr(rows, uses) is not None:
                setattr(changed, uses, BufferView(Storage.RESULT, np.dtype(np.int32), (count,)))
        return changed

    # Loops

    def _loop(self, site: _Site) -> list[Binding]:
        """Lower a loop. Where an outer loop keeps its traces, those of all outer iterations are
        concatenated."""
        node, op = site.unit.node, cast("While", site.unit.node.op)
        count = len(node.outputs)
        first_item = len(self._items)
        outer_resets, self._resets = self._resets, []
        enter = Scratch()
        variables: list[Binding] = []
        for bound in site.bindings[:count]:
            if isinstance(bound, BufferView):
                start, bound = bound, BufferView(site.where, bound.dtype, bound.shape)
                enter.assign(bound, enter.value(start), node)
            variables.append(bound)
        traces = self._loop_traces(site, enter)
        condition = BufferView(Storage.OWN, np.bool_, ())
        loop = _LoopContext(node, op, variables, site.bindings[count:], condition, traces)
        self._condition(enter, loop)
        self._items.append(Loop(condition, self._nested(lambda: self._iteration(loop))))
        if site.outer_traces:
            self._resets += outer_resets
        else:
            self._insert_resets(first_item, node)
            self._resets = outer_resets
        return [self._loop_output(tensor, loop) for tensor in site.unit.outputs]

    def _loop_traces(self, site: _Site, enter: Scratch) -> LoopTraces:
        """The counters and traces of a loop; assigns the initial values at its entry."""
        unit, where, outer_traces = site.unit, site.where, site.outer_traces
        traced = [tensor for n in unit.nodes for tensor in traced_tensors(n)]
        counts = [n for n in unit.nodes if isinstance(n.op, LoopCount)]
        storage = next((outer.where for outer in outer_traces.values()), where)
        capacity = self._capacity.of(len(self._counts), bool(outer_traces))
        loop_traces = LoopTraces(capacity, storage, dict.fromkeys(traced))
        if counts or (traced and not outer_traces):
            loop_traces.count = _counter(Storage.RESULT if traced else where)
            enter.assign(loop_traces.count, np.int32(0), unit.node)
        loop_traces.next = loop_traces.count
        if outer_traces:
            loop_traces.next = _counter(Storage.RESULT)
            loop_traces.start = _counter(Storage.OWN)
            enter.assign(loop_traces.start, enter.value(loop_traces.next), unit.node)
            self._resets += [loop_traces.next, loop_traces.start]
        if traced:
            assert loop_traces.next is not None
            self._counts.append(Count(loop_traces.next, capacity))
        return loop_traces

    def _insert_resets(self, position: int, node: Node) -> None:
        """Insert, before an outermost loop, the reset of its inner loops' counters and starts."""
        if not self._resets:
            return
        scratch, zero = Scratch(), np.int32(0)
        for view in self._resets:
            if view.shape:
                scratch.target(ScatterUpdate(), (scratch.reference(view), zero, zero), node)
            else:
                scratch.assign(view, zero, node)
        self._items[position:position] = self._nested(lambda: self._emit(scratch, {}))

    def _loop_output(self, tensor: Tensor, loop: _LoopContext) -> Binding:
        outputs, traces = loop.node.outputs, loop.traces
        if tensor in outputs:
            return loop.variables[outputs.index(tensor)]
        if isinstance(tensor.op.op, LoopCount):
            assert traces.count is not None
            return traces.count
        rows = traces.lists[traced_tensor(tensor.op)]
        assert rows is not None
        return rows if traces.start is None else rows.view_from(traces.start, traces.next)

    def _condition(self, scratch: Scratch, loop: _LoopContext) -> None:
        """Compute the loop's condition from its variables, and emit the scratch graph."""
        body = loop.op.condition
        arguments = _arguments(scratch, loop.variables, loop.invariants)
        (value,) = Inlining(scratch, body, arguments).run(body.outputs)
        last = scratch.tensor(Identity(), (value,), body.outputs[0].op)
        self._emit(scratch, {last: loop.condition}, lists=list(scratch.kept_lists))

    def _iteration(self, loop: _LoopContext) -> None:
        """Lower one iteration: the body, its traces, new values, and the condition."""
        scratch, body, traces = Scratch(), loop.op.body, loop.traces
        arguments = _arguments(scratch, loop.variables, loop.invariants)
        creators = [list_origin(t).op for t in traces.lists if t.dtype.base_dtype is variant]
        inlining = Inlining(scratch, body, arguments, keepers=dict.fromkeys(creators, traces))
        results = inlining.run([*body.outputs, *traces.lists])
        count = len(loop.variables)
        values = dict(zip(traces.lists, results[count:], strict=True))
        for tensor, value in values.items():
            traces.lists[tensor] = traces.keep(scratch, tensor, value)
        _assign_loop_variables(scratch, loop, arguments, results[:count])
        for counter in dict.fromkeys((traces.count, traces.next)):
            if counter is not None:
                operands = scratch.reference(counter), np.int32(1)
                scratch.assign(counter, scratch.tensor(Add(), operands, loop.node), loop.node)
        self._condition(scratch, loop)
        self._keep_lists(scratch, values, traces)

    def _keep_lists(
        self, scratch: Scratch, values: Mapping[Tensor, Bound], traces: LoopTraces
    ) -> None:
        """Write the start rows of lists that inner loops and branches created. The counter is
        already that of the next iteration, whose rows start where this iteration's end."""
        following = Scratch()
        for tensor, value in values.items():
            rows = traces.lists[tensor]
            if isinstance(value, ListBuffer) or value not in scratch.kept_lists or rows is None:
                continue
            kept_list = scratch.lists[value]
            rows.entries = outliving_root(kept_list, tensor.op)
            index: Any = following.value(cast("BufferView", traces.next))
            if kept_list.end is None:
                index = following.tensor(Add(), (index, np.int32(-1)))
                start = following.offset(kept_list)
            else:
                start = following.value(kept_list.end)
            following.write(rows, index, start, tensor.op)
            self._resets.append(cast("BufferView", rows.view))
            if kept_list.end is None and kept_list.offset is not None:  # set by its branch only
                self._resets.append(kept_list.offset)
        if following.targets:
            self._emit(following, {})

    # Conditionals

    def _branching(self, site: _Site) -> list[Binding]:
        node, op, choice = site.unit.node, cast("Branching", site.unit.node.op), site.bindings[0]
        assert isinstance(choice, BufferView)
        outputs: dict[Tensor, Binding] = {}
        for position, tensor in enumerate(node.outputs):
            if tensor.dtype.base_dtype is variant:
                outputs[tensor] = site.bindings[list_source(node, position)]

        def add_branch(number: int) -> None:
            self._branch(site, op.branches[number], outputs)

        def add_up_to(number: int) -> None:
            """The branches up to a number, of which the last is decided on first."""
            if not number:
                add_branch(number)
                return
            truth = self._branch_condition(op, choice, number)
            chosen = self._nested(lambda: add_branch(number))
            others = self._nested(lambda: add_up_to(number - 1))
            self._items.append(Conditional(truth, chosen, others))

        add_up_to(len(op.branches) - 1)
        return [outputs[tensor] for tensor in site.unit.outputs]

    def _branch_condition(self, op: Branching, choice: BufferView, number: int) -> BufferView:
        """The condition of a branch other than the first."""
        if isinstance(op, If) and choice.where is Storage.OWN:
            return choice
        scratch, truth = Scratch(), BufferView(Storage.OWN, np.bool_, ())
        index = scratch.value(choice)
        if isinstance(op, If):
            chosen = scratch.tensor(Identity(), (index,))
        else:
            chosen = scratch.tensor(Equal(), (index, np.int32(number)))
            if number == len(op.branches) - 1:  # also for indices out of range
                below = scratch.tensor(Less(), (index, np.int32(0)))
                above = scratch.tensor(Less(), (np.int32(number), index))
                outside = scratch.tensor(LogicalOr(), (below, above))
                chosen = scratch.tensor(LogicalOr(), (chosen, outside))
        self._emit(scratch, {chosen: truth})
        return truth

    def _branch(self, site: _Site, body: Body, outputs: dict[Tensor, Binding]) -> None:
        scratch, unit, where, outer_traces = Scratch(), site.unit, site.where, site.outer_traces
        wanted = dict(zip(unit.node.outputs, body.outputs, strict=True))
        for trace in unit.nodes[1:]:
            tensor = traced_tensor(trace)
            if tensor.graph is body.graph:
                wanted[trace.outputs[0]] = tensor
        arguments = _arguments(scratch, (), site.bindings[1:])
        kept = [(t, outer) for t, outer in outer_traces.items() if t in wanted]
        keepers = {list_origin(wanted[t]).op: outer for t, outer in kept}
        results = Inlining(scratch, body, arguments, where, keepers).run([*wanted.values()])
        fetches: dict[Tensor, BufferView] = {}
        traces: dict[Tensor, Tensor] = {}  # lists that inner loops make
        for (tensor, inner), value in zip(wanted.items(), results, strict=True):
            if isinstance(value, ListBuffer):
                if outputs.setdefault(tensor, value) is not value:
                    raise NotCompiled(inner.op, "its branches give different lists")
                continue
            if value.dtype.base_dtype is variant:
                traces[tensor] = value
                if tensor in outer_traces:
                    scratch.kept_lists[value] = outer_traces[tensor]
                continue
            last = scratch.tensor(Identity(), (value,), inner.op)
            fetches[last] = _result_view(outputs, tensor, last, where)
        self._emit(scratch, fetches, where, list(traces.values()))
        outputs.update({tensor: scratch.lists[value] for tensor, value in traces.items()})

    # Regions

    def _emit(
        self,
        scratch: Scratch,
        fetches: Mapping[Tensor, BufferView],
        where: Storage = Storage.OWN,
        lists: Sequence[Tensor] = (),
    ) -> None:
        """Lower a scratch graph to items of the program; `where` is the storage of its loops'
        results."""
        wanted = [*fetches, *lists, *_changed_lists(scratch)]
        nodes = needed(wanted, scratch.targets, dict.fromkeys(scratch.inputs))
        nodes = [node for node in nodes if node not in scratch.sources]
        order = step_order(nodes, scratch.inputs)
        for unit in regions(nodes, wanted, scratch.inputs, order):
            if isinstance(unit, Region):
                self._region(unit, scratch, fetches)
            elif isinstance(unit, ControlRegion):
                self._control(unit, scratch, where)
            elif isinstance(unit.op, Const):
                value = np.asarray(unit.op.numpy())
                constant = BufferView(Storage.CONSTANT, value.dtype, value.shape, value)
                scratch.views[unit.outputs[0]] = constant
            else:
                raise NotCompiled(unit, "it runs on the host")

    def _control(self, unit: ControlRegion, scratch: Scratch, where: Storage) -> None:
        bindings = [scratch.lists.get(t) or _view_of(scratch, t) for t in unit.inputs]
        outer_traces = {t: scratch.kept_lists[t] for t in unit.outputs if t in scratch.kept_lists}
        outputs = self._lowered(_Site(unit, bindings, where, outer_traces))
        for tensor, bound in zip(unit.outputs, outputs, strict=True):
            if isinstance(bound, ListBuffer):
                scratch.lists[tensor] = bound
            else:
                scratch.views[tensor] = bound

    def _region(self, unit: Region, scratch: Scratch, fetches: Mapping[Tensor, BufferView]) -> None:
        carried = [t for t in unit.references if scratch.views[t].where is not Storage.VARIABLE]
        region = replace(unit, carried=frozenset(carried))
        outside = (*region.inputs, *region.references)
        shapes = {t: scratch.views[t].shape for t in outside}
        lowered = self._lower(region, shapes, self._target)
        views = {lowered.buffers[t]: scratch.views[t] for t in outside if t in lowered.buffers}
        for tensor in region.outputs:
            if tensor in region.roots:
                scratch.views[tensor] = scratch.views[region.roots[tensor]]
                continue
            buffer = lowered.buffers[tensor]
            own = BufferView(Storage.OWN, buffer.dtype, lowered.spec.shapes[tensor])
            scratch.views[tensor] = views[buffer] = fetches.get(tensor, own)
        drawings = [self._drawing(node, lowered, scratch) for node in lowered.streams]
        views |= zip(lowered.streams.values(), [one.view for one in drawings], strict=True)
        self._items.append(Part(lowered, views))
        self._advance_streams(drawings)

    def _drawing(self, node: Node, lowered: Lowered, scratch: Scratch) -> Drawing:
        meter = _BlockCounter()
        node.op.stream(meter, *[lowered.spec.values.get(tensor) for tensor in node.inputs])
        view = BufferView(Storage.RESULT, np.dtype(np.uint32), (STREAM_WORDS,))
        drawing = Drawing(scratch.origins[node], meter.blocks, view)
        self._drawings.append(drawing)
        return drawing

    def _advance_streams(self, drawings: Sequence[Drawing]) -> None:
        """Advance the random streams that a part has drawn from."""
        if drawings:
            scratch = Scratch()
            for drawing in drawings:
                skip = SkipRandom(blocks=drawing.blocks)
                scratch.target(skip, (scratch.reference(drawing.view),))
            self._emit(scratch, {})


def _counter(where: Storage) -> BufferView:
    return BufferView(where, np.dtype(np.int32), ())


class _BlockCounter:
    """Stands in for the step and the stream of a random op; counts the blocks that it draws."""

    blocks = 0

    def state(self, make: Callable[[], Any]) -> _BlockCounter:
        """The stream."""
        return self

    def reserve(self, blocks: int) -> Philox:
        """Note the blocks."""
        self.blocks += blocks
        return Philox(0, 0)


def _arguments(
    scratch: Scratch, variables: Sequence[Binding], invariants: Sequence[Binding]
) -> list[Bound]:
    """The arguments of a body: loop variables and variables are references, the rest values."""
    arguments: list[Bound] = []
    for position, bound in enumerate((*variables, *invariants)):
        if isinstance(bound, ListBuffer):
            arguments.append(bound)
        elif position < len(variables) or bound.where is Storage.VARIABLE:
            arguments.append(scratch.reference(bound))
        else:
            arguments.append(scratch.value(bound))
    return arguments


def _assign_loop_variables(
    scratch: Scratch, loop: _LoopContext, before: Sequence[Bound], after: Sequence[Bound]
) -> None:
    """Assign the new values of the loop variables."""
    # All new values are computed before the first assignment: they may read old values.
    changed: list[tuple[BufferView, Tensor, Node]] = []
    for position, (variable, value) in enumerate(zip(loop.variables, after, strict=True)):
        if isinstance(variable, ListBuffer):
            if value is not variable:
                raise NotCompiled(loop.node, "a list takes the place of another one")
        elif value is not before[position]:
            like = loop.op.body.outputs[position].op
            changed.append((variable, scratch.tensor(Identity(), (value,), like), like))
    for view, value, like in changed:
        scratch.assign(view, value, like)


def _changed_lists(scratch: Scratch) -> list[Tensor]:
    """The lists that control nodes return: changed in place, even if nothing reads them."""
    controls = [node for node in scratch.targets if is_control(node)]
    return [t for node in controls for t in node.outputs if t.dtype.base_dtype is variant]


def _view_of(scratch: Scratch, tensor: Tensor) -> BufferView:
    view = scratch.views.get(tensor)
    if view is None:
        raise NotCompiled(tensor.op, "it has no memory of its own")
    return view


def _result_view(
    outputs: dict[Tensor, Binding], tensor: Tensor, value: Tensor, where: Storage
) -> BufferView:
    """The memory of a conditional's output; all branches write to it."""
    shape = value.shape.whole
    if shape is None:
        raise NotCompiled(value.op, "the shape of the result is known only when it ran")
    view = outputs.setdefault(
        tensor, BufferView(where, np.dtype(value.dtype.base_dtype.as_numpy_dtype), shape)
    )
    assert isinstance(view, BufferView)
    if view.shape != shape:
        raise NotCompiled(value.op, "the branches give different shapes")
    return view
