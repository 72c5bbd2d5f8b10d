"""The table of rules: it is what the code says, and answers to every case with something real."""

from __future__ import annotations

from pathlib import Path

from tools.grappler_cases import GROUNDS, OPTIMISERS
from tools.optimizer_table import document, unknown_answers

PAGE = Path(__file__).parents[2] / "docs" / "optimizer_rules.md"


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == document(), "make docs writes it"


def test_every_answer_is_a_pass_a_rule_or_a_ground() -> None:
    assert unknown_answers() == []


def test_every_ground_is_used() -> None:
    answers = {answer for cases in OPTIMISERS.values() for answer in cases.values()}
    assert {f"ground {name}" for name in GROUNDS} <= answers
