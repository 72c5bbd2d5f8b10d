"""Nodes of resource variables, as the nodes of references that do the same.

TensorFlow 2 names a variable by a handle, which travels through calls and loops as a tensor of
dtype resource. Here the edge carries a reference: `current_forms` rewrites the NodeDefs, and
`reference_op` says which op hands a reference on. What nobody can hold as a reference (tables,
iterators) stays a handle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thalweg import protos
from thalweg.graph.dtypes import int32, resource
from thalweg.graph.graphdef.tensor_proto import make_tensor_proto

_RESOURCE = resource.as_datatype_enum
_SCATTERS = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Update")
#: Ops that give their first input on: over references they are other ops.
_PASSING = frozenset({"Identity", "Enter", "Exit", "Switch", "Merge", "NextIteration"})


@dataclass(frozen=True)
class _Form:
    """The op over references, what its attributes are called, and the inputs it has besides."""

    op: str
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    has_axis: bool = False


_TYPE, _PARAMETERS = {"dtype": "T"}, {"dtype": "Tparams"}
_FORMS: dict[str, _Form] = {
    "VarHandleOp": _Form("VariableV2", {"_output_shapes": ""}),  # the handle's, a scalar
    "ReadVariableOp": _Form("Identity", _TYPE),
    "AssignVariableOp": _Form("Assign", {**_TYPE, "validate_shape": ""}),
    "AssignAddVariableOp": _Form("AssignAdd", _TYPE),
    "AssignSubVariableOp": _Form("AssignSub", _TYPE),
    "VarIsInitializedOp": _Form("IsVariableInitialized"),
    "VariableShape": _Form("Shape"),
    "ResourceGather": _Form("GatherV2", _PARAMETERS, has_axis=True),
    "ResourceGatherNd": _Form("GatherNd", _PARAMETERS),
    "DestroyResourceOp": _Form("NoOp"),
    "DisableCopyOnRead": _Form("NoOp"),
    **{f"ResourceScatter{kind}": _Form(f"Scatter{kind}", _TYPE) for kind in _SCATTERS},
}


def current_forms(node: Any) -> list[Any]:
    """The NodeDefs that stand for one: itself, unless it is of a resource variable."""
    form = _FORMS.get(node.op) or _stripped(node.op)
    if form is None:
        return [node]
    made = protos.NodeDef(name=node.name, op=form.op, device=node.device)
    made.input.extend(node.input)
    for name, value in node.attr.items():
        renamed = form.attributes.get(name, name)
        if renamed:
            made.attr[renamed].CopyFrom(value)
    if node.op == "VarHandleOp":
        made.attr["_resource"].b = True
    if form.op == "NoOp":
        made.input[:] = [source for source in node.input if source.startswith("^")]
    return [*_axis(made), made] if form.has_axis else [made]


def _stripped(op: str) -> _Form | None:
    """An optimizer's update, or a scatter by index vectors: the op has the same attributes."""
    kinds = ("ResourceApply", "ResourceSparseApply", "ResourceScatterNd")
    return _Form(op.removeprefix("Resource")) if op.startswith(kinds) else None


def _axis(node: Any) -> list[Any]:
    """A constant 0 as the last data input of a node."""
    name = f"{node.name}/axis"
    data = [source for source in node.input if not source.startswith("^")]
    node.input[:] = [*data, name, *node.input[len(data) :]]
    axis = protos.NodeDef(name=name, op="Const")
    axis.attr["dtype"].type = int32.as_datatype_enum
    axis.attr["value"].tensor.CopyFrom(make_tensor_proto(0, int32))
    return [axis]


def reference_op(node: Any, takes_reference: bool) -> str:
    """The op of a node that was written for handles, given whether it gets a reference."""
    is_passing = takes_reference and node.op in _PASSING and node.attr["T"].type == _RESOURCE
    return f"Ref{node.op}" if is_passing else node.op
