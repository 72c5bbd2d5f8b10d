"""Streaming metrics: a value that reads what was accumulated, and an op that accumulates."""

from thalweg.metrics import confusion, contrib, counts, local, means, thresholds, top_k

__all__ = ["confusion", "contrib", "counts", "local", "means", "thresholds", "top_k"]
