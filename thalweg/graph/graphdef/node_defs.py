"""Matching of NodeDefs with op blocks: the block of a node (which may be of another version of the
op), its attributes, and checks of its inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from thalweg import protos
from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType
from thalweg.graph.graphdef import attributes
from thalweg.graph.graphdef.attributes import AttributeKind
from thalweg.graph.graphdef.tensor_proto import make_tensor_proto
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.signature import Argument


def invalid(proto: Any, message: str) -> ValueError:
    """The error for a malformed node."""
    return ValueError(f"graph_def is invalid at node {proto.name!r}: {message}")


def check_inputs(
    proto: Any,
    block: type[Op],
    values: Mapping[str, Any],
    sources: Sequence[str],
    inputs: Sequence[Tensor],
) -> tuple[int, ...]:
    """The number of tensors of each input; a ValueError if the tensors do not fit the op."""
    expected = [_argument_types(a, values, len(inputs)) for a in block.parsed.inputs]
    flat = [dtype for types in expected for dtype in types]
    for source, tensor, dtype in zip(sources, inputs, flat, strict=False):
        if dtype is not None and not dtype.is_compatible_with(tensor.dtype):
            raise invalid(
                proto,
                f"Input tensor {source!r} Cannot convert a tensor of type {tensor.dtype.name} to "
                f"an input of type {dtype.name}.",
            )
    if len(flat) < len(inputs):
        extra = sources[len(flat)]
        raise invalid(proto, f"More inputs specified ({extra!r}) than the op expects.")
    if len(flat) > len(inputs):
        types = ", ".join("any" if dtype is None else dtype.name for dtype in flat)
        got = ", ".join(tensor.dtype.name for tensor in inputs)
        raise invalid(proto, f"Input types mismatch (expected {types!r} but got {got!r})")
    return tuple(len(types) for types in expected)


def _argument_types(
    argument: Argument, values: Mapping[str, Any], available: int
) -> list[DType | None]:
    """The dtypes of an input's tensors, None where the NodeDef does not say; `available` is the
    number of tensors of all inputs."""
    given = values.get(argument.type)
    if argument.is_mixed:
        return [None] * available if given is None else list(given)
    dtype: DType | None = argument.fixed or given
    if dtype is not None and argument.is_ref:
        dtype = dtype.as_ref
    if not argument.count:
        return [dtype]
    count = values.get(argument.count)
    # One more than available is an error already: a file may claim any number.
    return [dtype] * min(available if count is None else max(0, count), available + 1)


def block_of(proto: Any, op_dict: Mapping[str, Any] | None, op: str) -> type[Op]:
    """The block of a node, given its op or one that replaces it."""
    name = _current_name(op)
    if name is None or not (op_dict is None or proto.op in op_dict):
        raise ValueError(
            f"No op named {proto.op} in defined operations, which node {proto.name!r} is of."
        )
    return REGISTRY[name]


def own_attributes(block: type[Op]) -> dict[str, str]:
    """The attributes that a block defines, by their names in a GraphDef."""
    # The fields of a user's op may have annotations that are of no kind.
    names = [*attributes.kinds(block), *block.fields]
    return {block.graphdef_names.get(name, name): name for name in names}


def check_kind(proto: Any, name: str, value: Any, declared: AttributeKind | None) -> None:
    """Raise a ValueError unless an attribute is of the kind that its op declares."""
    kind = attributes.stored_kind(value)
    if kind is not None and declared is not None and not kind.fits(declared):
        raise invalid(
            proto,
            f"the attribute {name!r} must be of kind {declared.op_def_type}, "
            f"not {kind.op_def_type}.",
        )


def node_name(source: str) -> str:
    """The name of an input's node: `a` for `^a`, `a` and `a:1`."""
    return source.removeprefix("^").partition(":")[0]


def with_inputs(node: Any, inputs: Sequence[str]) -> Any:
    """A copy of a NodeDef with other inputs."""
    copy = type(node)()
    copy.CopyFrom(node)
    copy.input[:] = inputs
    return copy


def constant_def(name: str, value: Any, dtype: DType, device: str = "") -> Any:
    """The NodeDef of a constant."""
    node = protos.NodeDef(name=name, op="Const", device=device)
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(make_tensor_proto(value, dtype))
    return node


# Ops of other versions


def _current_name(name: str) -> str | None:
    """The name of the op here, if there is one: `Variable` is VariableV2, `AddV2` is Add,
    `BatchMatrixInverse` is MatrixInverse."""
    if name in REGISTRY:
        return name
    unversioned = re.sub(r"V\d$", "", name)
    unbatched = unversioned.removeprefix("Batch")
    bases = (unversioned, unbatched, unbatched.removeprefix("Matrix"))
    candidates = (f"{base}{version}" for base in bases for version in ("V2", "V3", ""))
    return next((other for other in candidates if other in REGISTRY), None)


def current_input_order(proto: Any, sources: list[str]) -> list[str]:
    """The data inputs in the order of the current op: the axis of `Concat` now comes last."""
    data = [source for source in sources if not source.startswith("^")]
    if proto.op == "Concat" and "Concat" not in REGISTRY:
        return data[1:] + data[:1]
    return data


def merge_output_shapes(proto: Any, node: Node) -> None:
    """Merge the producer's output shapes into the static shapes of a node."""
    if "_output_shapes" not in proto.attr:
        return
    shapes = proto.attr["_output_shapes"].list.shape
    for tensor, shape in zip(node.outputs, shapes, strict=False):
        # Older libraries wrote the shape of the handle, not of the value.
        if not _is_handle(tensor):
            tensor.set_shape(shape)


def _is_handle(tensor: Tensor) -> bool:
    is_text_reference = tensor.dtype.is_ref_dtype and tensor.dtype.base_dtype is dtypes.string
    return tensor.dtype is dtypes.resource or is_text_reference
