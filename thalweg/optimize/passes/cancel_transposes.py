"""Transposes that meet their inverse behind elementwise code.

`transpose(relu(transpose(x, p) * 2), q)` is `relu(x * 2)` where q undoes p. Programs that compute
in another layout than their data have such a pair around every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.graph.node import Node, Tensor
from thalweg.ops.arrays.transposing import Transpose
from thalweg.optimize.facts import integers
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph
from thalweg.optimize.sweep import Sweep

_MAX_DEPTH = 8  # of the code between two transposes


def cancel_transposes(graph: StepGraph) -> tuple[StepGraph, dict[str, int]]:
    """A step without transposes around elementwise code that undo each other."""
    if "Transpose" not in graph.types:
        return graph, {}

    def rewrite(node: Node, sweep: Sweep) -> Sequence[Tensor] | None:
        order = integers(node.inputs[1]) if sweep.is_open(node.inputs[1]) else None
        if order is None or not is_free(node) or isinstance(node.inputs[0].op.op, Transpose):
            return None
        chain = _Chain(order, sweep)
        if not chain.reaches(node.inputs[0], _MAX_DEPTH) or not chain.undone:
            return None
        sweep.fired["transposes around elementwise code"] += 1
        return [sweep.build(node, lambda: chain.moved(node.inputs[0]))]

    sweep = Sweep(graph)
    return sweep.run(rewrite, {"Transpose"}), dict(sweep.fired)


class _Chain:
    """Elementwise code before a transpose."""

    def __init__(self, order: Sequence[int], sweep: Sweep) -> None:
        self._order, self._sweep = list(order), sweep
        self._inverse = np.argsort(order).tolist()
        self.undone = 0  # transposes that this one undoes

    def reaches(self, tensor: Tensor, depth: int) -> bool:
        """Whether all that leads to a tensor can do without the transpose: it comes out of an
        inverse one, or is a single number."""
        node = tensor.op
        if tensor.shape.rank == 0:
            return True
        if not self._sweep.is_open(tensor) or not is_free(node):
            return False
        if isinstance(node.op, Transpose):
            self.undone += 1
            return integers(node.inputs[1]) == self._inverse
        is_link = node.op.elementwise and tensor.shape.rank == len(self._order)
        if not is_link or depth == 0 or self._sweep.uses(tensor) != 1:
            return False
        return all(self.reaches(each, depth - 1) for each in node.inputs)

    def moved(self, tensor: Tensor) -> Any:
        """A tensor of the chain, transposed, without a transpose."""
        node = tensor.op
        if tensor.shape.rank == 0:
            return tensor
        if isinstance(node.op, Transpose):
            return node.inputs[0]
        return node.op(*[self.moved(each) for each in node.inputs])
