"""Regions that send: a value leaves for another device while the rest of its region is computed.

A Send of what a region computes becomes part of the region. The nodes that sent values depend on
come first in it, so that another device does not wait for what it has no use for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

from thalweg.graph.analysis.order import Order
from thalweg.graph.node import Node
from thalweg.lower.specialise import Region
from thalweg.ops.core.context import VariableCell
from thalweg.partition.rendezvous import Key, Rendezvous
from thalweg.partition.transfers import Send, send
from thalweg.runtime.compiled import Executable

Unit = TypeVar("Unit")


@dataclass(frozen=True)
class SendingRegion(Region):
    """A region, and the nodes that send its early outputs."""

    sends: tuple[Node, ...] = ()


def with_sends(units: Sequence[Unit], order: Order) -> list[Unit | SendingRegion]:
    """The units of a step on one device, with Sends in the regions whose outputs they send. The
    Send of a value waits for the value alone; that of a variable, which waits for writes, too, is
    a unit of its own."""
    numbers = {
        tensor: number
        for number, unit in enumerate(units)
        if isinstance(unit, Region)
        for tensor in unit.outputs
        if tensor not in unit.roots
    }
    sends: dict[int, list[Node]] = {}
    for unit in units:
        if isinstance(unit, Node) and isinstance(unit.op, Send) and unit.inputs[0] in numbers:
            sends.setdefault(numbers[unit.inputs[0]], []).append(unit)
    if not sends:
        return [*units]
    inside = {node for nodes in sends.values() for node in nodes}
    found: list[Unit | SendingRegion] = []
    for number, unit in enumerate(units):
        if isinstance(unit, Region) and number in sends:
            found.append(_sending(unit, sends[number], order))
        elif not isinstance(unit, Node) or unit not in inside:
            found.append(unit)
    return found


def _sending(region: Region, sends: Sequence[Node], order: Order) -> SendingRegion:
    early = tuple(dict.fromkeys(send.inputs[0] for send in sends))
    before = _ancestors([tensor.op for tensor in early], set(region.nodes), order)
    return SendingRegion(
        tuple(sorted(region.nodes, key=lambda node: node not in before)),
        region.inputs,
        region.references,
        region.outputs,
        region.roots,
        region.carried,
        early,
        tuple(sends),
    )


def _ancestors(nodes: Sequence[Node], inside: set[Node], order: Order) -> set[Node]:
    """The nodes that some come after, and these themselves."""
    found, left = set(nodes), [*nodes]
    while left:
        node = left.pop()
        earlier = {*order.get(node, ()), *(tensor.op for tensor in node.inputs)}
        fresh = (earlier & inside) - found
        found |= fresh
        left += fresh
    return found


class SendingExecutable(Executable):
    """The kernel of a region that sends."""

    region: SendingRegion

    @cached_property
    def keys(self) -> Mapping[int, Sequence[Key]]:
        """What each output that is sent is known by, by its number."""
        outputs, found = self.region.outputs, dict[int, list[Key]]()
        for node in self.region.sends:
            op = cast("Send", node.op)
            found.setdefault(outputs.index(node.inputs[0]), []).append(op.key)
        return found

    def run(
        self,
        context: Any,
        arrays: Sequence[Any],
        cells: Sequence[VariableCell],
        deliver: Any = None,
    ) -> Any:
        """The region's outputs, after all Sends."""
        if self.holds_gil:  # it is over before a value could leave while it runs
            results = Executable.run(self, context, arrays, cells)
            self.send(context, results)
            return results
        delivery = _Delivery(self.keys, context.rendezvous)
        results = super().run(context, arrays, cells, delivery)
        delivery.complete(results)
        return results

    def send(self, context: Any, results: Sequence[Any]) -> None:
        """Send what a run gave that sent nothing itself."""
        rendezvous = context.rendezvous
        for number, keys in self.keys.items():
            for key in keys:
                send(rendezvous, key, results[number])


class _Delivery:
    """The Sends of one run: each value goes once."""

    def __init__(self, keys: Mapping[int, Sequence[Key]], rendezvous: Rendezvous) -> None:
        self._left, self._rendezvous = dict(keys), rendezvous

    def __call__(self, number: int, value: Any) -> None:
        """Send an output."""
        for key in self._left.pop(number):
            send(self._rendezvous, key, value)

    def complete(self, results: Sequence[Any]) -> None:
        """Send what was not sent while the region ran."""
        for number in [*self._left]:
            self(number, results[number])
