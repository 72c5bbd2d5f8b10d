"""Optimizers: the base with its slots, and a file for each family of update rules."""
