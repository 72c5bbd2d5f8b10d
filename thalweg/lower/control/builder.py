"""Lowers loops and conditionals to native programs: lowered regions with branches between them.

A loop variable is memory that the body updates in place, like a variable. The entry of a loop is
one region (initial values, and the condition), an iteration is another (the body, new values, and
the condition): a small loop is one kernel and one branch per iteration. Lists become arrays that
are read and written by rows. What cannot be lowered so raises `NotCompiled`, and the executor runs
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from thalweg.control.branches import Branching, If
from thalweg.control.liveness import is_control, needed
from thalweg.control.loops import While
from thalweg.control.traces import BranchTrace, LoopCount, LoopTrace
from thalweg.graph.analysis.order import step_order
from thalweg.graph.dtypes import variant
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Body
from thalweg.ir.target import Target
from thalweg.lower.control.inlining import Bound, Inlining, first_of, is_changed, list_source
from thalweg.lower.control.program import (
    LISTS,
    Branch,
    BufferView,
    Capacity,
    ControlProgram,
    Count,
    Drawing,
    Given,
    Item,
    Label,
    ListBuffer,
    Part,
    Storage,
)
from thalweg.lower.control.scratch import LoopTraces, Scratch, lasting
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

#: (region, the shapes of its inputs and variables, target) -> its lowering, new or cached
Lower = Callable[[Region, Mapping[Tensor, Shape], Target], Lowered]
Kept = Mapping[Tensor, LoopTraces]  # lists that an outer loop keeps


def lower_control(
    unit: ControlRegion, given: Sequence[Given], capacity: Capacity, target: Target, lower: Lower
) -> ControlProgram:
    """The program of a control node on inputs of known shapes, with this capacity for traces."""
    return _Lowering(capacity, target, lower).program(unit, given)


@dataclass(frozen=True, eq=False)
class _Cycle:
    """A loop that is being lowered."""

    node: Node
    op: While
    variables: Sequence[Given]
    invariants: Sequence[Given]
    truth: BufferView
    keeping: LoopTraces


class _Lowering:
    """Builds one program."""

    def __init__(self, capacity: Capacity, target: Target, lower: Lower) -> None:
        self._capacity, self._target, self._lower = capacity, target, lower
        self._items: list[Item] = []
        self._counts: list[Count] = []
        self._drawings: list[Drawing] = []
        self._first: list[BufferView] = []  # counters and starts to zero before the outermost loop

    def program(self, unit: ControlRegion, given: Sequence[Given]) -> ControlProgram:
        """The program of a control node."""
        if isinstance(unit.node.op, While):
            given = self._own_lists(unit.node.op.body, given)
        outputs = self._lowered(unit, given, Storage.RESULT, {})
        views = [one.view for one in outputs if isinstance(one, ListBuffer)]
        if any(view is not None and view.where is Storage.OWN for view in views):
            raise NotCompiled(unit.node, "it gives a list that was made inside")
        lists = {place: one for place, one in enumerate(given) if isinstance(one, ListBuffer)}
        counts, drawings = tuple(self._counts), tuple(self._drawings)
        return ControlProgram(tuple(self._items), tuple(outputs), counts, lists, drawings)

    def _lowered(
        self, unit: ControlRegion, given: Sequence[Given], where: Storage, kept: Kept
    ) -> list[Given]:
        """Lower a control node to items; `kept` are its lists that an outer loop keeps."""
        lowered = self._loop if isinstance(unit.node.op, While) else self._branching
        return lowered(unit, given, where, kept)

    def _own_lists(self, body: Body, given: Sequence[Given]) -> list[Given]:
        """The inputs of a loop, those lists that it changes in arrays of the call."""
        own = [
            self._own(one) if isinstance(one, ListBuffer) and is_changed(body, place) else one
            for place, one in enumerate(given[: len(body.outputs)])
        ]
        return [*own, *given[len(own) :]]

    def _own(self, rows: ListBuffer) -> ListBuffer:
        """A list that the loop changes, in a fresh array of the call."""
        if rows.entries is not None:
            return replace(rows, entries=self._own(rows.entries))
        count = max(rows.count, self._capacity.of(LISTS)) if rows.grows else rows.count
        changed = replace(rows, where=Storage.RESULT, count=count)
        if rows.element is not None:
            changed.view = BufferView(Storage.RESULT, rows.dtype.as_numpy_dtype, changed.shape)
        for uses in ("writes", "reads"):
            if getattr(rows, uses) is not None:
                setattr(changed, uses, BufferView(Storage.RESULT, np.dtype(np.int32), (count,)))
        return changed

    # Loops

    def _loop(
        self, unit: ControlRegion, given: Sequence[Given], where: Storage, kept: Kept
    ) -> list[Given]:
        """Lower a loop. Where an outer loop keeps its traces, those of all outer iterations are
        concatenated."""
        node, op = unit.node, cast("While", unit.node.op)
        total = len(node.outputs)
        begin = len(self._items)
        around, self._first = self._first, []
        enter = Scratch()
        variables: list[Given] = []
        for one in given[:total]:
            if isinstance(one, BufferView):
                start, one = one, BufferView(where, one.dtype, one.shape)
                enter.assign(one, enter.value(start), node)
            variables.append(one)
        keeping = self._keeping(unit, enter, where, kept)
        truth = BufferView(Storage.OWN, np.bool_, ())
        cycle = _Cycle(node, op, variables, given[total:], truth, keeping)
        self._condition(enter, cycle)
        start, end = Label(), Label()
        self._items += [Branch(end, truth), start]
        self._iteration(cycle)
        self._items += [Branch(start, truth, if_true=True), end]
        if kept:
            self._first += around
        else:
            self._reset_kept(begin, node)
            self._first = around
        return [self._output(tensor, cycle) for tensor in unit.outputs]

    def _keeping(
        self, unit: ControlRegion, enter: Scratch, where: Storage, kept: Kept
    ) -> LoopTraces:
        """The counters and traces of a loop; initialises them at its entry."""
        traces = [n.op.tensor for n in unit.nodes if isinstance(n.op, LoopTrace)]
        counts = [n for n in unit.nodes if isinstance(n.op, LoopCount)]
        where_kept = next((around.where for around in kept.values()), where)
        capacity = self._capacity.of(len(self._counts), bool(kept))
        keeping = LoopTraces(capacity, where_kept, dict.fromkeys(traces))
        if counts or (traces and not kept):
            keeping.count = BufferView(Storage.RESULT if traces else where, np.dtype(np.int32), ())
            enter.assign(keeping.count, np.int32(0), unit.node)
        keeping.next = keeping.count
        if kept:
            keeping.next = BufferView(Storage.RESULT, np.dtype(np.int32), ())
            keeping.start = BufferView(Storage.OWN, np.dtype(np.int32), ())
            enter.assign(keeping.start, enter.value(keeping.next), unit.node)
            self._first += [keeping.next, keeping.start]
        if traces:
            assert keeping.next is not None
            self._counts.append(Count(keeping.next, capacity))
        return keeping

    def _reset_kept(self, place: int, node: Node) -> None:
        """Insert, before an outermost loop, the reset of what its inner loops keep."""
        if not self._first:
            return
        scratch, none = Scratch(), np.int32(0)
        for view in self._first:
            if view.shape:
                scratch.target(ScatterUpdate(), (scratch.reference(view), none, none), node)
            else:
                scratch.assign(view, none, node)
        items, self._items = self._items, []
        self._emit(scratch, {})
        self._items = [*items[:place], *self._items, *items[place:]]

    def _output(self, tensor: Tensor, cycle: _Cycle) -> Given:
        outputs, keeping = cycle.node.outputs, cycle.keeping
        if tensor in outputs:
            return cycle.variables[outputs.index(tensor)]
        if isinstance(tensor.op.op, LoopCount):
            assert keeping.count is not None
            return keeping.count
        rows = keeping.traces[cast("LoopTrace", tensor.op.op).tensor]
        assert rows is not None
        return rows if keeping.start is None else rows.seen_from(keeping.start, keeping.next)

    def _condition(self, scratch: Scratch, cycle: _Cycle) -> None:
        """Compute the loop's condition from its variables, and emit the scratch graph."""
        body = cycle.op.condition
        arguments = _arguments(scratch, cycle.variables, cycle.invariants)
        (found,) = Inlining(scratch, body, arguments).run(body.outputs)
        last = scratch.tensor(Identity(), (found,), body.outputs[0].op)
        self._emit(scratch, {last: cycle.truth}, lists=list(scratch.kept))

    def _iteration(self, cycle: _Cycle) -> None:
        """Lower one iteration: the body, its traces, new values, and the condition."""
        scratch, body, keeping = Scratch(), cycle.op.body, cycle.keeping
        arguments = _arguments(scratch, cycle.variables, cycle.invariants)
        made = [first_of(t).op for t in keeping.traces if t.dtype.base_dtype is variant]
        inlining = Inlining(scratch, body, arguments, keepers=dict.fromkeys(made, keeping))
        results = inlining.run([*body.outputs, *keeping.traces])
        total = len(cycle.variables)
        values = dict(zip(keeping.traces, results[total:], strict=True))
        for tensor, value in values.items():
            keeping.traces[tensor] = keeping.keep(scratch, tensor, value)
        _renew(scratch, cycle, arguments, results[:total])
        for number in dict.fromkeys((keeping.count, keeping.next)):
            if number is not None:
                more = scratch.tensor(Add(), (scratch.reference(number), np.int32(1)), cycle.node)
                scratch.assign(number, more, cycle.node)
        self._condition(scratch, cycle)
        self._keep_lists(scratch, values, keeping)

    def _keep_lists(
        self, scratch: Scratch, values: Mapping[Tensor, Bound], keeping: LoopTraces
    ) -> None:
        """Write the starts of lists that inner loops and branches made. The loop has counted this
        iteration: where its rows end, those of the next one start."""
        after = Scratch()
        for tensor, value in values.items():
            rows = keeping.traces[tensor]
            if isinstance(value, ListBuffer) or value not in scratch.kept or rows is None:
                continue
            left = scratch.lists[value]
            rows.entries = lasting(left, tensor.op)
            index: Any = after.value(cast("BufferView", keeping.next))
            if left.end is None:
                index = after.tensor(Add(), (index, np.int32(-1)))
            start = after.offset(left) if left.end is None else after.value(left.end)
            after.write(rows, index, start, tensor.op)
            self._first.append(cast("BufferView", rows.view))
            if left.end is None and left.offset is not None:  # only its branch sets it
                self._first.append(left.offset)
        if after.targets:
            self._emit(after, {})

    # Conditionals

    def _branching(
        self, unit: ControlRegion, given: Sequence[Given], where: Storage, kept: Kept
    ) -> list[Given]:
        node, op = unit.node, cast("Branching", unit.node.op)
        choice, inputs = given[0], given[1:]
        assert isinstance(choice, BufferView)
        found: dict[Tensor, Given] = {}
        for place, tensor in enumerate(node.outputs):
            if tensor.dtype.base_dtype is variant:
                found[tensor] = given[list_source(node, place)]
        end = Label()
        for number, body in reversed([*enumerate(op.branches)]):
            skip = Label()
            if number:
                self._items.append(Branch(skip, self._is_chosen(op, choice, number)))
            self._branch(unit, body, inputs, found, where, kept)
            self._items += [Branch(end), skip]
        self._items.append(end)
        return [found[tensor] for tensor in unit.outputs]

    def _is_chosen(self, op: Branching, choice: BufferView, number: int) -> BufferView:
        """The truth of whether a branch other than the first is chosen."""
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

    def _branch(
        self,
        unit: ControlRegion,
        body: Body,
        inputs: Sequence[Given],
        found: dict[Tensor, Given],
        where: Storage,
        kept: Kept,
    ) -> None:
        scratch = Scratch()
        wanted = dict(zip(unit.node.outputs, body.outputs, strict=True))
        for trace in unit.nodes[1:]:
            tensor = cast("BranchTrace", trace.op).tensor
            if tensor.graph is body.graph:
                wanted[trace.outputs[0]] = tensor
        arguments = _arguments(scratch, (), inputs)
        keepers = {first_of(wanted[t]).op: around for t, around in kept.items() if t in wanted}
        results = Inlining(scratch, body, arguments, where, keepers).run([*wanted.values()])
        fetches: dict[Tensor, BufferView] = {}
        traces: dict[Tensor, Tensor] = {}  # lists that inner loops make
        for (tensor, inner), value in zip(wanted.items(), results, strict=True):
            if isinstance(value, ListBuffer):
                if found.setdefault(tensor, value) is not value:
                    raise NotCompiled(inner.op, "its branches give different lists")
                continue
            if value.dtype.base_dtype is variant:
                traces[tensor] = value
                if tensor in kept:
                    scratch.kept[value] = kept[tensor]
                continue
            last = scratch.tensor(Identity(), (value,), inner.op)
            fetches[last] = _result_view(found, tensor, last, where)
        self._emit(scratch, fetches, where, list(traces.values()))
        found.update({tensor: scratch.lists[value] for tensor, value in traces.items()})

    # Regions

    def _emit(
        self,
        scratch: Scratch,
        fetches: Mapping[Tensor, BufferView],
        where: Storage = Storage.OWN,
        lists: Sequence[Tensor] = (),
    ) -> None:
        """Lower a scratch graph to items of the program; results of its loops are stored at
        `where`."""
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
        given = [scratch.lists.get(t) or _view_of(scratch, t) for t in unit.inputs]
        kept = {t: scratch.kept[t] for t in unit.outputs if t in scratch.kept}
        found = self._lowered(unit, given, where, kept)
        for tensor, one in zip(unit.outputs, found, strict=True):
            if isinstance(one, ListBuffer):
                scratch.lists[tensor] = one
            else:
                scratch.views[tensor] = one

    def _region(self, unit: Region, scratch: Scratch, fetches: Mapping[Tensor, BufferView]) -> None:
        region = replace(unit, carried=frozenset(scratch.carried) & frozenset(unit.references))
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
        drawn = [self._drawing(node, lowered, scratch) for node in lowered.streams]
        views |= zip(lowered.streams.values(), [one.view for one in drawn], strict=True)
        self._items.append(Part(lowered, views))
        self._move_on(drawn)

    def _drawing(self, node: Node, lowered: Lowered, scratch: Scratch) -> Drawing:
        meter = _Meter()
        node.op.stream(meter, *[lowered.spec.values.get(tensor) for tensor in node.inputs])
        view = BufferView(Storage.RESULT, np.dtype(np.uint32), (STREAM_WORDS,))
        made = Drawing(scratch.origins[node], meter.blocks, view)
        self._drawings.append(made)
        return made

    def _move_on(self, drawn: Sequence[Drawing]) -> None:
        """Advance the streams that a part has drawn from."""
        if drawn:
            scratch = Scratch()
            for one in drawn:
                scratch.target(SkipRandom(blocks=one.blocks), (scratch.reference(one.view),))
            self._emit(scratch, {})


class _Meter:
    """Stands for the step and the stream of a random op: counts the blocks that it draws."""

    blocks = 0

    def state(self, make: Callable[[], Any]) -> _Meter:
        """The stream."""
        return self

    def reserve(self, blocks: int) -> Philox:
        """Note the blocks."""
        self.blocks += blocks
        return Philox(0, 0)


def _arguments(
    scratch: Scratch, variables: Sequence[Given], invariants: Sequence[Given]
) -> list[Bound]:
    """The arguments of a body: loop variables and variables are references, the rest values."""
    found: list[Bound] = []
    for place, one in enumerate((*variables, *invariants)):
        if isinstance(one, ListBuffer):
            found.append(one)
        elif place < len(variables) or one.where is Storage.VARIABLE:
            found.append(scratch.reference(one))
        else:
            found.append(scratch.value(one))
    return found


def _renew(
    scratch: Scratch, cycle: _Cycle, before: Sequence[Bound], after: Sequence[Bound]
) -> None:
    """Assign the new values of the loop variables."""
    # All new values are computed before the first assignment: one may be another's old one.
    changed: list[tuple[BufferView, Tensor, Node]] = []
    for place, (one, value) in enumerate(zip(cycle.variables, after, strict=True)):
        if isinstance(one, ListBuffer):
            if value is not one:
                raise NotCompiled(cycle.node, "a list takes the place of another one")
        elif value is not before[place]:
            like = cycle.op.body.outputs[place].op
            changed.append((one, scratch.tensor(Identity(), (value,), like), like))
    for view, value, like in changed:
        scratch.assign(view, value, like)


def _changed_lists(scratch: Scratch) -> list[Tensor]:
    """The lists that control nodes return: changed in place, whether they are read or not."""
    controls = [node for node in scratch.targets if is_control(node)]
    return [t for node in controls for t in node.outputs if t.dtype.base_dtype is variant]


def _view_of(scratch: Scratch, tensor: Tensor) -> BufferView:
    view = scratch.views.get(tensor)
    if view is None:
        raise NotCompiled(tensor.op, "it has no memory of its own")
    return view


def _result_view(
    found: dict[Tensor, Given], tensor: Tensor, value: Tensor, where: Storage
) -> BufferView:
    """The memory of a conditional's output, which all branches write."""
    if not value.shape.is_fully_defined():
        raise NotCompiled(value.op, "the shape of the result is known only when it ran")
    shape = tuple(cast("list[int]", value.shape.as_list()))
    view = found.setdefault(
        tensor, BufferView(where, np.dtype(value.dtype.base_dtype.as_numpy_dtype), shape)
    )
    assert isinstance(view, BufferView)
    if view.shape != shape:
        raise NotCompiled(value.op, "the branches give different shapes")
    return view
