"""Dataflow execution: token graphs, lowering of control flow to them, and the executor."""
