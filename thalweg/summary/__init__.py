"""What a run tells about itself: summaries, event files and who writes them.

Importing this package registers its public names.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
