"""Which ops the tests ran, and whose gradients they held to central differences.

`watch` wraps the places that every op passes: the planner, constant folding, which runs what the
planner then does not see, and the look-up of a gradient. What the tests of one process saw is a
`Record`; records of several processes merge, and `Record.faults` says which ops of the package no
test covers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from thalweg.autodiff import gradients
from thalweg.graph.node import Node
from thalweg.graph.op import REGISTRY
from thalweg.graph.subgraph import needed
from thalweg.optimize.passes import fold_constants
from thalweg.runtime import native_control, plan
from thalweg.testing import gradient_checker

#: Ops whose gradient no differences can check, and why.
NO_DIFFERENCES: dict[str, str] = {
    "PreventGradient": "asking for its gradient is the error it is made for",
    "ValueOrInitial": "its input is a variable, which no differences can shift",
    "RandomGamma": "the same uniform numbers give another sample: its own test uses quantiles",
    "QuantizeAndDequantizeV3": "a staircase; gradients pass straight through by design",
    "FakeQuantWithMinMaxArgs": "a staircase; gradients pass straight through by design",
    "FakeQuantWithMinMaxArgsGradient": "the gradient of a staircase",
    "FakeQuantWithMinMaxVars": "a staircase; gradients pass straight through by design",
    "FakeQuantWithMinMaxVarsGradient": "the gradient of a staircase",
    "FakeQuantWithMinMaxVarsPerChannel": "a staircase; gradients pass straight through by design",
    "FakeQuantWithMinMaxVarsPerChannelGradient": "the gradient of a staircase",
}

#: Ops whose gradient is checked, but not the gradient of it, and why.
NO_SECOND_ORDER: dict[str, str] = {
    "BatchNormWithGlobalNormalization": "its backward op, of old graphs only, has no gradient",
    "CTCLoss": "its gradient is one of its outputs, whose own gradient is not defined",
    "Dilation2D": "its backward ops have no gradient",
    "FractionalAvgPool": "its backward op has no gradient",
    "FractionalMaxPool": "its backward op has no gradient",
    "SparseSoftmaxCrossEntropyWithLogits": "its fused gradient refuses to be differentiated",
}


@dataclass
class Record:
    """Op types that ran, whose gradient was checked, and that took part in a second-order check."""

    executed: set[str] = field(default_factory=set[str])
    checked: set[str] = field(default_factory=set[str])
    checked_twice: set[str] = field(default_factory=set[str])

    def merge(self, lists: dict[str, list[str]]) -> None:
        """Add what another process recorded, as `lists` gave it there."""
        for name, types in lists.items():
            getattr(self, name).update(types)

    def lists(self) -> dict[str, list[str]]:
        """This record in a form that travels between processes."""
        return {name: sorted(types) for name, types in vars(self).items()}

    def faults(self) -> Iterator[str]:
        """What is missing, one line per kind; nothing if every op is covered."""
        ours = {name for name, op in REGISTRY.items() if op.__module__.startswith("thalweg.")}
        smooth = {name for name in ours if is_differentiable(name)}
        yield from _line("no test runs", ours - self.executed)
        yield from _line(
            "no test checks the gradient of", smooth - self.checked - {*NO_DIFFERENCES}
        )
        once = {*NO_DIFFERENCES, *NO_SECOND_ORDER}
        yield from _line(
            "no test checks the second-order gradient of", smooth - self.checked_twice - once
        )
        needless = self.checked & {*NO_DIFFERENCES} | self.checked_twice & {*NO_SECOND_ORDER}
        yield from _line("exempt, but tested or unknown", needless | (once - ours))


def is_differentiable(op_type: str) -> bool:
    """Whether an op claims a gradient that is not None everywhere."""
    op = REGISTRY[op_type]
    return op.has("gradient") and not op.not_differentiable


def _line(fault: str, types: Iterable[str]) -> Iterator[str]:
    names = sorted(types)
    if names:
        yield f"{fault}: {', '.join(names)}"


record = Record()
_open_checks: list[set[str]] = []


@contextmanager
def gradient_check(second: bool = False) -> Iterator[None]:
    """While open, an op whose gradient is asked for counts as checked, if the block succeeds."""
    seen: set[str] = set()
    _open_checks.append(seen)
    try:
        yield
        record.checked |= seen
        if second:
            record.checked_twice |= seen
    finally:
        _open_checks.remove(seen)


def watch() -> None:
    """Record from now on what is planned and differentiated in this process."""
    plan._call = _noting_runs(plan._call)
    fold_constants.tried_outputs_of = _noting_folds(fold_constants.tried_outputs_of)
    native_control.cached_lower = _noting_parts(native_control.cached_lower)
    gradients.gradient_function = _noting_gradients(gradients.gradient_function)
    gradient_checker._gradient = _checking(gradient_checker._gradient)


def _noting_runs(make: Callable[..., Any]) -> Callable[..., Any]:
    def call(unit: Any, *rest: Any) -> Any:
        result = make(unit, *rest)
        record.executed |= set(_types(result.nodes))
        return result

    return call


def _noting_folds(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """What is folded has run by then: its kernel made the constant."""

    def outputs_of(node: Node, values: list[Any]) -> Any:
        outputs = evaluate(node, values)
        if outputs is not None:
            record.executed.add(node.type)
        return outputs

    return outputs_of


def _noting_parts(lower: Callable[..., Any]) -> Callable[..., Any]:
    """The parts of native loops have nodes that only their lowering makes."""

    def part(region: Any, *rest: Any) -> Any:
        lowered = lower(region, *rest)
        record.executed |= set(_types(region.nodes))
        return lowered

    return part


def _types(nodes: Iterable[Node]) -> Iterator[str]:
    """The ops of nodes and of those inside them."""
    for node in nodes:
        yield node.type
        for body in node.op.bodies:
            yield from _types(needed(body.outputs, body.targets, {}))


def _noting_gradients(find: Callable[[Node], Any]) -> Callable[[Node], Any]:
    def gradient_function(node: Node) -> Any:
        for seen in _open_checks:
            seen.add(node.type)
        return find(node)

    return gradient_function


def _checking(gradient: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*arguments: Any) -> Any:
        with gradient_check():
            return gradient(*arguments)

    return checked
