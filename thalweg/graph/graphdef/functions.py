"""Functions that ops hold by name, and how a GraphDef's library holds them.

A `Lambda` is a body with a name. `function_def` writes a body as a FunctionDef; `body_of` makes it
again in another graph. Both leave single nodes to those who write and read NodeDefs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, cast

from thalweg import protos
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.graphdef import attributes
from thalweg.graph.graphdef.attributes import FunctionName
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.graph.subgraph import Argument, Body, SubGraph, needed
from thalweg.platform.caches import memoized

_SPARSE = "_sparse_outputs"


class Lambda(FunctionName):
    """A function as an op holds it: a name, which is what a GraphDef gets, and a body."""

    body: Body
    sparse: tuple[bool, ...]  # which leaves of what it gives are sparse
    cells: tuple[Any, ...]  # the variables of eager code among its captures, None for others

    def __new__(cls, body: Body, sparse: tuple[bool, ...], cells: tuple[Any, ...] = ()) -> Lambda:
        made = super().__new__(cls, f"dataset_function_{next(_numbers)}")
        made.body, made.sparse, made.cells = body, sparse, cells
        return made


_numbers = count()


def held_by(node: Node) -> Iterator[tuple[str, Any]]:
    """The functions that a node holds, by the names that a GraphDef has for them."""
    for field, value in node.op.attributes.items():
        many = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
        for place, each in enumerate(many):
            if isinstance(each, Lambda):
                yield str(each), each
            elif isinstance(each, Body):
                yield body_name(node, field, place), each


def body_name(node: Node, field: str, place: int = 0) -> FunctionName:
    """The name of a body without one; names of nodes are unique in the whole graph."""
    return FunctionName(f"{node.name.replace('/', '_')}_{field}_{place}")


@memoized(5_000)
def body_fields(op: type[Op]) -> frozenset[str]:
    """The fields of an op that hold bodies without names."""
    found = (inspect.get_annotations(base).items() for base in op.__mro__)
    return frozenset(
        name for each in found for name, kind in each if re.search(r"\bBody\b", str(kind))
    )


# Tensors of bodies that an op beside the control node names: what a trace reads


@memoized(5_000)
def traced_fields(op: type[Op]) -> frozenset[str]:
    """The fields of an op that are tensors inside the node its first input comes from."""
    found = (inspect.get_annotations(base).items() for base in op.__mro__)
    return frozenset(name for each in found for name, kind in each if str(kind) == "Tensor")


def traced_by(node: Node) -> Iterator[tuple[str, Tensor]]:
    """The fields of a node that are tensors inside another one, and these."""
    for field in traced_fields(type(node.op)):
        yield field, getattr(node.op, field)


def traced_name(node: Node, tensor: Tensor) -> str:
    """A tensor inside the node that a trace reads from: the number of the body, and a name or the
    place of an argument."""
    for number, body in enumerate(node.inputs[0].op.op.bodies):
        if tensor in body.arguments:
            return f"{number};{body.arguments.index(tensor)}"
        if tensor.graph is body.graph:
            return f"{number};{tensor.name}"
    raise AssertionError(f"{node!r} reads {tensor!r}, which is not inside its input")


def traced_tensor(holder: Node, name: str) -> Tensor:
    """The tensor inside a control node that `traced_name` named."""
    number, _, tensor = name.partition(";")
    body = holder.op.bodies[int(number)]
    if tensor.isdecimal():
        return body.arguments[int(tensor)]
    return _tensor({node.name: node for node in body.graph.nodes}, tensor)


# Writing


def function_def(
    name: str, function: Lambda | Body, write: Callable[[Node], Any], traced: Sequence[Node] = ()
) -> Any:
    """A function as a FunctionDef; `write` gives the NodeDef of a node. It has what its outputs
    need, and what is traced."""
    body = function if isinstance(function, Body) else function.body
    proto = protos.FunctionDef()
    proto.signature.name = name
    names = _write_arguments(proto, body)
    ends = [*body.targets, *traced]
    for node in needed(body.outputs, ends, dict.fromkeys(body.arguments)):
        # An argument that the body has no more is one that nothing uses inside of the nodes that
        # still name it.
        if not isinstance(node.op, Argument) or node.outputs[0] not in names:
            proto.node_def.append(_inner_node(node, write(node), names))
    for place, tensor in enumerate(body.outputs):
        out = f"output_{place}"
        proto.signature.output_arg.add(name=out, type=tensor.dtype.base_dtype.as_datatype_enum)
        proto.ret[out] = names.get(tensor) or _output_name(tensor)
    for place, node in enumerate(body.targets):
        proto.signature.control_output.append(f"control_{place}")
        proto.control_ret[f"control_{place}"] = node.name
    if isinstance(function, Lambda) and any(function.sparse):
        proto.attr[_SPARSE].CopyFrom(attributes.encode(list(function.sparse)))
    return proto


def _write_arguments(proto: Any, body: Body) -> dict[Tensor, str]:
    names: dict[Tensor, str] = {}
    for place, tensor in enumerate(body.arguments):
        names[tensor] = f"argument_{place}"
        proto.signature.input_arg.add(
            name=names[tensor],
            type=tensor.dtype.base_dtype.as_datatype_enum,
            is_ref=tensor.dtype.is_ref_dtype,
        )
        shapes = attributes.encode([tensor.shape])
        proto.arg_attr[place].attr["_output_shapes"].CopyFrom(shapes)
    return names


def _inner_node(node: Node, proto: Any, names: Mapping[Tensor, str]) -> Any:
    """A NodeDef with inputs as functions name them, and without what is outside."""
    del proto.input[:]
    proto.input.extend(names.get(tensor) or _output_name(tensor) for tensor in node.inputs)
    inside = (c for c in node.control_inputs if not isinstance(c.op, Argument))
    proto.input.extend(f"^{control.name}" for control in inside)
    proto.attr.pop("_class", None)
    return proto


def _output_name(tensor: Tensor) -> str:
    """`node:output:place`, the place that within an output which is a list."""
    node, place = tensor.op, tensor.value_index
    values = node.attributes()
    for argument in node.op.parsed.outputs:
        size = 1
        if argument.is_mixed:
            size = len(values[argument.type])
        elif argument.count:
            size = values[argument.count]
        if place < size:
            return f"{node.name}:{argument.name}:{place}"
        place -= size
    raise AssertionError(f"{tensor!r} is beyond the outputs of its node")


# Reading


class Made(NamedTuple):
    """What NodeDefs became, by their names: nodes, and the tensors that stand for outputs."""

    nodes: Mapping[str, Node]
    outputs: Mapping[str, Sequence[Tensor]]

    def tensor(self, name: str) -> Tensor:
        """The tensor `node:index`."""
        node, _, index = name.partition(":")
        outputs = self.outputs.get(node, ())
        if int(index) >= len(outputs):
            raise _lacking(name)
        return outputs[int(index)]

    def node(self, name: str) -> Node:
        """The node of a name."""
        if name not in self.nodes:
            raise _lacking(name)
        return self.nodes[name]


#: (a graph, NodeDefs, tensors by the names of inputs) -> what was made of them
Maker = Callable[[Graph, Sequence[Any], Mapping[str, Tensor]], Made]
#: a NodeDef -> where each of its outputs begins among its tensors
Starts = Callable[[Any], Mapping[str, int]]


def function_of(
    proto: Any,
    make: Maker,
    starts_of: Starts,
    inputs: Sequence[Tensor] | None = None,
    shapes: Sequence[TensorShape] = (),
) -> Lambda:
    """The function of a FunctionDef, its body inside the default graph. Its arguments have the
    dtypes of `inputs` and these shapes, or those that the FunctionDef says."""
    graph = SubGraph(get_default_graph(), f"the function {proto.signature.name}")
    with graph.as_default():
        if inputs is None:
            arguments = _read_arguments(graph, proto)
        else:
            arguments = tuple(
                graph.argument(tensor.dtype, shape, argument.name)
                for argument, tensor, shape in zip(
                    proto.signature.input_arg, inputs, shapes, strict=True
                )
            )
        outputs, targets = called(proto, graph, arguments, make, starts_of)
        body = Body(graph, arguments, tuple(outputs), tuple(targets))
    sparse = attributes.decode(proto.attr[_SPARSE]) or ()
    return Lambda(body, tuple(map(bool, sparse)))


def called(
    proto: Any, graph: Graph, inputs: Sequence[Tensor], make: Maker, starts_of: Starts
) -> tuple[list[Tensor], list[Node]]:
    """The nodes of a FunctionDef made in a graph: its outputs there, and what runs besides."""
    names = [argument.name for argument in proto.signature.input_arg]
    if len(names) != len(inputs):
        raise ValueError(
            f"the function {proto.signature.name!r} takes {len(names)} inputs, not {len(inputs)}."
        )
    starts = {node.name: starts_of(node) for node in proto.node_def}
    given = {f"{name}:0": tensor for name, tensor in zip(names, inputs, strict=True)}
    made = make(graph, [_plain(node, starts) for node in proto.node_def], given)
    ends = [_flat(proto.ret[out.name], starts) for out in proto.signature.output_arg]
    outputs = [given[end] if end in given else made.tensor(end) for end in ends]
    targets = [proto.control_ret[name] for name in proto.signature.control_output]
    return outputs, [made.node(name) for name in targets]


def _read_arguments(graph: SubGraph, proto: Any) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for place, argument in enumerate(proto.signature.input_arg):
        dtype = as_dtype(argument.type)
        shapes = proto.arg_attr[place].attr["_output_shapes"].list.shape
        shape = attributes.shape_from_proto(shapes[0]) if shapes else unknown_shape()
        dtype = dtype.as_ref if argument.is_ref else dtype
        found.append(graph.argument(dtype, shape, argument.name))
    return tuple(found)


def output_starts(proto: Any, block: type[Op]) -> dict[str, int]:
    """Where each output of a node begins among its tensors."""
    found: dict[str, int] = {}
    start = 0
    names = block.graphdef_names
    for argument in block.parsed.outputs:
        found[argument.name] = start
        if argument.is_mixed:
            start += len(proto.attr[names.get(argument.type, argument.type)].list.type)
        else:
            start += proto.attr[argument.count].i if argument.count else 1
    return found


def _plain(proto: Any, starts: Mapping[str, Mapping[str, int]]) -> Any:
    """A NodeDef with inputs as graphs name them."""
    copied = type(proto)()
    copied.CopyFrom(proto)
    copied.input[:] = [_flat(source, starts) for source in proto.input]
    return copied


def _flat(source: str, starts: Mapping[str, Mapping[str, int]]) -> str:
    """`node:output:place` as `node:index`; the name of an argument as its first output. Where a
    node has one output, whatever it is called is that one."""
    node, *rest = source.split(":")
    if source.startswith("^"):
        return source
    if not rest:
        return f"{node}:0"
    output, place = rest[0], rest[1] if len(rest) > 1 else "0"
    known = starts.get(node, {})
    start = known.get(output, 0 if len(known) == 1 else None)
    if start is None or not place.isdecimal():
        raise _lacking(source)
    return f"{node}:{start + int(place)}"


def _tensor(made: Mapping[str, Node], name: str) -> Tensor:
    return Made(made, {node: made[node].outputs for node in made}).tensor(name)


def _lacking(name: str) -> ValueError:
    return ValueError(f"graph_def is invalid: a function uses {name!r}, which it lacks.")
