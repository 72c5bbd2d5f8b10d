"""What each operation means: one file per family, one block per op.

Importing this package registers every op and its public names.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
