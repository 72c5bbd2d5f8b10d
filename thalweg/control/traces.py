"""What a gradient needs from inside a branch or a loop: values that the step saves on the way.

A trace is a node beside the conditional or the loop that it reads from. Pruning decides whether a
step has it; in a plan, a control node and the traces that the step needs of it are one unit.
"""

from __future__ import annotations

from typing import Any, cast

from thalweg.autodiff.gradients import InnerGradient
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import get_default_graph
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.graph.subgraph import Argument, SubGraph
from thalweg.ops.core import basic


class Trace(Op, abstract=True):
    """The base of all traces: `holder` is any output of the control node."""

    stateful = True  # it takes values of its holder's run
    effects = ()  # the holder has them
    of_process = True

    def kernel(self, context: Any, holder: Any) -> Any:
        raise AssertionError(f"{context.node.name} is computed with the node it reads from")


class BranchTrace(Trace):
    """The value of a tensor inside the branch that was taken; nothing where it was another one."""

    private = True
    signature = "holder: T -> value: dtype"
    tensor: Tensor
    dtype: DType

    def shape(self, holder: Tensor) -> TensorShape:
        return self.tensor.shape

    def gradient(self, node: Node, dy: Any) -> list[Any]:
        return [InnerGradient(self.tensor, dy)]


class LoopTrace(Trace):
    """All values of a tensor inside a loop's body, one an iteration, as a list."""

    private = True
    signature = "holder: T -> values: variant"
    tensor: Tensor

    def shape(self, holder: Tensor) -> TensorShape:
        return scalar()

    def gradient(self, node: Node, dy: Any) -> list[Any]:
        return [InnerGradient(self.tensor, dy)]


class LoopCount(Trace):
    """The number of iterations that a loop made."""

    private = True
    signature = "holder: T -> count: int32"
    not_differentiable = True

    def shape(self, holder: Tensor) -> TensorShape:
        return scalar()


def traced(node: Node, op: Trace) -> Tensor:
    """A trace of a control node: made once, in the graph of the node."""
    graph = node.graph
    for consumer in graph.consumers(node.outputs[0]):
        if consumer.op == op:
            return consumer.outputs[0]
    with graph.as_default(), graph.name_scope(f"{node.name}_trace/"):
        if isinstance(graph, SubGraph):
            with graph.without_scopes():
                return op(node.outputs[0])
        return op(node.outputs[0])


def traced_tensor(trace: Node) -> Tensor:
    """The tensor inside a control node that a trace of it gives."""
    return cast("BranchTrace", trace.op).tensor


def known_in(graph: SubGraph, tensor: Tensor) -> Tensor | None:
    """A tensor of a body whose value follows from constants and shapes, as a constant of a graph,
    be it the current one or one around that: there is nothing to save."""
    if tensor.dtype.is_floating or tensor.dtype.is_complex:
        return None
    value = constant_value(tensor)
    if value is None:
        return None
    with graph.as_default(), graph.without_scopes():
        return basic.constant(value, tensor.dtype.base_dtype)


def is_argument(tensor: Tensor) -> bool:
    """Whether a tensor came into its sub-graph from outside."""
    return isinstance(tensor.op.op, Argument)


def here(tensor: Tensor) -> Tensor:
    """A tensor as the current graph sees it."""
    graph = get_default_graph()
    return graph.capture(tensor) if isinstance(graph, SubGraph) else tensor
