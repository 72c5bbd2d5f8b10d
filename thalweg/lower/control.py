"""Loops and conditionals as native programs: lowered regions with jumps between them.

A loop variable is memory that the body updates in place, as it would a variable's. What enters a
loop is one region (first values, and whether to begin), a turn is another (the body, new values,
whether to go on): a small loop is one kernel and one jump a turn. Lists become arrays that are read
and written by rows. What cannot be done so raises `NotCompiled`; the executor then runs the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, cast

import numpy as np

from thalweg.control.branches import Branching, If
from thalweg.control.effects import bodies_of
from thalweg.control.list_ops import (
    TensorArrayAdd,
    TensorArrayGradient,
    TensorArrayNew,
    TensorArrayRead,
    TensorArraySize,
    TensorArrayStack,
    TensorArrayWrite,
)
from thalweg.control.loops import While
from thalweg.control.traces import BranchTrace, LoopCount, LoopTrace
from thalweg.errors import OpError
from thalweg.graph.build import add_node
from thalweg.graph.dtypes import DType, as_dtype, int32, variant
from thalweg.graph.graph import Graph
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Argument, Body, needed
from thalweg.lower.buffers import Buffer
from thalweg.lower.lowering import Lowered, lower
from thalweg.lower.regions import ordered, regions
from thalweg.lower.resolve import STREAM_WORDS
from thalweg.lower.specialise import Controlled, NotCompiled, Region, Shape
from thalweg.ops.arithmetic import Add
from thalweg.ops.basic import Const, Identity, Placeholder
from thalweg.ops.compare import Equal, Less, LogicalOr
from thalweg.ops.filling import Fill
from thalweg.ops.indexing import GatherV2
from thalweg.ops.philox import Philox
from thalweg.ops.random import SkipRandom
from thalweg.ops.scatter import ScatterAdd, ScatterUpdate
from thalweg.ops.state import Assign, VariableV2


class Where(Enum):
    """What memory of a program is."""

    INPUT = "input"  # an array that comes with the call
    VARIABLE = "variable"  # a variable's own memory
    RESULT = "result"  # a fresh array of the call
    CONSTANT = "constant"  # an array of the program
    OWN = "own"  # a piece of the frame


@dataclass(eq=False)
class Home:
    """Memory that lives longer than a region: whose it is, and what lies there."""

    where: Where
    dtype: Any
    shape: Shape
    source: Any = None  # of an input or a variable its number, of a constant the array

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(eq=False)
class Rows:
    """A list as memory: its rows. The shape of an element may be known only at the first write."""

    dtype: DType
    count: int
    element: Shape | None
    where: Where
    home: Home | None = None
    writes: Home | None = None  # how often each row was written, where that may be once
    reads: Home | None = None  # how often each row was read, where that may be once
    value: Any = None  # what all rows are, where that is known
    is_new: bool = False  # made inside the program, which fills it with zeros
    grows: bool = False  # the list may get longer: rows beyond its end are room for that

    @property
    def shape(self) -> Shape:
        """Of the memory."""
        assert self.element is not None
        return (self.count, *self.element)


Given = Home | Rows  # what an input of a control node is


@dataclass(frozen=True, eq=False)
class Drawing:
    """A random op inside a program: the place in its stream moves on with every turn."""

    node: Node
    blocks: int  # that a turn takes
    home: Home


@dataclass(frozen=True, eq=False)
class Part:
    """A region, and where its buffers from outside lie."""

    lowered: Lowered
    homes: Mapping[Buffer, Home]


class Label:
    """A place in a program."""


@dataclass(frozen=True, eq=False)
class Leap:
    """A jump to a label: always, or where a truth holds (or does not)."""

    target: Label
    decides: Home | None = None
    if_true: bool = False


Item = Part | Label | Leap


@dataclass(frozen=True, eq=False)
class ControlProgram:
    """A control node, lowered: its items in order, and what its outputs are."""

    items: tuple[Item, ...]
    outputs: tuple[Given, ...]  # in the order of the unit's
    counts: tuple[Home, ...]  # the turns of loops with traces, whose room may prove too small
    lists: Mapping[int, Rows]  # the inputs that are lists
    drawings: tuple[Drawing, ...]


def lower_control(unit: Controlled, given: Sequence[Given], room: int) -> ControlProgram:
    """A control node on inputs of known shapes; traces have room for so many turns."""
    return _Lowering(room).program(unit, given)


class _Scratch:
    """A graph made for lowering, with all shapes known, and where its tensors lie."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.homes: dict[Tensor, Home] = {}
        self.lists: dict[Tensor, Rows] = {}
        self.inputs: list[Tensor] = []
        self.carried: set[Tensor] = set()
        self.sources: set[Node] = set()
        self.targets: list[Node] = []
        self.origins: dict[Node, Node] = {}
        self._references: dict[Home, Tensor] = {}
        self._touched: dict[Rows, Node] = {}  # the last node that read or wrote a list

    def value(self, home: Home) -> Tensor:
        """A tensor that is read from memory."""
        if home.where is Where.CONSTANT:
            made = Const(value=home.source, dtype=as_dtype(home.dtype))
            return self.node(made, ()).outputs[0]
        op = Placeholder(dtype=as_dtype(home.dtype), given_shape=TensorShape.of(home.shape))
        tensor = self._source(op)
        self.homes[tensor] = home
        self.inputs.append(tensor)
        return tensor

    def reference(self, home: Home) -> Tensor:
        """Memory that is read and written."""
        if home not in self._references:
            shape = TensorShape.of(home.shape)
            tensor = self._source(VariableV2(dtype=as_dtype(home.dtype), given_shape=shape))
            self._references[home], self.homes[tensor] = tensor, home
            if home.where is not Where.VARIABLE:
                self.carried.add(tensor)
        return self._references[home]

    def stand_in(self, rows: Rows) -> Tensor:
        """A tensor that stands for a list, to be an input of a control node."""
        tensor = self._source(Placeholder(dtype=variant, given_shape=TensorShape.of(())))
        self.lists[tensor] = rows
        self.inputs.append(tensor)
        return tensor

    def _source(self, op: Op) -> Tensor:
        node = self.node(op, ())
        self.sources.add(node)
        return node.outputs[0]

    def node(
        self,
        op: Op,
        inputs: Sequence[Any],
        like: Node | None = None,
        lists: Sequence[Rows] = (),
        after: Sequence[Node] = (),
    ) -> Node:
        """A new node. Those that use one list come one after the other."""
        before = [*after, *(self._touched[rows] for rows in lists if rows in self._touched)]
        with self.graph.as_default(), self.graph.control_dependencies(before):
            try:
                name = op.type_name if like is None else like.name
                made = add_node(self.graph, op, tuple(inputs), name, like)
            except (ValueError, TypeError, OpError) as error:
                if like is None:
                    raise
                raise NotCompiled(like, str(error)) from error
        self._touched.update(dict.fromkeys(lists, made))
        if like is not None:
            self.origins[made] = like
        return made

    def assign(self, home: Home, value: Any, like: Node, lists: Sequence[Rows] = ()) -> Tensor:
        """Give memory a value; the result reads it."""
        made = self.node(Assign(), (self.reference(home), value), like, lists)
        self.targets.append(made)
        self.homes[made.outputs[0]] = home
        return made.outputs[0]


Bound = Tensor | Rows  # what stands for a tensor of a body


class _Inlining:
    """A body's nodes in a scratch graph."""

    def __init__(
        self,
        scratch: _Scratch,
        body: Body,
        arguments: Sequence[Bound],
        where: Where = Where.OWN,
    ) -> None:
        self._scratch = scratch
        self._body = body
        self._where = where  # of lists that are made inside
        self._found: dict[Tensor, Bound] = dict(zip(body.arguments, arguments, strict=True))
        self._nodes: dict[Node, Node] = {}

    def run(self, wanted: Sequence[Tensor]) -> list[Bound]:
        """What stands for tensors of the body."""
        for node in needed(wanted, self._body.targets, self._found):
            if node not in self._nodes:
                self._add(node)
        self._scratch.targets += [self._nodes[n] for n in self._body.targets if n in self._nodes]
        return [self._found[tensor] for tensor in wanted]

    def _add(self, node: Node) -> None:
        if isinstance(node.op, Argument):
            raise NotCompiled(node, "it is an argument of another body")
        inputs = [self._found[tensor] for tensor in node.inputs]
        if isinstance(node.op, Branching | While):
            self._add_control(node, inputs)
        elif isinstance(node.op, TensorArrayNew):
            self._add_new_list(node, node.op)
        elif any(isinstance(one, Rows) for one in inputs):
            self._add_list(node, inputs)
        else:
            made = self._scratch.node(
                node.op,
                node.op.parsed.group(inputs, node.input_counts()),
                node,
                (),
                self._after(node),
            )
            self._bind(node, made)

    def _after(self, node: Node) -> list[Node]:
        return [self._nodes[n] for n in node.control_inputs if n in self._nodes]

    def _bind(self, node: Node, made: Node) -> None:
        self._nodes[node] = made
        self._found.update(zip(node.outputs, made.outputs, strict=True))
        if node.op.parsed.references:
            self._scratch.targets.append(made)

    # Lists

    def _add_new_list(self, node: Node, op: TensorArrayNew) -> None:
        size = constant_value(cast("Tensor", self._found[node.inputs[0]]))
        if size is None or op.dynamic_size:
            raise NotCompiled(node, "how long the list gets is known only when it ran")
        shape = op.element_shape
        element = tuple(cast("list[int]", shape.as_list())) if shape.is_fully_defined() else None
        rows = Rows(op.dtype, int(size), element, self._where, is_new=True)
        self._found[node.outputs[0]] = rows
        if element is not None:
            self._clear(rows, node)

    def _clear(self, rows: Rows, node: Node) -> None:
        """Memory of zeros for a list."""
        kind = rows.dtype.as_numpy_dtype
        rows.home = Home(rows.where, kind, rows.shape)
        dims = np.array(rows.shape, np.int32)
        zeros = self._scratch.node(Fill(), (dims, np.zeros((), kind)), node).outputs[0]
        self._scratch.assign(rows.home, zeros, node, (rows,))

    def _add_list(self, node: Node, inputs: Sequence[Bound]) -> None:
        rows, rest = _list_and_rest(node, inputs)
        op, after = node.op, self._after(node)
        scratch, (out,) = self._scratch, node.outputs
        if isinstance(op, TensorArrayWrite):
            index, value = rest
            if rows.home is None and rows.is_new:
                rows.element = _element_of(cast("Tensor", value), node)
                self._clear(rows, node)
            change = ScatterAdd() if isinstance(op, TensorArrayAdd) else ScatterUpdate()
            memory = scratch.reference(_written_home(rows, cast("Tensor", value), node))
            made = scratch.node(change, (memory, index, value), node, (rows,), after)
            scratch.targets.append(made)
            if not isinstance(op, TensorArrayAdd):
                self._count(rows.writes, index, node)
            self._found[out] = rows
        elif isinstance(op, TensorArrayRead):
            made = self._read(rows, rest[0], node, after)
            self._found[out] = made.outputs[0]
        elif isinstance(op, TensorArraySize):
            made = scratch.node(Const(value=np.array(rows.count, np.int32), dtype=int32), (), node)
            self._found[out] = made.outputs[0]
        elif isinstance(op, Identity):
            self._found[out] = rows
            return
        elif isinstance(op, TensorArrayGradient) and rows.element is not None and not op.source:
            self._found[out] = made = Rows(
                rows.dtype, rows.count, rows.element, self._where, is_new=True
            )
            self._clear(made, node)
            return
        elif isinstance(op, TensorArrayStack):
            made = scratch.node(Identity(), (self._memory(rows, node),), node, (rows,), after)
            self._found[out] = made.outputs[0]
            self._check_count(rows, rest[0], node)
        else:
            raise NotCompiled(node, "it takes a list as a whole")
        self._nodes[node] = made

    def _check_count(self, rows: Rows, count: Any, node: Node) -> None:
        if constant_value(count) != rows.count:
            raise NotCompiled(node, "only a part of the list is taken")

    def _memory(self, rows: Rows, node: Node) -> Tensor:
        if rows.home is None:
            raise NotCompiled(node, "nothing was written to the list")
        scratch = self._scratch
        is_input = rows.home.where is Where.INPUT
        return scratch.value(rows.home) if is_input else scratch.reference(rows.home)

    def _read(self, rows: Rows, index: Any, node: Node, after: Sequence[Node]) -> Node:
        scratch = self._scratch
        if rows.value is not None:
            value = np.asarray(rows.value, rows.dtype.as_numpy_dtype)
            return scratch.node(Const(value=value, dtype=rows.dtype), (), node)
        memory = self._memory(rows, node)
        lists = () if memory in scratch.inputs else (rows,)
        self._count(rows.reads, index, node)
        return scratch.node(GatherV2(), (memory, index, np.int32(0)), node, lists, after)

    def _count(self, counts: Home | None, index: Any, node: Node) -> None:
        """Count a use of a row."""
        if counts is not None:
            memory = self._scratch.reference(counts)
            made = self._scratch.node(ScatterAdd(), (memory, index, np.int32(1)), node)
            self._scratch.targets.append(made)

    # Control nodes

    def _add_control(self, node: Node, inputs: Sequence[Bound]) -> None:
        scratch = self._scratch
        lists = [one for one in inputs if isinstance(one, Rows)]
        flat = [scratch.stand_in(one) if isinstance(one, Rows) else one for one in inputs]
        grouped = node.op.parsed.group(flat, node.input_counts())
        made = scratch.node(node.op, grouped, node, lists, self._after(node))
        self._nodes[node] = made
        scratch.targets.append(made)
        for place, (tensor, again) in enumerate(zip(node.outputs, made.outputs, strict=True)):
            if tensor.dtype.base_dtype is variant:
                self._found[tensor] = cast("Rows", inputs[_list_source(node, place)])
            else:
                if isinstance(node.op, While):
                    again.set_shape(flat[place].shape)
                self._found[tensor] = again


def _written_home(rows: Rows, value: Tensor, node: Node) -> Home:
    """The memory of a list that is written."""
    if rows.home is None:
        rows.element = _element_of(value, node)
        rows.home = Home(rows.where, rows.dtype.as_numpy_dtype, rows.shape)
    if rows.home.where in (Where.INPUT, Where.CONSTANT):
        raise NotCompiled(node, "it writes to a list that is no variable of the loop")
    if tuple(value.shape.as_list()) != rows.element:
        raise NotCompiled(node, "the elements of the list differ in shape")
    return rows.home


def _element_of(value: Tensor, node: Node) -> Shape:
    if not value.shape.is_fully_defined():
        raise NotCompiled(node, "the shape of the list's elements is known only when it ran")
    return tuple(cast("list[int]", value.shape.as_list()))


def _list_source(node: Node, place: int) -> int:
    """The input of a control node that is the list it gives back."""
    if isinstance(node.op, While):
        return place
    found = {_root(body, body.outputs[place]) for body in bodies_of(node)}
    if len(found) != 1 or None in found:
        raise NotCompiled(node, "its branches give different lists")
    return 1 + cast("int", found.pop())


def _list_and_rest(node: Node, inputs: Sequence[Bound]) -> tuple[Rows, Sequence[Bound]]:
    """The list that a node uses, and its other inputs."""
    rows, *rest = inputs
    if not isinstance(rows, Rows) or any(isinstance(one, Rows) for one in rest):
        raise NotCompiled(node, "it takes a list")
    if rows.grows and not isinstance(node.op, TensorArrayWrite | TensorArrayRead | Identity):
        raise NotCompiled(node, "it takes a list that may have got longer")
    return rows, rest


def _is_changed(body: Body, place: int) -> bool:
    """Whether a list that goes around a loop may be another one after a turn."""
    tensor = body.outputs[place]
    while isinstance(tensor.op.op, Identity):
        (tensor,) = tensor.op.inputs
    return tensor is not body.arguments[place]


def _root(body: Body, tensor: Tensor) -> int | None:
    """The argument that a list of a body is."""
    while tensor not in body.arguments:
        node = tensor.op
        if isinstance(node.op, Branching | While):
            tensor = node.inputs[_list_source(node, tensor.value_index)]
        elif isinstance(node.op, TensorArrayWrite | Identity):
            tensor = node.inputs[0]
        else:
            return None
    return body.arguments.index(tensor)


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
            self._own(one) if isinstance(one, Rows) and _is_changed(body, place) else one
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
        enter = _Scratch()
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
        if tensor.op is node:
            return variables[tensor.value_index]
        if isinstance(tensor.op.op, LoopCount):
            assert count is not None
            return count
        return traces[cast("LoopTrace", tensor.op.op).tensor]

    def _condition(
        self,
        scratch: _Scratch,
        body: Body,
        variables: Sequence[Given],
        invariants: Sequence[Given],
        truth: Home,
    ) -> None:
        """Whether to go on, as memory says now; the end of a scratch graph."""
        arguments = self._arguments(scratch, body, variables, invariants)
        (found,) = _Inlining(scratch, body, arguments).run(body.outputs)
        last = scratch.node(Identity(), (found,), body.outputs[0].op).outputs[0]
        self._emit(scratch, {last: truth})

    def _arguments(
        self,
        scratch: _Scratch,
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
        turn = _Scratch()
        body = op.body
        arguments = self._arguments(turn, body, variables, invariants)
        results = _Inlining(turn, body, arguments).run([*body.outputs, *traces])
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

    def _keep(
        self, turn: _Scratch, tensor: Tensor, value: Bound, count: Home, where: Where
    ) -> Rows:
        """Write a value of this turn into its row of a trace."""
        if isinstance(value, Rows):
            raise NotCompiled(tensor.op, "a list is kept for every turn")
        rows = Rows(tensor.dtype.base_dtype, self._room, None, where)
        if not tensor.dtype.is_floating:
            rows.value = constant_value(value)
        if rows.value is not None:
            return rows
        memory = turn.reference(_written_home(rows, value, tensor.op))
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
                found[tensor] = given[_list_source(node, place)]
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
        scratch, truth = _Scratch(), Home(Where.OWN, np.bool_, ())
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
        scratch = _Scratch()
        wanted = {t: body.outputs[t.value_index] for t in unit.outputs if t.op is unit.node}
        for trace in unit.nodes[1:]:
            tensor = cast("BranchTrace", trace.op).tensor
            if tensor.graph is body.graph:
                wanted[trace.outputs[0]] = tensor
        arguments = self._arguments(scratch, body, (), inputs)
        results = _Inlining(scratch, body, arguments, where).run(list(wanted.values()))
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
        scratch: _Scratch,
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

    def _control(self, unit: Controlled, scratch: _Scratch, where: Where) -> None:
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

    def _region(self, unit: Region, scratch: _Scratch, fetches: Mapping[Tensor, Home]) -> None:
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

    def _drawing(self, node: Node, lowered: Lowered, scratch: _Scratch) -> Drawing:
        meter = _Meter()
        node.op.stream(meter, *[lowered.spec.values.get(tensor) for tensor in node.inputs])
        home = Home(Where.RESULT, np.dtype(np.uint32), (STREAM_WORDS,))
        made = Drawing(scratch.origins[node], meter.blocks, home)
        self._drawings.append(made)
        return made

    def _move_on(self, drawn: Sequence[Drawing]) -> None:
        """The streams that a part has drawn from, ready for the next time."""
        if drawn:
            scratch = _Scratch()
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


def _home_of(scratch: _Scratch, tensor: Tensor) -> Home:
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
