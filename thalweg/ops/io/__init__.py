"""Files in and out of the graph: readers, checkpoints, summaries, serialised tensors."""
