"""Bodies of control nodes as plain graphs to be lowered, with all shapes known.

Loop variables become references to memory, lists become arrays that are read and written by rows,
and what stands for each tensor of the body is known by its home.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from thalweg.control.branches import Branching
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
from thalweg.control.liveness import Needs, is_control, thinned
from thalweg.control.loops import While
from thalweg.control.traces import Trace
from thalweg.errors import OpError
from thalweg.graph.build import add_node
from thalweg.graph.dtypes import as_dtype, int32, variant
from thalweg.graph.graph import Graph
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Argument, Body
from thalweg.lower.control_program import Home, Rows, Where
from thalweg.lower.specialise import NotCompiled, Shape
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


class Inlining:
    """A body's nodes in a scratch graph."""

    def __init__(
        self,
        scratch: Scratch,
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
        needs = Needs(self._found)
        for node in needs.run(wanted, self._body.targets):
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
            memory = scratch.reference(written_home(rows, cast("Tensor", value), node))
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

    def _add_control(self, node: Node, thin: Node) -> None:
        """A control node, without what nothing needs of it."""
        scratch = self._scratch
        inputs = [self._found[tensor] for tensor in thin.inputs]
        lists = [one for one in inputs if isinstance(one, Rows)]
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
    if not value.shape.is_fully_defined():
        raise NotCompiled(node, "the shape of the list's elements is known only when it ran")
    return tuple(cast("list[int]", value.shape.as_list()))


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
        elif isinstance(node.op, TensorArrayWrite | Identity):
            tensor = node.inputs[0]
        else:
            return None
    return body.arguments.index(tensor)
