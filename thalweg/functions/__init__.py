"""Python functions as graphs, and code that runs as it is written.

Importing this package registers its public names.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
