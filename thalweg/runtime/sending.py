"""Regions that send: a value is sent to another device while the rest of its region is computed.

A Send of a region's output becomes part of the region. The ancestors of the sent values come first
in the region, so that the receiver does not wait for unrelated computations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar, cast

from thalweg.graph.analysis.order import Order
from thalweg.graph.node import Node, Tensor, reached
from thalweg.lower.specialise import Region
from thalweg.ops.core.context import VariableCell
from thalweg.partition.rendezvous import Key
from thalweg.partition.transfers import Send, send
from thalweg.runtime.compiled import Executable

Unit = TypeVar("Unit")


def with_sends(units: Sequence[Unit], order: Order) -> list[Unit | Region]:
    """Move the Sends of region outputs into their regions. The Send of a value depends on that
    value only. The Send of a variable also waits for writes and stays a unit of its own."""
    sends: dict[Tensor, list[Node]] = defaultdict(list)
    for unit in units:
        if isinstance(unit, Node) and isinstance(unit.op, Send):
            sends[unit.inputs[0]].append(unit)
    moved: set[Unit | Node] = set()
    result: list[Unit | Region] = []
    for unit in units:
        if isinstance(unit, Region):
            values = [tensor for tensor in unit.outputs if tensor not in unit.roots]
            own = [send for tensor in values for send in sends.get(tensor, ())]
            moved.update(own)
            result.append(_sending(unit, own, order) if own else unit)
        elif unit not in moved:
            result.append(unit)
    return result


def _sending(region: Region, sends: Sequence[Node], order: Order) -> Region:
    inside = set(region.nodes)

    def producers(node: Node) -> set[Node]:
        return inside & {*order.get(node, ()), *(tensor.op for tensor in node.inputs)}

    before = reached([send.inputs[0].op for send in sends], producers)
    nodes = tuple(sorted(region.nodes, key=lambda node: node not in before))
    return replace(region, nodes=nodes, sends=tuple(sends))


class SendingExecutable(Executable):
    """The executable of a region that sends."""

    @cached_property
    def keys(self) -> Mapping[int, Sequence[Key]]:
        """The rendezvous keys of each sent output, by output index."""
        outputs, keys_by_output = self.region.outputs, dict[int, list[Key]]()
        for node in self.region.sends:
            op = cast("Send", node.op)
            keys_by_output.setdefault(outputs.index(node.inputs[0]), []).append(op.key)
        return keys_by_output

    def run(
        self,
        context: Any,
        arrays: Sequence[Any],
        cells: Sequence[VariableCell],
        deliver: Any = None,
    ) -> Any:
        """Run the region, send its values and return its outputs."""
        if self.holds_gil:  # too short for an early send to pay off
            results = Executable.run(self, context, arrays, cells)
            self.send(context, results)
            return results
        sent = set[int]()

        def send_early(number: int, value: Any) -> None:
            sent.add(number)
            self._send_output(context, number, value)

        results = super().run(context, arrays, cells, send_early)
        self.send(context, results, sent)
        return results

    def send(self, context: Any, results: Sequence[Any], sent: Collection[int] = ()) -> None:
        """Send the results of a run, except those that were sent while it ran."""
        for number in self.keys:
            if number not in sent:
                self._send_output(context, number, results[number])

    def _send_output(self, context: Any, number: int, value: Any) -> None:
        for key in self.keys[number]:
            send(context.rendezvous, key, value)
