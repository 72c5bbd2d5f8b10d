"""Writes docs/optimizer_rules.md from the code: passes, rules, what TensorFlow's optimiser does."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import thalweg  # noqa: F401 - importing registers the ops that patterns name
from thalweg.optimize.pipeline import PASSES
from thalweg.optimize.rule import Rule
from thalweg.optimize.rules.every import BY_PASS
from tools.grappler_cases import GROUNDS, OPTIMISERS

HEADER = """# The optimiser's passes and rules

Generated from the code by `make docs`; do not edit. [The optimiser](optimizer.md) tells how it
works and how to add to it.
"""

RULES = """
## Rules

*Exact*: the same values to the bit, NaN, infinities and signs of zero too. *Rounding*: the same up
to rounding, or more exact. Every rule is held to this on random graphs drawn from its pattern.
"""

GRAPPLER = """
## What TensorFlow's optimiser does

Each case that the tests of TensorFlow's graph optimiser describe, with what answers to it here.
"""


def document() -> str:
    """The whole page."""
    parts = [HEADER, *_passes(), RULES, *_rules(), GRAPPLER, *_cases()]
    return "\n".join(parts) + "\n"


def _passes() -> Iterator[str]:
    yield "\n## Passes, in their order\n\n| pass | switch | why |\n|---|---|---|"
    for each in PASSES:
        state = f" ({each.needs.name})" if each.needs else ""
        yield f"| `{each.name}` | `{each.switch}`{state} | {each.reason} |"


def _rules() -> Iterator[str]:
    every = [each for rules in BY_PASS.values() for each in rules]
    counts = Counter(each.exactness.value for each in every)
    yield f"{len(every)} rules: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()) + ".\n"
    yield "| rule | pass | class | pattern |\n|---|---|---|---|"
    for name, rules in BY_PASS.items():
        for each in rules:
            yield f"| {each.name} | `{name}` | {each.exactness.value} | `{_pattern(each)}` |"


def _pattern(rule: Rule) -> str:
    return str(rule.pattern).replace("|", "\\|")


def _cases() -> Iterator[str]:
    every = [answer for cases in OPTIMISERS.values() for answer in cases.values()]
    kinds = Counter(answer.partition(" ")[0] for answer in every)
    yield (
        f"{len(every)} cases: {kinds['rule']} by a rule, {kinds['pass']} by a pass, "
        f"{kinds['ground']} that need nothing here.\n"
    )
    yield "| ground | why nothing is done |\n|---|---|"
    for name, why in GROUNDS.items():
        yield f"| {name} | {why} |"
    for title, cases in OPTIMISERS.items():
        yield f"\n### {title.capitalize()}\n\n| case | here |\n|---|---|"
        for case, answer in cases.items():
            yield f"| {case} | {_answer(answer)} |"


def _answer(answer: str) -> str:
    kind, _, name = answer.partition(" ")
    return {"pass": f"`{name}`", "rule": name, "ground": f"nothing to do: {name}"}[kind]


def unknown_answers() -> list[str]:
    """Answers that name no pass, rule or ground."""
    known: Mapping[str, set[str]] = {
        "pass": {each.name for each in PASSES},
        "rule": {each.name for rules in BY_PASS.values() for each in rules},
        "ground": {*GROUNDS},
    }
    result: list[str] = []
    for cases in OPTIMISERS.values():
        for case, answer in cases.items():
            kind, _, name = answer.partition(" ")
            if name not in known[kind]:
                result.append(f"{case}: {answer}")
    return result


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, nargs="?", help="where to write it")
    page: Path | None = parser.parse_args().page
    faults = unknown_answers()
    if faults:
        raise SystemExit("\n".join(faults))
    if page is None:
        print(document())
    else:
        page.write_text(document())


if __name__ == "__main__":
    main()
