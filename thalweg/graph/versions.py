"""The versions of this library and of the graph format it reads and writes."""

from __future__ import annotations

from thalweg.public import publish_value
from thalweg.version import __version__

#: The graph format of TensorFlow 1.15, the last of its line.
GRAPH_DEF_VERSION = 134
GRAPH_DEF_VERSION_MIN_CONSUMER = 0
GRAPH_DEF_VERSION_MIN_PRODUCER = 0
GIT_VERSION = f"v{__version__}"
COMPILER_VERSION = "llvmlite"

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
