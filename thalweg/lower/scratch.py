"""Bodies of control nodes as plain graphs to be lowered, with all shapes known.

Loop variables become references to memory, lists become arrays that are read and written by rows,
and what stands for each tensor of the body is known by its home.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np

from thalweg.control.branches import Branching
from thalweg.control.effects import bodies_of
from thalweg.control.list_ops import (
    TensorArrayAdd,
    TensorArrayGradient,
    TensorArrayMerge,
    TensorArrayNew,
    TensorArrayRead,
    TensorArraySize,
    TensorArrayStack,
    TensorArrayUnstack,
    TensorArrayWrite,
)
from thalweg.control.liveness import Needs, is_control, thinned
from thalweg.control.loops import While
from thalweg.control.traces import Trace
from thalweg.errors import OpError
from thalweg.graph.build import add_node
from thalweg.graph.dtypes import DType, as_dtype, int32, variant
from thalweg.graph.graph import Graph
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Argument, Body
from thalweg.lower.control_program import Home, Rows, Where
from thalweg.lower.specialise import NotCompiled, Shape
from thalweg.ops.arithmetic import Add
from thalweg.ops.basic import Const, Identity, Placeholder
from thalweg.ops.filling import Fill
from thalweg.ops.indexing import GatherV2
from thalweg.ops.scatter import ScatterAdd, ScatterUpdate
from thalweg.ops.state import Assign, VariableV2


class Scratch:
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
        self.kept: dict[Tensor, Where] = {}  # lists that loops inside leave for after the turn
        self._references: dict[Home, Tensor] = {}
        self._touched: dict[Rows, Node] = {}  # the last node that read or wrote a list
        self._offsets: dict[Home, Tensor] = {}  # rows that lists start at
        self._placed: dict[Rows, Node] = {}  # the node that says so

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
        before = [*after]
        for rows in lists:
            found = self._touched.get(rows.root), self._placed.get(rows)
            before += [node for node in found if node is not None]
        with self.graph.as_default(), self.graph.control_dependencies(before):
            try:
                name = op.type_name if like is None else like.name
                made = add_node(self.graph, op, tuple(inputs), name, like)
            except (ValueError, TypeError, OpError) as error:
                if like is None:
                    raise
                raise NotCompiled(like, str(error)) from error
        self._touched.update(dict.fromkeys([rows.root for rows in lists], made))
        if like is not None:
            self.origins[made] = like
        return made

    def assign(self, home: Home, value: Any, like: Node, lists: Sequence[Rows] = ()) -> Tensor:
        """Give memory a value; the result reads it."""
        made = self.node(Assign(), (self.reference(home), value), like, lists)
        self.targets.append(made)
        self.homes[made.outputs[0]] = home
        return made.outputs[0]

    def write(self, rows: Rows, row: Any, value: Any, like: Node) -> None:
        """Give a row of a list a value."""
        memory = self.reference(written_home(rows, value, like))
        self.targets.append(self.node(ScatterUpdate(), (memory, row, value), like, (rows,)))

    def all_rows(self, rows: Rows) -> Tensor:
        """Where the entries of a list lie."""
        numbers = Const(value=np.arange(rows.count, dtype=np.int32), dtype=int32)
        return self.row(rows, self.node(numbers, ()).outputs[0])

    def entry(self, rows: Rows, start: Tensor, like: Node) -> Rows:
        """A list in a list of lists, given where it starts."""
        assert rows.entries is not None
        return self.seen_from(rows.entries, start, like)

    def seen_from(self, rows: Rows, start: Tensor, like: Node) -> Rows:
        """A list from a row on."""
        home = Home(Where.OWN, np.dtype(np.int32), ())
        found = rows.seen_from(home)
        self.assign(home, start, like)
        self._offsets[home], self._placed[found] = start, self.targets[-1]
        return found

    def offset(self, rows: Rows) -> Any:
        """The row that a list starts at."""
        if rows.offset is None:
            return self.node(Const(value=np.array(0, np.int32), dtype=int32), ()).outputs[0]
        if rows.offset not in self._offsets:
            self._offsets[rows.offset] = self.value(rows.offset)
        return self._offsets[rows.offset]

    def row(self, rows: Rows, index: Any) -> Any:
        """Where an entry of a list lies."""
        if rows.offset is None:
            return index
        return self.node(Add(), (index, self.offset(rows))).outputs[0]


#: The ops that give on the list they get, changed or not.
_IN_PLACE = TensorArrayWrite | TensorArrayUnstack | TensorArrayMerge | Identity

Bound = Tensor | Rows  # what stands for a tensor of a body


class Keeper(Protocol):
    """Gives memory to lists that are there after the turn that makes them."""

    def new_list(
        self, scratch: Scratch, dtype: DType, count: int, element: Shape, node: Node
    ) -> Rows:
        """A list of this turn."""
        ...


class Inlining:
    """A body's nodes in a scratch graph."""

    def __init__(
        self,
        scratch: Scratch,
        body: Body,
        arguments: Sequence[Bound],
        where: Where = Where.OWN,
        keepers: Mapping[Node, Keeper] | None = None,
    ) -> None:
        self._scratch = scratch
        self._keepers = keepers or {}  # of lists that nodes of the body make
        self._body = body
        self._where = where  # of lists that are made inside
        self._found: dict[Tensor, Bound] = dict(zip(body.arguments, arguments, strict=True))
        self._nodes: dict[Node, Node] = {}
        #: lists of gradients that are added to an entry of a list of lists: by which node
        self._added: dict[Node, Node] = {}
        self._entries: dict[Node, Rows] = {}

    def run(self, wanted: Sequence[Tensor]) -> list[Bound]:
        """What stands for tensors of the body."""
        needs = Needs(self._found)
        nodes = needs.run(wanted, self._body.targets)
        self._added = {made: node for node in nodes for made in _lists_added(node)}
        for node in nodes:
            if node in self._nodes:
                continue
            if is_control(node):
                self._add_control(node, thinned(node, needs.wanted[node]))
            else:
                self._add(node)
        self._scratch.targets += [self._nodes[n] for n in self._body.targets if n in self._nodes]
        return [self._found[tensor] for tensor in wanted]

    def _add(self, node: Node) -> None:
        if isinstance(node.op, Argument):
            raise NotCompiled(node, "it is an argument of another body")
        if isinstance(node.op, Trace):
            self._add_trace(node)
            return
        inputs = [self._found[tensor] for tensor in node.inputs]
        if isinstance(node.op, TensorArrayNew):
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
            self._fold(made, node)

    def _fold(self, made: Node, node: Node) -> None:
        """Have a number that is known as a constant, for all regions that read it."""
        if len(made.outputs) != 1 or not made.outputs[0].dtype.is_integer or node.control_inputs:
            return
        value = constant_value(made.outputs[0])
        if value is not None and not isinstance(made.op, Const):
            op = Const(value=value, dtype=made.outputs[0].dtype)
            self._found[node.outputs[0]] = self._scratch.node(op, (), node).outputs[0]

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
        element = _known(op.element_shape)
        if element is None:
            element = _written_shape(node.outputs[0])
        self._found[node.outputs[0]] = self._new_list(op.dtype, int(size), element, node)

    def _new_list(self, dtype: DType, count: int, element: Shape | None, node: Node) -> Rows:
        """A list of zeros that the body makes."""
        keeper = self._keepers.get(node)
        if keeper is None or element is None:
            rows = Rows(dtype, count, element, self._where, is_new=True)
        else:
            rows = keeper.new_list(self._scratch, dtype, count, element, node)
        if element is not None:
            self._clear(rows, node)
        return rows

    def _clear(self, rows: Rows, node: Node) -> None:
        """Memory of zeros for a list."""
        kind, scratch = rows.dtype.as_numpy_dtype, self._scratch
        dims = np.array(rows.shape, np.int32)
        zeros = scratch.node(Fill(), (dims, np.zeros((), kind)), node).outputs[0]
        if rows.home is None:
            rows.home = Home(rows.where, kind, rows.shape)
            scratch.assign(rows.home, zeros, node, (rows,))
        else:
            place = scratch.reference(rows.home), scratch.all_rows(rows)
            made = scratch.node(ScatterUpdate(), (*place, zeros), node, (rows,))
            scratch.targets.append(made)

    def _add_list(self, node: Node, inputs: Sequence[Bound]) -> None:
        """A node that uses a list."""
        (out,) = node.outputs
        if self._is_in_place(node, inputs):
            self._found[out] = inputs[0]
            return
        rows, rest = _list_and_rest(node, inputs)
        found = self._used(node, rows, rest)
        if isinstance(found, Node):
            self._nodes[node] = found
            found = rows if out.dtype.base_dtype is variant else found.outputs[0]
        self._found[out] = found

    def _used(self, node: Node, rows: Rows, rest: Sequence[Any]) -> Node | Bound:
        """The node that stands for one that uses a list, or what it gives."""
        match node.op:
            case TensorArrayWrite():
                return self._write(rows, rest[0], rest[1], node)
            case TensorArrayRead() if rows.entries is not None:
                start = self._read(rows, rest[0], node, self._after(node))
                return self._scratch.entry(rows, start.outputs[0], node)
            case TensorArrayRead():
                return self._read(rows, rest[0], node, self._after(node))
            case TensorArraySize() if rows.is_whole:
                size = np.array(rows.count, np.int32)
                return self._scratch.node(Const(value=size, dtype=int32), (), node)
            case Identity():
                return rows
            case TensorArrayGradient(source="") if rows.element is not None:
                return self._gradient(rows, node)
            case TensorArrayStack() if rows.is_whole:
                return self._stack(rows, rest[0], node)
            case TensorArrayUnstack() if rows.is_whole:
                return self._unstack(rows, rest[0], node)
            case _:
                raise NotCompiled(node, "it takes a list as a whole")

    def _write(self, rows: Rows, index: Any, value: Any, node: Node) -> Node:
        scratch, op = self._scratch, node.op
        if rows.home is None and rows.is_new:
            rows.element = _element_of(value, node)
            self._clear(rows, node)
        change = ScatterAdd() if isinstance(op, TensorArrayAdd) else ScatterUpdate()
        memory = scratch.reference(written_home(rows, value, node))
        row = scratch.row(rows, index)
        made = scratch.node(change, (memory, row, value), node, (rows,), self._after(node))
        scratch.targets.append(made)
        if not isinstance(op, TensorArrayAdd):
            self._count(rows.writes, index, node)
        return made

    def _unstack(self, rows: Rows, value: Tensor, node: Node) -> Node:
        """All rows at once. They are added to what is there: zeros, where nobody wrote."""
        count, *element = _element_of(value, node) or (None,)
        if count != rows.count:
            raise NotCompiled(node, "only a part of the list is written")
        if rows.home is None and rows.is_new:
            rows.element = tuple(element)
            self._clear(rows, node)
        if rows.element != tuple(element) or rows.home is None or rows.home.where is Where.INPUT:
            raise NotCompiled(node, "it writes a list as a whole")
        scratch, places = self._scratch, self._scratch.all_rows(rows)
        taken = scratch.reference(rows.home), places, value
        made = scratch.node(ScatterAdd(), taken, node, (rows,), self._after(node))
        scratch.targets.append(made)
        self._count(rows.writes, places, node)
        return made

    def _stack(self, rows: Rows, count: Any, node: Node) -> Node:
        memory, after = self._memory(rows, node), self._after(node)
        if constant_value(count) != rows.count:
            raise NotCompiled(node, "only a part of the list is taken")
        if rows.offset is None:
            return self._scratch.node(Identity(), (memory,), node, (rows,), after)
        taken = memory, self._scratch.all_rows(rows), np.int32(0)
        return self._scratch.node(GatherV2(), taken, node, (rows,), after)

    def _gradient(self, rows: Rows, node: Node) -> Rows:
        """A list of gradients like a list: new, or the one that it will be added to."""
        if node in self._added:
            return self._total(self._added[node])
        if rows.entries is not None:
            return replace(rows, entries=self._gradient(rows.entries, node))
        made = self._new_list(rows.dtype, rows.count, rows.element, node)
        return made if rows.is_whole else made.seen_from(cast("Home", rows.offset))

    def _total(self, added: Node) -> Rows:
        """The list of gradients that a node adds another one to: of a list of lists, its entry."""
        rows = self._list(added.inputs[0])
        if isinstance(added.op, TensorArrayMerge):
            return rows
        if added not in self._entries:
            index = added.inputs[1]
            self._require(index.op)
            start = self._read(rows, self._found[index], added, ())
            self._entries[added] = self._scratch.entry(rows, start.outputs[0], added)
        return self._entries[added]

    def _list(self, tensor: Tensor) -> Rows:
        """A list, which may be had before the nodes that change it."""
        tensor = first_of(tensor)
        self._require(tensor.op)
        rows = self._found[tensor]
        if not isinstance(rows, Rows):
            raise NotCompiled(tensor.op, "it gives a list")
        return rows

    def _require(self, node: Node) -> None:
        """Have a node before its turn."""
        if not self._found.keys() >= set(node.outputs):
            for tensor in node.inputs:
                self._require(tensor.op)
            self._add(node)

    def _is_in_place(self, node: Node, inputs: Sequence[Bound]) -> bool:
        """Whether what a node adds to a list is there already."""
        if isinstance(node.op, TensorArrayMerge):
            return inputs[0] is inputs[1]
        return node in self._entries and self._entries[node] is inputs[2]

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
        row = scratch.row(rows, index)
        return scratch.node(GatherV2(), (memory, row, np.int32(0)), node, lists, after)

    def _count(self, counts: Home | None, index: Any, node: Node) -> None:
        """Count a use of a row."""
        if counts is not None:
            memory = self._scratch.reference(counts)
            once = np.ones(index.shape.as_list(), np.int32)
            made = self._scratch.node(ScatterAdd(), (memory, index, once), node)
            self._scratch.targets.append(made)

    # Control nodes

    def _add_control(self, node: Node, thin: Node) -> None:
        """A control node, without what nothing needs of it."""
        scratch = self._scratch
        inputs = [self._found[tensor] for tensor in thin.inputs]
        lists = [one for one in inputs if isinstance(one, Rows)]
        if any(rows.is_new and rows.home is None for rows in lists):
            raise NotCompiled(node, "the shape of a list's elements is known only inside")
        flat = [scratch.stand_in(one) if isinstance(one, Rows) else one for one in inputs]
        grouped = thin.op.parsed.group(flat, thin.input_counts())
        made = scratch.node(thin.op, grouped, node, lists, self._after(node))
        self._nodes[node] = made
        scratch.targets.append(made)
        for place, (tensor, again) in enumerate(zip(thin.outputs, made.outputs, strict=True)):
            if tensor.dtype.base_dtype is variant:
                self._found[tensor] = cast("Rows", inputs[list_source(thin, place)])
            else:
                if isinstance(thin.op, While):
                    again.set_shape(flat[place].shape)
                self._found[tensor] = again

    def _add_trace(self, node: Node) -> None:
        """A trace: any output of the control node stands for its holder."""
        holder = self._nodes[node.inputs[0].op].outputs[0]
        self._bind(node, self._scratch.node(node.op, (holder,), node, (), self._after(node)))


def written_home(rows: Rows, value: Tensor, node: Node) -> Home:
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
    shape = _known(value.shape)
    if shape is None:
        raise NotCompiled(node, "the shape of the list's elements is known only when it ran")
    return shape


def _known(shape: TensorShape) -> Shape | None:
    return tuple(cast("list[int]", shape.as_list())) if shape.is_fully_defined() else None


def _lists_added(node: Node) -> list[Node]:
    """The nodes that make lists of gradients which a node adds to another list, or to a list in
    one: what is added to them can be added there at once."""
    is_entry = isinstance(node.op, TensorArrayAdd) and node.op.dtype is variant
    if not is_entry and not isinstance(node.op, TensorArrayMerge):
        return []
    lists = [first_of(node.inputs[0]), first_of(node.inputs[-1])]
    if not all(_is_only_added_to(tensor) for tensor in lists):
        return []
    return [lists[1].op] if isinstance(lists[1].op.op, TensorArrayGradient) else []


def first_of(tensor: Tensor) -> Tensor:
    """A list before anything in its body changed it."""
    source = _source(tensor)
    while source is not None:
        tensor = tensor.op.inputs[source]
        source = _source(tensor)
    return tensor


def _is_only_added_to(tensor: Tensor) -> bool:
    """Whether nothing looks into a list of gradients."""
    return all(
        isinstance(n.op, TensorArrayAdd | TensorArrayMerge | Identity) for n in _uses(tensor)
    )


def _written_shape(tensor: Tensor) -> Shape | None:
    """The shape of what is written to a list, if one of the writes tells."""
    writes = [node for node in _uses(tensor) if isinstance(node.op, TensorArrayWrite)]
    shapes = [_known(node.inputs[2].shape) for node in writes]
    return next((shape for shape in shapes if shape is not None), None)


def _uses(tensor: Tensor) -> Iterator[Node]:
    """The nodes that use a list, wherever it goes from here."""
    for node in tensor.graph.consumers(tensor):
        places = [place for place, given in enumerate(node.inputs) if given is tensor]
        if is_control(node):
            bodies = bodies_of(node)
            first = len(node.inputs) - len(bodies[0].arguments)
            for argument in [body.arguments[place - first] for body in bodies for place in places]:
                yield from _uses(argument)
        else:
            yield node
        for after in node.outputs:
            if after.dtype.base_dtype is variant and _source(after) in places:
                yield from _uses(after)


def _source(tensor: Tensor) -> int | None:
    """The input of a node that is the list it gives."""
    if is_control(tensor.op):
        return list_source(tensor.op, tensor.value_index)
    return 0 if isinstance(tensor.op.op, _IN_PLACE) else None


def list_source(node: Node, place: int) -> int:
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


def is_changed(body: Body, place: int) -> bool:
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
            tensor = node.inputs[list_source(node, tensor.value_index)]
        elif isinstance(node.op, _IN_PLACE):
            tensor = node.inputs[0]
        else:
            return None
    return body.arguments.index(tensor)
