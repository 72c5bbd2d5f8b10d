"""Matches rules: an index by the op types of a pattern's root and of its inputs.

A pattern matches pure nodes without control inputs whose outputs are not fed, all on one device.
The candidate rules of a node depend on its op type and those of its inputs, and are cached by them:
most nodes have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import partial
from typing import Any

from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.basic import Const
from thalweg.optimize.facts import FILLED, is_filled
from thalweg.optimize.pattern import (
    EVERY,
    Apply,
    Constant,
    Expression,
    Literal,
    Symbol,
    nesting,
    orders,
)
from thalweg.optimize.pure import is_free
from thalweg.optimize.rule import Match, Rule
from thalweg.optimize.step_graph import StepGraph
from thalweg.platform.caches import memoized

Bindings = dict[str, Any]

_MAX_INPUTS = 6  # whose types are part of the key: no pattern has more


class RuleIndex:
    """Rules by the op type of their root."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.by_root: dict[str, list[Rule]] = {}
        self._depth = 0
        for rule in rules:
            self.by_root.setdefault(rule.root, []).append(rule)
            self._depth = max(self._depth, nesting(rule.pattern) - 1)

    def apply(self, graph: StepGraph) -> None:
        """Apply the rules to a step; again if they built ops of types that enable more of them."""
        roots = self._roots(graph.types)
        while roots:
            count, before = len(graph.types), roots
            graph.rewrite(lambda node: self._replacement(node, graph), roots, self._depth)
            if len(graph.types) == count or (roots := self._roots(graph.types)) == before:
                return

    def _roots(self, types: Set[str]) -> set[str]:
        """The root types in a step of the rules whose other op types are in the step as well."""
        candidates = self.by_root.keys() & types
        return {root for root in candidates if any(r.types <= types for r in self.by_root[root])}

    def _replacement(self, node: Node, graph: StepGraph) -> Sequence[Tensor] | None:
        types = tuple([tensor.op.op.type_name for tensor in node.inputs[:_MAX_INPUTS]])
        for rule, pattern in _candidates(self, node.op.type_name, types):
            match = match_at(node, rule, pattern, graph)
            if match is not None and rule.when(match):
                return graph.rebuilt(rule.name, node, partial(rule.replaced, match))
        return None


@memoized(4_096)
def _candidates(index: RuleIndex, root: str, types: tuple[str, ...]) -> list[tuple[Rule, Apply]]:
    """The rules that may match a node of this type with inputs of these types, each with one order
    of the operands of its commutative ops."""
    return [
        (rule, pattern)
        for rule in index.by_root[root]
        if _may_match(rule.pattern, types) or _may_match(rule.pattern, types[::-1])
        for pattern in orders(rule.pattern)
        if _may_match(pattern, types)
    ]


def _may_match(pattern: Apply, types: tuple[str, ...]) -> bool:
    inputs = pattern.inputs
    return len(inputs) == len(types) and all(map(_may_be, inputs, types))


def _may_be(pattern: Expression, op_type: str) -> bool:
    """Whether an output of a node of this type may match a pattern."""
    if isinstance(pattern, Apply):
        return pattern.kind.type_name == op_type
    if isinstance(pattern, Literal):
        return op_type in FILLED
    return op_type == "Const" or not isinstance(pattern, Constant)


def match_at(node: Node, rule: Rule, pattern: Apply, graph: StepGraph) -> Match | None:
    """The match of a pattern at a node, before the rule's own condition."""
    bound: Bindings = {}
    nodes: list[Node] = []
    if not _matches(pattern, node, bound, nodes, graph):
        return None
    if node.inputs and not rule.dtypes(node.inputs[0].dtype):
        return None
    if not all(is_free(matched) for matched in nodes):
        return None
    if rule.single_use and any(_is_shared(matched, graph) for matched in nodes[1:]):
        return None
    if any(graph.is_guarded(bound[name]) for name in rule.dropped):
        return None
    if len({*map(graph.device, nodes)}) > 1:
        return None
    bound["root"] = node.outputs[0]
    return Match(node, tuple(nodes), bound, graph.uses)


def _is_shared(node: Node, graph: StepGraph) -> bool:
    return sum(graph.uses(tensor) for tensor in node.outputs) > 1


def _matches(
    pattern: Apply, node: Node, bound: Bindings, nodes: list[Node], graph: StepGraph
) -> bool:
    op = node.op
    if type(op) is not pattern.kind or len(node.inputs) != len(pattern.inputs):
        return False
    if not _binds_attributes(pattern, node, bound):
        return False
    nodes.append(node)
    for operand, tensor in zip(pattern.inputs, node.inputs, strict=True):
        if not _binds(operand, tensor, bound, nodes, graph):
            return False
    return True


def _binds_attributes(pattern: Apply, node: Node, bound: Bindings) -> bool:
    all_symbol = pattern.attributes.get(EVERY)
    if all_symbol is not None:
        return bound.setdefault(all_symbol.name, node.op.attributes) == node.op.attributes
    for name, value in node.op.__dict__.items():
        expected = pattern.attributes.get(name, pattern.kind.fields[name])
        if isinstance(expected, Symbol):
            expected = bound.setdefault(expected.name, value)
        if expected != value:
            return False
    return True


def _binds(
    pattern: Expression, tensor: Tensor, bound: Bindings, nodes: list[Node], graph: StepGraph
) -> bool:
    if isinstance(pattern, Symbol):
        return bound.setdefault(pattern.name, tensor) is tensor
    if not graph.is_open(tensor):
        return False
    if isinstance(pattern, Apply):
        return tensor.value_index == 0 and _matches(pattern, tensor.op, bound, nodes, graph)
    if isinstance(pattern, Literal):
        return is_filled(tensor, pattern.number)
    if not isinstance(tensor.op.op, Const) or tensor.op.controls:
        return False
    return isinstance(pattern, Constant) and (
        bound.setdefault(pattern.symbol.name, tensor) is tensor
    )
