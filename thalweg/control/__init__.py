"""Conditionals, loops and lists in the graph: nodes that hold sub-graphs, and their gradients.

Importing this package registers its public names.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
