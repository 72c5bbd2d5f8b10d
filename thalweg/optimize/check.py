"""Rules held to what they say: graphs that match, drawn at random, before and after.

`check_rule(rule)` builds graphs from the pattern alone, with random shapes, dtypes and values (of
an exact rule also NaN, infinities and zeros of both signs), computes them with the NumPy kernels
before and after the rule, and compares: to the bit for an exact rule, up to rounding for others. It
applies the rule until it does not match any more, which must come soon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.errors import OpError
from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import Graph
from thalweg.graph.node import Tensor
from thalweg.ops.core.basic import constant, placeholder
from thalweg.optimize import verify
from thalweg.optimize.evaluate import outputs_of
from thalweg.optimize.match import RuleIndex
from thalweg.optimize.pattern import EVERY, Apply, Constant, Expression, Literal, Symbol, op
from thalweg.optimize.rule import Exactness, Rule
from thalweg.optimize.step_graph import StepGraph
from thalweg.public import public

Array = NDArray[Any]

_DTYPES = (dtypes.float64, dtypes.float32, dtypes.int32, dtypes.bool, dtypes.complex64)
_MAX_APPLICATIONS = 8  # of a rule to what it made


@public("optimize.BrokenRule")
class BrokenRule(AssertionError):
    """A rule that does not do what it says."""


@public("optimize.RuleCheck")
@dataclass
class RuleCheck:
    """How often a rule was tried and matched, by dtype.

    Args:
        rule: the rule.
        cases: how many graphs were drawn.
        matches: in how many of them the rule applied.
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
    """Hold a rule to its pattern on random graphs.

    Args:
        rule: the rule.
        cases: how many graphs are drawn for each dtype.
        seed: where the draws start.

    Returns:
        How many graphs were drawn, and in how many the rule applied.

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
    found = RuleCheck(rule)
    for dtype in _DTYPES:
        matches = sum(_Case(rule, dtype, rng, number).run() for number in range(cases))
        found.cases += cases
        found.matches += matches
        found.dtypes += (dtype.name,) if matches else ()
    if not found.matches:
        raise BrokenRule(f"rule '{rule.name}' applied to none of {found.cases} graphs")
    return found


class _Case:
    """One graph that matches a rule's pattern."""

    def __init__(self, rule: Rule, dtype: DType, rng: Any, number: int) -> None:
        self._rule, self._dtype, self._rng = rule, dtype, rng
        self._given = dict(rule.sample(rng)) if rule.sample else {}
        self._shape = tuple(int(size) for size in rng.integers(1, 4, rng.integers(0, 4)))
        self._has_specials = rule.exactness is Exactness.EXACT and number % 2 == 1
        self._tensors: dict[str, Tensor] = {}
        self._attributes: dict[str, Any] = {}
        self.feeds: dict[Tensor, Array] = {}

    def run(self) -> int:
        """How often the rule applied."""
        with Graph().as_default():
            try:
                root = self._build(self._rule.pattern)
            except (TypeError, ValueError):
                return 0  # the ops are not made for this dtype
            graph = self._step(root)
        index, count = RuleIndex([self._rule]), 0
        try:
            wanted = evaluate(graph, self.feeds)
        except OpError:
            return 0  # nor are the kernels
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
            self._compare(evaluate(graph, self.feeds), wanted)
        return min(count, 1)

    def _step(self, root: Tensor) -> StepGraph:
        feeds = frozenset(self.feeds)
        nodes = [n for n in root.graph.nodes if not feeds.issuperset(n.outputs)]
        made = StepGraph(nodes, [root], feeds=feeds)
        made.prune()
        return made

    # Building

    def _build(self, pattern: Expression) -> Any:
        if isinstance(pattern, Symbol):
            return self._tensor(pattern.name)
        if isinstance(pattern, Constant):
            return self._tensor(pattern.symbol.name, is_constant=True)
        if isinstance(pattern, Literal):
            shape = self._shape if self._rng.integers(2) and not self._rule.sample else ()
            shape = self._given.get("literal", shape)
            return constant(np.full(shape, pattern.number).astype(self._dtype.as_numpy_dtype))
        applied = cast("Apply", pattern)
        inputs = [self._build(each) for each in applied.inputs]
        attributes = {
            name: self._attribute(value, name) if isinstance(value, Symbol) else value
            for name, value in applied.attributes.items()
        }
        attributes |= attributes.pop(EVERY, {})
        result = getattr(op, applied.kind.type_name)(*inputs, **attributes)
        return cast("Any", result)[0] if isinstance(result, tuple | list) else result

    def _attribute(self, symbol: Symbol, name: str) -> Any:
        if symbol.name in self._given:
            return self._given[symbol.name]
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
                name in self._given and value.dtype.kind == "i" and not self._dtype.is_integer
            )
            if is_constant or is_index:  # what says where elements go is known
                self._tensors[name] = constant(value)
            else:
                tensor = placeholder(as_dtype(value.dtype), value.shape)
                self._tensors[name], self.feeds[tensor] = tensor, value
        return self._tensors[name]

    def _value(self, name: str) -> Array:
        given = self._given.get(name)
        if given is not None and np.asarray(given).dtype.kind in "iub":
            value = np.asarray(given)
            return value.astype(np.int32) if value.dtype.kind == "i" else value
        drawn = np.asarray(self._rng.normal(size=self._shape) if given is None else given)
        if self._dtype.is_bool:
            return np.asarray(drawn > 0)
        if self._dtype.is_integer:
            return np.asarray(drawn * 4).astype(np.int32)
        return self._with_specials(drawn.astype(self._dtype.as_numpy_dtype))

    def _with_specials(self, value: Array) -> Array:
        if not self._has_specials or self._dtype.is_complex or self._given:
            return value
        specials = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], value.dtype)
        chosen = self._rng.random(value.shape) < 0.4
        return np.where(chosen, self._rng.choice(specials, value.shape), value).astype(value.dtype)

    # Comparing

    def _compare(self, found: Sequence[Array], wanted: Sequence[Array]) -> None:
        for one, other in zip(found, wanted, strict=True):
            if one.dtype != other.dtype or one.shape != other.shape:
                self._fail(f"{other.dtype}{other.shape} became {one.dtype}{one.shape}")
            if not _agree(one, other, self._rule):
                self._fail(f"{other} became {one}")

    def _fail(self, what: str) -> None:
        fed = {tensor.name: value for tensor, value in self.feeds.items()}
        raise BrokenRule(f"rule {self._rule}: {what}, of {fed}")


def _agree(found: Array, wanted: Array, rule: Rule) -> bool:
    if wanted.dtype.kind not in "fc":
        return bool(np.array_equal(found, wanted))
    if rule.exactness is Exactness.EXACT:
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        signs = np.signbit(np.real(found)) == np.signbit(np.real(wanted))
        return bool(np.all(same & (signs | np.isnan(wanted))))
    is_partial = rule.stabilises or rule.exactness is Exactness.FINITE
    judged = np.isfinite(wanted) if is_partial else np.ones(wanted.shape, bool)
    room = 200 * np.finfo(wanted.dtype).eps
    return bool(np.allclose(found[judged], wanted[judged], room, room, equal_nan=True))


def evaluate(graph: StepGraph, feeds: Mapping[Tensor, Array]) -> list[Array]:
    """What a step without state gives, by the NumPy kernels of its nodes."""
    values = dict(feeds)
    for node in graph.nodes:
        inputs = [values[tensor] for tensor in node.inputs]
        for tensor, value in zip(node.outputs, outputs_of(node, inputs), strict=True):
            values.setdefault(tensor, value)
    return [values[tensor] for tensor in graph.fetches]
