"""The table of ONNX operators: for each, graph code by the version of its operator set.

`@operator("Clip", since=11)` registers a function of a `NodeView` and the node's inputs, which
returns the outputs; the entry that holds for a model is the latest one up to its version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Translate = Callable[..., Any]
Translation = TypeVar("Translation", bound=Callable[..., Any])

#: (domain, operator) -> the translation of each version
TABLE: dict[tuple[str, str], dict[int, Translate]] = {}

ML, TRAINING = "ai.onnx.ml", "ai.onnx.preview.training"


class Unsupported(NotImplementedError):
    """A model uses an unsupported feature; the message names the node and the feature."""


@dataclass(frozen=True)
class NodeView:
    """A node as its translation sees it."""

    op: str
    name: str
    version: int  # of the operator set
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]  # names; "" for an unused one
    #: a graph attribute -> a function of its inputs, which can use the outer graph's values
    graph: Callable[[Any], Subgraph]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def wants(self, place: int) -> bool:
        """Whether an output is used."""
        return place < len(self.outputs) and bool(self.outputs[place])

    def unsupported(self, what: str) -> Unsupported:
        """The error for an unsupported feature of this node."""
        return Unsupported(f"ONNX node {self.name!r} ({self.op}, version {self.version}): {what}")


@dataclass(frozen=True)
class Subgraph:
    """A graph attribute: the names of its inputs and outputs, and a function that runs it."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Callable[..., list[Any]]


def operator(*names: str, since: int = 1, domain: str = "") -> Callable[[Translation], Translation]:
    """Register a translation for operators from a version of the operator set on."""

    def register(function: Translation) -> Translation:
        for name in names:
            versions = TABLE.setdefault((domain, name), {})
            assert since not in versions, f"{name} of version {since} is defined twice"
            versions[since] = function
        return function

    return register


def translation(domain: str, op: str, version: int) -> Translate | None:
    """The translation of an operator in a version; None if the table has none."""
    versions = TABLE.get(("" if domain == "ai.onnx" else domain, op), {})
    known = [since for since in versions if since <= version]
    return versions[max(known)] if known else None
