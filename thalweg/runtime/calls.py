"""From a unit of a step to the kernel call that computes it.

What comes in is a node or a region; what goes out is the function to call, which of its inputs are
read through variables, and the node that errors are attributed to. Where the inputs come from is
left to the plan, or to the token graph that the call is part of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from thalweg.device.device import Device
from thalweg.graph.node import Node, Tensor
from thalweg.lower.specialise import Region
from thalweg.runtime.compiled import Executable, Fallback
from thalweg.runtime.sending import SendingExecutable, SendingRegion


class Call(NamedTuple):
    """A function of values, and the nodes it computes."""

    function: Callable[..., Any]
    takes_context: bool
    references: tuple[int, ...]  # positions among the inputs that are read through a variable
    node: Node  # the one that errors are attributed to
    nodes: tuple[Node, ...]  # all that it computes
    device: str = ""  # whose state it uses, where that is not the step's only one


class Instruction(NamedTuple):
    """One kernel call: where its inputs are, where its outputs go, and what dies after it."""

    call: Callable[..., Any]
    takes_context: bool
    inputs: tuple[int, ...]
    references: tuple[int, ...]  # positions among the inputs that are read through a variable
    output: int
    output_count: int
    frees: tuple[int, ...]
    node: Node  # the one that errors are attributed to
    nodes: tuple[Node, ...]  # all that it computes


def call_of(
    unit: Node | Region, fed: Collection[Tensor], device: Device, fallback: Fallback
) -> Call:
    """The call that computes a node on its NumPy kernel, or a region as compiled code."""
    if isinstance(unit, SendingRegion):
        function = SendingExecutable(unit, device, fallback)
        return Call(function, True, (), unit.nodes[-1], (*unit.nodes, *unit.sends))
    if isinstance(unit, Region):
        function = Executable(unit, device, fallback)
        return Call(function, True, (), unit.nodes[-1], unit.nodes)
    takes_context = unit.op.has("kernel")
    references = dereferenced(unit, fed)
    return Call(_kernel(unit, takes_context), takes_context, references, unit, (unit,))


def _kernel(node: Node, takes_context: bool) -> Callable[..., Any]:
    op = node.op
    function = op.kernel if takes_context else op.numpy
    if not op.parsed.has_lists:
        return function
    places = range(takes_context + len(node.inputs))
    grouped = op.parsed.group(places[takes_context:], node.input_counts())
    wanted: list[Any] = [*places[:takes_context], *map(_place, grouped)]

    def call(*flat: Any) -> Any:
        return function(*[flat[at] if type(at) is int else list(flat[at]) for at in wanted])

    return call


def _place(grouped: Any) -> int | slice:
    """Where the values of an input are among those of all: a number, or a part for a list."""
    if isinstance(grouped, int):
        return grouped
    return slice(grouped[0], grouped[-1] + 1) if grouped else slice(0, 0)


def dereferenced(node: Node, fed: Collection[Tensor]) -> tuple[int, ...]:
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
