"""The graph optimiser: graph → graph, between a pruned step and its partitions.

`optimize` runs the passes that `pipeline.py` lists, to a bounded fixpoint. A pass is a list of
rules (`rules/`) or a graph algorithm (`passes/`). Nodes are immutable: what changes is built in a
`Workspace` beside the user's graph, what does not change stays the very node it was.
"""

from thalweg.optimize import check, custom

__all__ = ["check", "custom"]
