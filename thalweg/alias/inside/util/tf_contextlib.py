"""`tensorflow.python.util.tf_contextlib`."""

from __future__ import annotations

import contextlib
from typing import Any

from thalweg.alias.inside.util.tf_decorator import make_decorator


def contextmanager(target: Any) -> Any:
    """Python's contextmanager, which `tf_decorator.unwrap` sees through."""
    return make_decorator(target, contextlib.contextmanager(target), "contextmanager")
