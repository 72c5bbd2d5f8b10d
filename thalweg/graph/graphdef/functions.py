"""Functions in the library of a GraphDef: bodies that ops hold, as FunctionDefs.

A `Lambda` is a body with a name. `function_def` writes a body as a FunctionDef, from which the
importer rebuilds it. Callers convert single nodes to and from NodeDefs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, cast

from thalweg import protos
from thalweg.graph.graphdef import attributes
from thalweg.graph.graphdef.attributes import FunctionName
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.subgraph import Argument, Body, needed
from thalweg.platform.caches import memoized

SPARSE = "_sparse_outputs"


class Lambda(FunctionName):
    """A function as an op's attribute: its name, which is what a GraphDef holds, and its body."""

    body: Body
    sparse: tuple[bool, ...]  # which leaves of its result are sparse
    cells: tuple[Any, ...]  # per capture, the variable of eager code or None

    def __new__(cls, body: Body, sparse: tuple[bool, ...], cells: tuple[Any, ...] = ()) -> Lambda:
        function = super().__new__(cls, f"dataset_function_{next(_numbers)}")
        function.body, function.sparse, function.cells = body, sparse, cells
        return function


_numbers = count()


def node_functions(node: Node) -> Iterator[tuple[str, Body, tuple[bool, ...]]]:
    """The functions that a node's op holds: the name in a GraphDef, the body, and which outputs are
    sparse."""
    for field, value in node.op.attributes.items():
        items = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
        for index, item in enumerate(items):
            if isinstance(item, Lambda):
                yield str(item), item.body, item.sparse
            elif isinstance(item, Body):
                yield body_name(node, field, index), item, ()


def body_name(node: Node, field: str, index: int = 0) -> FunctionName:
    """The function name of a body; names of nodes are unique in the whole graph."""
    return FunctionName(f"{node.name.replace('/', '_')}_{field}_{index}")


def body_fields(op: type[Op]) -> frozenset[str]:
    """The fields of an op that hold bodies."""
    return _annotated_fields(op, r"\bBody\b")


@memoized(5_000)
def _annotated_fields(op: type[Op], pattern: str) -> frozenset[str]:
    """The fields of an op whose annotation matches a pattern anywhere."""
    annotations = (pair for base in op.__mro__ for pair in inspect.get_annotations(base).items())
    return frozenset(name for name, kind in annotations if re.search(pattern, str(kind)))


# Traces: ops that read a tensor of a control node's body, which they hold as a field


def traced_fields(op: type[Op]) -> frozenset[str]:
    """The fields of a trace that are tensors of a body, of the node of its first input."""
    return _annotated_fields(op, "^Tensor$")


def traced_by(node: Node) -> Iterator[tuple[str, Tensor]]:
    """The fields of a node that are tensors of bodies, with the tensors."""
    for field in traced_fields(type(node.op)):
        yield field, getattr(node.op, field)


def traced_name(node: Node, tensor: Tensor) -> str:
    """The name of a traced tensor: the index of the body, and the tensor's name or the index of the
    argument."""
    for number, body in enumerate(node.inputs[0].op.op.bodies):
        if tensor in body.arguments:
            return f"{number};{body.arguments.index(tensor)}"
        if tensor.graph is body.graph:
            return f"{number};{tensor.name}"
    raise AssertionError(f"{node!r} reads {tensor!r}, which is not inside its input")


def traced_tensor(holder: Node, name: str) -> Tensor:
    """The tensor of a control node's body with a name of `traced_name`."""
    number, _, tensor = name.partition(";")
    body = holder.op.bodies[int(number)]
    if tensor.isdecimal():
        return body.arguments[int(tensor)]
    return find_tensor({node.name: node.outputs for node in body.graph.nodes}, tensor)


# Writing


def function_def(
    name: str,
    body: Body,
    sparse: Sequence[bool],
    write: Callable[[Node], Any],
    traced: Sequence[Node],
) -> Any:
    """A body as a FunctionDef, with the nodes that its outputs, targets and traced nodes depend on;
    `write` converts a node to a NodeDef."""
    proto = protos.FunctionDef()
    proto.signature.name = name
    names = _write_arguments(proto, body)
    for node in needed(body.outputs, [*body.targets, *traced], dict.fromkeys(body.arguments)):
        # An argument that was removed from the body is written as a node: inner control nodes may
        # still have it as an input that they do not use.
        if not isinstance(node.op, Argument) or node.outputs[0] not in names:
            proto.node_def.append(_inner_node(node, write(node), names))
    for index, tensor in enumerate(body.outputs):
        output = f"output_{index}"
        proto.signature.output_arg.add(name=output, type=tensor.dtype.base_dtype.as_datatype_enum)
        proto.ret[output] = names.get(tensor) or _output_name(tensor)
    for index, node in enumerate(body.targets):
        proto.signature.control_output.append(f"control_{index}")
        proto.control_ret[f"control_{index}"] = node.name
    if any(sparse):
        proto.attr[SPARSE].CopyFrom(attributes.encode(sparse))
    return proto


def _write_arguments(proto: Any, body: Body) -> dict[Tensor, str]:
    names: dict[Tensor, str] = {}
    for index, tensor in enumerate(body.arguments):
        names[tensor] = f"argument_{index}"
        proto.signature.input_arg.add(
            name=names[tensor],
            type=tensor.dtype.base_dtype.as_datatype_enum,
            is_ref=tensor.dtype.is_ref_dtype,
        )
        shapes = attributes.encode([tensor.shape])
        proto.arg_attr[index].attr["_output_shapes"].CopyFrom(shapes)
    return names


def _inner_node(node: Node, proto: Any, names: Mapping[Tensor, str]) -> Any:
    """A NodeDef with inputs named as in functions, and without references to outer nodes."""
    del proto.input[:]
    proto.input.extend(names.get(tensor) or _output_name(tensor) for tensor in node.inputs)
    inside = (c for c in node.control_inputs if not isinstance(c.op, Argument))
    proto.input.extend(f"^{control.name}" for control in inside)
    proto.attr.pop("_class", None)
    return proto


def _output_name(tensor: Tensor) -> str:
    """`node:output:index`, where the index is that within a list output."""
    node, index = tensor.op, tensor.value_index
    values = node.attributes()
    for argument in node.op.parsed.outputs:
        size = argument.size(values)
        if index < size:
            return f"{node.name}:{argument.name}:{index}"
        index -= size
    raise AssertionError(f"{tensor!r} is beyond the outputs of its node")


# Reading


def find_tensor(outputs: Mapping[str, Sequence[Tensor]], name: str) -> Tensor:
    """The tensor `node:index`, given the outputs of a function's nodes by node name."""
    node, _, index = name.partition(":")
    tensors = outputs.get(node, ())
    if int(index) >= len(tensors):
        raise missing_name(name)
    return tensors[int(index)]


def output_starts(proto: Any, block: type[Op]) -> dict[str, int]:
    """The index of the first tensor of each output of a node."""
    starts: dict[str, int] = {}
    start = 0
    names = block.graphdef_names
    for argument in block.parsed.outputs:
        starts[argument.name] = start
        if argument.is_mixed:
            start += len(proto.attr[names.get(argument.type, argument.type)].list.type)
        else:
            start += proto.attr[argument.count].i if argument.count else 1
    return starts


def flat_name(source: str, starts: Mapping[str, Mapping[str, int]]) -> str:
    """`node:output:index` as `node:index`, and an argument's name as `name:0`. The only output of a
    node may have any name."""
    node, *rest = source.split(":")
    if source.startswith("^"):
        return source
    if not rest:
        return f"{node}:0"
    output, index = rest[0], rest[1] if len(rest) > 1 else "0"
    known = starts.get(node, {})
    start = known.get(output, 0 if len(known) == 1 else None)
    if start is None or not index.isdecimal():
        raise missing_name(source)
    return f"{node}:{start + int(index)}"


def missing_name(name: str) -> ValueError:
    """The error for a name that a function does not define."""
    return ValueError(f"graph_def is invalid: a function uses {name!r}, which it lacks.")
