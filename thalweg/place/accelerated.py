"""The nodes that accelerators may run.

An accelerator runs compiled ops and holds numeric variables. An op that writes such a variable runs
on its device, with the host kernel if it is not compiled. Control nodes may run wherever their
bodies do, and so may lists of numbers, which native loops keep in the memory of their device. All
other nodes run on CPUs.
"""

from __future__ import annotations

from thalweg.control.list_ops import ListOp
from thalweg.control.liveness import is_control
from thalweg.control.primitives import Primitive
from thalweg.control.traces import Trace
from thalweg.graph.dtypes import variant
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.basic import Const, Placeholder
from thalweg.ops.core.compilable import compilable, is_number


def is_accelerated(node: Node) -> bool:
    """Whether accelerators may run a node."""
    op = node.op
    if op.any_device or is_control(node) or isinstance(op, Primitive | Trace):
        return True
    if isinstance(op, ListOp):
        tensors = [*node.inputs, *node.outputs]
        return all(t.dtype.base_dtype is variant or _is_number(t) for t in tensors)
    if isinstance(op, Const | Placeholder) or _is_variable(node):
        return all(map(_is_number, node.outputs))
    if op.parsed.references:
        return all(_is_number(node.inputs[number]) for number in op.parsed.references)
    return compilable(node)


def _is_variable(node: Node) -> bool:
    """Whether a node creates a variable of a static shape."""
    if node.inputs or len(node.outputs) != 1:
        return False
    (output,) = node.outputs
    return output.dtype.is_ref_dtype and output.shape.is_fully_defined()


def _is_number(tensor: Tensor) -> bool:
    return is_number(tensor.dtype.base_dtype)
