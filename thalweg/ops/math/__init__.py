"""Elementwise mathematics, comparisons and reductions."""
