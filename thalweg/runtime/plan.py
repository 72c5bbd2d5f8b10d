"""From a step's signature to what the executor runs.

`plan(step, devices)` prunes the graph to what the fetches need, places it, gives every tensor a
slot, and frees each slot after its last use. A plan is immutable: any number of threads may run
it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from thalweg.graph.node import Node, Tensor
from thalweg.ops.context import VariableCell
from thalweg.place.placer import Placement, place


class Step(NamedTuple):
    """The signature of a step: what is fetched, what is only run, and what is fed."""

    fetches: tuple[Tensor, ...]
    targets: tuple[Node, ...]
    feeds: tuple[Tensor, ...]


class Instruction(NamedTuple):
    """One kernel call: where its inputs are, where its outputs go, and what dies after it."""

    call: Callable[..., Any]
    takes_context: bool
    inputs: tuple[int, ...]
    references: tuple[int, ...]  # positions among the inputs that are read through a variable
    output: int
    output_count: int
    frees: tuple[int, ...]
    node: Node


@dataclass(frozen=True)
class Plan:
    """A step, ready to run."""

    instructions: tuple[Instruction, ...]
    slot_count: int
    feeds: tuple[int, ...]  # the slot of each feed
    fetches: tuple[int, ...]  # the slot of each fetched tensor
    placement: Placement

    @cached_property
    def may_block(self) -> bool:
        """Whether a node of the step may wait for another step, or for a node of this one."""
        return any(instruction.node.op.blocking for instruction in self.instructions)

    @cached_property
    def dependencies(self) -> tuple[list[int], list[list[int]]]:
        """For each instruction, how many others it waits for, and which ones wait for it."""
        index_of = {step.node: index for index, step in enumerate(self.instructions)}
        waits: list[int] = []
        followers: list[list[int]] = [[] for _ in self.instructions]
        fed = set(self.feeds)
        for index, step in enumerate(self.instructions):
            taken = zip(step.node.inputs, step.inputs, strict=True)
            before = {tensor.op for tensor, slot in taken if slot not in fed}
            before |= {node for node in step.node.control_inputs if node in index_of}
            waits.append(len(before))
            for node in before:
                followers[index_of[node]].append(index)
        return waits, followers

    def __str__(self) -> str:
        lines = [f"{len(self.instructions)} nodes, {self.slot_count} slots"]
        for step in self.instructions:
            outputs = range(step.output, step.output + step.output_count)
            lines.append(
                f"  {', '.join(f'%{o}' for o in outputs) or '-':<12} = {step.node.type}"
                f"({', '.join(f'%{i}' for i in step.inputs)})  # {step.node.name}, "
                f"{step.node.origin}"
            )
        return "\n".join(lines)


def plan(step: Step, devices: Sequence[str], soft_placement: bool = False) -> Plan:
    """Plan a step on these devices."""
    nodes = prune(step.fetches, step.targets, step.feeds)
    placement = place(nodes, devices, soft_placement)
    return schedule(nodes, step.fetches, step.feeds, placement)


def prune(
    fetches: Iterable[Tensor], targets: Iterable[Node], feeds: Iterable[Tensor]
) -> list[Node]:
    """The nodes the step needs, in an order that runs.

    A node is made after everything it depends on, so the order of creation is such an order.
    """
    fed = set(feeds)
    pending = [tensor.op for tensor in fetches if tensor not in fed] + list(targets)
    needed: set[Node] = set()
    while pending:
        node = pending.pop()
        if node in needed:
            continue
        needed.add(node)
        pending += [tensor.op for tensor in node.inputs if tensor not in fed]
        pending += [control for control in node.control_inputs if not _is_fed(control, fed)]
    return sorted(needed, key=lambda node: node.index)


def _is_fed(node: Node, fed: set[Tensor]) -> bool:
    """Whether the feeds stand for the whole node, so that waiting for it is no work."""
    return bool(node.outputs) and all(tensor in fed for tensor in node.outputs)


def schedule(
    nodes: Sequence[Node],
    fetches: Sequence[Tensor],
    feeds: Sequence[Tensor],
    placement: Placement,
) -> Plan:
    """Give each tensor a slot and each node an instruction."""
    slots: dict[Tensor, int] = {tensor: index for index, tensor in enumerate(feeds)}
    starts: list[int] = []
    count = len(feeds)
    for node in nodes:
        starts.append(count)
        for tensor in node.outputs:
            slots.setdefault(tensor, count + tensor.value_index)
        count += len(node.outputs)
    fed = set(feeds)
    frees = _last_uses(nodes, slots, {slots[tensor] for tensor in fetches})
    instructions = tuple(
        _instruction(node, start, slots, tuple(dead), fed)
        for node, start, dead in zip(nodes, starts, frees, strict=True)
    )
    return Plan(
        instructions,
        count,
        tuple(slots[tensor] for tensor in feeds),
        tuple(slots[tensor] for tensor in fetches),
        placement,
    )


def _last_uses(nodes: Sequence[Node], slots: dict[Tensor, int], kept: set[int]) -> list[list[int]]:
    """For each node, the slots that nothing after it reads."""
    seen = set(kept)
    frees: list[list[int]] = [[] for _ in nodes]
    for position in range(len(nodes) - 1, -1, -1):
        node = nodes[position]
        for tensor in (*node.outputs, *node.inputs):
            slot = slots[tensor]
            if slot not in seen:
                seen.add(slot)
                frees[position].append(slot)
    return frees


def _instruction(
    node: Node,
    start: int,
    slots: dict[Tensor, int],
    frees: tuple[int, ...],
    fed: set[Tensor],
) -> Instruction:
    takes_context = node.op.has("kernel")
    return Instruction(
        _call(node, takes_context),
        takes_context,
        tuple(slots[tensor] for tensor in node.inputs),
        _dereferenced(node, fed),
        start,
        len(node.outputs),
        frees,
        node,
    )


def _call(node: Node, takes_context: bool) -> Callable[..., Any]:
    op = node.op
    function = op.kernel if takes_context else op.numpy
    if not op.parsed.has_lists:
        return function
    counts = node.input_counts()

    def call(*flat: Any) -> Any:
        context, values = flat[:takes_context], flat[takes_context:]
        return function(*context, *op.parsed.group(values, counts))

    return call


def _dereferenced(node: Node, fed: set[Tensor]) -> tuple[int, ...]:
    """The inputs that are references where the op wants values (a fed one is a value already)."""
    if not any(tensor.dtype.is_ref_dtype for tensor in node.inputs):
        return ()
    wants_ref: list[bool] = []
    for argument, count in zip(node.op.parsed.inputs, node.input_counts(), strict=True):
        wants_ref += [argument.is_ref] * count
    return tuple(
        position
        for position, (tensor, wanted) in enumerate(zip(node.inputs, wants_ref, strict=True))
        if tensor.dtype.is_ref_dtype and not wanted and tensor not in fed
    )


def value_of(item: Any) -> Any:
    """What a slot holds, as a value: variables are read."""
    return item.read() if isinstance(item, VariableCell) else item
