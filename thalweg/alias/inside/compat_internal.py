"""`tensorflow.python.util.compat_internal`."""

from __future__ import annotations

import os
from typing import Any, cast


def path_to_str(path: Any) -> Any:
    """The text of a path object; anything else as it is."""
    return os.fspath(cast("Any", path)) if hasattr(path, "__fspath__") else path
