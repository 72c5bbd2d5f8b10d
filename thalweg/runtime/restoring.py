"""A node that restores, together with the assignments of what it read: one unit of a step.

By themselves the node would read all tensors into memory and the assignments copy them again. As
one, each tensor is read into memory that becomes the variable's own, and the memory the variable
had serves the next one. All that can be wrong but the bytes themselves is known before the first
variable changes; then each has its old value or its new one, never half of both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.graph.analysis.order import Order
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.context import VariableCell
from thalweg.ops.io.saving import RestoreV2
from thalweg.ops.state.state import Assign, VariableV2
from thalweg.runtime.kernels import Call


@dataclass(frozen=True)
class Restoring:
    """A node that restores and the assignments of its outputs, in their order."""

    node: Node
    assigns: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What the node takes, then the variables."""
        return (*self.node.inputs, *(assign.inputs[0] for assign in self.assigns))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Nothing reads any."""
        return ()

    def call(self) -> Call:
        """The call that restores."""
        return Call(self._restore, True, (), self.node, (self.node, *self.assigns))

    def _restore(
        self, context: Any, prefix: Any, names: Any, slices: Any, *cells: VariableCell
    ) -> list[Any]:
        op = self.node.op
        assert isinstance(op, RestoreV2)
        op.restore(context, prefix, names, slices, list(zip(self.assigns, cells, strict=True)))
        return []


def restorings(
    nodes: Sequence[Node], wanted: Collection[Tensor], feeds: Collection[Tensor], order: Order
) -> list[Restoring]:
    """The nodes that restore only to assign: of each, every output goes to one assignment, which
    nothing reads and which waits for nothing but its variable, made before the node."""
    restores = [node for node in nodes if isinstance(node.op, RestoreV2)]
    if not restores:
        return []
    seen = {*wanted, *feeds}
    places = {node: place for place, node in enumerate(nodes)}
    readers: dict[Tensor, list[Node]] = {}
    for node in nodes:
        for tensor in node.inputs:
            readers.setdefault(tensor, []).append(node)
    found: list[Restoring] = []
    for node in restores:
        taken = [readers.get(tensor, []) for tensor in node.outputs]
        assigns = tuple(reader for each in taken for reader in each)
        is_single = all(len(each) == 1 for each in taken) and seen.isdisjoint(node.outputs)
        # A unit has the place of the node that restores: its variables must come before it.
        is_single &= all(places[assign.inputs[0].op] < places[node] for assign in assigns)
        if is_single and all(_only_assigns(a, node, order, seen, readers) for a in assigns):
            found.append(Restoring(node, assigns))
    return found


def _only_assigns(
    node: Node,
    restore: Node,
    order: Order,
    seen: set[Tensor],
    readers: Mapping[Tensor, Any],
) -> bool:
    if not isinstance(node.op, Assign) or node.outputs[0] in readers:
        return False
    variable, value = node.inputs
    before = set(order[node]) - {restore}
    return (
        value.op is restore
        and before == {variable.op}
        and isinstance(variable.op.op, VariableV2)
        and seen.isdisjoint((variable, node.outputs[0]))
    )


def reordered(order: Order, joined: Sequence[Restoring]) -> dict[Node, set[Node]]:
    """The order of the nodes but those that assign: their places are the nodes' that restore."""
    place = {assign: unit.node for unit in joined for assign in unit.assigns}
    found = {
        node: {place.get(earlier, earlier) for earlier in before}
        for node, before in order.items()
        if node not in place
    }
    for unit in joined:
        found[unit.node] |= {assign.inputs[0].op for assign in unit.assigns}
    return found
