"""Thalweg: a deep-learning system in pure Python. `import thalweg as tf`."""

import sys as _sys
from typing import Any as _Any

from thalweg import autodiff, errors, graph, ops, platform, public, runtime  # pyright: ignore[reportUnusedImport] - importing registers their public names
from thalweg.version import __version__

public.install(_sys.modules[__name__])


def __getattr__(name: str) -> _Any:
    """Public names are installed from the registry; this one tells what is missing."""
    raise AttributeError(f"module 'thalweg' has no attribute {name!r}")
