"""Keys of graphs: equal where nodes or regions compute the same.

`op_text` is the canonical text of an op and its attributes, `flow_text` that of nodes and their
edges: eager code finds its plans by both. `NodeClasses` numbers the nodes of a
specialised region: those of one class have equal output shapes, summaries and loop forms, whatever
tensors they read, so these are computed once per class. The keys of subgraphs
(`thalweg.lower.passes.outline`) are sequences of such numbers. `fingerprint` is a digest of a
region's ops and wiring for other processes, without shapes: the key of cached programs;
`control_fingerprint` is that of a conditional or loop. The keys of kernels are in
`thalweg.ir.fingerprint`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from thalweg.control.traces import traced_tensors
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import Dimension, TensorShape
from thalweg.graph.subgraph import Argument, Body, needed
from thalweg.platform.caches import memoized

if TYPE_CHECKING:
    from thalweg.lower.specialise import ControlRegion, Region

_MAX_LITERAL = 8  # elements of an array that are written out in a text; larger ones are hashed
_MAX_COMPARED = 16  # elements of a known value that is part of a class; others go by their tensor

#: The packages whose ops mean the same in every process with the same code.
_PACKAGES = tuple(
    f"{__name__.partition('.')[0]}.{package}."
    for package in ("autodiff", "control", "functions", "ops")
)


# Ops


class Unnamed(Exception):
    """An op or attribute that has no meaning in other processes."""


def op_text(op: Op) -> str:
    """The text of an op and its attributes: equal for equal ones, in this process and in others.
    Raises `Unnamed` for an op that only this process knows."""
    name, fields = _fields_of(type(op))
    if not fields:
        return name
    values = op.__dict__
    return f"{name}({','.join([text_of(values[field]) for field in fields])})"


@memoized(5_000)
def _fields_of(block: type[Op]) -> tuple[str, tuple[str, ...]]:
    """The names of an op and its attributes. Raises `Unnamed` for ops that users define: their code
    may change."""
    if not block.__module__.startswith(_PACKAGES):
        raise Unnamed
    return block.type_name, tuple(block.fields)


def text_of(value: Any) -> str:
    """The text of an attribute; different values have different texts."""
    write = _WRITERS.get(cast("type[Any]", type(value)))
    if write is None:
        write = next((t for kind, t in _WRITERS.items() if isinstance(value, kind)), None)
    if write is None:
        raise Unnamed
    return write(value)


def _array(value: Any) -> str:
    if value.dtype.hasobject:
        return f"objects{value.shape}{_sequence(value.reshape(-1).tolist())}"
    if value.size <= _MAX_LITERAL:
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    content: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return f"{value.dtype}{value.shape}{blake2b(content, digest_size=20).hexdigest()}"


def _sequence(values: Sequence[Any]) -> str:
    return f"[{','.join([text_of(value) for value in values])}]"


def _mapping(values: Mapping[Any, Any]) -> str:
    return "{" + _sequence([_sequence([key, values[key]]) for key in values]) + "}"


def _body(body: Body) -> str:
    """The text of a sub-graph: a digest of its arguments, nodes, outputs and targets. The text of
    a body that is nested as deep as the cases of `tf.case` is no longer than that of any other."""
    arguments = [(tensor.dtype.name, tensor.shape.sizes) for tensor in body.arguments]
    numbers = {tensor: number for number, tensor in enumerate(body.arguments)}
    nodes = needed(body.outputs, body.targets, numbers)
    texts, flow = flow_text(nodes, numbers)
    targets = [nodes.index(node) for node in body.targets]
    border = f"{arguments}{[numbers[tensor] for tensor in body.outputs]}{targets}"
    return flow_digest(border, texts, flow).hex()


#: The text of attribute values by their type; a value of any other type is `Unnamed`.
_WRITERS: dict[type[Any], Callable[[Any], str]] = {
    **dict.fromkeys((type(None), bool, int, float, complex, str, bytes), repr),
    DType: lambda value: value.name,
    TensorShape: lambda value: f"shape{value.sizes}",
    Dimension: lambda value: f"size{value.value}",
    np.ndarray: _array,
    np.generic: lambda value: _array(np.asarray(value)),
    np.dtype: lambda value: f"dtype {value}",
    Enum: lambda value: f"{type(value).__qualname__}.{value.name}",
    list: _sequence,
    tuple: _sequence,
    dict: _mapping,
    Body: _body,
}


# Nodes


class NodeClasses:
    """Numbers classes of nodes: those with equal ops, attributes, input shapes and known inputs."""

    def __init__(
        self, shapes: Mapping[Tensor, tuple[int, ...]], values: Mapping[Tensor, Any]
    ) -> None:
        self._shapes, self._values = shapes, values
        self._numbers: dict[Hashable, int] = {}
        self._nodes: dict[Node, int | None] = {}
        self._tensors: dict[Tensor, int] = {}

    def of(self, node: Node) -> int | None:
        """The number of a node's class; None for a random op or an `Unnamed` one."""
        if node not in self._nodes:
            self._nodes[node] = None if node.op.has("stream") else self._of(node)
        return self._nodes[node]

    def _of(self, node: Node) -> int | None:
        try:
            text = op_text(node.op)
        except Unnamed:
            return None
        inputs = node.inputs
        counts = node.input_counts() if node.op.parsed.has_lists else None
        first: dict[Tensor, int] = {}
        repeats = [first.setdefault(tensor, position) for position, tensor in enumerate(inputs)]
        return self._number((text, counts, tuple(repeats), *map(self._tensor, inputs)))

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _tensor(self, tensor: Tensor) -> int:
        if tensor not in self._tensors:
            dtype, value = tensor.dtype.base_dtype, self._values.get(tensor)
            key = (dtype, self._shapes[tensor], _value_key(tensor, value))
            self._tensors[tensor] = self._number(key)
        return self._tensors[tensor]


def _value_key(tensor: Tensor, value: Any) -> Hashable:
    """A key of a known value, and of whether it is a constant of the graph."""
    if value is None:
        return None
    if value.size > _MAX_COMPARED or value.dtype.hasobject:
        return tensor
    return value.dtype.str, value.tobytes(), tensor.op.type


# Regions


def fingerprint(region: Region) -> bytes | None:
    """A digest of what the lowering of a region depends on, except the shapes of its inputs; None
    for a region with an `Unnamed` op. It does not depend on the names of nodes."""
    numbers: dict[Tensor, int] = {}

    def number(tensor: Tensor) -> int:
        return numbers.setdefault(tensor, len(numbers))

    inputs = [(number(tensor), tensor.dtype.name) for tensor in region.inputs]
    references = [(number(t), t.dtype.name, t in region.carried) for t in region.references]
    roots = [(number(tensor), number(root)) for tensor, root in region.roots.items()]
    try:
        texts, flow = flow_text(region.nodes, numbers)
    except Unnamed:
        return None
    outputs = [(number(tensor), tensor in region.early) for tensor in region.outputs]
    return flow_digest(f"{inputs}{references}{roots}{outputs}", texts, flow)


# Conditionals and loops


def control_fingerprint(unit: ControlRegion) -> bytes | None:
    """A digest of what the lowering of a conditional or loop depends on, except its inputs' values
    and shapes; None if an op is `Unnamed`. Names count for stateful nodes only."""
    node, nodes = unit.node, control_nodes(unit)
    traces = {trace.outputs[0]: number for number, trace in enumerate(unit.nodes) if number}
    outputs = [(-1, node.outputs.index(t)) if t not in traces else traces[t] for t in unit.outputs]
    graphs = {body.graph for body in node.op.bodies}
    if not all(tensor.op.graph in graphs for tensor in _traced(unit)):
        return None  # a trace of something else
    try:
        traced = [_body(body) for body in _bodies(node, _traced(unit))]
        kinds = [type(trace.op).__name__ for trace in unit.nodes[1:]]
        text = f"{op_text(node.op)}{traced}{kinds}{outputs}"
    except Unnamed:
        return None
    names = [n.name for n in nodes[1:] if n.op.stateful and not isinstance(n.op, Argument)]
    text += f"{names}{types_text([tensor for inner in nodes for tensor in inner.outputs])}"
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=20).digest()


def control_nodes(unit: ControlRegion) -> tuple[Node, ...]:
    """A conditional or loop and all nodes inside it; its fingerprint determines their order."""
    return tuple(_with_inner(unit.node, _traced(unit)))


def _with_inner(node: Node, traced: Sequence[Tensor] = ()) -> Iterator[Node]:
    yield node
    for body in _bodies(node, traced):
        for inner in needed(body.outputs, body.targets, {}):
            yield from _with_inner(inner)


def _traced(unit: ControlRegion) -> list[Tensor]:
    """The tensors inside a conditional or loop whose values its traces save."""
    return [tensor for trace in unit.nodes[1:] for tensor in traced_tensors(trace)]


def _bodies(node: Node, traced: Sequence[Tensor]) -> list[Body]:
    """The bodies of a node, with traced tensors as further outputs."""
    return [
        replace(body, outputs=(*body.outputs, *[t for t in traced if t.op.graph is body.graph]))
        for body in node.op.bodies
    ]


# Texts of several nodes


def types_text(tensors: Sequence[Tensor]) -> str:
    """The dtypes and static shapes of tensors: the distinct pairs, and the index of each."""
    numbers: dict[tuple[Any, ...], int] = {}
    types = [(tensor.dtype, tensor.shape.sizes) for tensor in tensors]
    indices = [numbers.setdefault(type_, len(numbers)) for type_ in types]
    return f"{[(dtype.name, sizes) for dtype, sizes in numbers]}{indices}"


def flow_text(nodes: Sequence[Node], numbers: dict[Tensor, int]) -> tuple[list[str], array[int]]:
    """The distinct texts of ops; and for each node the numbers of its text, its control inputs, its
    inputs and its outputs, with a count before each list."""
    texts: dict[str, int] = {}
    words: list[int] = []
    positions = {node: position for position, node in enumerate(nodes)}
    for node in nodes:
        op, inputs, outputs = node.op, node.inputs, node.outputs
        words += texts.setdefault(op_text(op), len(texts)), len(node.controls), len(inputs)
        words += [positions.get(control, -1) for control in node.controls]
        try:
            words += [numbers[tensor] for tensor in inputs]
        except KeyError:
            raise Unnamed from None
        if op.parsed.has_lists:
            words += node.input_counts()
        words.append(len(outputs))
        words += [numbers.setdefault(tensor, len(numbers)) for tensor in outputs]
    return list(texts), array("q", words)


def flow_digest(border: str, texts: Sequence[str], flow: array[int]) -> bytes:
    """A digest of a `flow_text`, and of a text about the inputs and outputs of its nodes."""
    text = "\n".join([border, *texts])
    content = text.encode("utf-8", "surrogateescape") + b"\0" + flow.tobytes()
    return blake2b(content, digest_size=20).digest()  # no text has the character between them
