"""Scratch graphs: plain graphs that control nodes are lowered through, with all shapes known.

Memory that is read and written is a reference. A list is an array that is read and written by rows;
nodes that use one list are ordered by control inputs. The result is a graph whose sources are bound
to views, and the nodes to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from thalweg.errors import OpError
from thalweg.graph.build import add_node
from thalweg.graph.dtypes import DType, as_dtype, int32, variant
from thalweg.graph.graph import Graph
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.lower.control.program import BufferView, ListBuffer, Storage
from thalweg.lower.specialise import NotCompiled, Shape
from thalweg.ops.core.basic import Const, Placeholder
from thalweg.ops.math.arithmetic import Add, Mul
from thalweg.ops.state.scatter import ScatterUpdate
from thalweg.ops.state.state import Assign, VariableV2


class Scratch:
    """A scratch graph, and the views that its tensors are bound to."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.views: dict[Tensor, BufferView] = {}
        self.lists: dict[Tensor, ListBuffer] = {}
        self.inputs: list[Tensor] = []
        self.sources: set[Node] = set()
        self.targets: list[Node] = []
        self.origins: dict[Node, Node] = {}
        self.inlined: dict[Node, Node] = {}  # what nodes of bodies have become
        self.kept_lists: dict[Tensor, LoopTraces] = {}  # lists that outlive the iteration
        self._references: dict[BufferView, Tensor] = {}
        self._last_user: dict[ListBuffer, Node] = {}  # the last node that used a list
        self._offsets: dict[BufferView, Tensor] = {}  # the starts of lists
        self._start_assigned: dict[ListBuffer, Node] = {}  # the node that assigns a list's start

    def value(self, view: BufferView) -> Tensor:
        """A tensor that reads a view."""
        if view.where is Storage.CONSTANT:
            return self.tensor(Const(value=view.source, dtype=as_dtype(view.dtype)))
        op = Placeholder(dtype=as_dtype(view.dtype), given_shape=TensorShape.of(view.shape))
        tensor = self._source(op)
        self.views[tensor] = view
        self.inputs.append(tensor)
        return tensor

    def reference(self, view: BufferView) -> Tensor:
        """A reference to a view, to read and write it."""
        if view not in self._references:
            shape = TensorShape.of(view.shape)
            tensor = self._source(VariableV2(dtype=as_dtype(view.dtype), given_shape=shape))
            self._references[view], self.views[tensor] = tensor, view
        return self._references[view]

    def stand_in(self, rows: ListBuffer) -> Tensor:
        """A placeholder for a list that is an input of a control node."""
        tensor = self._source(Placeholder(dtype=variant, given_shape=TensorShape.of(())))
        self.lists[tensor] = rows
        self.inputs.append(tensor)
        return tensor

    def _source(self, op: Op) -> Tensor:
        tensor = self.tensor(op)
        self.sources.add(tensor.op)
        return tensor

    def node(
        self,
        op: Op,
        inputs: Sequence[Any],
        like: Node | None = None,
        lists: Sequence[ListBuffer] = (),
    ) -> Node:
        """Add a node, after what the controls of `like` have become, and after earlier nodes that
        use its lists."""
        before = () if like is None else like.controls
        controls = [self.inlined[node] for node in before if node in self.inlined]
        for rows in lists:
            users = self._last_user.get(rows.root), self._start_assigned.get(rows)
            controls += [user for user in users if user is not None]
        with self.graph.as_default(), self.graph.control_dependencies(controls):
            try:
                name = op.type_name if like is None else like.name
                node = add_node(self.graph, op, tuple(inputs), name, like)
            except (ValueError, TypeError, OpError) as error:
                if like is None:
                    raise
                raise NotCompiled(like, str(error)) from error
        self._last_user.update(dict.fromkeys([rows.root for rows in lists], node))
        if like is not None:
            self.origins[node] = like
        return node

    def tensor(self, op: Op, inputs: Sequence[Any] = (), like: Node | None = None) -> Tensor:
        """Add a node, and return its output."""
        return self.node(op, inputs, like).outputs[0]

    def target(
        self,
        op: Op,
        inputs: Sequence[Any],
        like: Node | None = None,
        lists: Sequence[ListBuffer] = (),
    ) -> Node:
        """Add a node that has to run, whether its output is read or not."""
        self.targets.append(self.node(op, inputs, like, lists))
        return self.targets[-1]

    def assign(
        self, view: BufferView, value: Any, like: Node, lists: Sequence[ListBuffer] = ()
    ) -> Node:
        """Assign a value to a view."""
        return self.target(Assign(), (self.reference(view), value), like, lists)

    def write(
        self, rows: ListBuffer, index: Any, value: Any, like: Node, change: Op | None = None
    ) -> Node:
        """Write a row of a list, or change it by another op than an update."""
        memory = self.reference(_written_view(rows, value, like))
        operands = memory, self.row(rows, index), value
        return self.target(change or ScatterUpdate(), operands, like, (rows,))

    def all_rows(self, rows: ListBuffer) -> Tensor:
        """The numbers of all rows of a list in its array."""
        numbers = Const(value=np.arange(rows.count, dtype=np.int32), dtype=int32)
        return self.row(rows, self.tensor(numbers))

    def view_from(self, rows: ListBuffer, start: Tensor, like: Node) -> ListBuffer:
        """A view of a list from a row on."""
        view = BufferView(Storage.OWN, np.dtype(np.int32), ())
        list_view = rows.view_from(view)
        self._offsets[view], self._start_assigned[list_view] = start, self.assign(view, start, like)
        return list_view

    def offset(self, rows: ListBuffer) -> Any:
        """The row that a list starts at."""
        if rows.offset is None:
            return self.tensor(Const(value=np.array(0, np.int32), dtype=int32))
        if rows.offset not in self._offsets:
            self._offsets[rows.offset] = self.value(rows.offset)
        return self._offsets[rows.offset]

    def row(self, rows: ListBuffer, index: Any) -> Any:
        """The number of a list's row in its array."""
        if rows.offset is None:
            return index
        return self.tensor(Add(), (index, self.offset(rows)))


def _written_view(rows: ListBuffer, value: Tensor, node: Node) -> BufferView:
    """The memory of a list that is written; allocated at the first write."""
    if rows.view is None:
        rows.element = element_of(value, node)
        rows.view = BufferView(rows.where, rows.dtype.as_numpy_dtype, rows.shape)
    if rows.view.where in (Storage.INPUT, Storage.CONSTANT):
        raise NotCompiled(node, "it writes to a list that is no variable of the loop")
    if value.shape.sizes != rows.element:
        raise NotCompiled(node, "the elements of the list differ in shape")
    return rows.view


def element_of(value: Tensor, node: Node) -> Shape:
    """The static shape of what is written to a list."""
    shape = value.shape.whole
    if shape is None:
        raise NotCompiled(node, "the shape of the list's elements is known only when it ran")
    if 0 in shape:
        raise NotCompiled(node, "the elements of the list are empty: no kernel would write them")
    return shape


# Traces: values of every iteration, which gradients read
#
# A trace is a list with a row for each iteration; a trace of lists holds their start rows. Where an
# outer loop keeps the traces of an inner one, those of all outer iterations are concatenated, and
# the counter of the inner loop is not reset.


@dataclass(eq=False)
class LoopTraces:
    """The traces that a loop keeps: values of every iteration, one row each."""

    capacity: int
    where: Storage
    lists: dict[Tensor, ListBuffer | None]  # by the traced tensors; set when the body is lowered
    count: BufferView | None = None  # the number of iterations
    next: BufferView | None = None  # the row of the current iteration
    start: BufferView | None = None  # the row of the first iteration, if an outer loop keeps them

    def new_list(
        self, scratch: Scratch, dtype: DType, count: int, element: Shape, node: Node
    ) -> ListBuffer:
        """A list that an iteration creates and the loop keeps, after those of earlier
        iterations."""
        rows = ListBuffer(dtype, self.capacity * count, element, self.where, each=count)
        rows.view = BufferView(self.where, np.dtype(dtype.as_numpy_dtype), rows.shape)
        number = scratch.reference(cast("BufferView", self.next))
        start = scratch.tensor(Mul(), (number, np.int32(count)), node)
        return scratch.view_from(rows, start, node)

    def keep(self, scratch: Scratch, tensor: Tensor, value: Tensor | ListBuffer) -> ListBuffer:
        """Write a value of this iteration (of a list, its start row) to a new trace."""
        assert self.next is not None
        if isinstance(value, ListBuffer):
            rows = self._list_of_lists()
            rows.entries = outliving_root(value, tensor.op)
            scratch.write(rows, scratch.reference(self.next), scratch.offset(value), tensor.op)
            return rows
        if value.dtype.base_dtype is variant:
            scratch.kept_lists[value] = self  # an inner loop or branch creates it
            return self._list_of_lists()
        rows = ListBuffer(tensor.dtype.base_dtype, self.capacity, None, self.where)
        if not tensor.dtype.is_floating:
            rows.value = constant_value(value)
        if rows.value is None:
            scratch.write(rows, scratch.reference(self.next), value, tensor.op)
        return rows

    def _list_of_lists(self) -> ListBuffer:
        rows = ListBuffer(variant, self.capacity + 1, (), self.where)
        rows.view = BufferView(self.where, np.dtype(np.int32), rows.shape)
        return rows


def outliving_root(rows: ListBuffer, node: Node) -> ListBuffer:
    """The root of a list that a trace keeps; it must outlive the iteration."""
    if rows.root.is_new:
        raise NotCompiled(node, "a list that was made in the iteration is kept")
    return rows.root
