"""Finding where rules apply: an index of rules by the op of their root and those of its inputs.

A pattern matches over nodes that are pure, wait for nothing, and give what is not fed; all on one
device. What a node has to look at is found once for all nodes of its type whose inputs come from
nodes of the same types: for most nodes that is nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple, cast

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
KnownNumbers = dict[
    tuple[Tensor, str], bool
]  # whether a tensor is a number everywhere, by its text

_MAX_INPUTS = 6  # whose types are looked at: no pattern has more


class _Variant(NamedTuple):
    """A rule, with one order of the operands of commutative ops."""

    rule: Rule
    pattern: Apply
    #: the inputs, and inputs of inputs, that must be one tensor: `x * x`, `x * y + x * z`
    same: tuple[tuple[Path, Path], ...]
    #: the inputs that must be a number everywhere: `x * 1`. Its text has the sign of zero
    numbers: tuple[tuple[int, float, str], ...]


class RuleIndex:
    """Rules by the op of their root."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_root: dict[str, list[Rule]] = {}
        self._depth = 0
        for rule in rules:
            self._by_root.setdefault(rule.root, []).append(rule)
            self._depth = max(self._depth, nesting(rule.pattern) - 1)

    def apply(self, graph: StepGraph) -> None:
        """Apply the rules to a step, again where they made ops that more of them ask for."""
        roots: set[str] = set()
        known: KnownNumbers = {}
        while more := self._roots_of(graph.types) - roots:
            roots |= more
            graph.rewrite(lambda node: self._replacement(node, graph, known), roots, self._depth)

    def _roots_of(self, types: Set[str]) -> set[str]:
        """The ops of a step that rules may begin at, whose other ops the step has as well."""
        found = self._by_root.keys() & types
        return {root for root in found if any(r.types <= types for r in self._by_root[root])}

    @memoized(1_024)  # only the roots that steps have
    def variants(self, root: str) -> list[_Variant]:
        """The rules of a root, in each order of the operands of commutative ops."""
        return [
            _Variant(rule, pattern, tuple(_same(pattern)), tuple(_numbers(pattern)))
            for rule in self._by_root[root]
            for pattern in orders(rule.pattern)
        ]

    def _replacement(
        self, node: Node, graph: StepGraph, known: KnownNumbers
    ) -> Sequence[Tensor] | None:
        inputs = node.inputs
        types = tuple([tensor.op.op.type_name for tensor in inputs[:_MAX_INPUTS]])
        for rule, pattern, same, numbers in _candidates(self, node.op.type_name, types):
            if same and any(_at(inputs, one) is not _at(inputs, other) for one, other in same):
                continue
            if numbers and not _are_numbers(inputs, numbers, known):
                continue
            found = _replacement(node, rule, pattern, graph)
            if found is not None:
                return found
        return None


def _are_numbers(
    inputs: Sequence[Tensor], numbers: Sequence[tuple[int, float, str]], known: KnownNumbers
) -> bool:
    for place, number, text in numbers:
        key = inputs[place], text
        if key not in known:
            known[key] = is_filled(inputs[place], number)
        if not known[key]:
            return False
    return True


@memoized(4_096)
def _candidates(index: RuleIndex, root: str, types: tuple[str, ...]) -> list[_Variant]:
    """The rules that may match a node, by its type and those of its inputs."""
    return [each for each in index.variants(root) if _may_match(each.pattern, types)]


def _may_match(pattern: Apply, types: tuple[str, ...]) -> bool:
    inputs = pattern.inputs
    return len(inputs) == len(types) and all(map(_may_be, inputs, types))


def _may_be(pattern: Expression, kind: str) -> bool:
    """Whether an input that a node of a type gives may be what a pattern wants there."""
    if isinstance(pattern, Apply):
        return pattern.kind.type_name == kind
    if isinstance(pattern, Literal):
        return kind in FILLED
    return kind == "Const" or not isinstance(pattern, Constant)


def _same(pattern: Apply) -> Iterator[tuple[Path, Path]]:
    """Where a symbol is, for each place after the first that it is at."""
    first: dict[Symbol, Path] = {}
    for place, each in enumerate(pattern.inputs):
        inner = each.inputs if isinstance(each, Apply) else (each,)
        for number, symbol in enumerate(inner):
            path = (place, number) if isinstance(each, Apply) else (place,)
            if isinstance(symbol, Symbol) and first.setdefault(symbol, path) is not path:
                yield first[symbol], path


def _at(inputs: Sequence[Tensor], path: Path) -> Tensor | None:
    tensor = inputs[path[0]]
    if len(path) == 1:
        return tensor
    inner = tensor.op.inputs
    return inner[path[1]] if path[1] < len(inner) else None


def _numbers(pattern: Apply) -> Iterator[tuple[int, float, str]]:
    for place, each in enumerate(pattern.inputs):
        if isinstance(each, Literal):
            yield place, each.number, str(each)


def _replacement(
    node: Node, rule: Rule, pattern: Apply, graph: StepGraph
) -> Sequence[Tensor] | None:
    match = match_at(node, rule, pattern, graph)
    if match is None or not rule.when(match):
        return None
    result = graph.build(node, lambda: rule.replaced(match))
    graph.fire(rule.name, node)
    return cast("Sequence[Tensor]", result) if isinstance(result, list | tuple) else [result]


def match_at(node: Node, rule: Rule, pattern: Apply, graph: StepGraph) -> Match | None:
    """Where a pattern matches at a node, before the rule's own conditions."""
    bound: Bindings = {}
    nodes: list[Node] = []
    if not _matches(pattern, node, bound, nodes, graph):
        return None
    if node.inputs and not rule.dtypes(node.inputs[0].dtype):
        return None
    if not all(is_free(each) for each in nodes):
        return None
    if rule.single_use and any(_is_shared(each, graph) for each in nodes[1:]):
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
    for each, tensor in zip(pattern.inputs, node.inputs, strict=True):
        if not _binds(each, tensor, bound, nodes, graph):
            return False
    return True


def _binds_attributes(pattern: Apply, node: Node, bound: Bindings) -> bool:
    every = pattern.attributes.get(EVERY)
    if every is not None:
        return bound.setdefault(every.name, node.op.attributes) == node.op.attributes
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
