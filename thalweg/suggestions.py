"""What a misspelt name was probably meant to be."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

_SIMILAR = 0.7  # of the letters in the same order: "rleu" is "relu", "tanh" is not "atan2"
_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'$")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The most similar of some names, if one is similar; capitals count for little."""
    by_letters = {other.lower(): other for other in sorted(known, key=str.islower)}
    found = get_close_matches(name.lower(), by_letters, 1, _SIMILAR)
    return by_letters[found[0]] if found else None


def name_keyword(error: TypeError, function: Callable[..., Any]) -> None:
    """Add to the error of a call with an unknown keyword which one was probably meant."""
    unknown = _UNEXPECTED.search(str(error))
    if unknown is None:
        return
    meant = closest(unknown[1], inspect.signature(function).parameters)
    if meant is not None:
        error.args = (f"{error}. Did you mean '{meant}'?",)
