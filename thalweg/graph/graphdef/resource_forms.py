"""Rewriting of ops on resource variables to the equivalent ops on references.

TensorFlow 2 refers to a variable by a handle, a tensor of dtype resource that passes through calls
and loops. Here the edge carries a reference: `reference_forms` rewrites NodeDefs, and
`reference_op` names the op that forwards a reference. Other resources (tables, iterators) remain
handles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from thalweg import protos
from thalweg.graph.dtypes import int32, resource
from thalweg.graph.graphdef.node_defs import constant_def

_RESOURCE = resource.as_datatype_enum
_SCATTERS = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Update")
#: Ops that forward their first input, with the prefix `Ref` on references.
_FORWARDING = frozenset({"Identity", "Enter", "Exit", "Switch", "Merge", "NextIteration"})


class _Form(NamedTuple):
    """An op on references."""

    op: str
    attributes: Mapping[str, str] = {}  # renamed; "" drops one
    has_axis: bool = False  # whether it has an axis input, which is 0


_TYPE, _PARAMETERS = {"dtype": "T"}, {"dtype": "Tparams"}
_FORMS: dict[str, _Form] = {
    "VarHandleOp": _Form("VariableV2", {"_output_shapes": ""}),  # that of the handle, a scalar
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


def reference_forms(node: Any) -> list[Any]:
    """The NodeDefs that replace one: itself, unless its op is on a resource variable."""
    form = _FORMS.get(node.op) or _unprefixed(node.op)
    if form is None:
        return [node]
    new = protos.NodeDef(name=node.name, op=form.op, device=node.device)
    new.input.extend(node.input)
    for name, value in node.attr.items():
        renamed = form.attributes.get(name, name)
        if renamed:
            new.attr[renamed].CopyFrom(value)
    if node.op == "VarHandleOp":
        new.attr["_resource"].b = True
    if form.op == "NoOp":
        new.input[:] = [source for source in node.input if source.startswith("^")]
    return [_add_axis(new), new] if form.has_axis else [new]


def _unprefixed(op: str) -> _Form | None:
    """The form of an optimizer update or a scatter by index vectors: only the name differs."""
    prefixes = ("ResourceApply", "ResourceSparseApply", "ResourceScatterNd")
    return _Form(op.removeprefix("Resource")) if op.startswith(prefixes) else None


def _add_axis(node: Any) -> Any:
    """Add a constant 0 as the last data input of a node; returns its NodeDef."""
    name = f"{node.name}/axis"
    data = [source for source in node.input if not source.startswith("^")]
    node.input[:] = [*data, name, *node.input[len(data) :]]
    return constant_def(name, 0, int32)


def reference_op(node: Any, takes_reference: bool) -> str:
    """The op of a node, with the prefix `Ref` if it forwards a handle that is a reference here."""
    forwards = takes_reference and node.op in _FORWARDING and node.attr["T"].type == _RESOURCE
    return f"Ref{node.op}" if forwards else node.op
