"""Lazy entry points for sessions with a target: the first call imports the implementation."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from thalweg.graph.graph import Graph
from thalweg.runtime.config import SessionOptions
from thalweg.runtime.engine import Engine


def _implementation() -> Any:
    return importlib.import_module("thalweg.cluster.connect")


def connect(target: str, graph: Graph, options: SessionOptions) -> Engine:
    """The master of a session with a target."""
    return _implementation().connect(target, graph, options)


def reset(target: str, containers: Sequence[str] | None, options: SessionOptions) -> None:
    """Clear the state of a cluster's tasks and close their sessions."""
    _implementation().reset(target, containers, options)
