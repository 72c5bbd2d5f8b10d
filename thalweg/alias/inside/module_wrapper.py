"""`tensorflow.python.util.module_wrapper`: modules that warn of old names; here they do not."""

from __future__ import annotations

from types import ModuleType
from typing import Any


def TFModuleWrapper(wrapped: ModuleType, *_: Any, **__: Any) -> ModuleType:
    """The module itself."""
    return wrapped
