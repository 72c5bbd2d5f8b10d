"""Functions in the library of a GraphDef: bodies that ops hold, as FunctionDefs.

A `Lambda` is a body with a name. `function_def` writes a body as a FunctionDef, from which the
importer rebuilds it. Callers convert single nodes to and from NodeDefs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, cast

from thalweg import protos
from thalweg.graph.graphdef import attributes
from thalweg.graph.graphdef.attributes import FunctionName
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Argument, Body, needed

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


def named(node: Node, field: str, value: Any, index: int = 0) -> Any:
    """An attribute of a node with names in place of bodies and of tensors of bodies."""
    if isinstance(value, tuple):
        items = enumerate(cast("tuple[Any, ...]", value))
        return tuple(named(node, field, item, index) for index, item in items)
    if isinstance(value, Body):
        return body_name(node, field, index)
    return traced_name(node, value) if isinstance(value, Tensor) else value


# Traces: ops that read a tensor of a control node's body, which they hold as a field


def traced_by(node: Node) -> list[Tensor]:
    """The tensors of bodies that a node has as fields: of the node of its first input."""
    return [value for value in node.op.attributes.values() if isinstance(value, Tensor)]


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
    return body.graph.get_tensor_by_name(tensor)


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
    starts = [each for each in _output_starts(tensor.op) if each[1] <= tensor.value_index]
    output, start = starts[-1]
    return f"{tensor.op.name}:{output}:{tensor.value_index - start}"


def _output_starts(node: Node) -> Iterator[tuple[str, int]]:
    """The name of each output of the signature, and the index of its first tensor."""
    start, values = 0, node.attributes()
    for argument in node.op.parsed.outputs:
        yield argument.name, start
        start += argument.size(values)


# Reading


def output_index(node: Node, place: str) -> str:
    """The index of `output:index` or `output` among all outputs of a node, "" if there is none. The
    only output may have any name."""
    output, _, index = place.partition(":")
    starts = dict(_output_starts(node))
    start = starts.get(output, 0 if len(starts) == 1 else None)
    return "" if start is None or not (index or "0").isdecimal() else str(start + int(index or 0))
