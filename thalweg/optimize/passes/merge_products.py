"""Products that share an input, as one: `x W1` and `x W2` are parts of `x [W1 W2]`.

Only where the weights are constants, so that joining them costs nothing in a step, and where each
product alone is too narrow to fill the machine's vectors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.graph.node import Node, Tensor
from thalweg.ops.arrays.splitting import SplitV
from thalweg.ops.core.basic import constant
from thalweg.ops.linalg.matmul import MatMul
from thalweg.ops.nn.convolution import Conv2D
from thalweg.optimize.facts import value_of
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph

Array = NDArray[Any]

_MAX_COLUMNS = 64  # of a product that is merged: wider ones fill the vectors by themselves
_ROOTS = frozenset({"MatMul", "Conv2D"})


def merge_products(graph: StepGraph) -> None:
    """Have narrow products of one input be one product."""
    if graph.types.isdisjoint(_ROOTS):
        return
    for group in _groups(graph):
        parts = graph.build(group[0], partial(_merged, group))
        for node, part in zip(group, parts, strict=True):
            graph.replace(node.output, part)
            graph.fire("products of one input", node)


def _groups(graph: StepGraph) -> list[list[Node]]:
    """Products that can be merged."""
    found: dict[Any, list[Node]] = defaultdict(list)
    for node in [node for node in graph.nodes if node.op.type_name in _ROOTS]:
        weights = value_of(node.inputs[1])
        if weights is not None and is_free(node) and _is_narrow(node, weights, graph):
            key = node.inputs[0], node.op, weights.shape[:-1], weights.dtype, graph.device(node)
            found[key].append(node)
    return [group for group in found.values() if len(group) > 1]


def _is_narrow(node: Node, weights: Array, graph: StepGraph) -> bool:
    """Whether a product of constant weights has few columns, in the plain layout."""
    op = node.op
    if node.inputs[1] in graph.feeds or node.output in graph.feeds:
        return False
    if isinstance(op, MatMul):
        return not (op.transpose_a or op.transpose_b) and weights.shape[-1] <= _MAX_COLUMNS
    return isinstance(op, Conv2D) and op.data_format == "NHWC" and weights.shape[-1] <= _MAX_COLUMNS


def _merged(group: Sequence[Node]) -> list[Tensor]:
    """The outputs of products, cut from one."""
    weights: list[Array] = [
        value for node in group if (value := value_of(node.inputs[1])) is not None
    ]
    whole = constant(np.concatenate(weights, axis=-1))
    product = group[0].op(group[0].inputs[0], whole)
    sizes = np.array([value.shape[-1] for value in weights], np.int32)
    return SplitV(num_split=len(group))(product, sizes, np.array(-1, np.int32))
