"""The specification of passes: invariants between a step before a pass and after it.

`THALWEG_VERIFY=1` checks them after every pass, as the tests do. A fault names the pass and the
broken invariant.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from thalweg.control.liveness import needed
from thalweg.graph.analysis.node_effects import accesses, has_state
from thalweg.graph.analysis.order import step_order
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import is_known
from thalweg.optimize.step_graph import StepGraph

ENABLED = os.environ.get("THALWEG_VERIFY") == "1"


class InvalidRewrite(Exception):
    """A pass broke an invariant: a bug of the pass."""


class Spec:
    """The invariants of a step that the next pass must preserve."""

    def __init__(self, graph: StepGraph) -> None:
        self._fetches, self._targets, self._feeds = graph.fetches, graph.targets, graph.feeds
        self._order = _effect_order(graph)

    def checked(self, graph: StepGraph, name: str) -> Spec:
        """The spec of the step after a pass. Raises `InvalidRewrite` if the pass broke an
        invariant."""
        after = Spec(graph)
        for fault in self._faults(graph, after):
            raise InvalidRewrite(f"after {name}: {fault}")
        return after

    def _faults(self, graph: StepGraph, after: Spec) -> Iterator[str]:
        yield from self._end_faults(graph)
        yield from _flow_faults(graph)
        yield from self._effect_faults(after)

    def _end_faults(self, graph: StepGraph) -> Iterator[str]:
        for old, new in zip(self._fetches, graph.fetches, strict=True):
            if old.dtype is not new.dtype:
                yield f"{old.name} was {old.dtype.name} and is {new.dtype.name}"
            if not old.shape.is_compatible_with(new.shape):
                yield f"{old.name} was of shape {old.shape} and is of {new.shape}"
        for old, new in zip(self._targets, graph.targets, strict=True):
            if old.original is not new.original:
                yield f"the target {old.name} became {new.name}"
        if self._feeds is not graph.feeds:
            yield "the feeds changed"

    def _effect_faults(self, after: Spec) -> Iterator[str]:
        """Nodes with effects that were added, removed or reordered. Lists are values: what nothing
        takes may go."""
        old, new = self._order, after._order
        for node in filter(has_state, old.keys() - new.keys()):
            yield f"{node.name}, which has effects, is gone"
        for node in new.keys() - old.keys():
            yield f"{node.name}, which has effects, is new"
        for node in old.keys() & new.keys():
            for lost in (old[node] & new.keys()) - new[node]:
                yield f"{node.name} came after {lost.name} and does not any more"


def _flow_faults(after: StepGraph) -> Iterator[str]:
    """Nodes that do not come after their inputs and control inputs, and unneeded nodes."""
    fed = dict.fromkeys(after.feeds)
    seen: set[Node] = set()
    nodes = after.nodes
    alive = set(needed(after.fetches, after.targets, fed))
    for node in nodes:
        if node in seen:
            yield f"{node.name} is there twice"
        inputs: tuple[Tensor, ...] = () if node.op.bodies else node.inputs
        for tensor in inputs:
            if tensor not in fed and tensor.op not in seen:
                yield f"{node.name} takes {tensor.name}, which comes after it or is not there"
        for control in node.controls:
            if control not in seen and not is_known(control, fed):
                yield f"{node.name} waits for {control.name}, which is not there"
        seen.add(node)
    if alive != seen:
        odd = next(iter(alive ^ seen))
        yield f"{odd.name} is {'missing' if odd in alive else 'needed by nothing'}"


def _effect_order(graph: StepGraph) -> dict[Node, set[Node]]:
    """For each of the user's nodes with effects, those that it comes after."""
    order = step_order(graph.nodes, graph.feeds)
    reached: dict[Node, set[Node]] = {}
    effect_order: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        before: set[Node] = set()
        for earlier in order[node]:
            before |= reached.get(earlier, set())
        if any(access.writes for access in accesses(node)):
            effect_order[node.original] = set(before)
            before.add(node.original)
        reached[node] = before
    return effect_order
