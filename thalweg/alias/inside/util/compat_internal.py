"""`tensorflow.python.util.compat_internal`."""

from __future__ import annotations

import os
from typing import Any


def path_to_str(path: Any) -> Any:
    """The text of a path object; anything else as it is."""
    fspath: Any = os.fspath
    return fspath(path) if hasattr(path, "__fspath__") else path
