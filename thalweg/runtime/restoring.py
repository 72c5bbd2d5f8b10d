"""Fused restores: a restore node and the assignments of its outputs as one unit of a step.

Unfused, the restore would read all tensors into memory and the assignments would copy them. Fused,
each tensor is read into a buffer that becomes the variable's buffer, and the variable's old buffer
is reused for the next tensor. Every check but that of the bytes themselves is made before the first
variable changes. After an error, each variable has its old or its new value, never a mixture.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from thalweg.graph.analysis.order import Order
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.context import VariableCell
from thalweg.ops.io.saving import RestoreV2
from thalweg.ops.state.state import Assign, VariableV2
from thalweg.runtime.kernels import Call


@dataclass(frozen=True)
class Restoring:
    """A restore node and the assignments of its outputs, in output order."""

    node: Node
    assigns: tuple[Node, ...]
    outputs: ClassVar[tuple[Tensor, ...]] = ()  # nothing reads them

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs of the restore node, then the variables."""
        return (*self.node.inputs, *(assign.inputs[0] for assign in self.assigns))

    def call(self) -> Call:
        """The call that runs the unit."""
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
    """The restore nodes that can be fused: each output has one consumer, an assignment whose output
    is unused and which waits for nothing but a variable that precedes the restore node."""
    restores = [node for node in nodes if isinstance(node.op, RestoreV2)]
    if not restores:
        return []
    visible = {*wanted, *feeds}
    positions = {node: position for position, node in enumerate(nodes)}
    readers: dict[Tensor, list[Node]] = {}
    for node in nodes:
        for tensor in node.inputs:
            readers.setdefault(tensor, []).append(node)

    def only_assigned(value: Tensor) -> bool:
        consumers = readers.get(value, ())
        if len(consumers) != 1 or not isinstance(consumers[0].op, Assign):
            return False
        assign, variable = consumers[0], consumers[0].inputs[0]
        return (
            assign.outputs[0] not in readers
            and set(order[assign]) - {value.op} == {variable.op}
            and isinstance(variable.op.op, VariableV2)
            and visible.isdisjoint((value, variable, assign.outputs[0]))
            # The unit takes the restore node's position: its variables must precede it.
            and positions[variable.op] < positions[value.op]
        )

    return [
        Restoring(node, tuple(readers[tensor][0] for tensor in node.outputs))
        for node in restores
        if all(map(only_assigned, node.outputs))
    ]


def reordered(order: Order, joined: Sequence[Restoring]) -> dict[Node, set[Node]]:
    """The order without the fused assignments: restore nodes take over their order edges."""
    unit_node = {assign: unit.node for unit in joined for assign in unit.assigns}
    new_order = {
        node: {unit_node.get(earlier, earlier) for earlier in before}
        for node, before in order.items()
        if node not in unit_node
    }
    for unit in joined:
        new_order[unit.node] |= {assign.inputs[0].op for assign in unit.assigns}
    return new_order
