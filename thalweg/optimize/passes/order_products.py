"""Multiplies matrix chains in the cheapest order.

A product of products is flattened to its factors, and multiplied in the order with the fewest
multiplications by the static shapes. Only products without other uses are reassociated, and only if
that saves much: the order changes rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from thalweg.graph.node import Node, Tensor
from thalweg.ops.linalg.matmul import MatMul
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph

_MAX_FACTORS = 24
_MAX_COST = 0.8  # of the new order, relative to the multiplications as written


class Factor(NamedTuple):
    """A matrix of a chain, perhaps transposed."""

    tensor: Tensor
    transposed: bool
    rows: int
    columns: int


class Chain(NamedTuple):
    """A product of several factors, and the number of multiplications as written."""

    factors: list[Factor]
    cost: int


def order_products(graph: StepGraph) -> None:
    """Multiply matrix chains in the cheapest order."""

    def rewrite(node: Node) -> Sequence[Tensor] | None:
        if all(tensor.op.op.type_name != "MatMul" for tensor in node.inputs):
            return None
        chain = _chain(node, graph, _MAX_FACTORS)
        if chain is None or not 2 < len(chain.factors) <= _MAX_FACTORS:
            return None
        factors = chain.factors
        splits, cost = _cheapest(factors)
        if cost > _MAX_COST * chain.cost:
            return None
        build = partial(_multiplied, factors, splits, 0, len(factors) - 1)
        return graph.rebuilt("matrix chain", node, lambda: build()[0])

    graph.rewrite(rewrite, {"MatMul"}, 1)


def _chain(node: Node, graph: StepGraph, depth: int) -> Chain | None:
    """The factors of a product, with inner products flattened; None if a size is unknown."""
    if not is_free(node) or not isinstance(node.op, MatMul):
        return None
    factors: list[Factor] = []
    cost = 0
    flags = (node.op.transpose_a, node.op.transpose_b)
    for tensor, transposed in zip(node.inputs, flags, strict=True):
        is_link = depth > 0 and not transposed and _is_link(tensor, node, graph)
        inner = _chain(tensor.op, graph, depth - 1) if is_link else _leaf(tensor, transposed)
        if inner is None:
            return None
        factors += inner.factors
        cost += inner.cost
    rows, columns = factors[0].rows, factors[-1].columns
    shared = node.inputs[0].shape.as_list()[0 if node.op.transpose_a else 1]
    return Chain(factors, cost + rows * columns * (shared or 0))


def _leaf(tensor: Tensor, transposed: bool) -> Chain | None:
    """The chain of a single factor, if its sizes are known."""
    sizes = [size for size in tensor.shape.sizes or () if size is not None]
    if len(sizes) != 2:
        return None
    rows, columns = reversed(sizes) if transposed else sizes
    return Chain([Factor(tensor, transposed, rows, columns)], 0)


def _is_link(tensor: Tensor, user: Node, graph: StepGraph) -> bool:
    """Whether a factor is a product without other uses."""
    node = tensor.op
    is_own = isinstance(node.op, MatMul) and graph.is_open(tensor) and graph.uses(tensor) == 1
    return is_own and graph.device(node) == graph.device(user)


Splits = dict[tuple[int, int], int]


def _cheapest(factors: Sequence[Factor]) -> tuple[Splits, int]:
    """Where to split each run of factors, and the number of multiplications in all, by dynamic
    programming."""
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
        return factors[i].tensor, factors[i].transposed
    k = splits[i, j]
    x, transpose_x = _multiplied(factors, splits, i, k)
    y, transpose_y = _multiplied(factors, splits, k + 1, j)
    return MatMul(transpose_a=transpose_x, transpose_b=transpose_y)(x, y), False
