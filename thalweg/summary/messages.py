"""The protocol buffers of event files under their public names."""

from __future__ import annotations

from thalweg import protos

protos.publish("Event", "HistogramProto", "LogMessage", "SessionLog", "Summary", "SummaryMetadata")
protos.publish("Event", "SessionLog", "Summary", "SummaryMetadata", below="summary")
protos.publish("SummaryDescription", "TaggedRunMetadata", below="summary")
protos.publish(
    *("EmbeddingInfo", "ProjectorConfig", "SpriteMetadata"),
    below="contrib.tensorboard.plugins.projector",
)
