"""Mixed precision: products and the ops between them in a narrow float, all others in float32.

Matrix products and convolutions gain most and are allowed. Elementwise and moving ops are inferred:
they are narrow between allowed ops. Ops that sum, normalise or have a wide range (losses,
exponentials, reductions, batch norm, updates) are denied: they are in neither list. Casts are
inserted at the borders. Variables are never narrow: products read a cast of them, and gradients are
cast back before they update the float32 weights.
"""

from __future__ import annotations

from collections.abc import Callable

from thalweg.graph import dtypes, nest
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node, Tensor, reached
from thalweg.ops.core.casting import Cast
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALLOWED = _names(
    """MatMul BatchMatMulV2 Conv2D Conv2DBackpropInput Conv2DBackpropFilter Conv3D
    Conv3DBackpropInputV2 Conv3DBackpropFilterV2 DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter"""
)
INFERRED = _names(
    """Add AddN AvgPool AvgPoolGrad BiasAdd BroadcastTo ConcatV2 Elu EluGrad ExpandDims Maximum
    MaxPool MaxPoolGrad Minimum Mul Neg Pack Pad PadV2 Relu Relu6 Relu6Grad ReluGrad Reshape
    Select Selu SeluGrad Sigmoid SigmoidGrad Slice Split SplitV Squeeze StridedSlice Sub Tanh
    TanhGrad Transpose Unpack ZerosLike"""
)


def narrowing(dtype: DType) -> Callable[[StepGraph], None]:
    """A pass that computes products in a narrow float."""

    def run(graph: StepGraph) -> None:
        if graph.types.isdisjoint(ALLOWED):
            return
        casts = _Casts(graph, dtype)
        for node in _nodes_to_narrow(graph):
            casts.narrow(node)
            graph.fire(f"narrow {node.type}", node)

    return run


def _nodes_to_narrow(graph: StepGraph) -> list[Node]:
    """The nodes to compute in a narrow float, in their order."""
    nodes = graph.nodes
    candidates = {n for n in nodes if n.op.type_name in ALLOWED | INFERRED and _is_wide(n, graph)}
    products = {node for node in candidates if node.op.type_name in ALLOWED}

    def before(node: Node) -> list[Node]:
        sources = [tensor.op for tensor in node.inputs if graph.is_open(tensor)]
        return [source for source in sources if source in candidates]

    def after(node: Node) -> list[Node]:
        takers = [n for t in node.outputs for n in graph.consumers(t) if t in n.inputs]
        return [taker for taker in takers if taker in candidates]

    between = reached(products, before) & reached(products, after)
    return [node for node in nodes if node in between]


def _is_wide(node: Node, graph: StepGraph) -> bool:
    """Whether all float inputs and outputs of a node are float32, and no output is fed."""
    input_dtypes = [tensor.dtype for tensor in node.inputs if tensor.dtype.is_floating]
    output_dtypes = [tensor.dtype for tensor in node.outputs]
    if not input_dtypes or not is_free(node) or any(t in graph.feeds for t in node.outputs):
        return False
    return {*input_dtypes, *output_dtypes} == {dtypes.float32}


class _Casts:
    """Converts nodes to a narrow float; casts are shared between them."""

    def __init__(self, graph: StepGraph, dtype: DType) -> None:
        self._graph, self._dtype = graph, dtype
        self._narrow: dict[Tensor, Tensor] = {}

    def narrow(self, node: Node) -> None:
        """Compute a node in the narrow float, and cast its outputs back to float32."""
        self._graph.refresh(node)
        inputs = [self._narrowed(tensor, node) for tensor in node.inputs]
        op, grouped = node.op, node.grouped(inputs)

        outputs: list[Tensor] = nest.flatten(self._graph.build(node, lambda: op(*grouped)))
        for old, new in zip(node.outputs, outputs, strict=True):
            wide = self._graph.build(node, lambda new=new: Cast(DstT=dtypes.float32)(new))
            self._narrow[wide] = new
            self._graph.replace(old, wide)
        self._graph.release(node)

    def _narrowed(self, tensor: Tensor, node: Node) -> Tensor:
        if tensor.dtype is not dtypes.float32:
            return tensor
        if tensor not in self._narrow:
            cast = Cast(DstT=self._dtype)
            self._narrow[tensor] = self._graph.build(node, lambda: cast(tensor))
        return self._narrow[tensor]
