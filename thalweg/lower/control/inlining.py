"""Inlines bodies of control nodes into scratch graphs.

Arguments are tensors, or lists: arrays that are read and written by rows. A list is changed in
place, so the list that a body returns is one of its arguments, found by following the nodes that
pass it on.
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
from thalweg.lower.control.scratch import LoopTraces, Scratch, element_of
from thalweg.lower.specialise import NotCompiled, Shape
from thalweg.ops.arrays.indexing import GatherV2
from thalweg.ops.core.basic import Const, Identity
from thalweg.ops.core.filling import Fill
from thalweg.ops.state.scatter import ScatterAdd, ScatterUpdate

#: The ops that return the list they get, changed or not.
_IN_PLACE = TensorArrayWrite | TensorArrayUnstack | TensorArrayMerge | Identity

Bound = Tensor | ListBuffer  # the binding of a tensor of a body


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
        self._keepers = keepers or {}  # by the nodes that create the lists they keep
        self._body = body
        self._where = where  # the storage of lists that the body creates
        self._bound: dict[Tensor, Bound] = dict(zip(body.arguments, arguments, strict=True))
        #: the node that adds a list of gradients to another list, by the node that creates it
        self._added_by: dict[Node, Node] = {}
        self._entries: dict[Node, ListBuffer] = {}

    def run(self, wanted: Sequence[Tensor]) -> list[Bound]:
        """Inline the nodes that tensors of the body depend on, and its targets. Returns what the
        tensors are bound to."""
        needs = Needs(wanted, self._body.targets, self._bound)
        nodes, inlined = needs.nodes, self._scratch.inlined
        self._added_by = {creator: node for node in nodes for creator in _accumulated_lists(node)}
        for node in nodes:
            if node in inlined:
                continue
            if is_control(node):
                self._add_control(node, prune_loop_vars(node, needs.wanted[node]))
            else:
                self._add(node)
        self._scratch.targets += [inlined[n] for n in self._body.targets if n in inlined]
        return [self._bound[tensor] for tensor in wanted]

    def _add(self, node: Node) -> None:
        if isinstance(node.op, Argument):
            raise NotCompiled(node, "it is an argument of another body")
        if isinstance(node.op, Trace):
            self._add_trace(node)
            return
        inputs = [self._bound[tensor] for tensor in node.inputs]
        if isinstance(node.op, TensorArrayNew):
            self._create_list(node, node.op)
        elif any(isinstance(bound, ListBuffer) for bound in inputs):
            self._inline_list_use(node, inputs)
        else:
            grouped = node.grouped(inputs)
            inlined = self._scratch.node(node.op, grouped, node)
            self._bind(node, inlined)
            self._fold(inlined, node)

    def _fold(self, inlined: Node, node: Node) -> None:
        """Replace a known integer by a constant, for all regions that read it."""
        if len(inlined.outputs) != 1 or not inlined.outputs[0].dtype.is_integer or node.controls:
            return
        value = constant_value(inlined.outputs[0])
        if value is not None and not isinstance(inlined.op, Const):
            op = Const(value=value, dtype=inlined.outputs[0].dtype)
            self._bound[node.outputs[0]] = self._scratch.tensor(op, (), node)

    def _bind(self, node: Node, inlined: Node) -> None:
        self._scratch.inlined[node] = inlined
        self._bound.update(zip(node.outputs, inlined.outputs, strict=True))
        if node.op.parsed.references:
            self._scratch.targets.append(inlined)

    # Lists

    def _create_list(self, node: Node, op: TensorArrayNew) -> None:
        size = constant_value(cast("Tensor", self._bound[node.inputs[0]]))
        if size is None or op.dynamic_size:
            raise NotCompiled(node, "how long the list gets is known only when it ran")
        element = op.element_shape.whole
        if element is None:
            element = _written_shape(node.outputs[0])
        self._bound[node.outputs[0]] = self._new_list(op.dtype, int(size), element, node)

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
        dtype, scratch = rows.dtype.as_numpy_dtype, self._scratch
        dims = np.array(rows.shape, np.int32)
        zeros = scratch.tensor(Fill(), (dims, np.zeros((), dtype)), node)
        if rows.view is None:
            rows.view = BufferView(rows.where, dtype, rows.shape)
            scratch.assign(rows.view, zeros, node, (rows,))
        else:
            operands = scratch.reference(rows.view), scratch.all_rows(rows)
            scratch.target(ScatterUpdate(), (*operands, zeros), node, (rows,))

    def _inline_list_use(self, node: Node, inputs: Sequence[Bound]) -> None:
        """Inline a node that uses a list."""
        (out,) = node.outputs
        if self._is_in_place(node, inputs):
            self._bound[out] = inputs[0]
            return
        rows, rest = _list_and_rest(node, inputs)
        result = self._list_use(node, rows, rest)
        if isinstance(result, Node):
            self._scratch.inlined[node] = result
            result = rows if out.dtype.base_dtype is variant else result.outputs[0]
        self._bound[out] = result

    def _list_use(self, node: Node, rows: ListBuffer, rest: Sequence[Any]) -> Node | Bound:
        """Inline a use of a list. Returns the inlined node, or what the output is bound to."""
        match node.op:
            case TensorArrayWrite():
                return self._write(rows, rest[0], rest[1], node)
            case TensorArrayRead() if rows.entries is not None:
                start = self._read(rows, rest[0], node)
                return self._scratch.view_from(rows.entries, start.outputs[0], node)
            case TensorArrayRead():
                return self._read(rows, rest[0], node)
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
        if rows.view is None and rows.is_new:
            rows.element = element_of(value, node)
            self._clear(rows, node)
        if isinstance(node.op, TensorArrayAdd):
            return self._scratch.write(rows, index, value, node, ScatterAdd())
        inlined = self._scratch.write(rows, index, value, node)
        self._count_access(rows.writes, index, node)
        return inlined

    def _unstack(self, rows: ListBuffer, value: Tensor, node: Node) -> Node:
        """Write all rows at once, by adding to their content: zeros, unless written before."""
        count, *element = element_of(value, node) or (None,)
        if count != rows.count:
            raise NotCompiled(node, "only a part of the list is written")
        if rows.view is None and rows.is_new:
            rows.element = tuple(element)
            self._clear(rows, node)
        if rows.element != tuple(element) or rows.view is None or rows.view.where is Storage.INPUT:
            raise NotCompiled(node, "it writes a list as a whole")
        scratch, row_numbers = self._scratch, self._scratch.all_rows(rows)
        operands = scratch.reference(rows.view), row_numbers, value
        inlined = scratch.target(ScatterAdd(), operands, node, (rows,))
        self._count_access(rows.writes, row_numbers, node)
        return inlined

    def _stack(self, rows: ListBuffer, count: Any, node: Node) -> Node:
        memory = self._memory(rows, node)
        if constant_value(count) != rows.count:
            raise NotCompiled(node, "only a part of the list is taken")
        if rows.offset is None:
            return self._scratch.node(Identity(), (memory,), node, (rows,))
        operands = memory, self._scratch.all_rows(rows), np.int32(0)
        return self._scratch.node(GatherV2(), operands, node, (rows,))

    def _gradient(self, rows: ListBuffer, node: Node) -> ListBuffer:
        """The list of gradients of a list: new, or the list that it would be added to."""
        if node in self._added_by:
            return self._accumulator(self._added_by[node])
        if rows.entries is not None:
            return replace(rows, entries=self._gradient(rows.entries, node))
        gradients = self._new_list(rows.dtype, rows.count, rows.element, node)
        return gradients if rows.is_whole else gradients.view_from(cast("BufferView", rows.offset))

    def _accumulator(self, added: Node) -> ListBuffer:
        """The list that a node adds gradients to; for a list of lists, an entry of it."""
        rows = self._list(added.inputs[0])
        if isinstance(added.op, TensorArrayMerge):
            return rows
        if added not in self._entries:
            index = added.inputs[1]
            self._require(index.op)
            start = self._read(rows, self._bound[index], added)
            assert rows.entries is not None
            self._entries[added] = self._scratch.view_from(rows.entries, start.outputs[0], added)
        return self._entries[added]

    def _list(self, tensor: Tensor) -> ListBuffer:
        """The list that a tensor is bound to; inlines the node that creates it first."""
        tensor = list_origin(tensor)
        self._require(tensor.op)
        rows = self._bound[tensor]
        if not isinstance(rows, ListBuffer):
            raise NotCompiled(tensor.op, "it gives a list")
        return rows

    def _require(self, node: Node) -> None:
        """Inline a node and its inputs, unless that is done."""
        if not self._bound.keys() >= set(node.outputs):
            for tensor in node.inputs:
                self._require(tensor.op)
            self._add(node)

    def _is_in_place(self, node: Node, inputs: Sequence[Bound]) -> bool:
        """Whether the gradients that a node adds to a list were accumulated in it directly."""
        if isinstance(node.op, TensorArrayMerge):
            return inputs[0] is inputs[1]
        return node in self._entries and self._entries[node] is inputs[2]

    def _memory(self, rows: ListBuffer, node: Node) -> Tensor:
        if rows.view is None:
            raise NotCompiled(node, "nothing was written to the list")
        scratch = self._scratch
        is_input = rows.view.where is Storage.INPUT
        return scratch.value(rows.view) if is_input else scratch.reference(rows.view)

    def _read(self, rows: ListBuffer, index: Any, node: Node) -> Node:
        scratch = self._scratch
        if rows.value is not None:
            value = np.asarray(rows.value, rows.dtype.as_numpy_dtype)
            return scratch.node(Const(value=value, dtype=rows.dtype), (), node)
        memory = self._memory(rows, node)
        lists = () if memory in scratch.inputs else (rows,)
        self._count_access(rows.reads, index, node)
        row = scratch.row(rows, index)
        return scratch.node(GatherV2(), (memory, row, np.int32(0)), node, lists)

    def _count_access(self, counts: BufferView | None, index: Any, node: Node) -> None:
        """Count a read or write of a row."""
        if counts is None:
            return
        if index.shape.whole is None:
            raise NotCompiled(node, "the shape of an index is known only when it ran")
        memory, once = self._scratch.reference(counts), np.ones(index.shape.whole, np.int32)
        self._scratch.target(ScatterAdd(), (memory, index, once), node)

    # Control nodes

    def _add_control(self, node: Node, pruned: Node) -> None:
        """Inline a control node, pruned to the outputs that are read."""
        scratch = self._scratch
        inputs = [self._bound[tensor] for tensor in pruned.inputs]
        lists = [bound for bound in inputs if isinstance(bound, ListBuffer)]
        if any(rows.is_new and rows.view is None for rows in lists):
            raise NotCompiled(node, "the shape of a list's elements is known only inside")
        flat = [scratch.stand_in(x) if isinstance(x, ListBuffer) else x for x in inputs]
        grouped = pruned.grouped(flat)
        inlined = scratch.target(pruned.op, grouped, node, lists)
        scratch.inlined[node] = inlined
        results = zip(pruned.outputs, inlined.outputs, strict=True)
        for position, (tensor, result) in enumerate(results):
            if tensor.dtype.base_dtype is variant:
                self._bound[tensor] = cast("ListBuffer", inputs[list_source(pruned, position)])
            else:
                if isinstance(pruned.op, While):
                    result.set_shape(flat[position].shape)
                self._bound[tensor] = result

    def _add_trace(self, node: Node) -> None:
        """Inline a trace: any output of the inlined control node serves as its input."""
        holder = self._scratch.inlined[node.inputs[0].op].outputs[0]
        self._bind(node, self._scratch.node(node.op, (holder,), node))


def _accumulated_lists(node: Node) -> list[Node]:
    """The nodes that create the lists of gradients which a node adds to another list, or to an
    entry of one. Gradients for these lists can be accumulated in the other list directly."""
    is_entry = isinstance(node.op, TensorArrayAdd) and node.op.dtype is variant
    if not is_entry and not isinstance(node.op, TensorArrayMerge):
        return []
    lists = [list_origin(node.inputs[0]), list_origin(node.inputs[-1])]
    if not all(_is_only_added_to(tensor) for tensor in lists):
        return []
    return [lists[1].op] if isinstance(lists[1].op.op, TensorArrayGradient) else []


def list_origin(tensor: Tensor) -> Tensor:
    """The tensor that a list enters its body as, or is created as."""
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
    """The static shape of the elements that are written to a list, if one of the writes has one."""
    writes = [node for node in _uses(tensor) if isinstance(node.op, TensorArrayWrite)]
    shapes = [node.inputs[2].shape.whole for node in writes]
    return next((shape for shape in shapes if shape is not None), None)


def _uses(tensor: Tensor) -> Iterator[Node]:
    """The nodes that use a list, also inside control nodes and after in-place changes."""
    for node in tensor.graph.consumers(tensor):
        positions = [position for position, source in enumerate(node.inputs) if source is tensor]
        if is_control(node):
            bodies = node.op.bodies
            first = len(node.inputs) - len(bodies[0].arguments)
            for body in bodies:
                for position in positions:
                    yield from _uses(body.arguments[position - first])
        else:
            yield node
        for output in node.outputs:
            if output.dtype.base_dtype is variant and _source(output) in positions:
                yield from _uses(output)


def _source(tensor: Tensor) -> int | None:
    """The position of the input that a node returns as a list."""
    if is_control(tensor.op):
        return list_source(tensor.op, tensor.value_index)
    return 0 if isinstance(tensor.op.op, _IN_PLACE) else None


def list_source(node: Node, position: int) -> int:
    """The position of the input that a control node returns as a list."""
    if isinstance(node.op, While):
        return position
    sources = {_argument_of(body, body.outputs[position]) for body in node.op.bodies}
    if len(sources) != 1 or None in sources:
        raise NotCompiled(node, "its branches give different lists")
    return 1 + cast("int", sources.pop())


def _list_and_rest(node: Node, inputs: Sequence[Bound]) -> tuple[ListBuffer, Sequence[Bound]]:
    """The list that a node uses, and its other inputs."""
    rows, *rest = inputs
    if not isinstance(rows, ListBuffer) or any(isinstance(bound, ListBuffer) for bound in rest):
        raise NotCompiled(node, "it takes a list")
    if rows.grows and not isinstance(node.op, TensorArrayWrite | TensorArrayRead | Identity):
        raise NotCompiled(node, "it takes a list that may have got longer")
    return rows, rest


def is_changed(body: Body, position: int) -> bool:
    """Whether a loop may change a list that is one of its variables."""
    tensor = body.outputs[position]
    while isinstance(tensor.op.op, Identity):
        (tensor,) = tensor.op.inputs
    return tensor is not body.arguments[position]


def _argument_of(body: Body, tensor: Tensor) -> int | None:
    """The position of the argument that a list of a body is."""
    first = list_origin(tensor)
    return body.arguments.index(first) if first in body.arguments else None
