"""Rules and passes of the user: they run with the pipeline, in every step planned after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thalweg.graph.dtypes import DType
from thalweg.optimize.match import RuleIndex
from thalweg.optimize.pattern import SymbolFunction, const, op
from thalweg.optimize.rule import Exactness, Match, Rule, always, any_dtype, rule
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
    """Have the optimiser replace what a pattern matches, in all steps planned from now on.

    Args:
        name: what the rule is called in plans; one of the same name is replaced.
        pattern: a function of symbols that gives an expression of ops: Python's operators, numbers,
            `tf.optimize.op.<Name>` for any op and `tf.optimize.const` for constants.
        replacement: a function of symbols of the same names, which are tensors now.
        when: what must hold of a match besides.
        exact: whether the values are the same to the bit, NaN and signs of zero too.
        dtypes: the dtypes it is for.
        single_use: only where nothing else uses what is inside the pattern.
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
    exactness = Exactness.EXACT if exact else Exactness.ROUNDING
    made = rule(name, exactness, pattern, replacement, when, dtypes, single_use, sample)
    _rules[name] = made
    return made


@public("optimize.register_pass")
def register_pass(name: str, function: CustomPass) -> None:
    """Have the optimiser run a pass of your own, in all steps planned from now on.

    Args:
        name: what the pass is called in plans; one of the same name is replaced.
        function: takes a step (`tf.optimize.StepGraph`) and changes it: `step.build(node, make)`
            has graph code make nodes before a node, `step.replace(old, new)` has all that takes a
            tensor take another one.

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
    """Forget a rule or pass of the user.

    Args:
        name: what it was registered as.

    Example:
        >>> tf.optimize.register_pass("nothing", lambda step: step)
        >>> tf.optimize.unregister("nothing")
    """
    _rules.pop(name, None)
    _passes.pop(name, None)


def are_any_registered() -> bool:
    """Whether the user has rules or passes."""
    return bool(_rules or _passes)


def run_custom_rules(graph: StepGraph) -> None:
    """Apply the rules of the user."""
    if _rules:
        RuleIndex(_rules.values()).apply(graph)


def run_custom_passes(graph: StepGraph) -> None:
    """Run the passes of the user."""
    for name, function in _passes.items():
        before = len(graph.changes)
        if function(graph) not in (graph, None):
            raise TypeError(f"The pass '{name}' must change the step it is given, and return that")
        graph.fired[name] += len(graph.changes) > before
