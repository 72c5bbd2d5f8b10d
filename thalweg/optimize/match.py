"""Matches rules: an index by the op types of a pattern's root and of its inputs.

A pattern matches pure nodes without control inputs whose outputs are not fed, all on one device.
The candidate rules of a node depend on its op type and those of its inputs, and are cached by them:
most nodes have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple

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
Path = tuple[int, ...]
#: Whether every element of a tensor equals a number, by the number's text.
KnownNumbers = dict[tuple[Tensor, str], bool]

_MAX_INPUTS = 6  # whose types are part of the key: no pattern has more


class _Variant(NamedTuple):
    """A rule with one order of the operands of its commutative ops."""

    rule: Rule
    pattern: Apply
    #: pairs of inputs, or inputs of inputs, that must be the same: `x * x`, `x * y + x * z`
    same: tuple[tuple[Path, Path], ...]
    #: the inputs that must equal a number: `x * 1`. The text distinguishes the signs of zero
    numbers: tuple[tuple[int, float, str], ...]


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
        roots, known = self._roots(graph.types), KnownNumbers()
        while roots:
            count, before = len(graph.types), roots
            graph.rewrite(lambda node: self._replacement(node, graph, known), roots, self._depth)
            if len(graph.types) == count or (roots := self._roots(graph.types)) == before:
                return

    def _roots(self, types: Set[str]) -> set[str]:
        """The root types in a step of the rules whose other op types are in the step as well."""
        candidates = self.by_root.keys() & types
        return {root for root in candidates if any(r.types <= types for r in self.by_root[root])}

    def _replacement(
        self, node: Node, graph: StepGraph, known: KnownNumbers
    ) -> Sequence[Tensor] | None:
        inputs = node.inputs
        types = tuple([tensor.op.op.type_name for tensor in inputs[:_MAX_INPUTS]])
        for rule, pattern, same, numbers in _candidates(self, node.op.type_name, types):
            if same and any(_at(inputs, a) is not _at(inputs, b) for a, b in same):
                continue
            if numbers and not _are_numbers(inputs, numbers, known):
                continue
            outputs = _replacement(node, rule, pattern, graph)
            if outputs is not None:
                return outputs
        return None


def _are_numbers(
    inputs: Sequence[Tensor], numbers: Sequence[tuple[int, float, str]], known: KnownNumbers
) -> bool:
    for position, number, text in numbers:
        key = inputs[position], text
        if key not in known:
            known[key] = is_filled(inputs[position], number)
        if not known[key]:
            return False
    return True


@memoized(4_096)
def _candidates(index: RuleIndex, root: str, types: tuple[str, ...]) -> list[_Variant]:
    """The rules that may match a node of this type with inputs of these types."""
    return [
        _Variant(rule, pattern, tuple(_same(pattern)), tuple(_numbers(pattern)))
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


def _same(pattern: Apply) -> Iterator[tuple[Path, Path]]:
    """For each repeated symbol, the paths of its first occurrence and of the repetition."""
    first: dict[Symbol, Path] = {}
    for position, operand in enumerate(pattern.inputs):
        inner = operand.inputs if isinstance(operand, Apply) else (operand,)
        for number, symbol in enumerate(inner):
            path = (position, number) if isinstance(operand, Apply) else (position,)
            if isinstance(symbol, Symbol) and first.setdefault(symbol, path) is not path:
                yield first[symbol], path


def _at(inputs: Sequence[Tensor], path: Path) -> Tensor | None:
    tensor = inputs[path[0]]
    if len(path) == 1:
        return tensor
    inner = tensor.op.inputs
    return inner[path[1]] if path[1] < len(inner) else None


def _numbers(pattern: Apply) -> Iterator[tuple[int, float, str]]:
    for position, operand in enumerate(pattern.inputs):
        if isinstance(operand, Literal):
            yield position, operand.number, str(operand)


def _replacement(
    node: Node, rule: Rule, pattern: Apply, graph: StepGraph
) -> Sequence[Tensor] | None:
    match = match_at(node, rule, pattern, graph)
    if match is None or not rule.when(match):
        return None
    return graph.rebuilt(rule.name, node, lambda: rule.replaced(match))


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
    if graph.devices is not None and len({*map(graph.device, nodes)}) > 1:
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
            if expected.name in bound and bound[expected.name] != value:
                return False
            bound[expected.name] = value
        elif expected != value:
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
