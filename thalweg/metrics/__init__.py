"""Streaming metrics: a value that reads what was accumulated, and an op that accumulates."""

from thalweg.metrics import confusion, counts, local, means, thresholds, top_k

__all__ = ["confusion", "counts", "local", "means", "thresholds", "top_k"]
