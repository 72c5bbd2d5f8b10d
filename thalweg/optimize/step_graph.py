"""What passes take and give: the nodes of a pruned step in an order that runs, and its ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from thalweg.control.liveness import Needs
from thalweg.graph.analysis.node_effects import accesses
from thalweg.graph.analysis.order import touches_state
from thalweg.graph.node import Node, Tensor
from thalweg.optimize.workspace import Workspace


@dataclass(frozen=True, eq=False)
class StepGraph:
    """A step between two passes."""

    nodes: tuple[Node, ...]
    fetches: tuple[Tensor, ...]
    targets: tuple[Node, ...]
    feeds: Collection[Tensor]
    workspace: Workspace
    #: the devices of the user's nodes, where there are several: no rewrite crosses their borders
    devices: Mapping[Node, str] | None = None

    @cached_property
    def uses(self) -> dict[Tensor, int]:
        """How often each tensor is taken or fetched."""
        found: dict[Tensor, int] = {}
        for node in self.nodes:
            for tensor in node.inputs:
                found[tensor] = found.get(tensor, 0) + 1
        for tensor in self.fetches:
            found[tensor] = found.get(tensor, 0) + 1
        return found

    @cached_property
    def waited(self) -> frozenset[Node]:
        """The nodes that must run as themselves: targets, and what others wait for."""
        found = {control for node in self.nodes for control in node.controls}
        return frozenset(found.union(self.targets))

    @cached_property
    def target_set(self) -> frozenset[Node]:
        """The targets."""
        return frozenset(self.targets)

    @cached_property
    def fetch_set(self) -> frozenset[Tensor]:
        """The fetches."""
        return frozenset(self.fetches)

    def gives_own_value(self, node: Node) -> bool:
        """Whether a node is an identity that makes a fetched value of what is fed or constant."""
        return (
            node.op.type_name == "Identity"
            and node.outputs[0] in self.fetch_set
            and (node.inputs[0] in self.feeds or node.inputs[0].op.op.type_name == "Const")
        )

    def is_guarded(self, tensor: Tensor) -> bool:
        """Whether a tensor comes after an effect, an assertion say: who takes the tensor waits for
        that, and must go on to."""
        return tensor not in self.feeds and tensor.op.original in self._after_effects

    @cached_property
    def _after_effects(self) -> frozenset[Node]:
        """The nodes that come after an effect, by what they stand for."""
        found: set[Node] = set()
        for node in self.nodes:
            before = [tensor.op for tensor in node.inputs if tensor not in self.feeds]
            is_after = any(each.original in found for each in (*before, *node.controls))
            if is_after or (touches_state(node) and any(a.writes for a in accesses(node))):
                found.add(node.original)
        return frozenset(found)

    @cached_property
    def types(self) -> frozenset[str]:
        """The types of the nodes."""
        return frozenset([node.op.type_name for node in self.nodes])

    def device(self, node: Node) -> str:
        """Where a node runs, where that makes a difference."""
        if self.devices is None:
            return ""
        return self.devices.get(node.original, "")

    def pruned(self) -> StepGraph:
        """The step without what nothing needs any more."""
        alive = Needs(dict.fromkeys(self.feeds)).reached(self.fetches, self.targets)
        if len(alive) == len(self.nodes):
            return self
        return replace(self, nodes=tuple([node for node in self.nodes if node in alive]))

    def with_nodes(self, nodes: Iterable[Node]) -> StepGraph:
        """The same ends of other nodes."""
        return replace(self, nodes=tuple(nodes))

    def __str__(self) -> str:
        lines = [self._line(node) for node in self.nodes]
        fetched = ", ".join(tensor.name for tensor in self.fetches)
        targets = "".join(f" ^{node.name}" for node in self.targets)
        return "\n".join([*lines, f"return {fetched}{targets}"])

    def _line(self, node: Node) -> str:
        taken = [tensor.name.removesuffix(":0") for tensor in node.inputs]
        after = [f"^{control.name}" for control in node.controls]
        value = f" {node.op.__dict__['value'].tolist()}" if node.type == "Const" else ""
        return f"{node.name} = {node.type}({', '.join([*taken, *after])}){value}"
