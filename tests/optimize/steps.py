"""Steps for tests of passes, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from thalweg.control.liveness import needed
from thalweg.optimize import verify
from thalweg.optimize.step_graph import StepGraph


def step(
    fetches: Sequence[Any], targets: Sequence[Any] = (), feeds: Sequence[Any] = ()
) -> StepGraph:
    """The pruned step of some fetches."""
    nodes = needed(fetches, targets, dict.fromkeys(feeds))
    return StepGraph(nodes, fetches, targets, frozenset(feeds))


def after(run: Any, graph: StepGraph) -> str:
    """The text of a step after a pass; the pass is verified."""
    spec = verify.Spec(graph)
    run(graph)
    graph.prune()
    spec.checked(graph, "the pass")
    return str(graph)


def changes(run: Any, graph: StepGraph) -> bool:
    """Whether a pass changes a step."""
    run(graph)
    return graph.is_changed


def text(lines: str) -> str:
    """Lines as they are printed."""
    return textwrap.dedent(lines).strip()
