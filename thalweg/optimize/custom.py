"""Rules and passes of users: they run with the pipeline, in every step planned after
registration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thalweg.graph.dtypes import DType
from thalweg.optimize.match import RuleIndex
from thalweg.optimize.pattern import SymbolFunction, const, op
from thalweg.optimize.rule import Match, Rule, always, any_dtype, rounding
from thalweg.optimize.step_graph import StepGraph
from thalweg.public import public, publish_value

publish_value("optimize.op", op)
public("optimize.const")(const)
public("optimize.Match")(Match)
public("optimize.Rule")(Rule)
public("optimize.StepGraph")(StepGraph)

CustomPass = Callable[[StepGraph], "StepGraph | None"]

_rules: dict[str, Rule] = {}
_passes: dict[str, CustomPass] = {}


@public("optimize.register_rule")
def register_rule(
    name: str,
    pattern: SymbolFunction,
    replacement: SymbolFunction,
    when: Callable[[Match], bool] = always,
    exact: bool = False,
    dtypes: Callable[[DType], bool] = any_dtype,
    single_use: bool = False,
    sample: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Rule:
    """Register a rewrite rule for all steps planned from now on.

    Args:
        name: the name of the rule in plans; one of the same name is replaced.
        pattern: a function of symbols that returns an expression of ops: Python's operators,
            numbers, `tf.optimize.op.<Name>` for any op and `tf.optimize.const` for constants.
        replacement: a function of the tensors that the symbols of the same names are bound to.
        when: an additional condition on a match.
        exact: whether the values are equal bit for bit, including NaN and the signs of zeros.
        dtypes: the dtypes that it applies to.
        single_use: whether nothing else may use the inner nodes of a match.
        sample: draws values for symbols with a NumPy generator, for `tf.optimize.check_rule`.

    Returns:
        The rule.

    Example:
        >>> op = tf.optimize.op
        >>> rule = tf.optimize.register_rule(
        ...     "exp of a sum", lambda x, y: op.Exp(x) * op.Exp(y), lambda x, y: tf.exp(x + y))
        >>> tf.optimize.check_rule(rule).matches > 0
        True
        >>> tf.optimize.unregister("exp of a sum")
    """
    make = Rule if exact else rounding
    _rules[name] = make(name, pattern, replacement, when, dtypes, single_use, sample)
    return _rules[name]


@public("optimize.register_pass")
def register_pass(name: str, function: CustomPass) -> None:
    """Register a pass for all steps planned from now on.

    Args:
        name: the name of the pass in plans; one of the same name is replaced.
        function: takes a step (`tf.optimize.StepGraph`) and changes it: `step.build(node, make)`
            inserts the nodes that graph code builds before a node, `step.replace(old, new)`
            replaces a tensor in all its uses.

    Example:
        >>> seen = []
        >>> def count(step):
        ...     seen.append(len(step.nodes))
        >>> tf.optimize.register_pass("count", count)
        >>> _ = sess.run(tf.constant(1.0) + tf.placeholder_with_default(2.0, []))
        >>> len(seen) > 0
        True
        >>> tf.optimize.unregister("count")
    """
    _passes[name] = function


@public("optimize.unregister")
def unregister(name: str) -> None:
    """Unregister a rule or pass.

    Args:
        name: the name that it was registered with.

    Example:
        >>> tf.optimize.register_pass("nothing", lambda step: step)
        >>> tf.optimize.unregister("nothing")
    """
    _rules.pop(name, None)
    _passes.pop(name, None)


def are_any_registered() -> bool:
    """Whether the user has rules or passes."""
    return bool(_rules or _passes)


def custom_rules(graph: StepGraph) -> None:
    """Apply the registered rules."""
    if _rules:
        RuleIndex(_rules.values()).apply(graph)


def custom_passes(graph: StepGraph) -> None:
    """Run the registered passes."""
    for name, function in _passes.items():
        before = len(graph.changes)
        if function(graph) not in (graph, None):
            raise TypeError(f"The pass '{name}' must change the step it is given, and return that")
        graph.fired[name] += len(graph.changes) > before
