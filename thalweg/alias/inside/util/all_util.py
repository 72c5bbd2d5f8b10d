"""`tensorflow.python.util.all_util`: which names of a module are public."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

_REFERENCE = re.compile(r"^@@(\w+)$", re.MULTILINE)


def make_all(module_name: str, doc_string_modules: list[ModuleType] | None = None) -> list[str]:
    """The names that the docstring of a module lists as `@@name`."""
    modules = doc_string_modules or [sys.modules[module_name]]
    listed = {name for module in modules for name in _REFERENCE.findall(module.__doc__ or "")}
    return sorted(listed & set(dir(sys.modules[module_name])))


def remove_undocumented(*_: Any, **__: Any) -> None:
    """Nothing is removed: a name too many harms nobody."""


def reveal_undocumented(*_: Any, **__: Any) -> None:
    """Nothing was removed."""
