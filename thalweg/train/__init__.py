"""What users train with: optimizers, schedules, averages, clipping, queues that feed, coordination.

Importing this package registers its public names.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
