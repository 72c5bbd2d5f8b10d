"""Random tensors, by a counter-based generator."""
