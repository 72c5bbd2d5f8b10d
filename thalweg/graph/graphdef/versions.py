"""The versions of this library and of the graph format it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from thalweg.public import publish_value
from thalweg.version import __version__

#: The graph format of TensorFlow 1.15, the last of its line.
GRAPH_DEF_VERSION = 134
GRAPH_DEF_VERSION_MIN_CONSUMER = 0
GRAPH_DEF_VERSION_MIN_PRODUCER = 0
GIT_VERSION = f"v{__version__}"
COMPILER_VERSION = "llvmlite"


@dataclass
class Versions:
    """Who wrote a graph, and who can read it."""

    producer: int = GRAPH_DEF_VERSION
    min_consumer: int = GRAPH_DEF_VERSION_MIN_CONSUMER
    bad_consumers: list[int] = field(default_factory=lambda: list[int]())

    @classmethod
    def of(cls, proto: Any) -> Versions:
        """The versions in a GraphDef."""
        return cls(proto.producer, proto.min_consumer, list(proto.bad_consumers))

    def check(self) -> None:
        """Raise a ValueError unless this library reads such graphs."""
        if self.producer < GRAPH_DEF_VERSION_MIN_PRODUCER:
            raise ValueError(
                f"GraphDef producer version {self.producer} below min producer "
                f"{GRAPH_DEF_VERSION_MIN_PRODUCER} supported by TensorFlow {__version__}.  "
                "Please regenerate your graph."
            )
        if self.min_consumer > GRAPH_DEF_VERSION:
            raise ValueError(
                f"GraphDef min consumer version {self.min_consumer} above current version "
                f"{GRAPH_DEF_VERSION} for TensorFlow {__version__}.  Please upgrade TensorFlow."
            )


_PUBLIC = {
    "VERSION": __version__,
    "GIT_VERSION": GIT_VERSION,
    "COMPILER_VERSION": COMPILER_VERSION,
    "GRAPH_DEF_VERSION": GRAPH_DEF_VERSION,
    "GRAPH_DEF_VERSION_MIN_CONSUMER": GRAPH_DEF_VERSION_MIN_CONSUMER,
    "GRAPH_DEF_VERSION_MIN_PRODUCER": GRAPH_DEF_VERSION_MIN_PRODUCER,
}
for _name, _value in _PUBLIC.items():
    publish_value(_name, _value)
    publish_value(f"version.{_name}", _value)
publish_value("__git_version__", GIT_VERSION)
publish_value("__compiler_version__", COMPILER_VERSION)
