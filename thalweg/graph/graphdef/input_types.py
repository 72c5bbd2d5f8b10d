"""The inputs of a NodeDef held against what its op takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.signature import Argument


def invalid(proto: Any, message: str) -> ValueError:
    """The error for a node."""
    return ValueError(f"graph_def is invalid at node {proto.name!r}: {message}")


def check_inputs(
    proto: Any, block: type[Op], values: Mapping[str, Any], inputs: list[tuple[str, Tensor]]
) -> tuple[int, ...]:
    """How many tensors each input takes; a ValueError where they do not fit the op."""
    names = block.graphdef_names
    expected = [
        _argument_types(argument, values, names, len(inputs)) for argument in block.parsed.inputs
    ]
    flat = [dtype for types in expected for dtype in types]
    for position, (source, tensor) in enumerate(inputs):
        if position >= len(flat):
            raise invalid(proto, f"More inputs specified ({source!r}) than the op expects.")
        _check_input(proto, source, tensor, flat[position])
    if len(flat) > len(inputs):
        wanted = ", ".join("any" if dtype is None else dtype.name for dtype in flat)
        got = ", ".join(tensor.dtype.name for _, tensor in inputs)
        raise invalid(proto, f"Input types mismatch (expected {wanted!r} but got {got!r})")
    return tuple(len(types) for types in expected)


def _argument_types(
    argument: Argument, values: Mapping[str, Any], names: Mapping[str, str], given: int
) -> list[DType | None]:
    """The dtypes an input takes, None where the NodeDef leaves one to the tensor."""
    if argument.is_mixed:
        listed = values.get(names.get(argument.type, argument.type))
        return [None] * given if listed is None else [dtypes.as_dtype(t) for t in listed.list.type]
    dtype = argument.fixed
    stated = values.get(names.get(argument.type, argument.type))
    if dtype is None and stated is not None:
        dtype = dtypes.as_dtype(stated.type)
    if dtype is not None and argument.is_ref:
        dtype = dtype.as_ref
    if not argument.count:
        return [dtype]
    stated = values.get(argument.count)
    # More than there are inputs is an error already: no need to list all of what a file claims.
    return [dtype] * min(given if stated is None else max(0, int(stated.i)), given + 1)


def _check_input(proto: Any, source: str, tensor: Tensor, dtype: DType | None) -> None:
    if dtype is None or dtype.is_compatible_with(tensor.dtype):
        return
    raise invalid(
        proto,
        f"Input tensor {source!r} Cannot convert a tensor of type {tensor.dtype.name} to an input "
        f"of type {dtype.name}.",
    )
