"""Constant folding: nodes that depend on constants and static shapes alone are computed once.

The NumPy kernels compute them, within limits: the constants of a step do not grow much, and neither
one kernel nor all of them take long.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import prod, sqrt
from typing import cast

import numpy as np

from thalweg.graph.analysis.effects import Resource
from thalweg.graph.analysis.evaluate import known_outputs, tried_outputs_of
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.basic import Const
from thalweg.optimize.facts import open_value
from thalweg.optimize.pure import is_free, is_pure
from thalweg.optimize.step_graph import StepGraph
from thalweg.platform.arrays import Array

MAX_BYTES = 1 << 16  # of a constant that is larger than its operands
MAX_WORK = 20_000_000  # multiplications or elements of one kernel
MAX_SECONDS = 0.2  # of one traversal


def fold_constants(graph: StepGraph) -> None:
    """Fold nodes that depend on constants and static shapes alone."""
    start = time.perf_counter()

    def rewrite(node: Node) -> Sequence[Tensor] | None:
        if not node.inputs:
            return None
        for tensor in node.inputs:
            if tensor.op.op.type_name != "Const":  # true for most nodes
                values = _known(node, graph) if node.op.has("known_value") else None
                break
        else:
            is_late = time.perf_counter() - start > MAX_SECONDS
            values = None if is_late else _folded(node, graph)
        if values is None:
            return None
        graph.fire(f"constant {node.type}", node)
        return [_constant(value, tensor, node, graph) for value, tensor in values]

    graph.rewrite(rewrite)


Values = Sequence[tuple[Array, Tensor]]


def _known(node: Node, graph: StepGraph) -> Values | None:
    """The outputs of a node that static shapes determine: of `shape`, `size` and `rank`."""
    values = known_outputs(node) if is_free(node) else None
    if values is None or any(_must_run(tensor, graph) for tensor in node.inputs):
        return None
    return _checked(values, node)


def _must_run(tensor: Tensor, graph: StepGraph) -> bool:
    """Whether the node of a tensor must run even if only its shape is used: it comes after an
    effect, or is one itself, such as a read of a variable, which may be uninitialised. A random op
    need not, if something else takes its output and thus draws the numbers."""
    node = tensor.op
    if tensor in graph.feeds:
        return False
    if _is_random(node) and graph.uses(tensor) > 1:
        return bool(node.controls) or any(map(graph.is_guarded, node.inputs))
    return graph.is_guarded(tensor) or not is_pure(node)


def _is_random(node: Node) -> bool:
    return {use.resource for use in node.op.footprint} == {Resource.STREAM}


def _folded(node: Node, graph: StepGraph) -> Values | None:
    known = [value for t in node.inputs if (value := open_value(t, graph)) is not None]
    if len(known) < len(node.inputs) or not is_free(node) or not node.op.has("numpy"):
        return None
    return _checked(tried_outputs_of(node, known), node) if _is_small(node, known) else None


def _is_small(node: Node, values: Sequence[Array]) -> bool:
    """Whether the sizes and the work of a node are within the limits."""
    sizes = [tensor.shape.num_elements() for tensor in node.outputs]
    if None in sizes:
        return sum(value.size for value in values) <= 4_096
    output_sizes = [cast("int", size) for size in sizes]
    widths = [tensor.dtype.base_dtype.size or 8 for tensor in node.outputs]
    output_bytes = sum(size * width for size, width in zip(output_sizes, widths, strict=True))
    if output_bytes > max(MAX_BYTES, sum(value.nbytes for value in values)):
        return False
    return _work(output_sizes, values) <= MAX_WORK


def _work(output_sizes: Sequence[int], values: Sequence[Array]) -> float:
    """The multiplications of a matrix product of these sizes, an upper bound for other ops."""
    total = sum(output_sizes) + sum(value.size for value in values)
    largest = sorted((value.size for value in values), reverse=True)[:2]
    if len(largest) < 2:
        return total
    return max(total, sqrt(prod([*largest, max(output_sizes, default=0)])))


def _checked(arrays: list[Array] | None, node: Node) -> Values | None:
    """The outputs of a kernel, each with its tensor."""
    if arrays is None or any(tensor.dtype.is_quantized for tensor in node.outputs):
        return None
    return list(zip(arrays, node.outputs, strict=True))


def _constant(value: Array, tensor: Tensor, node: Node, graph: StepGraph) -> Tensor:
    array = np.array(value)
    array.flags.writeable = False  # constants outlive a step
    op = Const(value=array, dtype=tensor.dtype.base_dtype)
    return graph.build(node, lambda: op(name="folded"))
