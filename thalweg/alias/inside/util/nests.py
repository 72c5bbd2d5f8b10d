"""Private functions of `tensorflow.python.util.nest`."""

from __future__ import annotations

from typing import Any, cast


def _is_namedtuple(instance: Any, strict: bool = False) -> bool:  # pyright: ignore[reportUnusedFunction] - found by name
    """Whether a tuple has named fields."""
    kind = cast("Any", type(instance))
    if tuple not in kind.__mro__ or not isinstance(getattr(kind, "_fields", None), tuple):
        return False
    return not strict or kind.__base__ is tuple
