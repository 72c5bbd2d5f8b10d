"""The table of call specs, one module for each family of functions."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module here: each registers its specs."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
