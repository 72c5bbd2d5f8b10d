"""Inlines bodies of control nodes into scratch graphs.

Arguments are tensors or lists, which are arrays that are read and written by rows. A list is
changed in place: the list that a body returns is the one that it got, which is found by going back
along the nodes that pass it on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

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
from thalweg.control.liveness import Needs, is_control, prune_loop_vars
from thalweg.control.loops import While
from thalweg.control.traces import Trace
from thalweg.graph.dtypes import DType, int32, variant
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument, Body
from thalweg.lower.control.program import BufferView, ListBuffer, Storage
from thalweg.lower.control.scratch import LoopTraces, Scratch, element_of, written_view
from thalweg.lower.specialise import NotCompiled, Shape
from thalweg.ops.arrays.indexing import GatherV2
from thalweg.ops.core.basic import Const, Identity
from thalweg.ops.core.filling import Fill
from thalweg.ops.state.scatter import ScatterAdd, ScatterUpdate

#: The ops that return the list they get, changed or not.
_IN_PLACE = TensorArrayWrite | TensorArrayUnstack | TensorArrayMerge | Identity

Bound = Tensor | ListBuffer  # what a tensor of a body is bound to


class Inlining:
    """Inlines the nodes of one body into a scratch graph."""

    def __init__(
        self,
        scratch: Scratch,
        body: Body,
        arguments: Sequence[Bound],
        where: Storage = Storage.OWN,
        keepers: Mapping[Node, LoopTraces] | None = None,
    ) -> None:
        self._scratch = scratch
        self._keepers = keepers or {}  # of lists that nodes of the body make
        self._body = body
        self._where = where  # of lists that the body makes
        self._found: dict[Tensor, Bound] = dict(zip(body.arguments, arguments, strict=True))
        self._nodes: dict[Node, Node] = {}
        #: the node that adds a list of gradients to another list, by the node that makes it
        self._added: dict[Node, Node] = {}
        self._entries: dict[Node, ListBuffer] = {}

    def run(self, wanted: Sequence[Tensor]) -> list[Bound]:
        """Inline what tensors of the body depend on, and its targets; what the tensors are bound
        to."""
        needs = Needs(self._found)
        nodes = needs.run(wanted, self._body.targets)
        self._added = {made: node for node in nodes for made in _lists_added(node)}
        for node in nodes:
            if node in self._nodes:
                continue
            if is_control(node):
                self._add_control(node, prune_loop_vars(node, needs.wanted[node]))
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
        elif any(isinstance(one, ListBuffer) for one in inputs):
            self._add_list(node, inputs)
        else:
            grouped = node.op.parsed.group(inputs, node.input_counts())
            made = self._scratch.node(node.op, grouped, node, (), self._after(node))
            self._bind(node, made)
            self._fold(made, node)

    def _fold(self, made: Node, node: Node) -> None:
        """Replace an integer that is known by a constant, for all regions that read it."""
        if len(made.outputs) != 1 or not made.outputs[0].dtype.is_integer or node.controls:
            return
        value = constant_value(made.outputs[0])
        if value is not None and not isinstance(made.op, Const):
            op = Const(value=value, dtype=made.outputs[0].dtype)
            self._found[node.outputs[0]] = self._scratch.tensor(op, (), node)

    def _after(self, node: Node) -> list[Node]:
        return [self._nodes[n] for n in node.controls if n in self._nodes]

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
        element = op.element_shape.whole
        if element is None:
            element = _written_shape(node.outputs[0])
        self._found[node.outputs[0]] = self._new_list(op.dtype, int(size), element, node)

    def _new_list(self, dtype: DType, count: int, element: Shape | None, node: Node) -> ListBuffer:
        """A new list of zeros."""
        keeper = self._keepers.get(node)
        if keeper is None or element is None:
            rows = ListBuffer(dtype, count, element, self._where, is_new=True)
        else:
            rows = keeper.new_list(self._scratch, dtype, count, element, node)
        if element is not None:
            self._clear(rows, node)
        return rows

    def _clear(self, rows: ListBuffer, node: Node) -> None:
        """Allocate a list and fill it with zeros."""
        kind, scratch = rows.dtype.as_numpy_dtype, self._scratch
        dims = np.array(rows.shape, np.int32)
        zeros = scratch.tensor(Fill(), (dims, np.zeros((), kind)), node)
        if rows.view is None:
            rows.view = BufferView(rows.where, kind, rows.shape)
            scratch.assign(rows.view, zeros, node, (rows,))
        else:
            place = scratch.reference(rows.view), scratch.all_rows(rows)
            scratch.target(ScatterUpdate(), (*place, zeros), node, (rows,))

    def _add_list(self, node: Node, inputs: Sequence[Bound]) -> None:
        """Inline a node that uses a list."""
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

    def _used(self, node: Node, rows: ListBuffer, rest: Sequence[Any]) -> Node | Bound:
        """The inlined node of one that uses a list, or what its output is bound to."""
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

    def _write(self, rows: ListBuffer, index: Any, value: Any, node: Node) -> Node:
        scratch, op = self._scratch, node.op
        if rows.view is None and rows.is_new:
            rows.element = element_of(value, node)
            self._clear(rows, node)
        change = ScatterAdd() if isinstance(op, TensorArrayAdd) else ScatterUpdate()
        memory = scratch.reference(written_view(rows, value, node))
        row = scratch.row(rows, index)
        made = scratch.target(change, (memory, row, value), node, (rows,), self._after(node))
        if not isinstance(op, TensorArrayAdd):
            self._count(rows.writes, index, node)
        return made

    def _unstack(self, rows: ListBuffer, value: Tensor, node: Node) -> Node:
        """Write all rows at once. They are added to what the rows hold: zeros, unless written
        before."""
        count, *element = element_of(value, node) or (None,)
        if count != rows.count:
            raise NotCompiled(node, "only a part of the list is written")
        if rows.view is None and rows.is_new:
            rows.element = tuple(element)
            self._clear(rows, node)
        if rows.element != tuple(element) or rows.view is None or rows.view.where is Storage.INPUT:
            raise NotCompiled(node, "it writes a list as a whole")
        scratch, places = self._scratch, self._scratch.all_rows(rows)
        taken = scratch.reference(rows.view), places, value
        made = scratch.target(ScatterAdd(), taken, node, (rows,), self._after(node))
        self._count(rows.writes, places, node)
        return made

    def _stack(self, rows: ListBuffer, count: Any, node: Node) -> Node:
        memory, after = self._memory(rows, node), self._after(node)
        if constant_value(count) != rows.count:
            raise NotCompiled(node, "only a part of the list is taken")
        if rows.offset is None:
            return self._scratch.node(Identity(), (memory,), node, (rows,), after)
        taken = memory, self._scratch.all_rows(rows), np.int32(0)
        return self._scratch.node(GatherV2(), taken, node, (rows,), after)

    def _gradient(self, rows: ListBuffer, node: Node) -> ListBuffer:
        """The list of gradients of a list: new, or the one that it will be added to."""
        if node in self._added:
            return self._total(self._added[node])
        if rows.entries is not None:
            return replace(rows, entries=self._gradient(rows.entries, node))
        made = self._new_list(rows.dtype, rows.count, rows.element, node)
        return made if rows.is_whole else made.seen_from(cast("BufferView", rows.offset))

    def _total(self, added: Node) -> ListBuffer:
        """The list that a node adds a list of gradients to: for a list of lists, its entry."""
        rows = self._list(added.inputs[0])
        if isinstance(added.op, TensorArrayMerge):
            return rows
        if added not in self._entries:
            index = added.inputs[1]
            self._require(index.op)
            start = self._read(rows, self._found[index], added, ())
            self._entries[added] = self._scratch.entry(rows, start.outputs[0], added)
        return self._entries[added]

    def _list(self, tensor: Tensor) -> ListBuffer:
        """The list that a tensor is, inlining what makes it first."""
        tensor = first_of(tensor)
        self._require(tensor.op)
        rows = self._found[tensor]
        if not isinstance(rows, ListBuffer):
            raise NotCompiled(tensor.op, "it gives a list")
        return rows

    def _require(self, node: Node) -> None:
        """Inline a node and its inputs ahead of others."""
        if not self._found.keys() >= set(node.outputs):
            for tensor in node.inputs:
                self._require(tensor.op)
            self._add(node)

    def _is_in_place(self, node: Node, inputs: Sequence[Bound]) -> bool:
        """Whether what a node adds to a list was added in place."""
        if isinstance(node.op, TensorArrayMerge):
            return inputs[0] is inputs[1]
        return node in self._entries and self._entries[node] is inputs[2]

    def _memory(self, rows: ListBuffer, node: Node) -> Tensor:
        if rows.view is None:
            raise NotCompiled(node, "nothing was written to the list")
        scratch = self._scratch
        is_input = rows.view.where is Storage.INPUT
        return scratch.value(rows.view) if is_input else scratch.reference(rows.view)

    def _read(self, rows: ListBuffer, index: Any, node: Node, after: Sequence[Node]) -> Node:
        scratch = self._scratch
        if rows.value is not None:
            value = np.asarray(rows.value, rows.dtype.as_numpy_dtype)
            return scratch.node(Const(value=value, dtype=rows.dtype), (), node)
        memory = self._memory(rows, node)
        lists = () if memory in scratch.inputs else (rows,)
        self._count(rows.reads, index, node)
        row = scratch.row(rows, index)
        return scratch.node(GatherV2(), (memory, row, np.int32(0)), node, lists, after)

    def _count(self, counts: BufferView | None, index: Any, node: Node) -> None:
        """Count a read or write of a row."""
        if counts is not None:
            memory = self._scratch.reference(counts)
            once = np.ones(index.shape.as_list(), np.int32)
            self._scratch.target(ScatterAdd(), (memory, index, once), node)

    # Control nodes

    def _add_control(self, node: Node, pruned: Node) -> None:
        """Inline a control node, pruned to what is read of it."""
        scratch = self._scratch
        inputs = [self._found[tensor] for tensor in pruned.inputs]
        lists = [one for one in inputs if isinstance(one, ListBuffer)]
        if any(rows.is_new and rows.view is None for rows in lists):
            raise NotCompiled(node, "the shape of a list's elements is known only inside")
        flat = [scratch.stand_in(one) if isinstance(one, ListBuffer) else one for one in inputs]
        grouped = pruned.op.parsed.group(flat, pruned.input_counts())
        made = scratch.target(pruned.op, grouped, node, lists, self._after(node))
        self._nodes[node] = made
        for place, (tensor, again) in enumerate(zip(pruned.outputs, made.outputs, strict=True)):
            if tensor.dtype.base_dtype is variant:
                self._found[tensor] = cast("ListBuffer", inputs[list_source(pruned, place)])
            else:
                if isinstance(pruned.op, While):
                    again.set_shape(flat[place].shape)
                self._found[tensor] = again

    def _add_trace(self, node: Node) -> None:
        """Inline a trace: any output of the inlined control node serves as its input."""
        holder = self._nodes[node.inputs[0].op].outputs[0]
        self._bind(node, self._scratch.node(node.op, (holder,), node, (), self._after(node)))


def _lists_added(node: Node) -> list[Node]:
    """The nodes that make lists of gradients which a node adds to another list, or to an entry of
    one: what is added to them can be added to the total directly."""
    is_entry = isinstance(node.op, TensorArrayAdd) and node.op.dtype is variant
    if not is_entry and not isinstance(node.op, TensorArrayMerge):
        return []
    lists = [first_of(node.inputs[0]), first_of(node.inputs[-1])]
    if not all(_is_only_added_to(tensor) for tensor in lists):
        return []
    return [lists[1].op] if isinstance(lists[1].op.op, TensorArrayGradient) else []


def first_of(tensor: Tensor) -> Tensor:
    """The tensor by which a list enters its body."""
    source = _source(tensor)
    while source is not None:
        tensor = tensor.op.inputs[source]
        source = _source(tensor)
    return tensor


def _is_only_added_to(tensor: Tensor) -> bool:
    """Whether a list of gradients is added to and not read."""
    return all(
        isinstance(n.op, TensorArrayAdd | TensorArrayMerge | Identity) for n in _uses(tensor)
    )


def _written_shape(tensor: Tensor) -> Shape | None:
    """The static shape of what is written to a list, if one of the writes has one."""
    writes = [node for node in _uses(tensor) if isinstance(node.op, TensorArrayWrite)]
    shapes = [node.inputs[2].shape.whole for node in writes]
    return next((shape for shape in shapes if shape is not None), None)


def _uses(tensor: Tensor) -> Iterator[Node]:
    """The nodes that use a list, inside control nodes and after changes too."""
    for node in tensor.graph.consumers(tensor):
        places = [place for place, given in enumerate(node.inputs) if given is tensor]
        if is_control(node):
            bodies = node.op.bodies
            first = len(node.inputs) - len(bodies[0].arguments)
            for argument in [body.arguments[place - first] for body in bodies for place in places]:
                yield from _uses(argument)
        else:
            yield node
        for after in node.outputs:
            if after.dtype.base_dtype is variant and _source(after) in places:
                yield from _uses(after)


def _source(tensor: Tensor) -> int | None:
    """The input of a node that is the list it returns."""
    if is_control(tensor.op):
        return list_source(tensor.op, tensor.value_index)
    return 0 if isinstance(tensor.op.op, _IN_PLACE) else None


def list_source(node: Node, place: int) -> int:
    """The input of a control node that is the list it returns."""
    if isinstance(node.op, While):
        return place
    found = {_root(body, body.outputs[place]) for body in node.op.bodies}
    if len(found) != 1 or None in found:
        raise NotCompiled(node, "its branches give different lists")
    return 1 + cast("int", found.pop())


def _list_and_rest(node: Node, inputs: Sequence[Bound]) -> tuple[ListBuffer, Sequence[Bound]]:
    """The list that a node uses, and its other inputs."""
    rows, *rest = inputs
    if not isinstance(rows, ListBuffer) or any(isinstance(one, ListBuffer) for one in rest):
        raise NotCompiled(node, "it takes a list")
    if rows.grows and not isinstance(node.op, TensorArrayWrite | TensorArrayRead | Identity):
        raise NotCompiled(node, "it takes a list that may have got longer")
    return rows, rest


def is_changed(body: Body, place: int) -> bool:
    """Whether a loop may change a list that is one of its variables."""
    tensor = body.outputs[place]
    while isinstance(tensor.op.op, Identity):
        (tensor,) = tensor.op.inputs
    return tensor is not body.arguments[place]


def _root(body: Body, tensor: Tensor) -> int | None:
    """The argument of a body that a list of it is."""
    first = first_of(tensor)
    return body.arguments.index(first) if first in body.arguments else None
