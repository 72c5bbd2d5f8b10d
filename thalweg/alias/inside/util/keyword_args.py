"""`tensorflow.python.util.keyword_args`."""

from __future__ import annotations

import functools
from typing import Any


def keyword_args_only(func: Any) -> Any:
    """Refuse arguments by position."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if args:
            raise ValueError(f"Must use keyword args to call {func.__name__}.")
        return func(**kwargs)

    return wrapper
