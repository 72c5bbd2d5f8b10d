"""The protocol buffers of event files under their public names, loaded when they are asked for."""

from __future__ import annotations

import importlib

from thalweg.graph.protos import message
from thalweg.public import publish_lazily

_NAMES: dict[str, tuple[str, ...]] = {
    "Summary": ("Summary", "summary.Summary"),
    "SummaryDescription": ("summary.SummaryDescription",),
    "SummaryMetadata": ("SummaryMetadata", "summary.SummaryMetadata"),
}
_EVENT_NAMES: dict[str, tuple[str, ...]] = {
    "Event": ("Event", "summary.Event"),
    "LogMessage": ("LogMessage",),
    "SessionLog": ("SessionLog", "summary.SessionLog"),
    "TaggedRunMetadata": ("summary.TaggedRunMetadata",),
}
_PROJECTOR = ("EmbeddingInfo", "ProjectorConfig", "SpriteMetadata")


def _publish(module: str, names: dict[str, tuple[str, ...]]) -> None:
    for name, public_names in names.items():
        for public_name in public_names:
            publish_lazily(public_name, lambda name=name: message(module, name))


_publish("summary", _NAMES)
_publish("event", _EVENT_NAMES)
_publish("histogram", {"HistogramProto": ("HistogramProto",)})


def projector_message(name: str) -> object:
    """A message class of the embedding projector, such as `ProjectorConfig`."""
    try:
        found = importlib.import_module("tensorboard.plugins.projector.projector_config_pb2")
    except ImportError as error:
        raise ImportError(
            f"{name} is a protobuf of the package tensorboard: pip install 'thalweg[board]'"
        ) from error
    return getattr(found, name)


for _name in _PROJECTOR:
    publish_lazily(
        f"contrib.tensorboard.plugins.projector.{_name}",
        lambda name=_name: projector_message(name),
    )
