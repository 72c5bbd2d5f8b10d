"""Matrix chains in the cheapest order.

A product of products is flattened to its factors, and multiplied in the order that takes the fewest
multiplications by the static shapes. Only products that nothing else uses are taken apart, and only
where that saves much: the order changes how results are rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from thalweg.graph.node import Node, Tensor
from thalweg.ops.linalg.matmul import MatMul
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph
from thalweg.optimize.sweep import Sweep

_MAX_FACTORS = 24
_MIN_SAVING = 0.8  # of the multiplications that the program asked for


class Factor(NamedTuple):
    """A matrix of a chain, and whether it is transposed first."""

    tensor: Tensor
    flipped: bool
    rows: int
    columns: int


def order_products(graph: StepGraph) -> tuple[StepGraph, dict[str, int]]:
    """A step whose matrix chains are multiplied in the cheapest order."""
    if "MatMul" not in graph.types:
        return graph, {}

    def rewrite(node: Node, sweep: Sweep) -> Sequence[Tensor] | None:
        factors = _factors(node, sweep)
        if factors is None or not 2 < len(factors) <= _MAX_FACTORS:
            return None
        splits, cost = _cheapest(factors)
        if cost > _MIN_SAVING * _cost(node, sweep):
            return None
        sweep.fired["matrix chain"] += 1
        return [sweep.build(node, lambda: _multiplied(factors, splits, 0, len(factors) - 1)[0])]

    sweep = Sweep(graph)
    return sweep.run(rewrite, {"MatMul"}), dict(sweep.fired)


def _factors(node: Node, sweep: Sweep) -> list[Factor] | None:
    """The factors of a product, those of its own factors in their place; None if a size is
    unknown."""
    if not is_free(node) or not isinstance(node.op, MatMul):
        return None
    found: list[Factor] = []
    flags = (node.op.transpose_a, node.op.transpose_b)
    for tensor, flipped in zip(node.inputs, flags, strict=True):
        inner = None if flipped or not _is_link(tensor, sweep) else _factors(tensor.op, sweep)
        if inner is None:
            sizes = tensor.shape.sizes
            if sizes is None or None in sizes:
                return None
            rows, columns = reversed(sizes) if flipped else sizes
            inner = [Factor(tensor, flipped, rows, columns)]  # pyright: ignore[reportArgumentType] - known
        found += inner
    return found


def _is_link(tensor: Tensor, sweep: Sweep) -> bool:
    """Whether a factor is a product of its own that nothing else uses."""
    node = tensor.op
    graph = sweep.graph
    return (
        isinstance(node.op, MatMul)
        and sweep.is_open(tensor)
        and sweep.uses(tensor) == 1
        and (graph.devices is None or len({graph.device(node), graph.device(tensor.op)}) == 1)
    )


def _cost(node: Node, sweep: Sweep) -> int:
    """The multiplications of a chain as it is written."""
    total = 0
    for tensor in node.inputs:
        if _is_link(tensor, sweep):
            total += _cost(tensor.op, sweep)
    op: Any = node.op
    inner = node.inputs[0].shape.as_list()[0 if op.transpose_a else 1]
    rows, columns = node.output.shape.as_list()
    return total + (rows or 0) * (columns or 0) * (inner or 0)


Splits = dict[tuple[int, int], int]


def _cheapest(factors: Sequence[Factor]) -> tuple[Splits, int]:
    """Where to split each run of factors, and the multiplications of the whole: the textbook's
    dynamic programme."""
    sizes = [factors[0].rows, *(factor.columns for factor in factors)]
    count = len(factors)
    costs = {(i, i): 0 for i in range(count)}
    splits: Splits = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            costs[i, j], splits[i, j] = min(
                (costs[i, k] + costs[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )
    return splits, costs[0, count - 1]


def _multiplied(factors: Sequence[Factor], splits: Splits, i: int, j: int) -> tuple[Tensor, bool]:
    if i == j:
        return factors[i].tensor, factors[i].flipped
    k = splits[i, j]
    x, flip_x = _multiplied(factors, splits, i, k)
    y, flip_y = _multiplied(factors, splits, k + 1, j)
    return MatMul(transpose_a=flip_x, transpose_b=flip_y)(x, y), False
