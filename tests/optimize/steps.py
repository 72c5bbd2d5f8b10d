"""Steps for tests of passes: from a graph and its ends to text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from thalweg.control.liveness import needed
from thalweg.optimize import verify
from thalweg.optimize.step_graph import StepGraph
from thalweg.optimize.workspace import Workspace


def step(
    fetches: Sequence[Any], targets: Sequence[Any] = (), feeds: Sequence[Any] = ()
) -> StepGraph:
    """The pruned step that gives some tensors."""
    nodes = needed(fetches, targets, dict.fromkeys(feeds))
    return StepGraph(tuple(nodes), tuple(fetches), tuple(targets), frozenset(feeds), Workspace())


def after(run: Any, graph: StepGraph) -> str:
    """The text of a step after a pass, which is held to the spec."""
    done, _ = run(graph)
    verify.check(graph, done, "the pass")
    return str(done)


def text(lines: str) -> str:
    """Lines as they are printed."""
    return textwrap.dedent(lines).strip()
