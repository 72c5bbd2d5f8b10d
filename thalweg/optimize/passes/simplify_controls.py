"""Removes redundant control edges.

A control edge from a constant, from a node that is also an input, or from a node that another input
or control input waits for, is redundant. An edge from a NoOp or an identity is replaced by edges
from the nodes that it waits for. Nodes that compute may fail, and keep their edges.
"""

from __future__ import annotations

from collections.abc import Iterator

from thalweg.graph.node import Node
from thalweg.graph.subgraph import is_constant
from thalweg.optimize.pure import is_pure
from thalweg.optimize.step_graph import StepGraph

_TRANSPARENT = frozenset({"NoOp", "Identity", "StopGradient", "PreventGradient"})
_MAX_CONTROLS = 1_000  # of a node: a NoOp that groups more is cheaper than its edges


def simplify_controls(graph: StepGraph) -> None:
    """Remove control edges that others imply."""
    new_controls: dict[Node, tuple[Node, ...]] = {}  # what each node waits for then
    for node in [node for node in graph.nodes if node.controls]:
        controls = _forwarded(node, graph, new_controls)
        new_controls[node] = tuple(_without_implied(node, controls, new_controls))
    for node, controls in new_controls.items():
        if controls != node.controls:
            graph.fire("control edges", node, max(1, len(node.controls) - len(controls)))
            graph.edit(node, controls=controls)


def _forwarded(
    node: Node, graph: StepGraph, new_controls: dict[Node, tuple[Node, ...]]
) -> list[Node]:
    """The control inputs of a node, with NoOps and identities replaced by their sources."""
    controls: dict[Node, None] = {}
    for control in node.controls:
        if _does_nothing(control, graph):
            for earlier in _sources(control, graph, new_controls):
                if earlier in graph and not is_constant(earlier):
                    controls[earlier] = None
        elif control in graph and not is_constant(control):
            controls[control] = None
    return list(controls) if len(controls) <= _MAX_CONTROLS else list(node.controls)


def _does_nothing(node: Node, graph: StepGraph) -> bool:
    """Whether a node is a NoOp or an identity with few control inputs."""
    is_one = node.type in _TRANSPARENT and (node.type == "NoOp" or is_pure(node))
    # Between devices, a NoOp combines many tokens into one.
    return is_one and len(node.controls) <= 8 and graph.devices is None


def _sources(
    node: Node, graph: StepGraph, new_controls: dict[Node, tuple[Node, ...]]
) -> Iterator[Node]:
    yield from new_controls.get(node, node.controls)
    yield from (tensor.op for tensor in node.inputs if tensor not in graph.feeds)


def _without_implied(
    node: Node, controls: list[Node], new_controls: dict[Node, tuple[Node, ...]]
) -> Iterator[Node]:
    """The control inputs that no other control input or input waits for."""
    direct = {*_awaited_nodes(node)}
    implied: set[Node] = set()
    for source in (*direct, *controls):
        implied.update(new_controls.get(source, source.controls))
        implied.update(_awaited_nodes(source))
    for control in controls:
        if control not in direct and control not in implied:
            yield control


def _awaited_nodes(node: Node) -> Iterator[Node]:
    """The nodes whose values a node always waits for. A conditional or a loop may have inputs for
    outputs that nothing takes, and does not wait for these."""
    return iter(()) if node.op.bodies else (tensor.op for tensor in node.inputs)
