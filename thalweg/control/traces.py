"""Traces: values from inside a branch or a loop that the step saves for the gradient.

A trace is a node that takes an output of the conditional or loop it reads from. Pruning decides
whether a step has it; in a plan, a control node and the traces that the step needs are one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast

from thalweg.autodiff.gradients import InnerGradient
from thalweg.control.bodies import PlannedOp
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import get_default_graph
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.graph.subgraph import SubGraph
from thalweg.ops.core import basic


class Trace(PlannedOp, abstract=True):
    """The base of all traces: `holder` is any output of the control node."""

    private = True

    def shape(self, holder: Tensor) -> TensorShape:
        return scalar()


class TensorTrace(Trace, abstract=True):
    """The base of traces of a tensor inside the control node."""

    tensor: Tensor

    def gradient(self, node: Node, dy: Any) -> list[Any]:
        return [InnerGradient(self.tensor, dy)]


class BranchTrace(TensorTrace):
    """The value of a tensor inside a branch; no value if another branch was taken."""

    signature = "holder: T -> value: dtype"
    dtype: DType

    def shape(self, holder: Tensor) -> TensorShape:
        return self.tensor.shape


class LoopTrace(TensorTrace):
    """The values of a tensor inside a loop's body, as a list with one entry per iteration."""

    signature = "holder: T -> values: variant"


class LoopCount(Trace):
    """The number of iterations of a loop."""

    signature = "holder: T -> count: int32"
    not_differentiable = True


def add_trace(node: Node, op: Trace) -> Tensor:
    """A trace of a control node, in the graph of the node; an equal one is reused."""
    graph = node.graph
    for consumer in graph.consumers(node.outputs[0]):
        if consumer.op == op:
            return consumer.outputs[0]
    scopes = graph.without_scopes() if isinstance(graph, SubGraph) else nullcontext()
    with graph.as_default(), graph.name_scope(f"{node.name}_trace/"), scopes:
        return op(node.outputs[0])


def traced_tensor(trace: Node) -> Tensor:
    """The tensor inside a control node whose values a trace saves."""
    return cast("TensorTrace", trace.op).tensor


def traced_tensors(trace: Node) -> list[Tensor]:
    """The same as a list, which is empty for a count."""
    return [trace.op.tensor] if isinstance(trace.op, TensorTrace) else []


def capture_inner(
    graph: SubGraph, known: Mapping[Tensor, Tensor], read: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Captures tensors of a body for its gradient, in `graph`: an argument as the outer tensor that
    is `known` for it, others by a `read` of their trace. What follows from constants and static
    shapes needs no trace."""

    def source(tensor: Tensor) -> Tensor:
        if tensor in known:
            return graph.capture(known[tensor])
        is_real = tensor.dtype.is_floating or tensor.dtype.is_complex
        value = None if is_real else constant_value(tensor)
        with graph.as_default(), graph.without_scopes():
            return read(tensor) if value is None else basic.constant(value, tensor.dtype.base_dtype)

    return source


def capture(tensor: Tensor) -> Tensor:
    """A tensor of an enclosing graph as a tensor of the current one."""
    return get_default_graph().capture(tensor)
