"""Removes nodes that return their inputs: identities, `stop_gradient` and the like.

They matter while a graph is built, for names, gradients and control dependencies. In a step, those
without control inputs that stay on one device are replaced by their inputs. An identity of a
variable reads it and stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.graph.node import Node, Tensor
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph

_TRANSPARENT = frozenset({"Identity", "IdentityN", "StopGradient", "PreventGradient"})


def strip_identities(graph: StepGraph) -> None:
    """Remove nodes that only pass values on."""

    def rewrite(node: Node) -> Sequence[Tensor] | None:
        if not is_free(node) or _crosses_devices(node, graph):
            return None
        graph.fire(node.type, node)
        return node.inputs

    graph.rewrite(rewrite, _TRANSPARENT)


def _crosses_devices(node: Node, graph: StepGraph) -> bool:
    """Whether a node copies a value to another device."""
    return any(graph.device(tensor.op) != graph.device(node) for tensor in node.inputs)
