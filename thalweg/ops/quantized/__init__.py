"""Quantised tensors and training for them."""
