"""Checks rules on random graphs that match their patterns.

`check_rule(rule)` builds graphs from the pattern alone, with random shapes, dtypes and values (for
an exact rule also NaN, infinities and zeros of both signs), evaluates them with the NumPy kernels
before and after the rule, and compares: bit for bit for an exact rule, up to rounding for others.
The rule must stop matching after a few applications.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from thalweg.errors import OpError
from thalweg.graph import dtypes
from thalweg.graph.analysis.evaluate import outputs_of
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import Graph
from thalweg.graph.node import Tensor
from thalweg.ops.core.basic import constant, placeholder
from thalweg.optimize import verify
from thalweg.optimize.match import RuleIndex
from thalweg.optimize.pattern import EVERY, Apply, Constant, Expression, Literal, Symbol, op
from thalweg.optimize.rule import EXACT, FINITE, Rule
from thalweg.optimize.step_graph import StepGraph
from thalweg.platform.arrays import Array
from thalweg.public import public

_DTYPES = (dtypes.float64, dtypes.float32, dtypes.int32, dtypes.bool, dtypes.complex64)
_MAX_APPLICATIONS = 8  # of a rule to what it made


@public("optimize.BrokenRule")
class BrokenRule(AssertionError):
    """A rule whose replacement differs from its pattern, or that never applies or never ends."""


@public("optimize.RuleCheck")
@dataclass
class RuleCheck:
    """How many graphs a rule was tried on, and how many it matched.

    Args:
        rule: the rule.
        cases: the number of graphs.
        matches: the number of graphs that the rule applied to.
        dtypes: the dtypes of those.

    Example:
        >>> op = tf.optimize.op
        >>> rule = tf.optimize.register_rule("twice", lambda x: op.Neg(op.Neg(x)), lambda x: x)
        >>> tf.optimize.check_rule(rule).dtypes
        ('float64', 'float32', 'int32', 'complex64')
        >>> tf.optimize.unregister("twice")
    """

    rule: Rule
    cases: int = 0
    matches: int = 0
    dtypes: tuple[str, ...] = ()


@public("optimize.check_rule")
def check_rule(rule: Rule, cases: int = 10, seed: int = 0) -> RuleCheck:
    """Check a rule on random graphs.

    Args:
        rule: the rule.
        cases: the number of graphs for each dtype.
        seed: the seed of the random graphs.

    Returns:
        The number of graphs, and the number that the rule applied to.

    Raises:
        BrokenRule: if values differ, the rule never applies, or it never ends.

    Example:
        >>> op = tf.optimize.op
        >>> rule = tf.optimize.register_rule("wrong", lambda x: op.Neg(x), lambda x: x)
        >>> tf.optimize.check_rule(rule)
        Traceback (most recent call last):
            ...
        thalweg.optimize.check.BrokenRule: rule wrong (rounding): Neg(x): ...
        >>> tf.optimize.unregister("wrong")
    """
    rng = np.random.default_rng(seed)
    check = RuleCheck(rule)
    for dtype in _DTYPES:
        matches = sum(_Case(rule, dtype, rng, number).run() for number in range(cases))
        check.cases += cases
        check.matches += matches
        check.dtypes += (dtype.name,) if matches else ()
    if not check.matches:
        raise BrokenRule(f"rule '{rule.name}' applied to none of {check.cases} graphs")
    return check


class _Case:
    """One graph that matches a rule's pattern."""

    def __init__(self, rule: Rule, dtype: DType, rng: Any, number: int) -> None:
        self._rule, self._dtype, self._rng = rule, dtype, rng
        self._sample = dict(rule.sample(rng)) if rule.sample else {}
        self._shape = tuple(int(size) for size in rng.integers(1, 4, rng.integers(0, 4)))
        self._has_specials = rule.exactness is EXACT and number % 2 == 1
        self._tensors: dict[str, Tensor] = {}
        self._attributes: dict[str, Any] = {}
        self.feeds: dict[Tensor, Array] = {}

    def run(self) -> int:
        """Whether the rule applied, as 0 or 1."""
        with Graph().as_default():
            try:
                root = self._build(self._rule.pattern)
            except (TypeError, ValueError):
                return 0  # the ops do not take this dtype
            graph = self._step(root)
        index, count = RuleIndex([self._rule]), 0
        try:
            expected = evaluate(graph, self.feeds)
        except OpError:
            return 0  # the kernels do not take this dtype
        spec = verify.Spec(graph)
        for _ in range(_MAX_APPLICATIONS):
            graph.fired.clear()
            index.apply(graph)
            if not graph.fired:
                break
            spec = spec.checked(graph, self._rule.name)
            count += graph.fired.total()
        else:
            raise BrokenRule(f"rule '{self._rule.name}' applies to what it makes, without end")
        if count:
            self._compare(evaluate(graph, self.feeds), expected)
        return min(count, 1)

    def _step(self, root: Tensor) -> StepGraph:
        feeds = frozenset(self.feeds)
        nodes = [n for n in root.graph.nodes if not feeds.issuperset(n.outputs)]
        graph = StepGraph(nodes, [root], feeds=feeds)
        graph.prune()
        return graph

    # Building

    def _build(self, pattern: Expression) -> Any:
        if isinstance(pattern, Symbol):
            return self._tensor(pattern.name)
        if isinstance(pattern, Constant):
            return self._tensor(pattern.symbol.name, is_constant=True)
        if isinstance(pattern, Literal):
            shape = self._shape if self._rng.integers(2) and not self._rule.sample else ()
            shape = self._sample.get("literal", shape)
            return constant(np.full(shape, pattern.number).astype(self._dtype.as_numpy_dtype))
        applied = cast("Apply", pattern)
        inputs = [self._build(operand) for operand in applied.inputs]
        attributes = {
            name: self._attribute(value, name) if isinstance(value, Symbol) else value
            for name, value in applied.attributes.items()
        }
        attributes |= attributes.pop(EVERY, {})
        result = getattr(op, applied.kind.type_name)(*inputs, **attributes)
        return cast("Any", result)[0] if isinstance(result, tuple | list) else result

    def _attribute(self, symbol: Symbol, name: str) -> Any:
        if symbol.name in self._sample:
            return self._sample[symbol.name]
        if symbol.name not in self._attributes:
            self._attributes[symbol.name] = self._any_attribute(name)
        return self._attributes[symbol.name]

    def _any_attribute(self, name: str) -> Any:
        if name in ("DstT", "type"):
            return self._dtype if self._rng.integers(2) else as_dtype("int64")
        return bool(self._rng.integers(2))

    def _tensor(self, name: str, is_constant: bool = False) -> Tensor:
        if name not in self._tensors:
            value = self._value(name)
            is_index = (
                name in self._sample and value.dtype.kind == "i" and not self._dtype.is_integer
            )
            if is_constant or is_index:  # indices are constants
                self._tensors[name] = constant(value)
            else:
                tensor = placeholder(as_dtype(value.dtype), value.shape)
                self._tensors[name], self.feeds[tensor] = tensor, value
        return self._tensors[name]

    def _value(self, name: str) -> Array:
        sample = self._sample.get(name)
        if sample is not None and np.asarray(sample).dtype.kind in "iub":
            value = np.asarray(sample)
            return value.astype(np.int32) if value.dtype.kind == "i" else value
        drawn = np.asarray(self._rng.normal(size=self._shape) if sample is None else sample)
        if self._dtype.is_bool:
            return np.asarray(drawn > 0)
        if self._dtype.is_integer:
            return np.asarray(drawn * 4).astype(np.int32)
        if self._dtype.is_complex:  # many of them beyond the branch cuts of inverse functions
            drawn = drawn + 4j * self._rng.normal(size=drawn.shape)
        return self._with_specials(drawn.astype(self._dtype.as_numpy_dtype))

    def _with_specials(self, value: Array) -> Array:
        if not self._has_specials or self._dtype.is_complex or self._sample:
            return value
        specials = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], value.dtype)
        chosen = self._rng.random(value.shape) < 0.4
        return np.where(chosen, self._rng.choice(specials, value.shape), value).astype(value.dtype)

    # Comparing

    def _compare(self, actual_values: Sequence[Array], expected_values: Sequence[Array]) -> None:
        for actual, expected in zip(actual_values, expected_values, strict=True):
            if actual.dtype != expected.dtype or actual.shape != expected.shape:
                self._fail(f"{expected.dtype}{expected.shape} became {actual.dtype}{actual.shape}")
            if not _agree(actual, expected, self._rule):
                self._fail(f"{expected} became {actual}")

    def _fail(self, difference: str) -> None:
        fed = {tensor.name: value for tensor, value in self.feeds.items()}
        raise BrokenRule(f"rule {self._rule}: {difference}, of {fed}")


def _agree(actual: Array, expected: Array, rule: Rule) -> bool:
    if expected.dtype.kind not in "fc":
        return bool(np.array_equal(actual, expected))
    if rule.exactness is EXACT:
        is_same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        signs = np.signbit(np.real(actual)) == np.signbit(np.real(expected))
        return bool(np.all(is_same & (signs | np.isnan(expected))))
    is_partial = rule.stabilises or rule.exactness is FINITE
    compared = np.isfinite(expected) if is_partial else np.ones(expected.shape, bool)
    tolerance = 200 * np.finfo(expected.dtype).eps
    pair = actual[compared], expected[compared]
    return bool(np.allclose(*pair, tolerance, tolerance, equal_nan=True))


def evaluate(graph: StepGraph, feeds: Mapping[Tensor, Array]) -> list[Array]:
    """The fetches of a step without state, computed by the NumPy kernels."""
    values = dict(feeds)
    for node in graph.nodes:
        inputs = [values[tensor] for tensor in node.inputs]
        for tensor, value in zip(node.outputs, outputs_of(node, inputs), strict=True):
            values.setdefault(tensor, value)
    return [values[tensor] for tensor in graph.fetches]
