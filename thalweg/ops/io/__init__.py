"""Ops on files: readers, checkpoints, summaries, serialised tensors."""
