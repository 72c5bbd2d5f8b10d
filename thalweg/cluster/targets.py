"""Sessions with a target: the first one imports what clusters are made of."""

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
    """Have the tasks of a cluster forget state and sessions."""
    _implementation().reset(target, containers, options)
