"""Every rule, checked on random graphs that are drawn from its pattern."""

from __future__ import annotations

import pytest

from tests.random_graphs import SOAKING
from thalweg.optimize.check import BrokenRule, check_rule
from thalweg.optimize.facts import is_float
from thalweg.optimize.pattern import op
from thalweg.optimize.rule import Rule
from thalweg.optimize.rules.every import BY_PASS

EVERY = [each for rules in BY_PASS.values() for each in rules]
CASES = 200 if SOAKING else 4


@pytest.mark.parametrize("each", EVERY, ids=[each.name for each in EVERY])
def test_a_rule_does_what_it_says(each: Rule) -> None:
    check_rule(each, CASES)


def test_rules_have_names_of_their_own() -> None:
    assert len({each.name for each in EVERY}) == len(EVERY)


def test_a_wrong_rule_is_found() -> None:
    wrong = Rule("wrong", lambda x: op.Neg(x), lambda x: x)
    with pytest.raises(BrokenRule, match="became"):
        check_rule(wrong)


def test_a_rule_that_only_rounds_is_not_exact() -> None:
    rounds = Rule(
        "rounds",
        lambda x: op.Reciprocal(op.Reciprocal(x)),
        lambda x: x,
        dtypes=is_float,
    )
    with pytest.raises(BrokenRule, match="became"):
        check_rule(rounds)


def test_a_rule_without_end_is_found() -> None:
    endless = Rule("endless", lambda x, y: x + y, lambda x, y: y + x)
    with pytest.raises(BrokenRule, match="without end"):
        check_rule(endless)


def test_a_rule_that_never_applies_is_found() -> None:
    never = Rule("never", lambda x: op.Neg(x), lambda x: -x, lambda match: False)
    with pytest.raises(BrokenRule, match="none of"):
        check_rule(never)


def test_a_replacement_takes_only_symbols_of_the_pattern() -> None:
    with pytest.raises(TypeError, match="no symbol 'y'"):
        Rule("unbound", lambda x: op.Neg(x), lambda y: y)
