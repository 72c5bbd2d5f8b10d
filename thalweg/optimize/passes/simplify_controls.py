"""Control edges that order nothing.

A node that waits for a constant, for what it takes a value from, or for what something else that it
comes after waits for, waits for nothing more. A node that waits for a NoOp or an identity waits for
what that comes after. What computes may fail, and is waited for as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from thalweg.graph.node import Node
from thalweg.optimize.pure import is_pure
from thalweg.optimize.step_graph import StepGraph

_TRANSPARENT = frozenset({"NoOp", "Identity", "StopGradient", "PreventGradient"})
_MAX_CONTROLS = 1_000  # of a node: a NoOp that groups more is cheaper than its edges


def simplify_controls(graph: StepGraph) -> None:
    """Remove control edges that follow from others."""
    found: dict[Node, tuple[Node, ...]] = {}  # what each node waits for then
    for node in [node for node in graph.nodes if node.controls]:
        controls = _forwarded(node, graph, found)
        found[node] = tuple(_without_implied(node, controls, found))
    for node, controls in found.items():
        if controls != node.controls:
            graph.fire("control edges", node, max(1, len(node.controls) - len(controls)))
            graph.edit(node, controls=controls)


def _forwarded(node: Node, graph: StepGraph, found: dict[Node, tuple[Node, ...]]) -> list[Node]:
    """What a node waits for, through nodes that do nothing."""
    controls: dict[Node, None] = {}
    for control in node.controls:
        if _does_nothing(control, graph):
            for earlier in _sources(control, graph, found):
                if earlier in graph and not _is_value(earlier):
                    controls[earlier] = None
        elif control in graph and not _is_value(control):
            controls[control] = None
    return list(controls) if len(controls) <= _MAX_CONTROLS else list(node.controls)


def _does_nothing(node: Node, graph: StepGraph) -> bool:
    """Whether a node only passes on, or only waits. A NoOp that stands for a long list stays."""
    is_one = node.type in _TRANSPARENT and (node.type == "NoOp" or is_pure(node))
    # Between devices, a NoOp is what makes one token of many.
    return is_one and len(node.controls) <= 8 and graph.devices is None


def _sources(node: Node, graph: StepGraph, found: dict[Node, tuple[Node, ...]]) -> Iterator[Node]:
    yield from found.get(node, node.controls)
    yield from (tensor.op for tensor in node.inputs if tensor not in graph.feeds)


def _is_value(node: Node) -> bool:
    """Whether a node is a constant: it is there from the beginning."""
    return node.type == "Const" and not node.controls


def _without_implied(
    node: Node, controls: list[Node], found: dict[Node, tuple[Node, ...]]
) -> Iterator[Node]:
    """Control inputs, less those that another one, or an input, waits for anyway."""
    direct = {*_taken_from(node)}
    before: set[Node] = set()
    for each in (*direct, *controls):
        before.update(found.get(each, each.controls))
        before.update(_taken_from(each))
    for control in controls:
        if control not in direct and control not in before:
            yield control


def _taken_from(node: Node) -> Iterator[Node]:
    """The nodes whose values a node waits for whatever is asked of it. A conditional or a loop is
    given some that its bodies need for outputs which nobody takes: it does not wait for these."""
    return iter(()) if node.op.bodies else (tensor.op for tensor in node.inputs)
