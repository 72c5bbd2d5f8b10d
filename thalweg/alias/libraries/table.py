"""The libraries that are known."""

from __future__ import annotations

from typing import Final

from thalweg.alias.libraries import edward, estimator, keras, slim, sonnet
from thalweg.alias.libraries.library import Library, Patch

LIBRARIES: Final[tuple[Library, ...]] = (
    keras.LIBRARY,
    slim.LIBRARY,
    estimator.LIBRARY,
    sonnet.LIBRARY,
    edward.LIBRARY,
)


def patches() -> list[Patch]:
    """The patches of all libraries."""
    return [patch for library in LIBRARIES for patch in library.patches]
