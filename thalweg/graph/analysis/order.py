"""Order edges: the one rule that turns effects into an execution order.

The order of a step maps each node to its predecessors: the sources of its inputs, its control
inputs, and by its effects the earlier nodes of the program that accessed the same state: reads come
after the last write, writes after the last write and all reads since. It is computed once for a
step, from its nodes in program order. After that only the order counts: any sequence of the nodes
that respects it gives the same results, and the rule applied to such a sequence gives the same
order. A pass that replaces nodes emits them in such a sequence.

A blocking node waits for another node of this or another step, so an order edge that the program
did not ask for could cause a deadlock. Therefore effects add no edge from a blocking node, or from
a successor of one, to a node that does not follow it anyway. Accesses to variables are always
ordered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from thalweg.graph.analysis.effects import Resource
from thalweg.graph.analysis.node_effects import Access, State, accesses, reference_roots
from thalweg.graph.node import Node, Tensor

Order = Mapping[Node, AbstractSet[Node]]


def step_order(nodes: Sequence[Node], feeds: Collection[Tensor] = ()) -> dict[Node, set[Node]]:
    """The predecessors of each node, given the nodes in program order or in a sequence that
    respects an order computed before."""
    fed = frozenset(feeds)
    order = _data_edges(nodes, fed)
    variables, others = _events(nodes, fed)
    _add_edges(order, variables, {})
    if others:
        _add_edges(order, others, blockers(nodes, order))
    return order


def _data_edges(nodes: Sequence[Node], fed: Collection[Tensor]) -> dict[Node, set[Node]]:
    """The sources of each node's inputs, and its control inputs."""
    inside = set(nodes)
    order: dict[Node, set[Node]] = {}
    for node in nodes:
        before = {tensor.op for tensor in node.inputs if tensor not in fed}
        before.update(node.controls)
        before &= inside
        before.discard(node)
        order[node] = before
    return order


_Event = tuple[Node, Access]  # a node accesses a piece of state


def _events(nodes: Iterable[Node], fed: Collection[Tensor]) -> tuple[list[_Event], list[_Event]]:
    """The accesses to variables, and those to other state. Streams are left out: each has one node.
    So are references that are fed, which are values; a fed handle refers to the same state."""
    touching = [node for node in nodes if touches_state(node)]
    roots = reference_roots(touching)
    variables, others = list[_Event](), list[_Event]()
    for node in touching:
        for access in accesses(node):
            event = node, access.of(roots)
            if access.resource is Resource.VARIABLE:
                if access.state not in fed:
                    variables.append(event)
            elif access.resource is not Resource.STREAM:
                others.append(event)
    return variables, others


def touches_state(node: Node) -> bool:
    """Whether a node may read or write state."""
    op = node.op
    if op.footprint or op.bodies:
        return True
    return any(tensor.dtype.is_ref_dtype for tensor in node.inputs)


class _Uses:
    """The last writes of a piece of state and the reads since: one last write for each set of
    blocking predecessors that writes have."""

    def __init__(self) -> None:
        self.writes: list[Node] = []
        self.reads: list[Node] = []

    def add(self, node: Node, writes: bool, blocked: Mapping[Node, int]) -> list[Node]:
        """Add an access; returns its predecessors: those whose blocking predecessors it has too."""
        bits = blocked.get(node, 0)
        before = [*self.writes, *self.reads] if writes else [*self.writes]
        if blocked:
            before = [n for n in before if not blocked.get(n, 0) & ~bits]
        if writes:  # later accesses need no edge to the predecessors with the same set
            covered = {n for n in before if blocked.get(n, 0) == bits}
            self.writes = [*(n for n in self.writes if n not in covered), node]
            self.reads = [n for n in self.reads if n not in covered]
        else:
            self.reads.append(node)
        return before


def _add_edges(
    order: dict[Node, set[Node]], events: Iterable[_Event], blocked: Mapping[Node, int]
) -> None:
    uses: dict[State, _Uses] = defaultdict(_Uses)
    for node, access in events:
        before = uses[access.state].add(node, access.writes, blocked)
        order[node].update(n for n in before if n is not node)


def blockers(nodes: Sequence[Node], order: Order) -> dict[Node, int]:
    """A bit set for each node: the blocking nodes among itself and all that it comes after."""
    own = {node: 1 << bit for bit, node in enumerate(n for n in nodes if n.op.blocking)}
    if not own:  # most steps
        return {}
    blocked: dict[Node, int] = {}
    for node in nodes:
        bits = own.get(node, 0)
        for earlier in blocked.keys() & order[node]:
            bits |= blocked[earlier]
        if bits:
            blocked[node] = bits
    return blocked
