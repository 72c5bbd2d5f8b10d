"""Eager execution, gradient tapes and `@tf.function`.

Importing this package registers its public names.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
