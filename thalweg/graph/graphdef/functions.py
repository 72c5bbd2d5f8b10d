"""Functions that ops hold by name, and how a GraphDef's library holds them.

A `Lambda` is a body with a name. `function_def` writes a body as a FunctionDef; the importer makes
it again in another graph. Single nodes are left to those who write and read NodeDefs.
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
    """A function as an op holds it: a name, which is what a GraphDef gets, and a body."""

    body: Body
    sparse: tuple[bool, ...]  # which leaves of what it gives are sparse
    cells: tuple[Any, ...]  # the variables of eager code among its captures, None for others

    def __new__(cls, body: Body, sparse: tuple[bool, ...], cells: tuple[Any, ...] = ()) -> Lambda:
        made = super().__new__(cls, f"dataset_function_{next(_numbers)}")
        made.body, made.sparse, made.cells = body, sparse, cells
        return made


_numbers = count()


def held_by(node: Node) -> Iterator[tuple[str, Body, tuple[bool, ...]]]:
    """The functions that a node holds: the name that a GraphDef has, the body, and which of its
    outputs are sparse."""
    for field, value in node.op.attributes.items():
        many = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
        for place, each in enumerate(many):
            if isinstance(each, Lambda):
                yield str(each), each.body, each.sparse
            elif isinstance(each, Body):
                yield body_name(node, field, place), each, ()


def body_name(node: Node, field: str, place: int = 0) -> FunctionName:
    """The name of a body without one; names of nodes are unique in the whole graph."""
    return FunctionName(f"{node.name.replace('/', '_')}_{field}_{place}")


def body_fields(op: type[Op]) -> frozenset[str]:
    """The fields of an op that hold bodies without names."""
    return _annotated(op, r"\bBody\b")


@memoized(5_000)
def _annotated(op: type[Op], pattern: str) -> frozenset[str]:
    """The fields of an op in whose annotation a pattern is found."""
    found = (inspect.get_annotations(base).items() for base in op.__mro__)
    return frozenset(name for each in found for name, kind in each if re.search(pattern, str(kind)))


# Tensors of bodies that an op beside the control node names: what a trace reads


def traced_fields(op: type[Op]) -> frozenset[str]:
    """The fields of an op that are tensors inside the node its first input comes from."""
    return _annotated(op, "^Tensor$")


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
    return tensor_named({node.name: node.outputs for node in body.graph.nodes}, tensor)


# Writing


def function_def(
    name: str,
    body: Body,
    sparse: Sequence[bool],
    write: Callable[[Node], Any],
    traced: Sequence[Node],
) -> Any:
    """A function as a FunctionDef; `write` gives the NodeDef of a node. It has what its outputs
    need, and what is traced."""
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
    if any(sparse):
        proto.attr[SPARSE].CopyFrom(attributes.encode(sparse))
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
        size = argument.size(values)
        if place < size:
            return f"{node.name}:{argument.name}:{place}"
        place -= size
    raise AssertionError(f"{tensor!r} is beyond the outputs of its node")


# Reading


def tensor_named(outputs: Mapping[str, Sequence[Tensor]], name: str) -> Tensor:
    """The tensor `node:index`, of the outputs of a function's nodes by their names."""
    node, _, index = name.partition(":")
    found = outputs.get(node, ())
    if int(index) >= len(found):
        raise lacking(name)
    return found[int(index)]


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


def flat_name(source: str, starts: Mapping[str, Mapping[str, int]]) -> str:
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
        raise lacking(source)
    return f"{node}:{start + int(place)}"


def lacking(name: str) -> ValueError:
    """The error for a name that a function has nothing of."""
    return ValueError(f"graph_def is invalid: a function uses {name!r}, which it lacks.")
