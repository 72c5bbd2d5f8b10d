"""The page of `thalweg explain`: the graph of a step before and after each pass of the optimiser,
the rules that fired with the user's lines, the kernels, and their memory.

Comes in: step plans. Goes out: one self-contained HTML file: the data as JSON, and the style and
scripts of `page/`, which draw it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from thalweg.device.program import AnyProgram
from thalweg.graph.node import Node
from thalweg.inspect.explain import StepPlan
from thalweg.lower.memory.arena import lifetimes
from thalweg.optimize.pipeline import PASSES, run_passes
from thalweg.optimize.step_graph import StepGraph
from thalweg.runtime.plan import prune

_MAX_SOURCE = 400_000  # bytes of a source file that the page includes
_PAGE = files("thalweg.inspect").joinpath("page")
_PLACEHOLDER = re.compile(r"/\*([A-Z]+)\*/")
_SCRIPTS = "layout.js", "draw.js", "page.js"


def page(title: str, plans: Iterable[StepPlan]) -> str:
    """The page of some steps."""
    steps = [_StepData(plan).data() for plan in plans]
    paths = {line.rpartition(":")[0] for step in steps for line in step["lines"]}
    data = {"title": title, "steps": steps, "sources": _sources(paths)}
    parts = {
        "STYLE": _asset("style.css"),
        "SCRIPT": "\n".join(map(_asset, _SCRIPTS)),
        "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return _PAGE.joinpath(name).read_text("utf-8")


def _sources(names: Iterable[str]) -> dict[str, list[str]]:
    """The lines of source files, without those that are missing or too large."""
    sources: dict[str, list[str]] = {}
    for name in sorted(names):
        path = Path(name)
        if path.is_file() and path.stat().st_size <= _MAX_SOURCE:
            sources[name] = path.read_text("utf-8", "replace").splitlines()
    return sources


class _StepData:
    """The data of one step; nodes and lines are numbered in the order they are first used."""

    def __init__(self, plan: StepPlan) -> None:
        self._plan = plan
        self._nodes: dict[Node, int] = {}
        self._table: list[list[Any]] = []  # for each node: name, type, line, device, kernel
        self._lines: dict[str, int] = {}
        self._devices = {n.original.name: device for n, device in plan.plan.placement.items()}
        self._kernel_of = {
            name: number for number, kernel in enumerate(plan.kernels) for name in kernel.ops
        }

    def data(self) -> dict[str, Any]:
        """The step as JSON values."""
        stages = self._stages()
        return {
            "title": self._title(),
            "stages": stages,
            "passes": self._passes(),
            "nodes": self._table,
            "kernels": self._kernels(),
            "memory": [step for region in self._plan.regions for step in _live_bytes(region.step)],
            "lines": list(self._lines),
        }

    def _title(self) -> str:
        step = self._plan.step
        names = [*(t.name for t in step.fetches), *(n.name for n in step.targets)]
        feeds = ", ".join(tensor.name for tensor in step.feeds)
        return f"{', '.join(names)}{f' of {feeds}' if feeds else ''}"

    def _stages(self) -> list[dict[str, Any]]:
        """The user's graph, and the graph after each pass that changed it."""
        stages: list[dict[str, Any]] = []

        def watch(name: str, graph: StepGraph) -> None:
            edges = [
                [
                    self._number(node),
                    [self._number(t.op) for t in node.inputs],
                    [self._number(each) for each in node.controls],
                ]
                for node in graph.nodes
            ]
            stages.append({"pass": name, "nodes": edges})

        ran = {report.name for report in self._plan.plan.passes}
        step = self._plan.step
        graph = StepGraph(prune(*step), step.fetches, step.targets, frozenset(step.feeds))
        run_passes(graph, [each for each in PASSES if each.name in ran], watch)
        return stages

    def _number(self, node: Node) -> int:
        """The number of a node, which gets a row in the table at its first use."""
        if node not in self._nodes:
            self._nodes[node] = len(self._nodes)
            kernel = self._kernel_of.get(node.name, -1)
            device = self._devices.get(node.original.name, self._plan.plan.device)
            self._table.append([node.name, node.type, self._line(node), device, kernel])
        return self._nodes[node]

    def _line(self, node: Node) -> int:
        file, line, *_ = node.traceback[0]
        return self._lines.setdefault(f"{file}:{line}", len(self._lines))

    def _passes(self) -> list[dict[str, Any]]:
        return [
            vars(report)
            | {"places": [[rule, node.name, self._line(node)] for rule, node in report.places]}
            for report in self._plan.plan.passes
            if report.fired
        ]

    def _kernels(self) -> list[dict[str, Any]]:
        seconds = self._seconds()
        return [
            {
                "name": kernel.name,
                "kind": kernel.kind,
                "space": kernel.space,
                "flops": float(kernel.flops),
                "bytes": int(kernel.bytes),
                "seconds": seconds.get(number),
            }
            for number, kernel in enumerate(self._plan.kernels)
        ]

    def _seconds(self) -> dict[int, float]:
        """The median time of each kernel, by its index; empty if some cannot be measured."""
        rows = self._plan.profile(5).rows if self._plan.kernels else []
        seconds = {row.number - 1: row.median for row in rows if row.number > 0}
        return seconds if len(seconds) == len(self._plan.kernels) else {}


def _live_bytes(program: AnyProgram | None) -> Sequence[int]:
    """The bytes of live temporaries at each kernel of a region."""
    if program is None:
        return []
    lowered = program.listing.lowered
    live = [0] * len(lowered.launches)
    for buffer, (first, last) in lifetimes(lowered.launches, lowered.pieces).items():
        for number in range(first, last + 1):
            live[number] += buffer.bytes
    return live
