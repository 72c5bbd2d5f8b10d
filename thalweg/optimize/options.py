"""Which passes run: switches by name, as a session's `rewrite_options` set them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class Toggle(IntEnum):
    """The state of a switch, by its number in a RewriterConfig."""

    DEFAULT = 0
    ON = 1
    OFF = 2
    AGGRESSIVE = 3


@dataclass(frozen=True)
class OptimizerSwitches:
    """The switches of a session. Those that it does not name have the default state."""

    enabled: bool = True
    toggles: Mapping[str, Toggle] = field(default_factory=dict[str, Toggle])
    #: names of passes that are off
    without: frozenset[str] = frozenset()

    def is_on(self, switch: str, needs: Toggle = Toggle.DEFAULT) -> bool:
        """Whether the passes of a switch run that need a state: DEFAULT is any state but OFF, and
        AGGRESSIVE includes ON."""
        state = self.toggles.get(switch, Toggle.DEFAULT)
        if needs is Toggle.DEFAULT:
            return state is not Toggle.OFF
        return state is Toggle.AGGRESSIVE or state is needs


def switches_of(text: str) -> OptimizerSwitches:
    """The switches in `THALWEG_OPTIMIZE`: 0 is no pass at all, `-name,-name` all but these.

    >>> switches_of("-arithmetic,-moves").without == {"arithmetic", "moves"}
    True
    """
    if text.strip() == "0":
        return OptimizerSwitches(enabled=False)
    names = [name.strip() for name in text.split(",")]
    return OptimizerSwitches(without=frozenset(n[1:] for n in names if n.startswith("-")))


DEFAULT = switches_of(os.environ.get("THALWEG_OPTIMIZE", ""))

#: The switches of TensorFlow's RewriterConfig that control passes.
SWITCHES = (
    "arithmetic_optimization",
    "auto_mixed_precision",
    "common_subgraph_elimination",
    "constant_folding",
    "dependency_optimization",
    "layout_optimizer",
    "loop_optimization",
    "remapping",
    "shape_optimization",
)
