"""`tensorflow.python.util.lazy_loader`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyLoader(ModuleType):
    """A module that is imported when a name is first asked of it."""

    def __init__(
        self, local_name: str, parent_module_globals: Any, name: str, warning: str | None = None
    ) -> None:
        super().__init__(name)
        self._local_name, self._globals = local_name, parent_module_globals

    def __getattr__(self, item: str) -> Any:
        module = importlib.import_module(self.__name__)
        self._globals[self._local_name] = module
        return getattr(module, item)
