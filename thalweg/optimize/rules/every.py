"""All rules, by the pass that applies them."""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.optimize.rule import Rule
from thalweg.optimize.rules import (
    arithmetic,
    involutions,
    neutral,
    pooling,
    products,
    push_down,
    relaxed,
    remapping,
    shapes,
    stable,
    weights,
)

BY_PASS: Mapping[str, tuple[Rule, ...]] = {
    "stable_forms": stable.RULES,
    "neutral_elements": neutral.RULES,
    "moves": shapes.RULES,
    "involutions": involutions.RULES,
    "arithmetic": (*arithmetic.RULES, *pooling.RULES),
    "relaxed_arithmetic": relaxed.RULES,
    "push_constants_down": push_down.RULES,
    "remapping": remapping.RULES,
    "products": (*products.RULES, *weights.RULES),
}
