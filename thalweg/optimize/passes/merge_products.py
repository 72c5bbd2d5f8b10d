"""Merges products that share an input: `x W1` and `x W2` are parts of `x [W1 W2]`.

A product computes whole vectors of columns. Products are merged if the merged one needs fewer
vectors; otherwise joining the weights and splitting the result costs more than it gains. Constant
weights are joined once, variables in every step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from math import prod
from typing import Any

import numpy as np

from thalweg.graph.analysis.effects import Resource
from thalweg.graph.analysis.node_effects import accesses
from thalweg.graph.device import is_cpu
from thalweg.graph.node import Node, Tensor
from thalweg.ops.arrays.joining import ConcatV2
from thalweg.ops.arrays.splitting import SplitV
from thalweg.ops.core.basic import Identity, constant
from thalweg.ops.linalg.matmul import MatMul
from thalweg.ops.nn.convolution import Conv2D
from thalweg.optimize.facts import value_of
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph
from thalweg.platform.arrays import Array

# Of a product to merge: wider ones fill vectors by themselves, and a product with a vector is
# computed along its rows.
_MIN_COLUMNS, _MAX_VECTORS = 2, 1.5
_MIN_ROWS = 32  # of the shared input: for fewer, joining the weights costs more
_WINDOW_VECTORS = 2  # that a convolution with windows computes at once
_ROOTS = frozenset({"MatMul", "Conv2D"})
_VARIABLE_RESOURCES = frozenset({Resource.VARIABLE, Resource.HANDLE, Resource.PYTHON})


def merge_products(graph: StepGraph) -> None:
    """Merge narrow products of one input."""
    if graph.types.isdisjoint(_ROOTS):
        return
    for group in _groups(graph):
        _hoist_variables(group, graph)
        parts = graph.build(group[0], partial(_merged, group))
        for node, part in zip(group, parts, strict=True):
            graph.replace(node.output, part)
            graph.fire("products of one input", node)


def _groups(graph: StepGraph) -> list[list[Node]]:
    """Groups of products that are cheaper merged."""
    by_key: dict[Any, list[Node]] = defaultdict(list)
    products = [node for node in graph.nodes if node.op.type_name in _ROOTS]
    shared = Counter(node.inputs[0] for node in products)
    for node in [node for node in products if shared[node.inputs[0]] > 1]:
        if is_free(node) and _is_narrow(node, graph):
            weights = node.inputs[1]
            inner = tuple(weights.shape.as_list()[:-1])
            key = node.inputs[0], node.op, inner, weights.dtype, graph.device(node)
            by_key[key].append(node)
    groups = [group for group in by_key.values() if _saves_vectors(group, graph)]
    if not groups:
        return []
    unwritten = {*takewhile(lambda node: not _writes_variables(node), graph.nodes)}
    groups = [[n for n in group if _may_come_first(n.inputs[1], unwritten)] for group in groups]
    return [group for group in groups if _saves_vectors(group, graph)]


def _is_narrow(node: Node, graph: StepGraph) -> bool:
    """Whether a product has few columns and many rows, in the plain layout, on a CPU."""
    op, device, weights = node.op, graph.device(node), node.inputs[1]
    if weights in graph.feeds or node.output in graph.feeds or (device and not is_cpu(device)):
        return False
    if not weights.shape.is_fully_defined():
        return False
    if not _MIN_COLUMNS <= _columns(node) <= _MAX_VECTORS * _lanes(node, graph):
        return False
    if isinstance(op, MatMul):
        return not (op.transpose_a or op.transpose_b) and _rows(node) >= _MIN_ROWS
    return isinstance(op, Conv2D) and op.data_format == "NHWC" and _rows(node) >= _MIN_ROWS


def _lanes(node: Node, graph: StepGraph) -> int:
    """The number of columns in a vector of the target."""
    return graph.target(node).vector_bytes // node.output.dtype.size


def _saves_vectors(group: Sequence[Node], graph: StepGraph) -> bool:
    """Whether the merged product computes fewer vectors of columns."""
    if len(group) < 2:
        return False
    is_dense = prod(_sizes(group[0].inputs[1])[:-2]) == 1
    lanes = _lanes(group[0], graph) * (1 if is_dense else _WINDOW_VECTORS)
    columns = [_columns(node) for node in group]
    return -(-sum(columns) // lanes) < sum([-(-count // lanes) for count in columns])


def _columns(node: Node) -> int:
    return _sizes(node.inputs[1])[-1]


def _sizes(tensor: Tensor) -> list[int]:
    """Static sizes; unknown ones count as large enough."""
    return [_MIN_ROWS if size is None else size for size in tensor.shape.as_list()]


def _rows(node: Node) -> int:
    return prod(_sizes(node.output)[:-1])


def _writes_variables(node: Node) -> bool:
    return any(use.writes and use.resource in _VARIABLE_RESOURCES for use in accesses(node))


def _may_come_first(weights: Tensor, unwritten: set[Node]) -> bool:
    """Whether weights can be read before the first product of their group: they are constants, or
    variables that are read before any write."""
    node = weights.op
    if not isinstance(node.op, Identity) or node.controls or node not in unwritten:
        return value_of(weights) is not None
    source = node.inputs[0]
    return source.dtype.is_ref_dtype and not source.op.inputs and not source.op.controls


def _hoist_variables(group: Sequence[Node], graph: StepGraph) -> None:
    """Move the variables before the first product, where they are read now."""
    weights = [node.inputs[1] for node in group]
    for variable in dict.fromkeys(w.op.inputs[0].op for w in weights if value_of(w) is None):
        graph.hoist(variable, group[0])


def _merged(group: Sequence[Node]) -> list[Tensor]:
    """The outputs of the products, split from the merged one."""
    product = group[0].op(group[0].inputs[0], _joined([node.inputs[1] for node in group]))
    sizes = np.array([_columns(node) for node in group], np.int32)
    return SplitV(num_split=len(group))(product, sizes, np.array(-1, np.int32))


def _joined(weights: Sequence[Tensor]) -> Tensor:
    """The concatenated columns of all weights."""
    values = [value_of(weight) for weight in weights]
    known = [value for value in values if value is not None]
    if len(known) == len(values):
        return constant(np.concatenate(known, axis=-1))
    parts = [_readable(*pair) for pair in zip(weights, values, strict=True)]
    return ConcatV2()(parts, np.array(-1, np.int32))


def _readable(weights: Tensor, value: Array | None) -> Tensor:
    """Weights that can be read before the first product: a variable is read again."""
    return Identity()(weights.op.inputs[0]) if value is None else constant(value)
