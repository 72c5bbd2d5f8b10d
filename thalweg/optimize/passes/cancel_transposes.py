"""Cancels transposes with their inverses across elementwise code.

`transpose(relu(transpose(x, p) * 2), q)` is `relu(x * 2)` if q inverts p. Programs that compute
in another layout than their data have such a pair around every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from thalweg.graph.node import Node, Tensor
from thalweg.ops.arrays.transposing import Transpose
from thalweg.optimize.facts import integers
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph

_MAX_DEPTH = 8  # of the code between two transposes


def cancel_transposes(graph: StepGraph) -> None:
    """Remove pairs of inverse transposes around elementwise code."""

    def rewrite(node: Node) -> Sequence[Tensor] | None:
        order = integers(node.inputs[1]) if graph.is_open(node.inputs[1]) else None
        if order is None or not is_free(node) or isinstance(node.inputs[0].op.op, Transpose):
            return None
        chain = _Chain(order, graph)
        if not chain.cancels(node.inputs[0], _MAX_DEPTH) or not chain.cancelled:
            return None
        build = partial(chain.without_transposes, node.inputs[0])
        return graph.rebuilt("transposes around elementwise code", node, build)

    graph.rewrite(rewrite, {"Transpose"}, _MAX_DEPTH)


class _Chain:
    """Elementwise code before a transpose."""

    def __init__(self, order: Sequence[int], graph: StepGraph) -> None:
        self._graph, self._inverse = graph, np.argsort(order).tolist()
        self.cancelled = 0  # inverse transposes that were reached

    def cancels(self, tensor: Tensor, depth: int) -> bool:
        """Whether every path to a tensor starts at an inverse transpose or a scalar."""
        node = tensor.op
        if tensor.shape.rank == 0:
            return True
        if not self._graph.is_open(tensor) or not is_free(node):
            return False
        if isinstance(node.op, Transpose):
            self.cancelled += 1
            return integers(node.inputs[1]) == self._inverse
        is_link = node.op.elementwise and tensor.shape.rank == len(self._inverse)
        if not is_link or depth == 0 or self._graph.uses(tensor) != 1:
            return False
        return all(self.cancels(source, depth - 1) for source in node.inputs)

    def without_transposes(self, tensor: Tensor) -> Any:
        """The transpose of a tensor of the chain, built without transposes."""
        node = tensor.op
        if tensor.shape.rank == 0:
            return tensor
        if isinstance(node.op, Transpose):
            return node.inputs[0]
        return node.op(*[self.without_transposes(source) for source in node.inputs])
