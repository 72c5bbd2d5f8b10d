"""The operations: a folder per subject, a file per family, a block per op.

Importing this package registers every op and its public names.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
