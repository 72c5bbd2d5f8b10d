"""Which node comes before which: the one rule that makes order edges of effects.

The order of a step says for each node what it comes after: what it takes, its control inputs, and
by its effects the nodes before it in the program that touched the same state: reads after the
last write, writes after the last write and all reads since. It is made once for a step, of its
nodes in the order of the program. From there on the order is all that counts: any sequence of the
nodes that respects it gives the same results, and the rule applied to such a sequence gives the
same order again. A pass that replaces nodes emits them in such a sequence.

Nodes that may block wait for others of the step or of another one, so an order that nobody asked
for could keep what they wait for from running. An effect makes no node wait for a blocking one
that it does not come after anyway; variables alone are ordered in any case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from thalweg.graph.analysis.effects import NO_FOOTPRINT, Resource
from thalweg.graph.analysis.node_effects import Access, State, accesses, reference_roots
from thalweg.graph.node import Node, Tensor

Order = Mapping[Node, AbstractSet[Node]]


def step_order(nodes: Sequence[Node], feeds: Collection[Tensor] = ()) -> dict[Node, set[Node]]:
    """What each node comes after, given the nodes in the order of the program, or in any sequence
    that respects the order that this gave."""
    fed = frozenset(feeds)
    order = _flow(nodes, fed)
    variables, others = _events(nodes, fed)
    _add_edges(order, variables, {})
    if others:
        _add_edges(order, others, blockers(nodes, order))
    return order


def _flow(nodes: Sequence[Node], fed: Collection[Tensor]) -> dict[Node, set[Node]]:
    """What each node takes values from, and its control inputs."""
    inside = set(nodes)
    order: dict[Node, set[Node]] = {}
    for node in nodes:
        before = {tensor.op for tensor in node.inputs if tensor not in fed}
        before.update(node.controls)
        before &= inside
        before.discard(node)
        order[node] = before
    return order


_Event = tuple[Node, Access]  # a node touches a piece of state


def _events(nodes: Iterable[Node], fed: Collection[Tensor]) -> tuple[list[_Event], list[_Event]]:
    """What happens to variables and to other state. A stream is its node's own: nothing follows. A
    reference that is fed is a value; a handle names the same state wherever it comes from."""
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
    """Whether a node reads or writes anything but the values it takes and gives."""
    op = node.op
    if op.footprint is not NO_FOOTPRINT or op.bodies:
        return True
    return any(tensor.dtype.is_ref_dtype for tensor in node.inputs)


class _Uses:
    """Of a piece of state: the last writes, and the reads since. There is one last write for each
    set of blocking nodes that writes come after."""

    def __init__(self) -> None:
        self.writes: list[Node] = []
        self.reads: list[Node] = []

    def touched(self, node: Node, writes: bool, blocked: Mapping[Node, int]) -> list[Node]:
        """Note an event; the nodes that it comes after, which come after no blocking nodes that it
        does not."""
        bits = blocked.get(node, 0)
        before = [*self.writes, *self.reads] if writes else [*self.writes]
        if blocked:
            before = [n for n in before if not blocked.get(n, 0) & ~bits]
        if writes:  # what comes after the nodes of this set comes after this one
            passed = {n for n in before if blocked.get(n, 0) == bits}
            self.writes = [*(n for n in self.writes if n not in passed), node]
            self.reads = [n for n in self.reads if n not in passed]
        else:
            self.reads.append(node)
        return before


def _add_edges(
    order: dict[Node, set[Node]], events: Iterable[_Event], blocked: Mapping[Node, int]
) -> None:
    uses: dict[State, _Uses] = defaultdict(_Uses)
    for node, access in events:
        before = uses[access.state].touched(node, access.writes, blocked)
        order[node].update(each for each in before if each is not node)


def blockers(nodes: Sequence[Node], order: Order) -> dict[Node, int]:
    """For each node, a bit for each node that may block among itself and what it comes after."""
    own = {node: 1 << place for place, node in enumerate(n for n in nodes if n.op.blocking)}
    if not own:  # most steps
        return {}
    found: dict[Node, int] = {}
    for node in nodes:
        bits = own.get(node, 0)
        for earlier in found.keys() & order[node]:
            bits |= found[earlier]
        if bits:
            found[node] = bits
    return found
