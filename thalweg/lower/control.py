"""Loops and conditionals as native programs: lowered regions with jumps between them.

A loop variable is memory that the body updates in place, as it would a variable's. What enters a
loop is one region (first values, and whether to begin), a turn is another (the body, new values,
whether to go on): a small loop is one kernel and one jump a turn. Lists become arrays that are read
and written by rows. What cannot be done so raises `NotCompiled`; the executor then runs the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from thalweg.control.branches import Branching, If
from thalweg.control.liveness import needed
from thalweg.control.loops import While
from thalweg.control.traces import BranchTrace, LoopCount, LoopTrace
from thalweg.graph.dtypes import variant
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Body
from thalweg.lower.control_program import (
    ControlProgram,
    Drawing,
    Given,
    Home,
    Item,
    Label,
    Leap,
    Part,
    Rows,
    Where,
)
from thalweg.lower.lowering import Lowered, lower
from thalweg.lower.regions import ordered, regions
from thalweg.lower.resolve import STREAM_WORDS
from thalweg.lower.scratch import Bound, Inlining, Scratch, is_changed, list_source, written_home
from thalweg.lower.specialise import Controlled, NotCompiled, Region
from thalweg.ops.arithmetic import Add
from thalweg.ops.basic import Const, Identity
from thalweg.ops.compare import Equal, Less, LogicalOr
from thalweg.ops.philox import Philox
from thalweg.ops.random import SkipRandom
from thalweg.ops.scatter import ScatterUpdate


def lower_control(unit: Controlled, given: Sequence[Given], room: int) -> ControlProgram:
    """A control node on inputs of known shapes; traces have room for so many turns."""
    return _Lowering(room).program(unit, given)


class _Lowering:
    """One program while it is put together."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._items: list[Item] = []
        self._counts: list[Home] = []
        self._drawings: list[Drawing] = []

    def program(self, unit: Controlled, given: Sequence[Given]) -> ControlProgram:
        """The whole of it."""
        self._unit = unit
        if isinstance(unit.node.op, Branching):
            found = self._branching(unit, given, Where.RESULT)
            lists = {p: one for p, one in enumerate(given) if isinstance(one, Rows)}
            return self._program(found, lists)
        body = cast("While", unit.node.op).body
        own = [
            self._own(one) if isinstance(one, Rows) and is_changed(body, place) else one
            for place, one in enumerate(given[: len(unit.node.outputs)])
        ]
        given = [*own, *given[len(own) :]]
        lists = {place: one for place, one in enumerate(given) if isinstance(one, Rows)}
        return self._program(self._loop(unit, given, Where.RESULT), lists)

    def _program(self, outputs: Sequence[Given], lists: Mapping[int, Rows]) -> ControlProgram:
        for one in outputs:
            if isinstance(one, Rows) and one.home is not None and one.home.where is Where.OWN:
                raise NotCompiled(self._unit.node, "it gives a list that was made inside")
        return ControlProgram(
            tuple(self._items),
            tuple(outputs),
            tuple(self._counts),
            lists,
            tuple(self._drawings),
        )

    def _own(self, rows: Rows) -> Rows:
        """A list that the loop changes: in memory of this call."""
        count = max(rows.count, self._room) if rows.grows else rows.count
        changed = replace(rows, where=Where.RESULT, count=count)
        if rows.element is not None:
            changed.home = Home(Where.RESULT, rows.dtype.as_numpy_dtype, changed.shape)
        for uses in ("writes", "reads"):
            if getattr(rows, uses) is not None:
                setattr(changed, uses, Home(Where.RESULT, np.dtype(np.int32), (count,)))
        return changed

    # Loops

    def _loop(self, unit: Controlled, given: Sequence[Given], where: Where) -> list[Given]:
        node, op = unit.node, cast("While", unit.node.op)
        total = len(node.outputs)
        invariants = given[total:]
        enter = Scratch()
        variables: list[Given] = []
        for one in given[:total]:
            if isinstance(one, Home):
                start, one = one, Home(where, one.dtype, one.shape)
                enter.assign(one, enter.value(start), node)
            variables.append(one)
        traces = [n.op.tensor for n in unit.nodes if isinstance(n.op, LoopTrace)]
        counts = len(unit.nodes) > 1
        count = Home(where, np.int32, ()) if counts else None
        if count is not None:
            enter.assign(count, np.int32(0), node)
            self._counts += [count] if where is Where.RESULT else []
        truth = Home(Where.OWN, np.bool_, ())
        self._condition(enter, op.condition, variables, invariants, truth)
        start, end = Label(), Label()
        self._items += [Leap(end, truth), start]
        kept = self._turn(op, node, variables, invariants, count, traces, truth, where)
        self._items += [Leap(start, truth, if_true=True), end]
        found = dict(zip(traces, kept, strict=True))
        return [self._output(t, node, variables, count, found) for t in unit.outputs]

    def _output(
        self,
        tensor: Tensor,
        node: Node,
        variables: Sequence[Given],
        count: Home | None,
        traces: Mapping[Tensor, Rows],
    ) -> Given:
        if tensor in node.outputs:
            return variables[node.outputs.index(tensor)]
        if isinstance(tensor.op.op, LoopCount):
            assert count is not None
            return count
        return traces[cast("LoopTrace", tensor.op.op).tensor]

    def _condition(
        self,
        scratch: Scratch,
        body: Body,
        variables: Sequence[Given],
        invariants: Sequence[Given],
        truth: Home,
    ) -> None:
        """Whether to go on, as memory says now; the end of a scratch graph."""
        arguments = self._arguments(scratch, body, variables, invariants)
        (found,) = Inlining(scratch, body, arguments).run(body.outputs)
        last = scratch.node(Identity(), (found,), body.outputs[0].op).outputs[0]
        self._emit(scratch, {last: truth})

    def _arguments(
        self,
        scratch: Scratch,
        body: Body,
        variables: Sequence[Given],
        invariants: Sequence[Given],
    ) -> list[Bound]:
        """What stands for the arguments of a body: variables are read where they lie."""
        found: list[Bound] = []
        for place, one in enumerate((*variables, *invariants)):
            if isinstance(one, Rows):
                found.append(one)
            elif place < len(variables) or one.where is Where.VARIABLE:
                found.append(scratch.reference(one))
            else:
                found.append(scratch.value(one))
        return found

    def _turn(
        self,
        op: While,
        node: Node,
        variables: Sequence[Given],
        invariants: Sequence[Given],
        count: Home | None,
        traces: Sequence[Tensor],
        truth: Home,
        where: Where,
    ) -> list[Rows]:
        """One turn: the body, what is kept of it, new values, and whether to go on."""
        turn = Scratch()
        body = op.body
        arguments = self._arguments(turn, body, variables, invariants)
        results = Inlining(turn, body, arguments).run([*body.outputs, *traces])
        total = len(variables)
        kept = [
            self._keep(turn, tensor, value, cast("Home", count), where)
            for tensor, value in zip(traces, results[total:], strict=True)
        ]
        # All new values are there before the first is written: one may be another's old one.
        changed: list[tuple[Home, Tensor, Node]] = []
        for place, (one, value) in enumerate(zip(variables, results[:total], strict=True)):
            if isinstance(one, Rows):
                if value is not one:
                    raise NotCompiled(node, "a list takes the place of another one")
            elif value is not arguments[place]:
                like = body.outputs[place].op
                new = turn.node(Identity(), (value,), like).outputs[0]
                changed.append((one, new, like))
        for home, value, like in changed:
            turn.assign(home, value, like)
        if count is not None:
            number = turn.reference(count)
            more = turn.node(Add(), (number, np.int32(1)), node).outputs[0]
            turn.assign(count, more, node)
        self._condition(turn, op.condition, variables, invariants, truth)
        return kept

    def _keep(self, turn: Scratch, tensor: Tensor, value: Bound, count: Home, where: Where) -> Rows:
        """Write a value of this turn into its row of a trace."""
        if isinstance(value, Rows):
            raise NotCompiled(tensor.op, "a list is kept for every turn")
        rows = Rows(tensor.dtype.base_dtype, self._room, None, where)
        if not tensor.dtype.is_floating:
            rows.value = constant_value(value)
        if rows.value is not None:
            return rows
        memory = turn.reference(written_home(rows, value, tensor.op))
        made = turn.node(
            ScatterUpdate(), (memory, turn.reference(count), value), tensor.op, (rows,)
        )
        turn.targets.append(made)
        return rows

    # Conditionals

    def _branching(self, unit: Controlled, given: Sequence[Given], where: Where) -> list[Given]:
        node, op = unit.node, cast("Branching", unit.node.op)
        choice, inputs = given[0], given[1:]
        assert isinstance(choice, Home)
        found: dict[Tensor, Given] = {}
        for place, tensor in enumerate(node.outputs):
            if tensor.dtype.base_dtype is variant:
                found[tensor] = given[list_source(node, place)]
        end = Label()
        for number, body in reversed([*enumerate(op.branches)]):
            skip = Label()
            if number:
                self._items.append(Leap(skip, self._is_chosen(op, choice, number)))
            self._branch(unit, body, inputs, found, where)
            self._items += [Leap(end), skip]
        self._items.append(end)
        return [found[tensor] for tensor in unit.outputs]

    def _is_chosen(self, op: Branching, choice: Home, number: int) -> Home:
        """Whether a branch (not the first) is the one."""
        if isinstance(op, If) and choice.where is Where.OWN:
            return choice
        last = number == len(op.branches) - 1
        scratch, truth = Scratch(), Home(Where.OWN, np.bool_, ())
        index = scratch.value(choice)
        if isinstance(op, If):
            self._emit(scratch, {scratch.node(Identity(), (index,)).outputs[0]: truth})
            return truth
        same = scratch.node(Equal(), (index, np.int32(number))).outputs[0]
        if last:  # also for numbers that no branch has
            below = scratch.node(Less(), (index, np.int32(0))).outputs[0]
            above = scratch.node(Less(), (np.int32(number), index)).outputs[0]
            outside = scratch.node(LogicalOr(), (below, above)).outputs[0]
            same = scratch.node(LogicalOr(), (same, outside)).outputs[0]
        self._emit(scratch, {same: truth})
        return truth

    def _branch(
        self,
        unit: Controlled,
        body: Body,
        inputs: Sequence[Given],
        found: dict[Tensor, Given],
        where: Where,
    ) -> None:
        scratch = Scratch()
        wanted = dict(zip(unit.node.outputs, body.outputs, strict=True))
        for trace in unit.nodes[1:]:
            tensor = cast("BranchTrace", trace.op).tensor
            if tensor.graph is body.graph:
                wanted[trace.outputs[0]] = tensor
        arguments = self._arguments(scratch, body, (), inputs)
        results = Inlining(scratch, body, arguments, where).run(list(wanted.values()))
        fetches: dict[Tensor, Home] = {}
        traces: dict[Tensor, Tensor] = {}  # lists that loops inside leave
        for (tensor, inner), value in zip(wanted.items(), results, strict=True):
            if isinstance(value, Rows):
                if found.setdefault(tensor, value) is not value:
                    raise NotCompiled(inner.op, "its branches give different lists")
                continue
            if value.dtype.base_dtype is variant:
                traces[tensor] = value
                continue
            last = scratch.node(Identity(), (value,), inner.op).outputs[0]
            fetches[last] = _result_home(found, tensor, last, where)
        self._emit(scratch, fetches, where, list(traces.values()))
        found.update({tensor: scratch.lists[value] for tensor, value in traces.items()})

    # Regions

    def _emit(
        self,
        scratch: Scratch,
        fetches: Mapping[Tensor, Home],
        where: Where = Where.OWN,
        lists: Sequence[Tensor] = (),
    ) -> None:
        """A scratch graph as parts of the program; what loops in it leave lies at `where`."""
        wanted = [*fetches, *lists]
        nodes = needed(wanted, scratch.targets, dict.fromkeys(scratch.inputs))
        nodes = [node for node in nodes if node not in scratch.sources]
        order = ordered(nodes, scratch.inputs)
        for unit in regions(nodes, wanted, scratch.inputs, order):
            if isinstance(unit, Region):
                self._region(unit, scratch, fetches)
            elif isinstance(unit, Controlled):
                self._control(unit, scratch, where)
            elif isinstance(unit.op, Const):
                value = np.asarray(unit.op.numpy())
                home = Home(Where.CONSTANT, value.dtype, value.shape, value)
                scratch.homes[unit.outputs[0]] = home
            else:
                raise NotCompiled(unit, "it runs on the host")

    def _control(self, unit: Controlled, scratch: Scratch, where: Where) -> None:
        given = [scratch.lists.get(t) or _home_of(scratch, t) for t in unit.inputs]
        if isinstance(unit.node.op, While):
            found = self._loop(unit, given, where)
        else:
            found = self._branching(unit, given, where)
        for tensor, one in zip(unit.outputs, found, strict=True):
            if isinstance(one, Rows):
                scratch.lists[tensor] = one
            else:
                scratch.homes[tensor] = one

    def _region(self, unit: Region, scratch: Scratch, fetches: Mapping[Tensor, Home]) -> None:
        region = replace(unit, carried=frozenset(scratch.carried) & frozenset(unit.references))
        outside = (*region.inputs, *region.references)
        lowered = lower(region, {t: scratch.homes[t].shape for t in outside})
        homes = {lowered.buffers[t]: scratch.homes[t] for t in outside if t in lowered.buffers}
        for tensor in region.outputs:
            if tensor in region.roots:
                scratch.homes[tensor] = scratch.homes[region.roots[tensor]]
                continue
            buffer = lowered.buffers[tensor]
            home = fetches.get(tensor) or Home(Where.OWN, buffer.dtype, lowered.spec.shapes[tensor])
            scratch.homes[tensor] = homes[buffer] = home
        drawn = [self._drawing(node, lowered, scratch) for node in lowered.streams]
        homes |= {
            lowered.streams[one]: two.home for one, two in zip(lowered.streams, drawn, strict=True)
        }
        self._items.append(Part(lowered, homes))
        self._move_on(drawn)

    def _drawing(self, node: Node, lowered: Lowered, scratch: Scratch) -> Drawing:
        meter = _Meter()
        node.op.stream(meter, *[lowered.spec.values.get(tensor) for tensor in node.inputs])
        home = Home(Where.RESULT, np.dtype(np.uint32), (STREAM_WORDS,))
        made = Drawing(scratch.origins[node], meter.blocks, home)
        self._drawings.append(made)
        return made

    def _move_on(self, drawn: Sequence[Drawing]) -> None:
        """The streams that a part has drawn from, ready for the next time."""
        if drawn:
            scratch = Scratch()
            for one in drawn:
                skip = SkipRandom(blocks=one.blocks)
                scratch.targets.append(scratch.node(skip, (scratch.reference(one.home),)))
            self._emit(scratch, {})


class _Meter:
    """Stands for the step and for the stream of a random op: tells how much the op takes."""

    blocks = 0

    def state(self, make: Callable[[], Any]) -> _Meter:
        """The stream."""
        return self

    def reserve(self, blocks: int) -> Philox:
        """Note the blocks."""
        self.blocks += blocks
        return Philox(0, 0)


def _home_of(scratch: Scratch, tensor: Tensor) -> Home:
    home = scratch.homes.get(tensor)
    if home is None:
        raise NotCompiled(tensor.op, "it has no memory of its own")
    return home


def _result_home(found: dict[Tensor, Given], tensor: Tensor, value: Tensor, where: Where) -> Home:
    """Where branches leave an output: all in one place."""
    if not value.shape.is_fully_defined():
        raise NotCompiled(value.op, "the shape of the result is known only when it ran")
    shape = tuple(cast("list[int]", value.shape.as_list()))
    home = found.setdefault(
        tensor, Home(where, np.dtype(value.dtype.base_dtype.as_numpy_dtype), shape)
    )
    assert isinstance(home, Home)
    if home.shape != shape:
        raise NotCompiled(value.op, "the branches give different shapes")
    return home
