"""Finding where rules apply: an index of rules by the op of their root.

A pattern matches over nodes that are pure, wait for nothing, and give what is not fed; all on one
device. A rule whose ops are not all in a step is not tried on any of its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.basic import Const
from thalweg.optimize.facts import FILLED, is_filled
from thalweg.optimize.pattern import Apply, Constant, Expression, Literal, Symbol
from thalweg.optimize.pure import is_free
from thalweg.optimize.rule import Match, Rule
from thalweg.optimize.step_graph import StepGraph
from thalweg.optimize.sweep import Sweep

Bindings = dict[str, Any]


class _Variant(NamedTuple):
    """A rule, with one order of the operands of commutative ops."""

    rule: Rule
    pattern: Apply
    #: the types that inputs must have, by place: what most nodes fail on
    required: tuple[tuple[int, frozenset[str]], ...]


class RuleIndex:
    """Rules by the op of their root."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._by_root: dict[str, list[_Variant]] = {}
        for rule in self.rules:
            for pattern in rule.variants:
                variant = _Variant(rule, pattern, tuple(_required(pattern)))
                self._by_root.setdefault(pattern.kind.type_name, []).append(variant)

    def apply(self, graph: StepGraph) -> tuple[StepGraph, dict[str, int]]:
        """A step after the rules; how often each fired."""
        candidates = self._candidates(graph.types)
        if not candidates:
            return graph, {}
        sweep = Sweep(graph)

        def rewrite(node: Node, sweep: Sweep) -> Sequence[Tensor] | None:
            return _first_replacement(node, candidates[node.op.type_name], sweep)

        return sweep.run(rewrite, candidates), dict(sweep.fired)

    def _candidates(self, types: frozenset[str]) -> dict[str, list[_Variant]]:
        """The rules whose ops are all there, by their roots."""
        found: dict[str, list[_Variant]] = {}
        for root in self._by_root.keys() & types:
            live = [each for each in self._by_root[root] if each.rule.types <= types]
            if live:
                found[root] = live
        return found


def _required(pattern: Apply) -> Iterator[tuple[int, frozenset[str]]]:
    for place, each in enumerate(pattern.inputs):
        if isinstance(each, Apply):
            yield place, frozenset({each.kind.type_name})
        elif isinstance(each, Constant):
            yield place, frozenset({"Const"})
        elif isinstance(each, Literal):
            yield place, FILLED


def _first_replacement(
    node: Node, variants: Sequence[_Variant], sweep: Sweep
) -> Sequence[Tensor] | None:
    inputs = node.inputs
    for rule, pattern, required in variants:
        for place, kinds in required:
            if place >= len(inputs) or inputs[place].op.op.type_name not in kinds:
                break
        else:
            found = _replacement(node, rule, pattern, sweep)
            if found is not None:
                return found
    return None


def _replacement(node: Node, rule: Rule, pattern: Apply, sweep: Sweep) -> Sequence[Tensor] | None:
    match = match_at(node, rule, pattern, sweep)
    if match is None or not rule.when(match):
        return None
    result = sweep.build(node, lambda: rule.replaced(match))
    sweep.fired[rule.name] += 1
    return cast("Sequence[Tensor]", result) if isinstance(result, list | tuple) else [result]


def match_at(node: Node, rule: Rule, pattern: Apply, sweep: Sweep) -> Match | None:
    """Where a pattern matches at a node, before the rule's own conditions."""
    bound: Bindings = {}
    nodes: list[Node] = []
    if not _matches(pattern, node, bound, nodes, sweep):
        return None
    if node.inputs and not rule.dtypes(node.inputs[0].dtype):
        return None
    if not all(is_free(each) for each in nodes):
        return None
    if rule.single_use and any(_is_shared(each, sweep) for each in nodes[1:]):
        return None
    if any(sweep.graph.is_guarded(bound[name]) for name in rule.dropped):
        return None
    device = sweep.graph.device
    if sweep.graph.devices is not None and len({*map(device, nodes)}) > 1:
        return None
    bound["root"] = node.outputs[0]
    return Match(node, tuple(nodes), bound, sweep.uses)


def _is_shared(node: Node, sweep: Sweep) -> bool:
    return sum(sweep.uses(tensor) for tensor in node.outputs) > 1


def _matches(pattern: Apply, node: Node, bound: Bindings, nodes: list[Node], sweep: Sweep) -> bool:
    op = node.op
    if type(op) is not pattern.kind or len(node.inputs) != len(pattern.inputs):
        return False
    if not _binds_attributes(pattern, node, bound):
        return False
    nodes.append(node)
    for each, tensor in zip(pattern.inputs, node.inputs, strict=True):
        if not _binds(each, tensor, bound, nodes, sweep):
            return False
    return True


def _binds_attributes(pattern: Apply, node: Node, bound: Bindings) -> bool:
    for name, value in node.op.__dict__.items():
        wanted = pattern.attributes.get(name, pattern.kind.fields[name])
        if isinstance(wanted, Symbol):
            if wanted.name in bound and bound[wanted.name] != value:
                return False
            bound[wanted.name] = value
        elif wanted != value:
            return False
    return True


def _binds(
    pattern: Expression, tensor: Tensor, bound: Bindings, nodes: list[Node], sweep: Sweep
) -> bool:
    if isinstance(pattern, Symbol):
        return bound.setdefault(pattern.name, tensor) is tensor
    if not sweep.is_open(tensor):
        return False
    if isinstance(pattern, Apply):
        return tensor.value_index == 0 and _matches(pattern, tensor.op, bound, nodes, sweep)
    if isinstance(pattern, Literal):
        return is_filled(tensor, pattern.number)
    if not isinstance(tensor.op.op, Const) or tensor.op.controls:
        return False
    return isinstance(pattern, Constant) and (
        bound.setdefault(pattern.symbol.name, tensor) is tensor
    )
